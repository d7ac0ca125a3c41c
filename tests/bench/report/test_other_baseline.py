"""Texts of a run whose speed-ups refer to another decoder than ar."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from bench.extras.cost.explain import explain
from bench.extras.exports.formats import github_action
from bench.extras.index.index import write_index
from bench.extras.paper.table import PaperLayout
from bench.extras.paper.write import write_paper
from bench.extras.sessions.pooled import Pool, PooledRun, table
from bench.extras.together.page import write_joint
from bench.extras.together.runs import load_members
from bench.records.run_folder import load_run
from bench.report.figures import dots
from bench.report.figures.gallery import Gallery, draw_all
from bench.report.findings import Findings
from bench.report.write import print_findings
from bench.stats.side import load_side
from tests.bench.conftest import over_spec, tables_of, write_run

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return over_spec(write_run(folder, {"spec": 3.0, "ptp": 4.0}))


@pytest.fixture(scope="module")
def made(run: Path) -> Gallery:
    return draw_all(Findings(load_run(run)))


def test_captions_name_the_baseline_that_is_drawn(made: Gallery) -> None:
    assert made.captions["speedup"].startswith("Speed-up over spec by decoder: ")
    assert made.plots["speedup"][0].axes[0].get_title("right").startswith("line: spec, ")
    assert not any("over ar" in caption for caption in made.captions.values())


def test_the_noise_floor_of_a_run_among_several_names_its_baseline(
    run: Path, tmp_path: Path
) -> None:
    again = over_spec(write_run(tmp_path / "again", {"spec": 3.0, "ptp": 4.0}, seed=1))
    write_joint(load_members([str(run), str(again)], tmp_path), tmp_path / "joint")
    text = (tmp_path / "joint" / "report.md").read_text(encoding="utf-8")
    assert text.count("A/A noise floor: spec against a second spec measures") == 2


def test_the_reason_for_a_missing_figure_names_the_baseline(run: Path) -> None:
    records = [r for r in load_run(run).records if r.decoder.startswith("spec")]
    (run.parent / "alone").mkdir()
    for file in ("manifest.json", "env.json", "run.json", "config.toml"):
        (run.parent / "alone" / file).write_bytes((run / file).read_bytes())
    lines = "".join(record.to_json() + "\n" for record in records)
    (run.parent / "alone" / "samples.jsonl").write_text(lines)
    left_out = draw_all(Findings(load_run(run.parent / "alone"))).left_out
    assert "speedup (no decoder was timed against spec)" in left_out


def test_every_caption_has_its_sample(made: Gallery) -> None:
    timed = "n = 14 prompts x 2 repeats in 12 clusters"
    assert all(timed in caption for caption in made.captions.values())
    held_out = {name for name, text in made.captions.items() if "held-out prompts" in text}
    assert held_out == {"quality_speed"}


@pytest.mark.usefixtures("saved")
def test_figures_of_a_paper_name_the_baseline_and_leave_out_the_reference_row(run: Path) -> None:
    members = load_members([str(run)], run)
    speedups, tokens = (dots.dots_figure(members, m, 3.25) for m in (dots.SPEEDUP, dots.TOKENS))
    assert speedups is not None
    assert tokens is not None
    assert speedups[0].get_supxlabel() == "speed-up over spec, 95 % interval"
    assert set(speedups[1]["decoder"]) == {"ar", "ptp"}
    assert set(tokens[1]["decoder"]) == {"spec", "ptp"}


@pytest.mark.usefixtures("saved")
def test_the_caption_of_a_papers_table_names_the_baseline(run: Path, tmp_path: Path) -> None:
    layout = PaperLayout(venue="icml", labels={"spec": "draft_1"})
    write_paper(load_members([str(run)], tmp_path), tmp_path, layout)
    text = (tmp_path / "main.tex").read_text()
    assert r"speed-up over draft\_1 (geometric mean" in text
    assert r"draft\_1 against a second draft\_1 in the same run: " in text
    assert "autoregressive" not in text


def test_the_index_page_the_exports_and_the_pooled_table_name_the_baseline(run: Path) -> None:
    findings = Findings(load_run(run))
    (run / "summary.csv").write_text(findings.summary.to_csv(index=False))
    text = write_index(run.parent)[0].read_text()
    assert "<td>over spec: ar 0." in text
    assert b'"ptp: speed-up over spec"' in github_action(findings)["bigger-is-better.json"]
    sessions = [PooledRun(load_side(str(run), run))] * 2
    assert table(Pool(sessions)).note.startswith("Speed-up over spec: ")


def test_the_terminal_has_no_empty_line_where_ar_is_not_measured(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"spec": 3.0, "ptp": 4.0})
    for name in ("manifest.json", "samples.jsonl"):
        text = (run / name).read_text().replace('"ar@aa"', '"dllm@aa"').replace('"ar"', '"dllm"')
        (run / name).write_text(text)
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        print_findings(Findings(load_run(run)), console)
    printed = capture.get().rstrip()
    assert "A/A noise floor: dllm against a second dllm" in printed
    assert "\n\n" not in printed[printed.index("A/A noise floor") :]


def test_notes_of_tables_speak_of_the_baseline_and_not_of_ar(run: Path) -> None:
    notes = [t.note for tables in tables_of(Findings(load_run(run))).values() for t in tables]
    assert any("Ratio of totals: the baseline's seconds per token " in note for note in notes)
    assert not any("Ar's seconds" in note for note in notes)


def test_an_explanation_begins_with_the_baseline(run: Path) -> None:
    told = explain(Findings(load_run(run)))
    assert re.match(r"spec: [\d.]+ ms a token", told[1])
    assert told[2].startswith("ar: ")
    assert "ar tokens" not in " ".join(told)

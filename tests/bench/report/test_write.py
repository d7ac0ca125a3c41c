"""Reports: every file is there, says what it rests on, and is a pure function of the records."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from bench.errors import BenchError
from bench.records.run_folder import load_run
from bench.report.figures import gallery
from bench.report.figures.style import PAPER
from bench.report.findings import Findings
from bench.report.tables import main
from bench.report.tables.table import Table, TableCell
from bench.report.write import print_findings, print_next, write_report
from bench.stats.intervals import LEVEL
from bench.stats.metrics import summary_rows
from tests.bench.conftest import REPORTED, tables_of, write_run
from tests.conftest import only_svg

CELLS = {"spec": 3.0, "ptp": 4.0}
FIGURES = ("speedup", "quality_speed", "acceptance_by_position", "latency")
Write = Callable[..., Path]


def printed(path: Path, width: int = 100, *, wide: bool = False) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        print_findings(Findings(load_run(path)), console, wide=wide)
    return capture.get()


def test_every_file_of_the_contract_is_written_and_not_empty(reported_run: Path) -> None:
    names = ["samples.parquet", "summary.csv", "report.md", "report.html"]
    names += ["tables/acceptance_by_position.csv"]
    names += [f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "pdf", "svg")]
    names += [f"figures/data/{name}.csv" for name in FIGURES]
    for name in names:
        least = 1 if name.endswith(("png", "pdf")) else 50  # those two are not drawn
        assert (reported_run / name).stat().st_size >= least, name
    left = [p.name for p in reported_run.rglob(".*")]
    assert left == []


@pytest.mark.slow
@pytest.mark.usefixtures("saved")
def test_figures_of_every_kind_are_the_same_bytes_twice_and_not_empty(tmp_path: Path) -> None:
    once, again = (write_run(tmp_path / place / "run", REPORTED) for place in ("a", "b"))
    write_report(once)
    write_report(again)
    for name in FIGURES:
        for kind in ("png", "pdf", "svg"):
            file = f"figures/{name}.{kind}"
            assert (once / file).read_bytes() == (again / file).read_bytes(), file
            assert (once / file).stat().st_size > 1000, file


@pytest.mark.usefixtures("saved")
@pytest.mark.slow
def test_writing_twice_gives_the_same_bytes(reported_run: Path, tmp_path: Path) -> None:
    inputs = ("manifest.json", "config.toml", "env.json", "run.json", "samples.jsonl", "vocab.json")
    again = tmp_path / reported_run.name
    again.mkdir()
    for name in inputs:
        shutil.copy(reported_run / name, again / name)
    with only_svg():
        write_report(again)
    written = [p.relative_to(again) for p in again.rglob("*") if p.is_file()]
    assert len(written) > 20
    for file in written:
        assert (again / file).read_bytes() == (reported_run / file).read_bytes(), file


def test_the_summary_file_leaves_unknown_empty(reported_run: Path) -> None:
    frame = pd.read_csv(reported_run / "summary.csv")
    baseline = frame[frame["decoder"] == "ar"]
    assert baseline["acceptance_rate"].isna().all()
    lines = (reported_run / "summary.csv").read_text().splitlines()
    assert "nan" not in " ".join(lines).lower()
    assert "ar@aa" not in " ".join(lines)


def test_the_samples_file_has_one_row_per_record(reported_run: Path) -> None:
    frame = pd.read_parquet(reported_run / "samples.parquet")
    run = load_run(reported_run)
    assert len(frame) == len(run.records)
    assert run.records[5].steps is not None
    assert list(frame["steps_emitted"][5]) == list(run.records[5].steps.emitted)
    assert {"score_bleu", "score_rouge_l", "steps_target_rows"} <= set(frame.columns)


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_the_report_states_estimand_sample_size_verdict_and_floor(
    reported_run: Path, name: str
) -> None:
    text = (reported_run / name).read_text(encoding="utf-8")
    for words in (
        "geometric mean over prompts",
        "n = 14 prompts x 2 repeats in 12 clusters",
        "Verdict of the run: VALID",
        "A/A noise floor: ar against a second ar measures",
        "tokens per step",
        "1 prompt skipped",
        "bench run --config a-run/config.toml",
        "corpus BLEU",
        "packages.torch",
    ):
        assert words in text.replace("<wbr>", ""), words
    assert str(reported_run.parent) not in text


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_verdict_and_noise_floor_are_stated_once(reported_run: Path, name: str) -> None:
    text = (reported_run / name).read_text(encoding="utf-8")
    assert text.count("A/A noise floor: ar against") == 1
    assert len(re.findall("[Vv]erdict[^.]*: VALID", text)) == 1


needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("pdftotext") is None,
    reason="needs chromium and pdftotext",
)


@pytest.mark.slow
@needs_chromium
def test_the_page_prints_on_a4_with_all_of_its_columns(reported_run: Path, tmp_path: Path) -> None:
    page, pdf = reported_run / "report.html", tmp_path / "report.pdf"
    printing = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-pdf-header-footer",
    )
    subprocess.run(
        [
            "chromium",
            *printing,
            f"--user-data-dir={tmp_path}",
            f"--print-to-pdf={pdf}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    boxes = subprocess.run(
        ["pdftotext", "-bbox", "-l", "2", str(pdf), "-"], check=True, capture_output=True, text=True
    ).stdout
    width = float(re.findall(r'<page width="([\d.]+)"', boxes)[0])
    assert width == pytest.approx(297 / 25.4 * 72, abs=1)
    words = re.findall(r'xMin="([\d.]+)" [^>]*xMax="([\d.]+)"[^>]*>([^<]+)<', boxes)
    assert "errors" in {word for *_, word in words}
    assert max(float(right) for _, right, _ in words) < width - 12 / 25.4 * 72 + 1


def test_only_intervals_that_exclude_1_are_bold(synthetic_run: Write) -> None:
    findings = Findings(load_run(synthetic_run({"spec": 3.0, "spec@same": 1.0})))
    speeds = {row[0].text: row[2] for row in findings.headline.rows}
    assert speeds["spec"].bold
    assert not speeds["spec@same"].bold
    assert not speeds["ar"].bold


def test_markdown_tables_escape_bars_and_mark_bold() -> None:
    table = Table(
        title="t", note="", headings=("a", "b"), rows=((TableCell("x|y"), TableCell("2", True)),)
    )
    assert table.to_markdown().splitlines() == ["| a | b |", "| --- | ---: |", "| x\\|y | **2** |"]


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_is_reported_as_far_as_it_got(synthetic_run: Write) -> None:
    path = synthetic_run(status={}, quality=0)
    lines = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    (path / "samples.jsonl").write_text(
        "".join(lines[:14])
    )  # three blocks and a half, of four arms
    write_report(path)
    text = (path / "report.md").read_text()
    assert "3 of 28 timing blocks" in text
    assert "**INCOMPLETE**" in text
    assert "25 of 28 timing blocks were not measured" in text
    assert "No quality was scored" in text
    assert set(pd.read_csv(path / "summary.csv")["decoder"]) == {"ar", "spec", "ptp"}
    assert not (path / "figures" / "quality_speed.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_repair_line_describes_the_folder_to_run_in_without_a_path(
    synthetic_run: Write,
) -> None:
    path = synthetic_run(status={}, quality=0)
    (path / "samples.jsonl").write_text("")
    write_report(path)
    line = "`bench resume run` (in the folder that holds the run) measures the rest"
    for text in (printed(path, 1000), (path / "report.md").read_text()):
        assert line in text.replace("\\", "")
        assert str(path.parent) not in text


def test_a_run_without_records_gives_an_empty_report(synthetic_run: Write) -> None:
    path = synthetic_run()
    (path / "samples.jsonl").unlink()
    write_report(path)
    assert "Not measured: ar, spec, ptp" in (path / "report.md").read_text()
    assert pd.read_csv(path / "summary.csv").empty
    assert "nothing is measured yet" in printed(path)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_errors_and_reasons_stand_in_the_report_and_the_terminal(synthetic_run: Write) -> None:
    status = {"status": "complete", "verdict": "INVALID", "reasons": ["a broken invariant"]}
    path = synthetic_run(status=status, quality=0)
    lines = (path / "samples.jsonl").read_text().splitlines()
    row = json.loads(lines[2])
    row |= {"error": "RuntimeError: boom", "tokens": None, "steps": None, "total_s": None}
    lines[2] = json.dumps(row)
    (path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    write_report(path)
    for text in ((path / "report.md").read_text(), printed(path, 120, wide=True)):
        assert "INVALID" in text
        assert "Reason: a broken invariant" in text
        assert "spec failed on 1 answer, e.g." in text
        assert "RuntimeError: boom" in text
        assert "1 pair dropped for errors" in " ".join(text.split())
        assert "errors" in text


def with_records(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The run with every record changed in place."""
    rows = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    for row in rows:
        change(row)
    (path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fail_quality_of(decoder: str, *families: str, held: str = "-held-") -> Callable[..., None]:
    """Fails a decoder's quality answers to conversations of some families."""

    def change(row: dict[str, Any]) -> None:
        chosen = row["family"] in families and held in row["conversation"]
        if (row["kind"], row["decoder"]) == ("quality", decoder) and chosen:
            row |= {"error": "TimeoutError: late", "tokens": None, "text": None, "steps": None}
            row["scores"] = None

    return change


def test_a_decoder_with_unscored_families_has_no_overall_quality_and_a_caveat_names_them(
    synthetic_run: Write,
) -> None:
    path = with_records(synthetic_run(), fail_quality_of("spec", "math_reasoning", "rag"))
    findings = Findings(load_run(path))
    quality = {row[0].text: row[-1].text for row in tables_of(findings)["quality"][0].rows}
    assert quality["spec"] == "-"
    assert quality["ptp"] != "-"
    missing = "spec has no quality over all families: nothing scored in math_reasoning, rag."
    fewer = "Quality of spec is from other numbers of prompts than ar's: math_reasoning 0 (ar 4), "
    for text in (" ".join(findings.caveats), " ".join(printed(path).split())):
        assert missing in text
        assert fewer in text
    assert missing in tables_of(findings)["quality"][0].note


def test_a_family_in_which_all_answers_failed_is_not_said_to_have_no_gold_answers(
    synthetic_run: Write,
) -> None:
    path = synthetic_run()
    for decoder in ("ar", "spec", "ptp"):
        with_records(path, fail_quality_of(decoder, "rag"))
    said = [line for line in Findings(load_run(path)).caveats if " in rag" in line]
    assert said == ["No answer was scored in rag: see the agreement with ar."]


def test_decoders_without_any_score_share_one_caveat(synthetic_run: Write) -> None:
    path = synthetic_run()
    lines = (path / "samples.jsonl").read_text().splitlines()
    families = {json.loads(line)["family"] for line in lines}
    for decoder in ("spec", "ptp"):
        with_records(path, fail_quality_of(decoder, *families))
    told = [line for line in Findings(load_run(path)).caveats if "uality" in line]
    assert told == ["No answer scored, and so no quality: spec, ptp."]


def test_quality_on_fewer_prompts_than_ars_is_reported_with_both_numbers(
    synthetic_run: Write,
) -> None:
    path = synthetic_run()
    lines = (path / "samples.jsonl").read_text().splitlines()
    kept = [line for line in lines if not ('"ptp"' in line and '"qa-held-2' in line)]
    (path / "samples.jsonl").write_text("".join(f"{line}\n" for line in kept))
    lines = [line for line in Findings(load_run(path)).caveats if line.startswith("Quality of")]
    assert lines == ["Quality of ptp is from other numbers of prompts than ar's: qa 3 (ar 4)."]


def test_a_failed_answer_counts_among_the_prompts_of_the_quality_that_it_lowers(
    synthetic_run: Write,
) -> None:
    path = with_records(synthetic_run(), fail_quality_of("ptp", "qa", held="-held-2"))
    findings = Findings(load_run(path))
    (row,) = [row for row in summary_rows(findings.summary, "qa") if row.decoder == "ptp"]
    assert (row.quality_prompts, row.errors) == (4, 1)
    assert "from other numbers of prompts" not in " ".join(findings.caveats)


def test_a_baseline_that_failed_is_called_neither_unmeasured_nor_a_measure_of_qualities(
    synthetic_run: Write,
) -> None:
    def fail(row: dict[str, Any]) -> None:
        if row["decoder"] in ("ar", "ar@aa"):
            row |= {"error": "late", "tokens": None, "text": None, "steps": None, "scores": None}

    findings = Findings(load_run(with_records(synthetic_run(), fail)))
    assert findings.floor_sentence.endswith(
        "unknown (no answers of ar and its second arm can be compared)."
    )
    said = [line for line in findings.caveats if "quality" in line.lower()]
    assert said == ["No answer scored, and so no quality: ar."]


def test_a_decode_speedup_from_fewer_clusters_is_noted_with_their_number(
    synthetic_run: Write,
) -> None:
    def ends_at_once(row: dict[str, Any]) -> None:
        if row["kind"] == "timing" and row["decoder"] == "ptp" and row["family"] != "qa":
            row["steps"] = {name: [sum(column)] for name, column in row["steps"].items() if column}

    path = with_records(synthetic_run(), ends_at_once)
    findings = Findings(load_run(path))
    said = "in 12 clusters, 2 for the decode speed-up (the others ended in their first step)"
    timed = "n = 14 prompts x 2 repeats in 12 clusters"
    assert f" ar, spec: {timed}; ptp: n = 14 prompts x 2 repeats {said}. " in findings.headline.note
    assert said in findings.basis


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"conversations": 1}, "in 1 cluster, no interval from one conversation (raise --limit)"),
        ({}, "n = 1 group of prompts x 2 repeats in 1 cluster, no interval from one group"),
    ],
)
def test_a_speedup_without_an_interval_has_a_note_with_the_reason(
    synthetic_run: Write, values: dict[str, int], said: str
) -> None:
    def grouped(row: dict[str, Any]) -> None:
        if row["kind"] == "timing" and not values:
            row |= {"batch_size": 8, "ttft_s": None, "total_s": None, "group_s": 1.0}
            row["block"] = row["repeat"] * 14

    path = with_records(synthetic_run(quality=0, **values), grouped)
    headline = Findings(load_run(path)).headline
    assert said in headline.note
    assert said in " ".join(printed(path).split())
    assert "[" not in headline.rows[1][2].text


def test_absolute_paths_are_cut_down(synthetic_run: Write) -> None:
    path = synthetic_run(env={"python": "/home/someone/3.11", "packages": {"torch": "2.11"}})
    environment = dict(Findings(load_run(path)).environment)
    assert environment == {"python": "3.11", "packages.torch": "2.11"}


def test_a_long_key_of_the_environment_breaks_at_its_dots(reported_run: Path) -> None:
    assert "<th>packages.<wbr>torch</th>" in (reported_run / "report.html").read_text()


def test_settings_are_shown_as_they_are_written_and_an_empty_one_as_none(
    synthetic_run: Write,
) -> None:
    path = synthetic_run(env={"machine": {"instructions": ["avx2", "avx512f"]}})
    with (path / "config.toml").open("a") as config:
        config.write('compile = false\n[decoders.spec]\ncascade = ""\n')
    findings = Findings(load_run(path))
    assert dict(findings.environment)["machine.instructions"] == "avx2, avx512f"
    shown = dict(findings.configuration)
    assert (shown["compile"], shown["decoders.spec.cascade"]) == ("false", "none")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_terminals_table_fits_its_width(reported_run: Path, width: int) -> None:
    text = printed(reported_run, width)
    assert max(map(len, text.splitlines())) <= width
    assert not any("…" in line for line in text.splitlines())
    wide = printed(reported_run, width, wide=True)
    assert max(map(len, wide.splitlines())) <= width
    names = " ".join(wide.split())
    for heading, column in main.COLUMNS.items():
        assert all(word in names for word in column.terminal.split()), heading


@pytest.mark.slow
def test_the_terminal_begins_with_verdict_and_conclusion_and_sorts_rows_by_guarantee_and_speed(
    synthetic_run: Write,
) -> None:
    path = synthetic_run({"idlm": 9.0, "lookup": 1.5, "spec": 3.0}, lossy=["idlm"])
    first, _, rest = printed(path, 120).partition("\n\n")
    findings = Findings(load_run(path))
    assert " ".join(first.split()) == f"{findings.verdict} {findings.conclusion}"
    table = rest.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table if "x" in line] == ["ar", "spec", "lookup", "idlm"]
    chosen = [name for name, column in main.COLUMNS.items() if column.heading.first]
    assert len(chosen) == 8
    assert "specbench_compat" not in printed(path, 400, wide=True)
    assert ("exploratory" in rest, "exploratory" in printed(path, wide=True)) == (False, True)
    widest = [word for name in chosen for word in main.COLUMNS[name].terminal.split()]
    assert set(" ".join(table[:2]).split()) == set(widest)


def test_every_column_of_the_main_table_is_declared_once_for_all_its_places(
    reported_run: Path,
) -> None:
    """A heading renamed in one place cannot disappear from another."""
    table = Findings(load_run(reported_run)).headline
    assert table.headings == tuple(main.COLUMNS)
    assert table.folded == {
        name for name, column in main.COLUMNS.items() if not column.heading.first
    }


def test_a_column_that_no_decoder_fills_is_left_out_everywhere(synthetic_run: Write) -> None:
    path = synthetic_run(quality=0)
    table = Findings(load_run(path)).headline
    empty = "quality % [95 %]"
    assert table.headings == tuple(name for name in main.COLUMNS if name != empty)
    assert table.folded < set(table.headings)
    assert "quality" not in printed(path, wide=True).split("\n\n")[1]


@pytest.mark.parametrize("wide", [False, True])
def test_the_terminal_ends_with_the_next_commands(tmp_path: Path, wide: bool) -> None:
    console = Console(width=40, color_system=None)
    with console.capture() as capture:
        print_next(tmp_path / "a run", console, wide=wide)
    lines = [line.split(maxsplit=1) for line in capture.get().strip().splitlines()]
    quoted = f"'{tmp_path}/a run"
    assert [name for name, _ in lines] == ["open", "explain", "verify", "more"][: 4 - wide]
    commands = [command for _, command in lines]
    assert commands[0].startswith(f"{quoted}/report.html'")
    assert commands[1].startswith(f"bench explain {quoted}'")
    assert commands[2].startswith(f"bench verify --config {quoted}/config.toml'")
    assert wide or commands[3].startswith(f"bench report {quoted}' --wide")


def test_the_command_that_verifies_a_run_allows_its_decoders_code(synthetic_run: Write) -> None:
    path = synthetic_run()
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["cells"][-1]["name"] = "my own.py:Mine"
    (path / "manifest.json").write_text(json.dumps(manifest))
    console = Console(width=40, color_system=None)
    with console.capture() as capture:
        print_next(path, console)
    assert f"--config {path}/config.toml --allow 'my own.py'\n" in capture.get()


def test_commands_for_the_newest_run_use_its_short_link_to_fit_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("results", f"20260101-120000-{'lookup+' * 8}1234")
    run.mkdir(parents=True)

    def printed() -> list[str]:
        console = Console(width=80, color_system=None)
        with console.capture() as capture:
            print_next(run, console)
        return capture.get().strip().splitlines()

    assert not any("step viewer" in line for line in printed())  # purposes would not fit
    assert all(run.name in line for line in printed())
    Path("results/latest").symlink_to(run.name)
    assert max(map(len, printed())) <= 80
    assert "bench report results/latest --wide" in printed()[-1]
    assert printed()[0].endswith("figures, step viewer")
    Path("results/latest").unlink()
    Path("results/latest").symlink_to("another")
    assert all(run.name in line for line in printed())


def test_a_report_of_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="is not a run folder"):
        write_report(tmp_path)


def test_every_estimator_stands_under_its_name_with_the_floor_beside_it(
    reported_run: Path,
) -> None:
    text = (reported_run / "report.md").read_text(encoding="utf-8")
    for words in (
        "## Speed-up by estimator",
        "| decoder | geometric mean [95 % t] | ratio of totals [95 %] | specbench_compat [95 %] |",
        "| ar@aa (A/A) |",
        "### Speed-up by family (geometric mean)",
        "over prompts, this session",
    ):
        assert words in text, words
    frame = pd.read_csv(reported_run / "summary.csv").set_index(["decoder", "family"])
    row = frame.loc[("spec", "all")]
    assert isinstance(row, pd.Series)
    assert row["acceptance_length_low"] < row["acceptance_length"] < row["acceptance_length_high"]
    assert row["aa_low"] < row["aa_speedup"] < row["aa_high"]
    assert frame.loc[("ar", "all"), "specbench_compat"] == 1.0


def test_the_ratios_behind_a_speedup_are_written_prompt_by_prompt(reported_run: Path) -> None:
    frame = pd.read_csv(reported_run / "tables" / "by_prompt.csv")
    summary = pd.read_csv(reported_run / "summary.csv").set_index(["decoder", "family"])
    spec = frame[frame["decoder"] == "spec"]
    assert len(spec) == summary.loc[("spec", "all"), "pairs"]
    mean = math.exp(sum(map(math.log, spec["speedup"])) / len(spec))
    assert mean == pytest.approx(summary.loc[("spec", "all"), "speedup"], rel=1e-4)
    assert set(frame["decoder"]) == {"spec", "nar", "ar@aa"}


def test_decoders_are_paired_against_one_another(reported_run: Path) -> None:
    (rivals,) = tables_of(Findings(load_run(reported_run)))["rivals"]
    assert rivals.headings == ("decoder", "ar", "spec", "nar")
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in rivals.rows}
    frame = pd.read_csv(reported_run / "tables" / "by_prompt.csv").set_index("prompt")
    times = {name: part["time_per_token_s"] for name, part in frame.groupby("decoder")}
    logs = (times["spec"] / times["nar"]).map(math.log)
    assert rows["nar"][1].startswith(f"{math.exp(logs.mean()):.2f}x [")
    assert [rows["ar"][0], rows["spec"][1], rows["nar"][2]] == ["-"] * 3
    both = [float(rows[one][place].split("x")[0]) for one, place in (("nar", 1), ("spec", 2))]
    assert both[0] > 1 > both[1]
    assert both[0] * both[1] == pytest.approx(1, abs=0.02)
    text = (reported_run / "report.md").read_text(encoding="utf-8")
    assert "## Decoders against one another" in text
    assert rivals.note in text


def test_a_single_decoder_beside_ar_has_no_table_of_rivals(synthetic_run: Write) -> None:
    assert not tables_of(Findings(load_run(synthetic_run({"spec": 3.0}))))["rivals"]


@pytest.mark.usefixtures("undrawn")
def test_one_comparison_is_primary_and_the_rest_are_exploratory(synthetic_run: Write) -> None:
    run = synthetic_run(conversations=6, repeats=1, quality=0)
    text = " ".join(printed(run, wide=True).split())
    assert "No primary comparison was named; 14 comparisons by decoder and family" in text
    (run / "config.toml").write_text('model = "zoo"\nmax_new_tokens = 256\nprimary = "ptp"\n')
    text = " ".join(printed(run, wide=True).split())
    assert "Primary comparison: ptp over ar, all families; 13 comparisons" in text
    tables = tables_of(Findings(load_run(run)))
    for part in ("rivals", "families"):
        note = tables[part][0].note
        assert "not adjusted for the number of comparisons" in note
        assert note.count("bench pool covers sessions") == 1


# ---------------------------------------------------------------- what may be believed

LEFT = {"cell": "spec", "num_answers": 3, "num_compared": 28, "num_wrong": 2, "example": "qa-3#1"}
VALID = {"status": "complete", "verdict": "VALID", "reasons": [], "warnings": []}


@pytest.fixture(scope="module")
def wrong_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which `spec` is wrong and `ptp` is not, as an older version left it; read it."""
    status = VALID | {"differences": [LEFT]}
    path = write_run(tmp_path_factory.mktemp("wrong") / "run", CELLS, status=status)
    with only_svg():
        write_report(path)
    return path


@pytest.fixture(scope="module")
def counted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose status says how many records it has, with its report; copy it."""
    status = VALID | {"num_records": 184}
    path = write_run(tmp_path_factory.mktemp("counted") / "run", CELLS, status=status)
    assert len(load_run(path).records) == 184
    with pytest.MonkeyPatch.context() as patched:  # its figures are looked at by nobody
        patched.setattr(gallery, "draw_all", lambda _: gallery.Gallery({}, {}, ()))
        write_report(path)
    return path


@pytest.mark.slow
def test_a_wrong_decoder_is_wrong_in_the_verdict_and_in_its_rows(wrong_run: Path) -> None:
    findings = Findings(load_run(wrong_run))
    rows = {row[0].text: row for row in findings.headline.rows}
    assert findings.verdict == "WRONG"
    assert all(cell.bad and not cell.bold for cell in rows["spec (WRONG)"])
    assert rows["ptp"][2].bold
    assert list(rows) == ["ar", "ptp", "spec (WRONG)"]
    assert rows["spec (WRONG)"][1].text == "WRONG"
    for table in (table for tables in tables_of(findings).values() for table in tables):
        assert "spec" not in [row[0].text for row in table.rows], table.title
    frame = pd.read_csv(wrong_run / "summary.csv")
    assert set(frame.loc[frame["decoder"] == "spec", "guarantee"]) == {"WRONG"}


def test_a_wrong_decoder_is_red_on_the_page_and_in_the_terminal(wrong_run: Path) -> None:
    page = (wrong_run / "report.html").read_text(encoding="utf-8")
    assert '<span class="badge bad">WRONG</span>' in page
    assert '<th class="bad">spec (WRONG)</th>' in page
    assert "it claims to be lossless and gave other tokens than ar on 3 of 28 answers" in page
    assert (
        (wrong_run / "report.md")
        .read_text(encoding="utf-8")
        .splitlines()[2]
        .startswith("**WRONG**")
    )
    console = Console(width=140, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        assert print_findings(Findings(load_run(wrong_run)), console) == 3
    red = "\x1b[1;31m"
    assert f"{red}spec (WRONG)" in capture.get()
    assert f"{red}WRONG\x1b[0m" in capture.get().partition("  ")[0]


def test_a_wrong_decoder_is_left_out_of_figures_and_named_in_their_captions(
    wrong_run: Path,
) -> None:
    for name in FIGURES:
        data = pd.read_csv(wrong_run / "figures" / "data" / f"{name}.csv")
        assert "spec" not in set(data["decoder"]), name
    report = (wrong_run / "report.md").read_text(encoding="utf-8")
    assert report.count("Left out: spec is WRONG.") == len(FIGURES)
    page = (wrong_run / "report.html").read_text(encoding="utf-8")
    assert page.count("Left out: spec is WRONG.") == 2 * len(FIGURES)  # and as a label


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("cut", [0, 50])
def test_lost_records_make_a_run_damaged_and_its_written_tables_are_kept(
    counted_run: Path, tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "run"
    shutil.copytree(counted_run, path)
    kept = {name: (path / name).read_bytes() for name in ("samples.parquet", "summary.csv")}
    lines = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    (path / "samples.jsonl").write_text("".join(lines[:cut]))
    write_report(path)
    text = (path / "report.md").read_text()
    assert "**DAMAGED**" in text
    lost = f"samples.jsonl holds {cut // 4 * 4} of the 184 records that run.json counts"
    assert lost in text
    assert lost in " ".join(printed(path, 200).split())
    assert {name: (path / name).read_bytes() for name in kept} == kept
    console = Console(width=100, quiet=True)
    assert print_findings(Findings(load_run(path)), console) == 4


def test_rows_are_grouped_by_guarantee_and_tokens_per_step_have_one_heading(
    synthetic_run: Write,
) -> None:
    path = synthetic_run({"idlm": 9.0, "spec": 3.0, "nar@b": 2.0}, lossy=["idlm"])
    findings = Findings(load_run(path))
    table = findings.headline
    places = {heading: place for place, heading in enumerate(table.headings)}
    rows = {row[0].text: [cell.text for cell in row] for row in table.rows}
    assert {name: row[1] for name, row in rows.items()} == {
        "ar": "same tokens", "spec": "same tokens", "nar@b": "same distribution", "idlm": "none",
    }  # fmt: skip
    assert list(rows) == ["ar", "spec", "nar@b", "idlm"]
    per_step = f"tokens per step [{LEVEL}]"
    assert places["tokens per call"] + 1 == places["calls per step"] == places[per_step] - 1
    steps = {name: row[places[per_step]].split(" [")[0] for name, row in rows.items()}
    assert all(float(text.strip("()")) >= 1 for text in steps.values())
    assert [name for name, text in steps.items() if text.startswith("(")] == ["idlm"]
    titles = [table.title for table in tables_of(findings)["families"]]
    assert titles.count("Tokens per step by family") == 1


@pytest.mark.slow
def test_lossy_decoders_are_drawn_hollow_and_last_and_labelled_with_their_quality(
    synthetic_run: Write,
) -> None:
    path = synthetic_run({"idlm": 9.0, "spec": 3.0}, lossy=["idlm"])
    findings = Findings(load_run(path))
    drawn = dict(gallery.draw_all(findings).plots)
    figure, data = drawn["speedup"]
    assert list(data["decoder"]) == ["spec", "idlm"]
    assert data["speedup"].is_monotonic_increasing
    (axes,) = figure.axes
    faces = [line.get_markerfacecolor() for line in axes.lines if line.get_marker() == "o"]
    assert [face == PAPER for face in faces] == [False, True]
    (row,) = findings.summary.query("decoder == 'idlm' and family == 'all'").to_dict("records")
    said = f"lossy, quality {100 * row['quality']:.1f} %"
    assert axes.get_yticklabels()[1].get_text() == f"idlm\n{said}"
    assert "idlm" not in set(drawn.pop("acceptance_by_position")[1]["decoder"])
    for figure, _ in drawn.values():
        figure.draw_without_rendering()
        texts = {text.get_text(): text.get_window_extent() for text in figure.texts}
        inside = [axes.get_tightbbox() for axes in figure.axes]
        boxes = [*texts.values(), *(box for box in inside if box is not None)]
        assert not any(a.overlaps(b) for a in boxes[: len(texts)] for b in boxes if a is not b)


@pytest.mark.slow
@pytest.mark.usefixtures("saved")
def test_every_figure_names_the_lossy_decoders(synthetic_run: Write) -> None:
    path = synthetic_run({"idlm": 9.0, "spec": 3.0}, lossy=["idlm"])
    with only_svg():
        write_report(path)
    for file in (path / "figures").glob("*.svg"):
        drawing = file.read_text(encoding="utf-8")
        if "idlm" in drawing:
            assert "lossy" in drawing, file.name


@pytest.mark.slow
def test_every_axis_of_numbers_has_a_label(synthetic_run: Write) -> None:
    path = synthetic_run({"idlm": 9.0, "spec": 3.0, "ptp": 4.0}, lossy=["idlm"])
    for name, (figure, _) in gallery.draw_all(Findings(load_run(path))).plots.items():
        figure.draw_without_rendering()
        for axes in figure.axes:
            ticks = [tick.get_text() for tick in axes.get_yticklabels() if tick.get_visible()]
            shown = axes.get_visible() and axes.yaxis.get_tick_params()["labelleft"]
            if shown and any(text[:1].isdigit() for text in ticks):
                assert axes.get_ylabel() or figure.get_supylabel(), name


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 100])
def test_columns_that_do_not_fit_the_terminal_are_printed_in_further_blocks(
    reported_run: Path, width: int
) -> None:
    def words(text: str) -> set[str]:
        return set(text.split("A/A noise floor")[0].split())

    assert words(printed(reported_run, 400, wide=True)) == words(
        printed(reported_run, width, wide=True)
    )

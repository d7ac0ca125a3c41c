"""Reports: every file is there, says what it rests on, and is a pure function of the records."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from bench.errors import BenchError
from bench.report import print_summary, write_report
from bench.reporting.findings import Findings
from bench.reporting.tables import Cell, Table
from bench.rundir import load_run

FIGURES = ("speedup", "tokens_per_call", "acceptance_length", "quality_speed")
Write = Callable[..., Path]


def printed(path: Path, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        print_summary(path, console)
    return capture.get()


def test_every_file_of_the_contract_is_written_and_not_empty(reported_run: Path) -> None:
    names = ["samples.parquet", "summary.csv", "report.md", "report.html"]
    names += [f"tables/headline.{kind}" for kind in ("md", "csv", "tex")]
    names += ["tables/acceptance_by_position.csv"]
    names += [f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "pdf", "svg")]
    names += [f"figures/data/{name}.csv" for name in FIGURES]
    for name in names:
        assert (reported_run / name).stat().st_size > 50, name
    left = [p.name for p in reported_run.rglob(".*")]
    assert left == []


def test_writing_twice_gives_the_same_bytes(reported_run: Path, tmp_path: Path) -> None:
    inputs = ("manifest.json", "config.toml", "env.json", "run.json", "samples.jsonl")
    again = tmp_path / reported_run.name
    again.mkdir()
    for name in inputs:
        shutil.copy(reported_run / name, again / name)
    write_report(again)
    written = [p.relative_to(again) for p in again.rglob("*") if p.is_file()]
    assert len(written) > 20
    for name in written:
        assert (again / name).read_bytes() == (reported_run / name).read_bytes(), name


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
        "accepted tokens per step",
        "1 prompt(s) were skipped",
        "bench run --config a-run/config.toml",
        "corpus BLEU",
        "versions.torch",
    ):
        assert words in text, words
    assert str(reported_run.parent) not in text


def test_the_page_stands_alone(reported_run: Path) -> None:
    text = (reported_run / "report.html").read_text(encoding="utf-8")
    assert text.count("<svg") == len(FIGURES)
    assert "<script" not in text
    assert "src=" not in text
    assert 'href="http' not in text
    assert "prefers-color-scheme: dark" in text


def test_the_latex_table_has_booktabs_rules_and_escapes(reported_run: Path) -> None:
    text = (reported_run / "tables" / "headline.tex").read_text(encoding="utf-8")
    assert "\\toprule" in text
    assert "[95 \\%]" in text
    assert "\\textbf{" in text


def test_only_intervals_that_exclude_1_are_bold(synthetic_run: Write) -> None:
    findings = Findings(load_run(synthetic_run({"spec": 3.0, "spec@same": 1.0})))
    speeds = {row[0].text: row[1] for row in findings.headline.rows}
    assert speeds["spec"].bold
    assert not speeds["spec@same"].bold
    assert not speeds["ar"].bold
    assert any("no difference shown" in line for line in findings.sentences)


def test_markdown_tables_escape_bars_and_mark_bold() -> None:
    table = Table(title="t", note="", headings=("a", "b"), rows=((Cell("x|y"), Cell("2", True)),))
    assert table.to_markdown().splitlines() == ["| a | b |", "| --- | ---: |", "| x\\|y | **2** |"]


def test_an_interrupted_run_is_reported_as_far_as_it_got(synthetic_run: Write) -> None:
    path = synthetic_run(status={}, quality=0)
    lines = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    (path / "samples.jsonl").write_text(
        "".join(lines[:14])
    )  # three blocks and a half, of four arms
    write_report(path)
    text = (path / "report.md").read_text()
    assert "3 of 28 timing blocks" in text
    assert "UNKNOWN" in text
    assert "No quality was scored" in text
    assert set(pd.read_csv(path / "summary.csv")["decoder"]) == {"ar", "spec", "ptp"}
    assert not (path / "figures" / "quality_speed.png").exists()


def test_a_run_without_records_gives_an_empty_report(synthetic_run: Write) -> None:
    path = synthetic_run()
    (path / "samples.jsonl").unlink()
    write_report(path)
    assert "Not measured: ar, ar@aa, spec, ptp" in (path / "report.md").read_text()
    assert pd.read_csv(path / "summary.csv").empty
    assert "nothing is measured yet" in printed(path)


def test_errors_and_reasons_stand_in_the_report_and_the_terminal(synthetic_run: Write) -> None:
    status = {"status": "complete", "verdict": "INVALID", "reasons": ["a broken invariant"]}
    path = synthetic_run(status=status, quality=0)
    lines = (path / "samples.jsonl").read_text().splitlines()
    row = json.loads(lines[2])
    row |= {"error": "RuntimeError: boom", "tokens": None, "steps": None, "total_s": None}
    lines[2] = json.dumps(row)
    (path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    write_report(path)
    for text in ((path / "report.md").read_text(), printed(path, 120)):
        assert "INVALID" in text
        assert "Reason: a broken invariant" in text
        assert "1 error(s) of spec: RuntimeError: boom" in text
        assert "1 pair(s) of spec with ar are left out" in text
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


def test_a_family_without_answers_leaves_no_quality_over_all_and_is_told(
    synthetic_run: Write,
) -> None:
    path = with_records(synthetic_run(), fail_quality_of("spec", "math_reasoning", "rag"))
    findings = Findings(load_run(path))
    quality = {row[0].text: row[-1].text for row in findings.quality_table.rows}  # type: ignore[union-attr]
    assert quality["spec"] == "-"
    assert quality["ptp"] != "-"
    missing = "spec has no quality over all families: nothing scored in math_reasoning, rag."
    fewer = "Quality of spec does not rest on as many prompts as ar's: math_reasoning 0 (ar 4), "
    for text in (" ".join(findings.caveats), " ".join(printed(path).split())):
        assert missing in text
        assert fewer in text
    assert missing in findings.quality_table.note  # type: ignore[union-attr]
    assert "quality " not in findings.sentences[0]


def test_quality_on_fewer_prompts_than_ars_is_told_with_both_numbers(synthetic_run: Write) -> None:
    path = with_records(synthetic_run(), fail_quality_of("ptp", "qa", held="-held-2"))
    findings = Findings(load_run(path))
    line = "Quality of ptp does not rest on as many prompts as ar's: qa 3 (ar 4)."
    assert line in findings.caveats
    assert not any("no quality over all" in caveat for caveat in findings.caveats)
    assert "of spec" not in " ".join(findings.caveats)


def test_a_decode_speedup_from_fewer_prompts_says_so(synthetic_run: Write) -> None:
    def ends_at_once(row: dict[str, Any]) -> None:
        if row["kind"] == "timing" and row["decoder"] == "ptp" and row["family"] != "qa":
            row["steps"] = {name: [sum(column)] for name, column in row["steps"].items() if column}

    path = with_records(synthetic_run(), ends_at_once)
    findings = Findings(load_run(path))
    said = "in 12 clusters, decode speed-up from 2 (others ended in their first step)"
    assert f"{said} (ptp)" in findings.headline.note
    assert said in findings.basis


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"conversations": 1}, "in 1 clusters (one conversation: no interval; raise --limit)"),
        ({}, "n = 1 groups of prompts x 2 repeats in 1 clusters (one group of prompts: no"),
    ],
)
def test_a_speedup_without_an_interval_says_what_is_lacking(
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
    assert "[" not in headline.rows[1][1].text


def test_absolute_paths_are_cut_down(synthetic_run: Write) -> None:
    path = synthetic_run(env={"model": "/home/someone/models/zoo", "versions": {"torch": "2.11"}})
    environment = dict(Findings(load_run(path)).environment)
    assert environment == {"model": "zoo", "versions.torch": "2.11"}


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_terminals_table_fits_its_width(reported_run: Path, width: int) -> None:
    text = printed(reported_run, width)
    assert max(map(len, text.splitlines())) <= width
    header = text.splitlines()[:4]
    assert any("accepted" in line for line in header)
    assert not any("…" in line for line in text.splitlines())


def test_a_folder_that_is_no_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no run folder"):
        write_report(tmp_path)


def test_every_estimator_stands_under_its_name_with_the_floor_beside_it(
    reported_run: Path,
) -> None:
    text = (reported_run / "report.md").read_text(encoding="utf-8")
    for words in (
        "## Speed-up by estimator",
        "| decoder | geometric mean [95 % t] | its bootstrap [95 %] | intervals |",
        "ratio of totals [95 %] | specbench_compat [95 %] | prompts needed for ±5 % |",
        "| ar@aa (A/A) |",
        "### Speed-up by family (geometric mean)",
        "### Speed-up by family (ratio of totals)",
        "### Speed-up by family (specbench_compat)",
        "not sessions of the machine",
        "vs ar end to end (A/A ",
    ):
        assert words in text, words
    frame = pd.read_csv(reported_run / "summary.csv").set_index(["decoder", "family"])
    row = frame.loc[("spec", "all")]
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


def test_the_terminal_says_what_a_wide_interval_needs(synthetic_run: Write) -> None:
    text = " ".join(printed(synthetic_run(conversations=6, repeats=1, quality=0)).split())
    assert "wide intervals: " in text
    assert "more prompts for ±5 %" in text
    assert "Intervals cover the choice of prompts, not sessions of the machine" in text

"""What a report says of ratios that are no speed-up, and of the rate of reading weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.compare.gate import GATED
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.tables.conclusion import weights_sentence
from bench.stats.metrics import summary_rows
from tests.bench.conftest import tables_of

Write = Callable[..., Path]
COLUMNS = ["emitted", "drafted", "accepted", "target_calls", "target_rows"]
COLUMNS += ["draft_calls", "draft_rows"]
GPU = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def findings(synthetic_run: Write) -> Findings:
    """Of a run in which `nar`, by far the fastest, ends its answers in the first step."""
    path = synthetic_run({"spec": 3.0, "ptp": 4.0, "nar": 7.0}, lossy=["nar"])
    lines = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        if line["decoder"] == "nar" and line["kind"] == "timing":
            num = len(line["tokens"])
            line["steps"] |= {name: line["steps"][name][:1] for name in COLUMNS}
            line["steps"]["emitted"] = [num]
            line["total_s"] = line["ttft_s"]
    (path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Findings(load_run(path))


def test_a_decoder_without_a_speedup_has_a_dash_in_the_main_table_and_a_caveat_with_the_reason(
    findings: Findings,
) -> None:
    rows = {row[0].text: [cell.text for cell in row] for row in findings.headline.rows}
    speedup = next(i for i, name in enumerate(findings.headline.headings) if "speed-up [" in name)
    assert rows["nar"][speedup] == "-"
    assert rows["ptp"][speedup].startswith(("2.", "3."))
    reason = "most answers end in the first step"
    (line,) = [line for line in findings.caveats if "no speed-up" in line]
    assert line.startswith("nar has no speed-up (-) in mt_bench, translation, ")
    assert line.endswith(f", all: {reason}.")
    assert "nar" not in findings.conclusion


def test_a_decoder_without_a_speedup_is_ranked_in_no_table(findings: Findings) -> None:
    tables = tables_of(findings)
    (rivals,) = tables["rivals"]
    assert rivals.headings == ("decoder", "ar", "spec", "ptp")
    by_title = {table.title: table for table in tables["families"]}
    for name in ("geometric mean", "decode"):
        table = by_title[f"Speed-up by family ({name})"]
        (row,) = (row for row in table.rows if row[0].text == "nar")
        assert {cell.text for cell in row[1:]} == {"-"}


def test_decode_speedups_are_listed_by_family_with_their_intervals(findings: Findings) -> None:
    (table,) = (t for t in tables_of(findings)["families"] if t.title.endswith("(decode)"))
    rows = {r.family: r for r in summary_rows(findings.summary, None) if r.decoder == "ptp"}
    (cells,) = (row for row in table.rows if row[0].text == "ptp")
    for heading, cell in zip(table.headings[1:], cells[1:], strict=True):
        each = rows[heading].estimate("speedup_decode")
        assert cell.text == f"{each.value:.2f}x [{each.low:.2f}, {each.high:.2f}]"
    assert "from the first token on" in table.note


def test_speedups_that_may_be_null_are_not_gated() -> None:
    """Speed is gated by times of two runs, see `bench.compare.compare`."""
    assert not {"speedup", "speedup_decode", "speedup_total"} & {*GATED}


def test_the_note_on_acceptance_limits_comparisons_to_equal_k(findings: Findings) -> None:
    (table,) = tables_of(findings)["acceptance"]
    assert "depend on the number of drafts K" in table.note
    assert "compare only cells of equal K" in table.note


def test_ars_rate_of_reading_weights_is_compared_with_the_datasheet(findings: Findings) -> None:
    assert not any("GB/s" in line for line in findings.footnotes)  # bytes unknown
    summary = findings.summary.assign(weights_per_s=2.01e12)
    assert weights_sentence(summary, None) == "ar reads the target's weights at 2,010.0 GB/s."
    assert weights_sentence(summary, GPU).endswith(f"GB/s, 60.0 % of the datasheet of {GPU}.")


def test_a_run_that_records_bytes_per_call_reports_the_rate_of_reading_weights(
    synthetic_run: Write,
) -> None:
    env = {"device": "cpu", "models": {"target": {"read_bytes": 4_000_000_000}}}
    findings = Findings(load_run(synthetic_run({"spec": 3.0}, env=env)))
    (line,) = (line for line in findings.footnotes if "GB/s" in line)
    assert line.startswith("ar reads the target's weights at ")


def test_the_table_of_workers_leaves_out_a_decoder_without_a_speedup(findings: Findings) -> None:
    halves = [replace(r, worker=str(r.repeat % 2)) for r in findings.run.records]
    tables = tables_of(Findings(replace(findings.run, records=tuple(halves))))
    (table,) = tables["part"]
    assert {"spec", "ptp"} <= {*table.headings}
    assert "nar" not in table.headings

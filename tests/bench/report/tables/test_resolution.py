"""The sentence on what a run can tell apart: its widths are those of the intervals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.tables.conclusion import resolution
from bench.stats.metrics import COLUMNS


def summary(*rows: dict[str, Any]) -> pd.DataFrame:
    full = dict.fromkeys(COLUMNS) | {"family": "all", "guarantee": "same tokens"}
    return pd.DataFrame([full | row for row in rows]).astype(COLUMNS)


AR = {
    "decoder": "ar", "speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0, "pairs": 28,
    "quality": 0.99, "quality_low": 0.98, "quality_high": 1.0, "quality_prompts": 120,
}  # fmt: skip
SPEC = {
    **AR, "decoder": "spec", "speedup": 2.0, "speedup_low": 2.0 / 1.1, "speedup_high": 2.0 * 1.1,
}  # fmt: skip
NAR = {
    **AR, "decoder": "nar", "speedup": 5.0, "speedup_low": 4.0, "speedup_high": 6.25,
    "quality_low": 0.5, "quality_high": 0.6,
}  # fmt: skip


def test_the_resolution_names_the_smallest_and_largest_width_and_the_number_of_prompts() -> None:
    said = resolution(summary(AR, NAR, SPEC))
    assert said == (
        "Resolution: differences from ar in speed below 1.10x (spec) to 1.25x (nar) cannot be "
        "detected with 28 prompts; in quality below 1.0 points (ar) to 5.0 points (nar) cannot be "
        "detected with 120 held-out prompts."
    )


def test_the_resolution_of_one_decoder_is_one_width_and_omits_missing_quality() -> None:
    said = resolution(summary({**AR, "quality_low": None, "quality_high": None}, SPEC | {
        "quality_low": None, "quality_high": None, "pairs": 7, "batch_size": 4,
    }))  # fmt: skip
    assert said == (
        "Resolution: differences from ar in speed below 1.10x cannot be detected with 7 groups "
        "of prompts."
    )


def test_without_intervals_there_is_no_statement_of_resolution() -> None:
    lone = SPEC | {"speedup_low": None, "speedup_high": None, "quality_low": 1, "quality_high": 1}
    assert resolution(summary(AR | {"quality_low": 1.0}, lone)) == ""


def test_a_wrong_decoder_is_left_out() -> None:
    said = resolution(summary(AR, SPEC, NAR | {"guarantee": "WRONG"}))
    assert "nar" not in said
    assert "below 1.10x cannot" in said


def test_reports_state_the_resolution_of_the_runs_own_intervals(reported_run: Path) -> None:
    findings = Findings(load_run(reported_run))
    rows = findings.summary.query("family == 'all'").set_index("decoder")
    low, high = rows["speedup_low"]["spec"], rows["speedup_high"]["spec"]
    said = resolution(findings.report_summary)
    assert f"{math.sqrt(high / low):.2f}x (" in said
    for file in ("report.md", "report.html"):
        assert said in (reported_run / file).read_text(encoding="utf-8")

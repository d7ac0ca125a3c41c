"""Runs in results/reference can be audited: their answers give the numbers that lie beside them."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from bench.extras.sessions.pooled import load_pool, write_pool
from bench.extras.submit.submission import problems
from bench.records.frames import csv_bytes
from bench.records.run_folder import load_run
from bench.records.samples import SAMPLES_TABLE
from bench.report.findings import Findings
from bench.report.write import SUMMARY, table_files

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
DEFAULT = ("cpu-zoo", "cpu-zoo-t07", "cpu-smollm2")
"""Runs that are audited by default: greedy, sampled, and of a real model."""
KEPT = (SUMMARY, "tables/by_prompt.csv")
"""Numbers beside the answers, the first alone in pools; `bench report` writes all other tables."""
AUDITED = sorted(str(file.parent.relative_to(REFERENCE)) for file in REFERENCE.rglob(SAMPLES_TABLE))


AUDITS = [run if run in DEFAULT else pytest.param(run, marks=pytest.mark.slow) for run in AUDITED]


@pytest.mark.parametrize("run", AUDITS)
def test_the_numbers_of_a_stored_run_are_reproduced_from_its_answers(run: str) -> None:
    folder = REFERENCE / run
    findings = Findings(load_run(folder))
    assert findings.verdict == findings.run.status.verdict
    made = {SUMMARY: csv_bytes(findings.summary), **table_files(findings)}
    for name in KEPT[:1] if "/" in run else KEPT:
        again = pd.read_csv(io.BytesIO(made[name]))
        beside = pd.read_csv(folder / name)
        newer = again.columns.difference(beside.columns)
        assert again[newer].isna().all(axis=None)  # its records lack what these are made of
        again = again.drop(columns=newer)
        pd.testing.assert_frame_equal(again, beside, rtol=1e-5)  # six digits are written


POOLS = sorted(REFERENCE.glob("*/pool.csv"))
EXCUSED = {
    "A/A is": "measured before this was asked",
    "commit": "copied to the machine with a GPU, as a tree without its repository's state",
    "env.json lacks: version of decoding-bench": "ran from the tree, without being installed",
    "it takes": "stored with report and figures, which pages show, before there was a limit",
}
"""Reasons for which runs stand that `bench submit` would refuse, by the beginning of its line."""
FAILING = {
    "A/A is": {"cpu-zoo-ptp", "h100-smollm2-adapters", "h100-zoo"},
    "commit": {"h100-smollm2-adapters", "h100-smollm2-drafters", "h100-zoo"},
    "it takes": {
        *("cpu-smollm2", "cpu-smollm2-t07", "cpu-smollm2-xeon"),
        *("cpu-zoo", "cpu-zoo-eager", "cpu-zoo-passes", "cpu-zoo-rivals", "cpu-zoo-t07"),
    },
}
FAILING["env.json lacks: version of decoding-bench"] = FAILING["commit"]


@pytest.mark.parametrize("run", AUDITS)
def test_a_stored_run_passes_the_checks_of_bench_submit(run: str) -> None:
    files = [file for file in (REFERENCE / run).rglob("*") if file.is_file()]
    kept = {file.relative_to(REFERENCE / run).as_posix(): file.read_bytes() for file in files}
    lines = [*problems(Findings(load_run(REFERENCE / run)), kept, public=True)]
    excused = [kind for kind in EXCUSED if run in FAILING[kind]]
    assert len(lines) == len(excused), lines
    assert all(any(line.startswith(kind) for line in lines) for kind in excused)


@pytest.mark.slow
@pytest.mark.parametrize("file", POOLS, ids=lambda file: file.parent.name)
def test_a_stored_pool_is_reproduced_from_its_sessions(file: Path, tmp_path: Path) -> None:
    write_pool(load_pool([str(file.parent)], file.parent), tmp_path)
    for name in ("pool.csv", "pool.md", "pool.tex"):
        assert (file.parent / name).read_bytes() == (tmp_path / name).read_bytes()


def test_the_runs_audited_by_default_are_there() -> None:
    assert set(DEFAULT) <= set(AUDITED)


@pytest.mark.parametrize("run", AUDITED)
def test_a_stored_run_has_no_html_page_and_its_figures_are_valid_png(run: str) -> None:
    files = [file for file in (REFERENCE / run).rglob("*") if file.is_file()]
    assert {file.suffix for file in files} <= {".csv", ".json", ".md", ".parquet", ".png", ".toml"}
    for figure in (file for file in files if file.suffix == ".png"):
        assert figure.read_bytes().startswith(b"\x89PNG\r\n"), f"{figure} is no picture"


def test_every_stored_run_has_its_answers() -> None:
    assert {file.parent.name for file in REFERENCE.glob("*/run.json")} <= set(AUDITED)

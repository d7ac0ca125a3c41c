"""The prediction of stored sessions for a run: a section of its report, and a line at its end.

The pools of ``results/reference`` in this checkout predict the next session of their job, by
machine. A run of such a job shows the prediction for its machine, or says that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import BenchError
from bench.extras.sessions.pooled import EVERY, POOL, list_runs, machine, unlike
from bench.machine.env import ROOT
from bench.records.environment import read_environment
from bench.records.plan import BASELINE, Plan, read_plan, read_status
from bench.records.run_folder import Run, load_run, read_config
from bench.report.findings import Findings
from bench.report.tables.table import Columns, Table, TableCell, interval
from bench.stats.metrics import summary_rows
from bench.stats.side import RunSnapshot
from bench.stats.summary import ALL
from bench.text import counted, factor

REFERENCES = ROOT / "results" / "reference"
_COLUMNS = ("decoder", "machine", "sessions", "next_low", "next_high")


@dataclass(frozen=True)
class Expectation:
    """The predictions of one pool by machine and decoder, beside the machine of a run."""

    pool: str
    machine: str
    rows: pd.DataFrame

    @property
    def here(self) -> pd.DataFrame:
        """The predictions for the run's machine."""
        return self.rows[self.rows["machine"] == self.machine]

    @property
    def missing(self) -> str:
        """State that no session of the machine is stored."""
        return (
            f"no stored session of this processor ({self.machine}): expect what `bench cost` shows"
        )

    def range(self, decoder: str, machine: str) -> tuple[float, float] | None:
        """Return the interval of the next session, if there is one."""
        rows = self.rows[(self.rows["decoder"] == decoder) & (self.rows["machine"] == machine)]
        ends = rows[["next_low", "next_high"]].dropna().itertuples(index=False)
        return next(((float(low), float(high)) for low, high in ends), None)


def expectation(run: Run) -> Expectation | None:
    """Return what the stored pool of a run's job predicts, or None without such a pool.

    A pool that cannot be read predicts nothing.
    """
    for file in sorted(REFERENCES.glob(f"*/{POOL}")):
        try:
            first = Path(list_runs(str(file.parent), file.parent)[0])
            plan = read_plan(first)
            if plan is None or any(unlike(_outline(first, plan), _snapshot(run))):
                continue
            rows = pd.read_csv(file, usecols=list(_COLUMNS))
        except (BenchError, OSError, ValueError):
            continue
        rows = rows[rows["machine"] != EVERY]
        return Expectation(file.parent.name, machine(run), rows)
    return None


def _outline(path: Path, plan: Plan) -> RunSnapshot:
    """Return a run without its answers."""
    facts: dict[str, Any] = {"config": read_config(path), "env": read_environment(path)}
    status = read_status(path)
    return _snapshot(Run(path=path, plan=plan, status=status, records=(), events=(), **facts))


def _snapshot(run: Run) -> RunSnapshot:
    return RunSnapshot(**vars(run), verdict=str(run.status.verdict), reasons=(), gold={})


def section(findings: Findings) -> Sequence[Table]:
    """Make the section of a report: predicted and measured, or which machines have predictions."""
    if (expected := expectation(findings.run)) is None:
        return ()
    here, measured = expected.here, _speedups(findings)
    if here.empty:
        columns: Columns = {"machine": str} | {
            name: partial(lambda name, machine: _text(expected.range(name, machine)), name)
            for name in measured
        }
        note = f"{expected.missing[:1].upper()}{expected.missing[1:]}. The pool {expected.pool} "
        note += "predicts the speed-ups of the next session on other machines."
        rows = list(dict.fromkeys(expected.rows["machine"]))
        return (Table.from_rows("Expected of other machines", note, columns, rows),)
    columns = {
        "decoder": str,
        "expected": lambda name: _text(expected.range(name, expected.machine)),
        "this run": lambda name: TableCell(
            factor(measured[name]), bad=_is_outside(expected, name, measured[name])
        ),
    }
    num = counted(int(here["sessions"].max()), "session")
    note = f"Speed-ups that {num} of the pool {expected.pool} predict for the next one, with 95 % "
    note += f"probability, on this machine ({expected.machine})."
    return (Table.from_rows("Expected from stored sessions", note, columns, measured),)


def conclusion(run_dir: Path) -> list[str]:
    """State whether a run's speed-ups are as its machine's stored sessions predict."""
    findings = Findings(load_run(run_dir))
    if (expected := expectation(findings.run)) is None:
        return []
    if expected.here.empty:
        return [expected.missing]
    measured = _speedups(findings)
    predicted = [name for name in measured if expected.range(name, expected.machine)]
    outside = [name for name in predicted if _is_outside(expected, name, measured[name])]
    line = (
        f"{len(predicted) - len(outside)} of {counted(len(predicted), 'speed-up')} as the stored "
    )
    line += f"sessions of this processor predict ({expected.machine})"
    ranges = [
        f"{name} {factor(measured[name])}, not {_text(expected.range(name, expected.machine))}"
        for name in outside
    ]
    return ["; ".join([line, *ranges])]


def _speedups(findings: Findings) -> dict[str, float]:
    rows = summary_rows(findings.summary, ALL)
    return {row.decoder: row.speedup for row in rows if row.decoder != BASELINE and row.speedup}


def _is_outside(expected: Expectation, decoder: str, speedup: float) -> bool:
    ends = expected.range(decoder, expected.machine)
    return ends is not None and not ends[0] <= speedup <= ends[1]


def _text(ends: tuple[float, float] | None) -> str:
    return interval(*(ends or (None, None)))

"""The prediction of stored sessions for a run: a section of its report, and a line at its end.

The pools of ``results/reference`` in this checkout predict the next session of their job, by
machine. A run of such a job shows the prediction for its machine, or says that there is none. The
run's first report keeps what the pools say in ``expected.json``, and later reports read it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import BenchError
from bench.extras.sessions.pooled import EVERY, POOL, list_runs, machine, unlike
from bench.machine.env import ROOT
from bench.records.environment import read_environment
from bench.records.files import SCHEMA, parse, read_json, write_json
from bench.records.plan import read_plan, read_status
from bench.records.run_folder import Run, load_run, read_config
from bench.report.findings import Findings
from bench.report.tables.table import Columns, Table, interval
from bench.stats.metrics import summary_rows
from bench.stats.side import RunSnapshot
from bench.stats.summary import ALL
from bench.text import UNKNOWN, factor

REFERENCES = ROOT / "results" / "reference"
EXPECTED = "expected.json"
_NOTE = (
    "Speed-ups, and where stored sessions of this job expect those of the next session, with 95 % "
    "probability; a prediction holds for its machine alone."
)
_Ranges = Mapping[str, tuple[float, float]]
"""Predicted interval by decoder."""


def predictions(run: Run) -> Mapping[str, _Ranges]:
    """Return what the pool of a run's job predicted by machine when the run ended."""
    file = run.path / EXPECTED
    if run.status.reported is False and (ranges := _pooled(run)):
        write_json(file, {"schema": SCHEMA, "next": ranges})
    kept = (read_json(file) or {}).get("next", {})
    return parse(dict[str, dict[str, tuple[float, float]]], kept, file)


def _pooled(run: Run) -> dict[str, _Ranges]:
    """Return what the pool of a run's job predicts by machine, nothing without a readable pool."""
    for file in sorted(REFERENCES.glob(f"*/{POOL}")):
        try:
            pooled = _without_answers(Path(list_runs(str(file.parent), file.parent)[0]))
            if pooled.plan is None or any(unlike(_snapshot(pooled), _snapshot(run))):
                continue
            names = ["machine", "decoder", "next_low", "next_high"]
            rows = pd.read_csv(file, usecols=names)[names].dropna().itertuples(index=False)
        except (BenchError, OSError, ValueError):
            continue
        ranges: dict[str, dict[str, tuple[float, float]]] = {}
        for place, decoder, low, high in rows:
            ranges.setdefault(str(place), {})[str(decoder)] = low, high
        return {place: each for place, each in ranges.items() if place != EVERY}
    return {}


def _without_answers(folder: Path) -> Run:
    facts: dict[str, Any] = {"plan": read_plan(folder), "config": read_config(folder)}
    facts |= {"env": read_environment(folder), "status": read_status(folder)}
    return Run(path=folder, records=(), events=(), **facts)


def _snapshot(run: Run) -> RunSnapshot:
    return RunSnapshot(**vars(run), verdict=str(run.status.verdict), reasons=())


def section(findings: Findings) -> Sequence[Table]:
    """Make the section of a report: this run's speed-ups above the predictions by machine."""
    if not (ranges := predictions(findings.run)):
        return ()
    measured = _speedups(findings)
    rows = {f"this run: {machine(findings.run)}": {n: factor(x) for n, x in measured.items()}}
    rows |= {m: {n: interval(*ends) for n, ends in each.items()} for m, each in ranges.items()}
    columns: Columns = {"machine": str}
    columns |= {name: partial(lambda n, m: rows[m].get(n, UNKNOWN), name) for name in measured}
    note = f"{_NOTE} {_judge(findings, ranges)}."
    return (Table.from_rows("Expected from stored sessions", note, columns, rows),)


def conclusion(run_dir: Path) -> list[str]:
    """State whether a run's speed-ups are what stored sessions of its machine predict."""
    ranges = predictions(_without_answers(run_dir))
    return [_judge(Findings(load_run(run_dir)), ranges)] if ranges else []


def _judge(findings: Findings, ranges: Mapping[str, _Ranges]) -> str:
    if (here := machine(findings.run)) not in ranges:
        return f"No stored session of this processor ({here}): expect what `bench cost` shows"
    outside = [
        f"{name} {factor(speedup)}, not {interval(*ranges[here][name])}"
        for name, speedup in _speedups(findings).items()
        if name in ranges[here] and not ranges[here][name][0] <= speedup <= ranges[here][name][1]
    ]
    line = f"as stored sessions of this processor predict ({here})"
    return f"Not {line}: {'; '.join(outside)}" if outside else f"Speed-ups are {line}"


def _speedups(findings: Findings) -> dict[str, float]:
    rows = summary_rows(findings.summary, ALL)
    return {row.decoder: row.speedup for row in rows if row.decoder != row.over and row.speedup}

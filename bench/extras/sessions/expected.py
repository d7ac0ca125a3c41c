"""Predict a run from earlier runs of its job: speed-ups, and the baseline's speed.

The pools of ``results/reference`` in this checkout predict the next session of their job, by
machine. A run of such a job shows the prediction for its machine, or states that there is none. A
line warns if the baseline was faster in an earlier run of the job on this machine (beside the run
or in ``results/reference``): load that lasts for the whole run does not show in A/A. The run's
first report stores both predictions in ``expected.json``, from which later reports read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

import pandas as pd

from bench.errors import BenchError
from bench.extras.sessions.pooled import POOL, list_runs, machine, unlike
from bench.machine.env import ROOT
from bench.records.environment import read_environment
from bench.records.files import SCHEMA, parse, read_json, write_json
from bench.records.plan import STATUS, read_status
from bench.records.run_folder import Run, load_run
from bench.report.findings import Findings
from bench.report.tables.table import Columns, Table, interval
from bench.report.write import SUMMARY
from bench.stats.metrics import summary_rows
from bench.stats.side import RunSnapshot
from bench.stats.summary import ALL
from bench.stats.validity import VALID
from bench.text import UNKNOWN, factor

REFERENCES = ROOT / "results" / "reference"
EXPECTED = "expected.json"
_NOTE = (
    "Speed-ups, and where stored sessions of this job expect those of the next session, with 95 % "
    "probability; a prediction holds for its machine alone."
)
MAX_SLOWER = 1.1
"""Factor of the baseline's time per token over an earlier run's, above which a line warns."""
_Ranges = Mapping[str, tuple[float, float]]
"""Predicted interval by decoder."""


@dataclass(frozen=True)
class Expected:
    """Hold the predictions of earlier runs of a run's job, as of the run's end."""

    next: Mapping[str, _Ranges] = field(default_factory=dict)
    """Predicted speed-ups by machine."""
    fastest: tuple[str, float] | None = None
    """The run on this machine with the fastest baseline, and its seconds per token."""


def expectations(findings: Findings) -> Expected:
    """Return the predictions of earlier runs of a run's job, as of the run's end."""
    run, file = findings.run, findings.run.path / EXPECTED
    if run.status.reported is False:
        fastest = min(_baselines(run), key=lambda each: each[1], default=None)
        if (now := Expected(_pooled(run), fastest)) != Expected():
            write_json(file, {"schema": SCHEMA} | asdict(now))
    fields = {key: value for key, value in (read_json(file) or {}).items() if key != "schema"}
    return parse(Expected, fields, file)


def _pooled(run: Run) -> Mapping[str, _Ranges]:
    """Return the predictions by machine of the pool of a run's job (empty: no readable pool)."""
    for file in sorted(REFERENCES.glob(f"*/{POOL}")):
        try:
            pooled = load_run(list_runs(str(file.parent), file.parent)[0], answers=False)
            if any(unlike(_snapshot(pooled), _snapshot(run))):
                continue
            names = ["machine", "decoder", "next_low", "next_high"]
            rows = pd.read_csv(file, usecols=names)[names].dropna().itertuples(index=False)
        except (BenchError, OSError, ValueError):
            continue
        ranges: dict[str, dict[str, tuple[float, float]]] = {}
        for place, decoder, low, high in rows:
            ranges.setdefault(str(place), {})[str(decoder)] = low, high
        return ranges
    return {}


def _baselines(run: Run) -> Iterator[tuple[str, float]]:
    """Yield valid earlier runs of the job on the same machine: name, baseline's time per token."""
    here = machine(run.env)
    for file in chain(REFERENCES.rglob(STATUS), run.path.parent.glob(f"*/{STATUS}")):
        if (folder := file.parent.resolve()) == run.path.resolve():
            continue
        try:
            if read_status(folder).verdict != VALID or machine(read_environment(folder)) != here:
                continue
            if any(unlike(_snapshot(load_run(folder, answers=False)), _snapshot(run))):
                continue
            if (seconds := _baseline_time(pd.read_csv(folder / SUMMARY))) < math.inf:
                yield folder.name, seconds
        except (BenchError, OSError, ValueError):
            continue


def _baseline_time(summary: pd.DataFrame) -> float:
    """Return the baseline's seconds per token, or infinity if unknown."""
    rows = [row for row in summary_rows(summary, ALL) if row.decoder == row.over]
    return next((row.time_per_token_s for row in rows if row.time_per_token_s), math.inf)


def _snapshot(run: Run) -> RunSnapshot:
    return RunSnapshot(**vars(run), verdict=str(run.status.verdict), reasons=())


def section(findings: Findings) -> Sequence[Table]:
    """Make the section of a report: this run's speed-ups above the predictions by machine."""
    if not (ranges := findings.once(expectations).next):
        return ()
    measured = _speedups(findings)
    rows = {f"this run: {machine(findings.run.env)}": {n: factor(x) for n, x in measured.items()}}
    rows |= {m: {n: interval(*ends) for n, ends in each.items()} for m, each in ranges.items()}
    columns: Columns = {"machine": str}
    columns |= {name: partial(lambda n, m: rows[m].get(n, UNKNOWN), name) for name in measured}
    note = f"{_NOTE} {_judge(findings, ranges)}."
    return (Table.of("Expected from stored sessions", note, columns, rows),)


def conclusion(run_dir: Path) -> list[str]:
    """State whether a run's speed-ups agree with the prediction of its machine's sessions."""
    ranges = expectations(Findings(load_run(run_dir, answers=False))).next
    return [_judge(Findings(load_run(run_dir)), ranges)] if ranges else []


def caveats(findings: Findings) -> Iterator[str]:
    """Yield a line if an earlier run of the job on this machine had a faster baseline."""
    name, seconds = findings.once(expectations).fastest or ("", math.nan)
    if MAX_SLOWER < (slower := _baseline_time(findings.summary) / seconds) < math.inf:
        yield (
            f"Warning: {findings.run.plan.baseline} took {slower:.2f} times as long per token as "
            f"in {name}, the fastest run of this job on this machine: load that lasts for a whole "
            "run does not show in A/A, and can raise speed-ups; see docs/troubleshooting.md."
        )


def _judge(findings: Findings, ranges: Mapping[str, _Ranges]) -> str:
    here, measured = machine(findings.run.env), _speedups(findings)
    compared = {name: each for name, each in ranges.get(here, {}).items() if name in measured}
    if not compared:
        of = "this processor" if here not in ranges else "these decoders on this processor"
        return f"No stored session of {of} ({here}): expect what `bench cost` shows"
    outside = [
        f"{name} {factor(measured[name])}, not {interval(low, high)}"
        for name, (low, high) in compared.items()
        if not low <= measured[name] <= high
    ]
    line = f"as stored sessions of this processor predict ({here})"
    return f"Not {line}: {'; '.join(outside)}" if outside else f"Speed-ups are {line}"


def _speedups(findings: Findings) -> dict[str, float]:
    rows = summary_rows(findings.summary, ALL)
    return {row.decoder: row.speedup for row in rows if row.decoder != row.over and row.speedup}

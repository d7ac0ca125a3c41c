"""`bench export`: a run's numbers in the formats of other tools, from its folder alone.

``pytest-benchmark`` writes one benchmark per decoder, a round per answer, in seconds per token,
with the counters as extra info; its own `compare` reads the file. ``github-action-benchmark``
writes two files, as that action takes one direction a file. A decoder that claims to be lossless
and is not is in neither. ``csv`` and ``parquet`` hold one row per answer. ``mlflow`` and
``trackio`` fill stores of trackers (`bench.report.trackers`), ``hub`` and ``eval-results`` are what
the Hugging Face hub takes (`bench.report.hub`, `bench.report.eval_results`). No torch here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from bench.errors import UnavailableError, UsageError
from bench.records.files import write_files
from bench.report import hub
from bench.report.answers import answers, as_csv, as_parquet
from bench.report.eval_results import eval_results
from bench.report.findings import Findings
from bench.report.tables.speed import floor_note
from bench.report.tables.table import guarantee_label, number, without_wrong
from bench.report.trackers import (
    MLFLOW_URI,
    PROJECT,
    TRACKIO_DIR,
    TrackedRun,
    to_mlflow,
    to_trackio,
    tracked_runs,
)
from bench.stats import times
from bench.stats.counters import group_by
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import counted

Format = Literal[
    "pytest-benchmark", "github-action-benchmark", "csv", "parquet", "hub", "eval-results"
]
Tracker = Literal["mlflow", "trackio"]
COUNTERS = (
    *("tokens_per_call", "tpf", "acceptance_length", "acceptance_rate", "rows_per_token"),
    *("identical_to_ar", "quality", "peak_memory_bytes", "prompts", "repeats", "errors"),
)
_SMALLER = (("time per token", "ms", "time_per_token_s", 1e3), ("TTFT", "ms", "ttft_s", 1e3))
_BIGGER = (
    ("speed-up over ar", "x", "speedup", 1.0),
    ("tokens per call", "tokens", "tokens_per_call", 1.0),
    ("tokens per step", "tokens", "acceptance_length", 1.0),
    ("quality", "%", "quality", 100.0),
)
_TRACKERS: Mapping[str, tuple[Callable[[Sequence[TrackedRun], str, Path | None], str], str]] = {
    "mlflow": (to_mlflow, MLFLOW_URI),
    "trackio": (to_trackio, TRACKIO_DIR),
}
"""What writes into each, and the variable that says where its store is."""
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What single formats take; None (or empty) where it was not said.

    Attributes:
        project: of ``mlflow`` and ``trackio``: the experiment or project.
        repo: ``OWNER/NAME`` of a dataset: ``hub`` is for it, ``eval-results`` link to it.
        licence: of ``hub``: the card's licence.
        benchmarks: of ``eval-results``: ``FAMILY=OWNER/DATASET[#TASK]``.
    """

    project: str | None = None
    repo: str | None = None
    licence: str | None = None
    benchmarks: Sequence[str] = ()

    def refuse_for(self, kind: str) -> None:
        """Refuse what the format does not take.

        Raises:
            BenchError: exit 2.
        """
        for option, given, kinds in (
            ("--project", self.project, ("mlflow", "trackio")),
            ("--repo", self.repo, ("hub", "eval-results")),
            ("--license", self.licence, ("hub",)),
            ("--benchmark", self.benchmarks, ("eval-results",)),
        ):
            if given and kind not in kinds:
                line = f"{option} is for --to {' and '.join(kinds)}, not for {kind}"
                raise UsageError(f"{line}; leave it out")
        if self.repo and not _REPO.fullmatch(self.repo):
            line = f"--repo {self.repo!r} is not OWNER/NAME of a dataset of the Hugging Face hub"
            raise UsageError(line)


def deliver(
    findings: Findings, kind: Format | Tracker, folder: Path | None, choices: Choices
) -> list[str]:
    """All that `bench export` does; returns where it is seen.

    `folder` is None: ``export`` in the run's folder (for a tracker, if its environment names no
    store), in it one of the format's own where the files have fixed names.

    Raises:
        BenchError: what `export`, `track` and `hub.upload` raise.
    """
    own = findings.run.path / "export"
    if kind == "mlflow" or kind == "trackio":
        return [track(findings, kind, folder, choices)]
    folder = folder or (own / kind if kind in ("hub", "eval-results") else own)
    files = export(findings, kind, folder, choices)
    places = [str(file) for file in files]
    if kind == "hub" and choices.repo is not None:
        places.append(hub.upload(folder, files, choices.repo, f"Run {findings.name}"))
    return places


def export(
    findings: Findings, kind: Format, folder: Path, choices: Choices | None = None
) -> list[Path]:
    """Write a run in one format into `folder`; returns the files.

    Raises:
        BenchError: where an option is not for the format (exit 2), nothing was measured (5) or it
            cannot be written (1).
    """
    choices = choices or Choices()
    _refuse(findings, kind, choices)
    made: dict[str, bytes]
    if kind == "pytest-benchmark":
        made = {"pytest-benchmark.json": _json(pytest_benchmark(findings))}
    elif kind == "github-action-benchmark":
        made = {
            "smaller-is-better.json": _json(_action_entries(findings.summary, _SMALLER)),
            "bigger-is-better.json": _json(_action_entries(findings.summary, _BIGGER)),
        }
    elif kind == "hub":
        made = hub.dataset(findings, choices.licence, choices.repo)
    elif kind == "eval-results":
        made = eval_results(findings, choices.benchmarks, choices.repo)
    else:
        frame = answers(findings.run.records)
        made = {f"answers.{kind}": as_csv(frame) if kind == "csv" else as_parquet(frame)}
    return write_files(folder, made)


def track(
    findings: Findings, kind: Tracker, folder: Path | None, choices: Choices | None = None
) -> str:
    """Write a run into a tracker's store; returns what its own commands call the store.

    `folder` is None: where the tracker's environment says, else ``export`` in the run's folder.

    Raises:
        BenchError: where an option is not for the tracker (exit 2), nothing was measured or the
            tracker is not installed (5), or its store refuses (1).
    """
    choices = choices or Choices()
    _refuse(findings, kind, choices)
    write, variable = _TRACKERS[kind]
    if folder is None and not os.environ.get(variable):
        folder = findings.run.path / "export" / kind
    return write(tracked_runs(findings), choices.project or PROJECT, folder)


def _refuse(findings: Findings, kind: Format | Tracker, choices: Choices) -> None:
    choices.refuse_for(kind)
    if not findings.run.records:
        raise UnavailableError(f"{findings.name} has no answers to export")


def pytest_benchmark(findings: Findings) -> dict[str, Any]:
    """The run as pytest-benchmark stores one of its own."""
    run, env = findings.run, findings.run.env
    cells = group_by(run.records, lambda record: record.decoder)
    benchmarks = []
    for row in rows_of(without_wrong(findings.summary), ALL):
        units = times.timed_units(cells[row.decoder])
        data = [unit.time_per_token for unit in units if unit.ok and unit.time_per_token]
        if data:
            benchmarks.append(_benchmark(row, data))
    return {
        "machine_info": {
            **asdict(env.machine),
            "python_version": env.python,
            "comparability_key": env.comparability_key,
        },
        "commit_info": {"id": env.git.commit, "dirty": env.git.dirty, "project": "bench"},
        "run_verdict": findings.verdict,
        "benchmarks": benchmarks,
        "datetime": run.status.started_utc,
        "version": "5.0.0",
    }


def _benchmark(row: SummaryRow, data: Sequence[float]) -> dict[str, Any]:
    """One decoder: rounds are answers, seconds are per emitted token."""
    name = f"decode[{row.decoder}]"
    values = np.asarray(data)
    first, middle, third = np.percentile(values, (25, 50, 75))
    return {
        "group": "seconds per token",
        "name": name,
        "fullname": f"bench::{name}",
        "params": {"decoder": row.decoder},
        "param": row.decoder,
        "extra_info": {
            "guarantee": row.guarantee,
            **{key: float(v) for key in COUNTERS if (v := row.value(key)) is not None},
        },
        "options": {"timer": "perf_counter", "min_rounds": len(data), "warmup": True},
        "stats": {
            "min": float(values.min()),
            "max": float(values.max()),
            "mean": float(values.mean()),
            "stddev": float(values.std(ddof=1)) if len(data) > 1 else 0.0,
            "median": float(middle),
            "iqr": float(third - first),
            "q1": float(first),
            "q3": float(third),
            "rounds": len(data),
            "iterations": 1,
            "ops": 1 / float(values.mean()),
            "total": float(values.sum()),
            "iqr_outliers": 0,
            "stddev_outliers": 0,
            "outliers": "0;0",
            "ld15iqr": float(values.min()),
            "hd15iqr": float(values.max()),
            "data": list(data),
        },
    }


def _action_entries(
    summary: pd.DataFrame, columns: Sequence[tuple[str, str, str, float]]
) -> list[dict[str, Any]]:
    """Entries of a customSmallerIsBetter or customBiggerIsBetter file, over all families."""
    entries = []
    for row in rows_of(without_wrong(summary), ALL):
        for label, unit, column, scale in columns:
            value = row.value(column)
            if value is None:
                continue
            size = f"{counted(row.prompts or 0, 'prompt')} x {counted(row.repeats or 0, 'repeat')}"
            size += f", guarantee: {guarantee_label(row)}"
            entry = {
                "name": f"{row.decoder}: {label}",
                "unit": unit,
                "value": value * scale,
                "extra": size + _floor(row, column),
            }
            low, high = row.value(f"{column}_low"), row.value(f"{column}_high")
            if low is not None and high is not None:
                entry["range"] = f"{number(low, '.3g', scale)} to {number(high, '.3g', scale)}"
            entries.append(entry)
    return entries


def _floor(row: SummaryRow, column: str) -> str:
    """The A/A floor, for a speed-up."""
    floor = floor_note(row) if column == "speedup" else ""
    return f", {floor}" if floor else ""


def _json(data: object) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()

"""Numbers of a run for pull requests: pytest-benchmark's file, and github-action-benchmark's two.

``pytest-benchmark`` has one benchmark per decoder and one round per answer, in seconds per token,
with the counters as extra info; its `compare` command reads the file. ``github-action-benchmark``
takes one file per direction (smaller or bigger is better).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bench.report.findings import Findings
from bench.report.tables.speed import floor_note
from bench.report.tables.table import guarantee_label, number, without_wrong
from bench.stats import times
from bench.stats.counters import group_by
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.summary import ALL
from bench.text import counted

_COUNTERS = (
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


def pytest_benchmark(findings: Findings) -> dict[str, bytes]:
    """Return the run in pytest-benchmark's storage format."""
    run, env = findings.run, findings.run.env
    cells = group_by(run.records, lambda record: record.decoder)
    benchmarks = []
    for row in summary_rows(without_wrong(findings.summary), ALL):
        units = times.timed_units(cells[row.decoder])
        seconds = [unit.time_per_token for unit in units if unit.ok and unit.time_per_token]
        if seconds:
            benchmarks.append(_benchmark(row, seconds))
    data = {
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
    return {"pytest-benchmark.json": _json(data)}


def _benchmark(row: SummaryRow, data: Sequence[float]) -> dict[str, Any]:
    """Return one decoder's benchmark: rounds are answers, seconds are per emitted token."""
    name = f"decode[{row.decoder}]"
    values = np.asarray(data)
    low, first, middle, third, high = map(float, np.percentile(values, (0, 25, 50, 75, 100)))
    return {
        "group": "seconds per token",
        "name": name,
        "fullname": f"bench::{name}",
        "params": {"decoder": row.decoder},
        "param": row.decoder,
        "extra_info": {
            "guarantee": row.guarantee,
            **{key: float(v) for key in _COUNTERS if (v := row.value(key)) is not None},
        },
        "options": {"timer": "perf_counter", "min_rounds": len(data), "warmup": True},
        "stats": {
            "min": low,
            "q1": first,
            "median": middle,
            "q3": third,
            "max": high,
            "iqr": third - first,
            "ld15iqr": low,
            "hd15iqr": high,
            "mean": float(values.mean()),
            "stddev": float(values.std(ddof=1)) if len(data) > 1 else 0.0,
            "ops": 1 / float(values.mean()),
            "total": float(values.sum()),
            "rounds": len(data),
            "iterations": 1,
            "iqr_outliers": 0,
            "stddev_outliers": 0,
            "outliers": "0;0",
            "data": list(data),
        },
    }


def github_action(findings: Findings) -> dict[str, bytes]:
    """Return two files, for numbers of which smaller or bigger ones are better."""
    rows = summary_rows(without_wrong(findings.summary), ALL)
    files = {"smaller-is-better.json": _SMALLER, "bigger-is-better.json": _BIGGER}
    return {
        name: _json([e for row in rows for column in columns for e in _entries(row, *column)])
        for name, columns in files.items()
    }


def _entries(
    row: SummaryRow, label: str, unit: str, column: str, scale: float
) -> list[dict[str, Any]]:
    value = row.value(column)
    if value is None:
        return []
    floor = floor_note(row) if column == "speedup" else ""
    extra = f"{counted(row.prompts or 0, 'prompt')} x {counted(row.repeats or 0, 'repeat')}"
    extra += f", guarantee: {guarantee_label(row)}" + (f", {floor}" if floor else "")
    name = f"{row.decoder}: {label}"
    entry = {"name": name, "unit": unit, "value": value * scale, "extra": extra}
    low, high = row.value(f"{column}_low"), row.value(f"{column}_high")
    if low is not None and high is not None:
        entry["range"] = f"{number(low, '.3g', scale)} to {number(high, '.3g', scale)}"
    return [entry]


def _json(data: object) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()

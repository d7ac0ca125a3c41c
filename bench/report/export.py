"""`bench export`: a run's numbers in the formats of other tools, from its folder alone.

``pytest-benchmark`` writes one benchmark per decoder, a round per answer, in seconds per token,
with the counters as extra info; its own `compare` reads the file. ``github-action-benchmark``
writes two files, as that action takes one direction a file. A decoder that claims to be lossless
and is not is in neither. ``csv`` and ``parquet`` hold one row per answer. No torch here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from bench.errors import BenchError, Exit
from bench.records.files import write_files
from bench.records.record import SampleRecord
from bench.report import speed_tables
from bench.report.findings import Findings
from bench.report.style import without_wrong
from bench.report.tables import number, promise
from bench.stats import times
from bench.stats.counters import Tally, by
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of

Format = Literal["pytest-benchmark", "github-action-benchmark", "csv", "parquet"]
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


def export(findings: Findings, kind: Format, folder: Path) -> list[Path]:
    """Write a run in one format into `folder`; returns the files.

    Raises:
        BenchError: where nothing was measured (exit 5) or it cannot be written (1).
    """
    if not findings.run.records:
        raise BenchError(f"{findings.name} has no answers to export", Exit.UNAVAILABLE)
    made: dict[str, bytes]
    if kind == "pytest-benchmark":
        made = {"pytest-benchmark.json": _json(pytest_benchmark(findings))}
    elif kind == "github-action-benchmark":
        made = {
            "smaller-is-better.json": _json(_action_entries(findings.summary, _SMALLER)),
            "bigger-is-better.json": _json(_action_entries(findings.summary, _BIGGER)),
        }
    else:
        frame = answers(findings.run.records)
        made = {f"answers.{kind}": _csv(frame) if kind == "csv" else _parquet(frame)}
    return write_files(folder, made)


def answers(records: Sequence[SampleRecord]) -> pd.DataFrame:
    """One row per answer: what it was, what was counted, what the clock said."""
    rows = []
    for record in records:
        tally, steps = Tally.of(record), record.steps
        done = steps is not None
        seconds = record.total_s
        rows.append(
            {
                "pass": record.kind,
                "decoder": record.decoder,
                "family": record.family,
                "prompt": record.prompt,
                "prompt_hash": record.prompt_hash,
                "repeat": record.repeat,
                "seed": record.seed,
                "batch_size": record.batch_size,
                "num_prompt_tokens": record.num_prompt_tokens,
                "tokens": tally.emitted if done else None,
                "target_calls": tally.target_calls if done else None,
                "target_rows": sum(steps.target_rows) if steps else None,
                "draft_calls": sum(steps.draft_calls) if steps else None,
                "steps": len(steps.emitted) if steps else None,
                "drafted": tally.drafted if done else None,
                "accepted": tally.accepted if done else None,
                "ttft_s": record.ttft_s,
                "total_s": seconds,
                "group_s": record.group_s,
                "time_per_token_s": seconds / tally.emitted if seconds and tally.emitted else None,
                "peak_memory_bytes": record.peak_memory_bytes,
                "stop": record.stop,
                "error": record.error,
                **{f"score_{name}": value for name, value in (record.scores or {}).items()},
            }
        )
    frame = pd.DataFrame(rows)
    whole = ["tokens", "target_calls", "target_rows", "draft_calls", "steps", "drafted", "accepted"]
    return frame.astype(dict.fromkeys([*whole, "peak_memory_bytes"], "Int64"))


def pytest_benchmark(findings: Findings) -> dict[str, Any]:
    """The run as pytest-benchmark stores one of its own."""
    run, env = findings.run, findings.run.env
    cells = by(run.records, lambda record: record.decoder)
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
            size = f"{row.prompts} prompts x {row.repeats} repeats"
            size += f", guarantee: {promise(row)}"
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
    floor = speed_tables.beside(row) if column == "speedup" else ""
    return f", {floor}" if floor else ""


def _json(data: object) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()


def _csv(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False, lineterminator="\n").encode()


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()

"""``history.parquet``: a row per run and decoder, kept even if the run folder is deleted.

Runs of a folder are added and rows of other runs stay, so a dashboard can grow from a CI that
measures one run at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import BenchError, InvalidRunError
from bench.records.environment import read_environment
from bench.records.files import SAMPLES, STORED
from bench.records.frames import num_samples
from bench.records.plan import WRONG
from bench.records.run_folder import lost_plan, read_config
from bench.records.status import RunStatus, read_status
from bench.stats.summary import ALL
from bench.stats.validity import DAMAGED, INCOMPLETE, VALID

HISTORY = "history.parquet"
NUMBERS = (
    *("speedup", "speedup_low", "speedup_high", "tokens_per_call", "acceptance_length"),
    *("acceptance_rate", "quality", "identical_to_ar"),
)
"""Columns kept from summary.csv, for the family `all`."""
_FACTS = (
    *("run", "started_utc", "verdict", "reasons", "branch", "commit", "dirty"),
    *("model", "tasks", "device", "dtype", "key", "series", "decoder", "guarantee"),
)
COLUMNS = (*_FACTS, *NUMBERS)
_UNLIKE = ("run_name", "decoders", "device", "threads", "adapters", "cost", "reference", "timeout")
"""Settings that do not start another series; other work or another model does."""


def gather(folder: Path) -> pd.DataFrame:
    """Return the runs of the history file and of the folder (which wins), oldest first."""
    now = pd.DataFrame([row for run in run_folders(folder) for row in _rows(run)], columns=COLUMNS)
    before = read_history(folder / HISTORY)
    before = before[~before["run"].isin(now["run"])]
    both = [frame for frame in (before, now) if not frame.empty]
    joined = pd.concat(both, ignore_index=True) if both else now
    joined = joined.sort_values(["started_utc", "run"], kind="stable", ignore_index=True)
    return _typed(joined)


def read_history(file: Path) -> pd.DataFrame:
    """Return the rows of a history file, if there is one (exit 4 if it is damaged)."""
    if not file.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    try:
        return _typed(pd.read_parquet(file).reindex(columns=list(COLUMNS)))
    except (OSError, ValueError, KeyError) as error:
        line = f"{file} is damaged: {error}; delete it, and what lies beside it is read again"
        raise InvalidRunError(line) from error


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    numbers = dict.fromkeys(NUMBERS, "float64")
    texts = dict.fromkeys((name for name in _FACTS if name != "dirty"), "string")
    return frame.astype(numbers | texts | {"dirty": "boolean"})


def _rows(run: Path) -> list[dict[str, Any]]:
    try:
        status, env, config = read_status(run), read_environment(run), read_config(run)
    except BenchError as error:
        return [{"run": run.name, "verdict": "DAMAGED", "reasons": error.message}]
    facts = {
        "run": run.name,
        "started_utc": status.started_utc,
        "verdict": run_verdict(run, status),
        "reasons": "; ".join(status.reasons) or None,
        "branch": status.revision or env.git.branch,
        "commit": env.git.commit,
        "dirty": env.git.dirty,
        "model": config.get("model"),
        "tasks": config.get("tasks"),
        "device": env.gpu_name or env.machine.cpu or env.device,
        "dtype": env.dtype,
        "key": env.comparability_key,
        "series": _series(config, env.dtype),
    }
    summary = _summary(run / "summary.csv")
    return [facts | row for row in summary] or [facts]


def _summary(file: Path) -> list[dict[str, Any]]:
    try:
        summary = pd.read_csv(file)
        overall = summary[summary["family"] == ALL]
    except (OSError, ValueError, KeyError):
        return []
    chosen = overall.reindex(columns=["decoder", "guarantee", *NUMBERS])
    rows: list[dict[str, Any]] = json.loads(chosen.to_json(orient="records"))
    return rows


def _series(config: Mapping[str, Any], dtype: str | None) -> str:
    """Return eight hexadecimal digits that identify work and model, and so one curve."""
    asked = {key: value for key, value in config.items() if key not in _UNLIKE}
    text = json.dumps([asked, dtype], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_verdict(folder: Path, status: RunStatus | None) -> str:
    """Return a run's verdict from its status and number of records, without its plan.

    `status` is None if it cannot be read.
    """
    if status is None or lost_plan(folder):
        return DAMAGED
    if num_records_of(folder) < (status.num_records or 0):
        return DAMAGED
    if status.verdict not in (None, VALID):
        return str(status.verdict)
    if status.wrong:
        return WRONG
    return VALID if status.complete else INCOMPLETE


def run_folders(parent: Path) -> list[Path]:
    """Return the run folders under `parent`, sorted by name (i.e. by time), without links."""
    if not parent.is_dir():
        return []
    marks = ("manifest.json", "run.json")
    return sorted(
        path
        for path in parent.iterdir()
        if path.is_dir()
        and not path.is_symlink()
        and any((path / mark).is_file() for mark in marks)
    )


def num_records_of(folder: Path) -> int:
    """Count the records of a run folder, without events and a truncated last line."""
    try:
        with (folder / SAMPLES).open("rb") as file:
            return sum(line.endswith(b"\n") and not line.startswith(b'{"event"') for line in file)
    except OSError:
        return num_samples(folder / STORED)

"""Write one page for a folder of runs, and its ``history.parquet``, for `bench index`.

The history has a row per run and decoder, kept even if the run folder is deleted. Runs of the
folder are added and rows of other runs stay, so a dashboard can grow from a CI that measures one
run at a time. The page shows the latest verdict of every branch and lists all runs, and needs no
network. A change is judged by paired runs (`bench compare`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from bench.errors import BenchError, InvalidRunError, UsageError
from bench.records.environment import read_environment
from bench.records.files import write_files
from bench.records.frames import parquet_bytes
from bench.records.plan import BASELINE, MANIFEST, NO_GUARANTEE, WRONG, read_plan, read_status
from bench.records.run_folder import read_config
from bench.report.page import render
from bench.stats.folders import count_records, run_folders, run_verdict
from bench.stats.summary import ALL
from bench.stats.validity import DAMAGED, VALID
from bench.text import UNKNOWN, factor

HISTORY = "history.parquet"
NUMBERS = (
    *("speedup", "speedup_low", "speedup_high", "tokens_per_call", "acceptance_length"),
    *("acceptance_rate", "quality", "identical_to_ar"),
)
"""Columns kept from summary.csv, for the family `all`."""
_FACTS = (
    *("run", "started_utc", "verdict", "reasons", "branch", "commit", "dirty"),
    *("model", "tasks", "device", "dtype", "key", "decoder", "guarantee", "baseline"),
)
COLUMNS = (*_FACTS, *NUMBERS)
INDEX = "index.html"
_SHORT = 9
"""Digits of a commit that are shown."""
_MAIN = ("main", "master")
"""Branches listed first."""


def gather(folder: Path) -> pd.DataFrame:
    """Return the runs of the history file and of the folder (which takes precedence), oldest first.

    Raises:
        InvalidRunError: the history file is damaged.
    """
    now = pd.DataFrame([row for run in run_folders(folder) for row in _rows(run)], columns=COLUMNS)
    before = pd.DataFrame(columns=list(COLUMNS))
    if (file := folder / HISTORY).is_file():
        try:
            before = _typed(pd.read_parquet(file).reindex(columns=list(COLUMNS)))
        except (OSError, ValueError, KeyError) as error:
            line = f"{file} is damaged: {error}; delete it to rebuild it from the runs in its"
            raise InvalidRunError(f"{line} folder") from error
    before = before[~before["run"].isin(now["run"])]
    both = [frame for frame in (before, now) if not frame.empty]
    joined = pd.concat(both, ignore_index=True) if both else now
    joined = joined.sort_values(["started_utc", "run"], na_position="first", ignore_index=True)
    return _typed(joined)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    numbers = dict.fromkeys(NUMBERS, "float64")
    texts = dict.fromkeys((name for name in _FACTS if name != "dirty"), "string")
    return frame.astype(numbers | texts | {"dirty": "boolean"})


def _rows(run: Path) -> list[dict[str, Any]]:
    try:
        status, env, config = read_status(run), read_environment(run), read_config(run)
        plan = read_plan(run)
    except BenchError as error:
        return [{"run": run.name, "verdict": DAMAGED, "reasons": error.message}]
    facts = {
        "run": run.name,
        "started_utc": status.started_utc,
        "verdict": run_verdict(run, status, plan, count_records(run)),
        "reasons": "; ".join(status.reasons) or None,
        "branch": status.revision or env.git.branch,
        "commit": env.git.commit,
        "dirty": env.git.dirty,
        "model": config.get("model"),
        "tasks": config.get("tasks"),
        "device": env.gpu_name or env.machine.cpu or env.device,
        "dtype": env.dtype,
        "key": env.comparability_key,
    }
    if facts["verdict"] == DAMAGED:
        return [facts if plan else facts | {"reasons": f"{MANIFEST} is missing"}]
    try:
        summary = pd.read_csv(run / "summary.csv")
        overall = summary[summary["family"] == ALL]
    except (OSError, ValueError, KeyError):
        return [facts]
    numbers = overall.reindex(columns=["decoder", "guarantee", "baseline", *NUMBERS])
    return [facts | row for row in json.loads(numbers.to_json(orient="records"))] or [facts]


def write_index(folder: Path) -> tuple[Path, pd.DataFrame]:
    """Write ``index.html`` and ``history.parquet`` of a folder, and return page and history.

    Raises:
        BenchError: no run in the folder (exit 2), a damaged history (4), a failed write (1).
    """
    history = gather(folder)
    if history.empty:
        raise UsageError(f"{folder} holds no run; bench index takes the parent of run folders")
    lines = []
    for row in history.drop_duplicates("run").to_dict("records"):
        run = {str(key): None if pd.isna(value) else value for key, value in row.items()}
        lines.append(_line(run, history, folder))
    newest = {str(line["branch"] or UNKNOWN): line for line in lines}
    files = {
        HISTORY: parquet_bytes(history),
        INDEX: render(
            "index.html.jinja",
            title=f"Runs in {folder.resolve().name}",
            branches=sorted(newest.items(), key=lambda item: (item[0] not in _MAIN, item[0])),
            lines=lines[::-1],
            headings=("started", "branch", "commit", "model", "tasks", "device", "speed-ups"),
        ),
    }
    return write_files(folder, files)[-1], history


def _line(run: Mapping[str, Any], history: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return a run's line in the list: its `cells`, and a `link` to its report if it has one."""
    name = str(run["run"])
    commit = str(run["commit"] or "")[:_SHORT] + ("+" if run["dirty"] else "")
    base = str(run["baseline"] or BASELINE)
    rows = history[history["run"] == name].dropna(subset=["speedup"]).fillna({"guarantee": ""})
    rows = rows[rows["decoder"] != rows["baseline"].fillna(BASELINE)]
    speedups = [
        f"{decoder} {factor(value)}" + " (lossy)" * (guarantee == NO_GUARANTEE)
        for decoder, value, guarantee in rows[["decoder", "speedup", "guarantee"]].to_numpy()
        if guarantee != WRONG
    ]
    over = f"over {base}: " * (base != BASELINE) + ", ".join(speedups) if speedups else UNKNOWN
    started = str(run["started_utc"] or "")[:16].replace("T", " ")
    facts = (started, run["branch"], commit, run["model"], run["tasks"], run["device"])
    report = f"{name}/report.html"
    return {
        **run,
        "link": quote(report) if (folder / report).is_file() else None,
        "good": run["verdict"] == VALID,
        "cells": (*(str(fact or UNKNOWN) for fact in facts), over),
    }

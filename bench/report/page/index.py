"""`bench index`: one page for a folder of runs, with the latest verdict of every branch.

The page needs no network. Curves show counters and speed-ups over time, and mark changes of their
level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import UsageError
from bench.records.files import write_bytes
from bench.records.frames import parquet_bytes
from bench.records.plan import BASELINE
from bench.report.page.history import HISTORY, gather
from bench.report.page.render import render
from bench.stats.change_points import change_points
from bench.stats.validity import VALID
from bench.text import UNKNOWN, factor

INDEX = "index.html"
_SHORT = 9
"""Digits of a commit that are shown."""
_CURVES = (("tokens_per_call", "tokens per call"), ("speedup", "speed-up"))
_WIDTH, _HEIGHT, _MARGIN = 360, 64, 6


def write_index(folder: Path) -> tuple[Path, pd.DataFrame]:
    """Write ``index.html`` and ``history.parquet`` of a folder of runs; return page and history.

    Raises:
        BenchError: no run in the folder (exit 2), a damaged history (4), a failed write (1).
    """
    history = gather(folder)
    if history.empty:
        line = f"{folder} holds no run; bench index takes the parent of run folders"
        raise UsageError(line)
    write_bytes(folder / HISTORY, parquet_bytes(history))
    write_bytes(folder / INDEX, page_of(history, folder))
    return folder / INDEX, history


def page_of(history: pd.DataFrame, folder: Path) -> bytes:
    """Return the HTML of a history; runs link to their reports in `folder`."""
    runs = _runs(history)
    lines = [_line(run, history, folder) for run in reversed(runs)]
    latest = {str(run["branch"] or UNKNOWN): run for run in runs}
    branches = [
        (branch, _line(run, history, folder))
        for branch, run in sorted(latest.items(), key=_by_name)
    ]
    return render(
        "index.html.jinja",
        title=f"Runs in {folder.resolve().name}",
        branches=branches,
        lines=lines,
        series=list(_series(history)),
        headings=("started", "branch", "commit", "model", "tasks", "device", "speed-ups"),
    )


def _by_name(item: tuple[str, Any]) -> tuple[bool, str]:
    return item[0] not in ("main", "master"), item[0]


def _runs(history: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each run, oldest first; unknown values are None."""
    first = history.drop_duplicates("run")
    return [_known(row) for row in first.to_dict("records")]


def _known(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): None if pd.isna(value) else value for key, value in row.items()}


def _line(run: Mapping[str, Any], history: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return a run's line in the list: its `cells`, and a `link` to its report if it has one."""
    name = str(run["run"])
    commit = str(run["commit"] or "")[:_SHORT] + ("+" if run["dirty"] else "")
    mine = history[(history["run"] == name) & (history["decoder"] != BASELINE)]
    faster = mine.dropna(subset=["speedup"])
    speedups = [
        f"{decoder} {factor(value)}"
        for decoder, value in zip(faster["decoder"], faster["speedup"], strict=True)
    ]
    started = str(run["started_utc"] or "")[:16].replace("T", " ")
    facts = (started, run["branch"], commit, run["model"], run["tasks"], run["device"])
    report = f"{name}/report.html"
    return {
        **run,
        "link": report if (folder / report).is_file() else None,
        "good": run["verdict"] == VALID,
        "cells": (*(str(fact or UNKNOWN) for fact in facts), ", ".join(speedups) or UNKNOWN),
    }


def _series(history: pd.DataFrame) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the curves of each series; a curve needs three VALID runs or more."""
    valid = history[(history["verdict"] == VALID) & history["decoder"].notna()]
    for _, of_series in valid.groupby("series", sort=False):
        curves = []
        for decoder, mine in of_series.groupby("decoder", sort=False):
            for column, title in _CURVES:
                known = mine.dropna(subset=[column])
                if column == "speedup":  # a curve must not mix times of different machines
                    known = known[known["key"] == mine["key"].iloc[-1]]
                if decoder != BASELINE and len(known) >= 3:
                    curves.append(_curve(f"{decoder}: {title}", known, column))
        if curves:
            last = _known(of_series.iloc[-1].to_dict())
            words = [str(last[key]) for key in ("model", "tasks", "dtype") if last[key]]
            yield f"{', '.join(words)} (series {last['series']})", curves


def _curve(title: str, known: pd.DataFrame, column: str) -> dict[str, Any]:
    """Return one number of a decoder over the runs of a series, with changes of its level."""
    values = [float(value) for value in known[column]]
    positions = change_points(values)
    runs, commits = list(known["run"]), list(known["commit"].fillna(""))
    low, high = min(values), max(values)
    span = (high - low) or max(abs(high), 1e-9)
    width, height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
    across = [round(_MARGIN + width * i / max(len(values) - 1, 1), 1) for i in range(len(values))]
    down = [round(_MARGIN + height * (1 - (value - low) / span), 1) for value in values]
    names = [f"{run}: {value:.4g}" for run, value in zip(runs, values, strict=True)]
    return {
        "title": title,
        "size": (_WIDTH, _HEIGHT),
        "points": list(zip(across, down, names, strict=True)),
        "breaks": [(across[i - 1] + across[i]) / 2 for i in positions],
        "last": f"{values[-1]:.3g}",
        "changes": [
            f"{values[i - 1]:.3g} to {values[i]:.3g} with {runs[i]}"
            + (f" (commit {commits[i][:_SHORT]})" if commits[i] else "")
            for i in positions
        ],
    }

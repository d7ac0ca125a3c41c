"""`bench index`: one page for a folder of runs, with the latest verdict of every branch.

It stands alone and asks nothing of the network. Curves show counters and speed-ups over time, with
marks where a level changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from bench.errors import UsageError
from bench.records.files import write_bytes, write_text
from bench.records.frames import parquet_bytes
from bench.records.plan import BASELINE
from bench.report.page.history import HISTORY, gather
from bench.report.page.render import render_index
from bench.stats.change_points import change_points
from bench.stats.validity import VALID
from bench.text import UNKNOWN, factor

INDEX = "index.html"
_SHORT = 9
"""Digits of a commit that are shown."""
_CURVES = (("tokens_per_call", "tokens per call"), ("speedup", "speed-up"))
_WIDTH, _HEIGHT, _MARGIN = 360, 64, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A run in the list: `cells` are texts; `link` leads to its report where that lies there."""

    run: str
    link: str | None
    verdict: str
    good: bool
    reasons: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A number of a decoder over the runs of a series; `changes` says where its level changed."""

    title: str
    drawn: Markup
    last: str
    changes: tuple[str, ...]


def write_index(folder: Path) -> tuple[Path, pd.DataFrame]:
    """Write ``index.html`` and ``history.parquet`` of a folder of runs; returns page and history.

    Raises:
        BenchError: no run is there (2), the history is damaged (4), or it cannot be written (1).
    """
    history = gather(folder)
    if history.empty:
        line = f"{folder} holds no run; bench index takes the parent of run folders"
        raise UsageError(line)
    write_bytes(folder / HISTORY, parquet_bytes(history))
    write_text(folder / INDEX, page_of(history, folder))
    return folder / INDEX, history


def page_of(history: pd.DataFrame, folder: Path) -> str:
    """The HTML of a history; runs link to the reports that lie in `folder`."""
    runs = _runs(history)
    lines = [_line(run, history, folder) for run in reversed(runs)]
    latest = {str(run["branch"] or UNKNOWN): run for run in runs}
    branches = [
        (branch, _line(run, history, folder))
        for branch, run in sorted(latest.items(), key=_by_name)
    ]
    return render_index(
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


def _line(run: Mapping[str, Any], history: pd.DataFrame, folder: Path) -> Line:
    name = str(run["run"])
    report = folder / name / "report.html"
    commit = str(run["commit"] or "")[:_SHORT] + ("+" if run["dirty"] else "")
    mine = history[(history["run"] == name) & (history["decoder"] != BASELINE)]
    faster = mine.dropna(subset=["speedup"])
    speedups = [
        f"{decoder} {factor(value)}"
        for decoder, value in zip(faster["decoder"], faster["speedup"], strict=True)
    ]
    started = str(run["started_utc"] or "")[:16].replace("T", " ")
    facts = (started, run["branch"], commit, run["model"], run["tasks"], run["device"])
    return Line(
        run=name,
        link=f"{name}/report.html" if report.is_file() else None,
        verdict=str(run["verdict"]),
        good=run["verdict"] == VALID,
        reasons=str(run["reasons"] or ""),
        cells=(*(str(fact or UNKNOWN) for fact in facts), ", ".join(speedups) or UNKNOWN),
    )


def _series(history: pd.DataFrame) -> Iterator[tuple[str, list[Curve]]]:
    """Yield curves by series, of at least three VALID runs."""
    valid = history[(history["verdict"] == VALID) & history["decoder"].notna()]
    for _, of_series in valid.groupby("series", sort=False):
        curves = []
        for decoder, mine in of_series.groupby("decoder", sort=False):
            for column, title in _CURVES:
                known = mine.dropna(subset=[column])
                if column == "speedup":  # times of unlike machines are no curve
                    known = known[known["key"] == mine["key"].iloc[-1]]
                if decoder != BASELINE and len(known) >= 3:
                    curves.append(_curve(f"{decoder}: {title}", known, column))
        if curves:
            last = _known(of_series.iloc[-1].to_dict())
            words = [str(last[key]) for key in ("model", "tasks", "dtype") if last[key]]
            yield f"{', '.join(words)} (series {last['series']})", curves


def _curve(title: str, known: pd.DataFrame, column: str) -> Curve:
    values = [float(value) for value in known[column]]
    positions = change_points(values)
    runs, commits = list(known["run"]), list(known["commit"].fillna(""))
    changes = tuple(
        f"{values[i - 1]:.3g} to {values[i]:.3g} with {runs[i]}"
        + (f" (commit {commits[i][:_SHORT]})" if commits[i] else "")
        for i in positions
    )
    return Curve(
        title=title,
        drawn=_drawn(values, positions, runs),
        last=f"{values[-1]:.3g}",
        changes=changes,
    )


def _drawn(values: list[float], changes: list[int], runs: list[str]) -> Markup:
    """Draw a small SVG: a line, a dot a run with its name, a dashed line at every change."""
    low, high = min(values), max(values)
    span = (high - low) or max(abs(high), 1e-9)
    width, height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN

    def at(i: int) -> tuple[float, float]:
        x = _MARGIN + width * i / max(len(values) - 1, 1)
        y = _MARGIN + height * (1 - (values[i] - low) / span)
        return round(x, 1), round(y, 1)

    points = " ".join(f"{x},{y}" for x, y in map(at, range(len(values))))
    parts = [f'<polyline points="{points}" fill="none" stroke="currentColor"/>']
    for change in changes:
        x = (at(change - 1)[0] + at(change)[0]) / 2
        parts.append(
            f'<line class="change" x1="{x}" x2="{x}" y1="0" y2="{_HEIGHT}" '
            'stroke="currentColor" stroke-dasharray="3 3"/>'
        )
    dots = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="2.5"><title>{}: {}</title></circle>').format(
            *at(i), run, f"{values[i]:.4g}"
        )
        for i, run in enumerate(runs)
    )
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    return Markup(f'<svg {size} role="img">{"".join(parts)}') + dots + Markup("</svg>")

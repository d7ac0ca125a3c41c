"""What a sweep says: a row per point and decoder, figures along its axes, a page. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import BenchError
from bench.records.files import write_files
from bench.records.plan import BASELINE
from bench.report.tables import table as tables
from bench.report.tables.table import Table, TableCell
from bench.report.together import numbers
from bench.stats.intervals import LEVEL
from bench.stats.side import load_side
from bench.stats.summary import ALL
from bench.stats.summary_row import COLUMNS, rows_of
from bench.text import UNKNOWN, markdown, portable

SUMMARY = "summary.csv"
MISSING = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A point of a sweep: its name, its value on every axis, its run folder or why it has none."""

    name: str
    values: Mapping[str, Any]
    path: Path | None
    reason: str | None = None


def frame(points: Sequence[Swept]) -> pd.DataFrame:
    """A row per decoder of every point, over all families; one row for a point without numbers.

    Columns: ``point``, the axes, ``run``, ``verdict``, ``comparability_key``, ``note``, and those
    of a run's summary.
    """
    made = []
    for point in points:
        own: dict[str, Any] = {"point": point.name, **point.values}
        try:
            own |= {"verdict": MISSING, "note": portable(point.reason or "")}
            summary = None
            if point.path is not None:
                side = load_side(str(point.path), point.path.parent)
                own |= {"run": side.name, "verdict": side.verdict}
                own |= {"comparability_key": side.key}
                summary = numbers(side)[0]
        except BenchError as error:  # one point that cannot be read hides no other
            own["note"] = portable(error.message)
        rows = None if summary is None else summary[summary["family"] == ALL]
        if rows is None or rows.empty:
            made.append(own)
            continue
        left = [column for column in rows.columns if column not in {"family", *own}]
        made += [
            own | {str(name): value for name, value in row.items()}
            for row in rows[left].to_dict("records")
        ]
    first = ["point", *points[0].values, "run", "verdict", "comparability_key", "note", "decoder"]
    table = pd.DataFrame(made)
    for column in (*first, "guarantee", "quality"):
        if column not in table:
            table[column] = None
    table["family"] = ALL
    rest = [column for column in table.columns if column not in first]
    return table[[*first, *rest]]


def write_sweep(folder: Path, points: Sequence[Swept], axes: Sequence[str]) -> list[str]:
    """Write summary.csv, figures/ and sweep.md of a sweep; returns which figures are left out.

    Raises:
        BenchError: it cannot be written (exit 1).
    """
    from bench.report.figures.canvas import render
    from bench.report.figures.sweeps import HEADLINES, curve_figure, other_curves
    from bench.report.write import csv_bytes

    rows = frame(points)
    made = {SUMMARY: csv_bytes(rows.drop(columns="family"))}
    shown, left_out = [], []
    for curve in (*HEADLINES, *other_curves(_numeric(points, axes))):
        drawn = curve_figure(rows, curve, axes)
        if drawn is None:
            why = "nothing was measured along it" if curve.axis in axes else "it is no axis"
            left_out.append(f"{curve.name} ({curve.axis}: {why})")
            continue
        shown.append((curve.name, curve.caption))
        made |= {f"figures/{curve.name}.{kind}": data for kind, data in render(drawn[0]).items()}
        made[f"figures/data/{curve.name}.csv"] = csv_bytes(drawn[1].drop(columns="family"))
    lines = ["# A sweep", "", _page_head(points), ""]
    for name, caption in shown:
        lines += [f"![{name}](figures/{name}.png)", "", caption, f"[Data](figures/data/{name}.csv)"]
        lines.append("")
    lines += [f"* left out: {markdown(line)}" for line in left_out]
    table = speedups(points, rows)
    lines += ["", table.to_markdown(), "", markdown(table.note)]
    write_files(folder, made | {"sweep.md": ("\n".join(lines).rstrip() + "\n").encode()})
    return left_out


def _numeric(points: Sequence[Swept], axes: Sequence[str]) -> list[str]:
    """The axes whose values are numbers; switches and names have no place on one."""
    values = {axis: [point.values.get(axis) for point in points] for axis in axes}
    return [
        axis
        for axis, given in values.items()
        if not any(isinstance(value, bool) for value in given)
        and pd.to_numeric(pd.Series(given, dtype=object), errors="coerce").nunique() > 1
    ]


def speedups(points: Sequence[Swept], rows: pd.DataFrame) -> Table:
    """Speed-up over ar: a line per point, a column per decoder."""
    decoders = [d for d in dict.fromkeys(rows["decoder"].dropna()) if d != BASELINE]
    lines = []
    for point in points:
        mine = rows[(rows["point"] == point.name) & rows["decoder"].notna()]
        known = [c for c in mine.columns if c in COLUMNS]
        numbers_of = {row.decoder: row for row in rows_of(mine[known], ALL)}
        verdict = rows.loc[rows["point"] == point.name, "verdict"].iloc[0]
        cells = [
            tables.speed(numbers_of[d]) if d in numbers_of else TableCell(UNKNOWN) for d in decoders
        ]
        lines.append((TableCell(point.name), TableCell(str(verdict)), *cells))
    return Table(
        title=f"Speed-up [{LEVEL}]",
        note=f"Against {BASELINE} of the same run and point: geometric mean over prompts of paired "
        "time per token; bold where the interval excludes 1. Points were measured one after "
        "another: their times are not compared.",
        headings=("point", "verdict", *decoders),
        rows=tuple(lines),
    )


def _page_head(points: Sequence[Swept]) -> str:
    done = sum(point.path is not None for point in points)
    return (
        f"{done} of {len(points)} points have a run, in `points/`. Numbers: [{SUMMARY}]({SUMMARY})."
    )

"""A sweep's summary (a row per point and decoder), figures along its axes, and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import BenchError
from bench.extras.sweeps.settings import Point, Sweep
from bench.extras.together.runs import run_summary
from bench.records.files import write_files
from bench.records.frames import csv_bytes
from bench.records.plan import BASELINE
from bench.report.tables.table import Columns, Table, TableCell, speed
from bench.stats.intervals import LEVEL
from bench.stats.metrics import COLUMNS, summary_rows
from bench.stats.side import load_side
from bench.stats.summary import ALL
from bench.text import UNKNOWN, markdown, portable

SUMMARY = "summary.csv"
MISSING = "not measured"


def frame(
    points: Sequence[Point], runs: Mapping[str, Path], failed: Mapping[str, str]
) -> pd.DataFrame:
    """Return a row per point and decoder, or one row for a point without numbers.

    `runs` maps points to run folders, `failed` points without one to the reason. Columns:
    ``point``, the axes, ``run``, ``verdict``, ``comparability_key``, ``note``, and the columns of a
    run's summary.
    """
    lines = []
    for point in points:
        line: dict[str, Any] = {"point": point.name, **point.values}
        try:
            line |= {"verdict": MISSING, "note": portable(failed.get(point.name, ""))}
            summary = None
            if (path := runs.get(point.name)) is not None:
                side = load_side(str(path), path.parent)
                line |= {"run": side.name, "verdict": side.verdict}
                line |= {"comparability_key": side.env.comparability_key}
                summary = run_summary(side)
        except BenchError as error:  # an unreadable point must not hide the others
            line["note"] = portable(error.message)
        rows = None if summary is None else summary[summary["family"] == ALL]
        if rows is None or rows.empty:
            lines.append(line)
            continue
        left = [column for column in rows.columns if column not in {"family", *line}]
        lines += [
            line | {str(name): value for name, value in row.items()}
            for row in rows[left].to_dict("records")
        ]
    first = ["point", *points[0].values, "run", "verdict", "comparability_key", "note", "decoder"]
    table = pd.DataFrame(lines)
    for column in (*first, "guarantee", "quality"):
        if column not in table:
            table[column] = None
    table["family"] = ALL
    rest = [column for column in table.columns if column not in first]
    return table[[*first, *rest]]


def write_sweep(
    folder: Path, sweep: Sweep, runs: Mapping[str, Path], failed: Mapping[str, str]
) -> list[str]:
    """Write summary.csv, figures/ and sweep.md of a sweep, and return the figures left out.

    `runs` and `failed` are as in `frame` (`BenchError` if writing fails).
    """
    from bench.extras.sweeps.figure import HEADLINES, curve_figure, other_curves
    from bench.report.figures.canvas import figure_files  # matplotlib: only where it draws

    points, axes = sweep.points, sweep.axes
    rows = frame(points, runs, failed)
    files = {SUMMARY: csv_bytes(rows.drop(columns="family"))}
    num_run = sum(point.name in runs for point in points)
    done = f"{num_run} of {len(points)} points have a run"
    lines = ["# A sweep", "", f"{done}, in `points/`. Numbers: [{SUMMARY}]({SUMMARY}).", ""]
    left_out = []
    values = {axis: [point.values.get(axis) for point in points] for axis in axes}
    numeric = [
        axis
        for axis, column in values.items()
        if not any(isinstance(value, bool) for value in column)
        and pd.to_numeric(pd.Series(column, dtype=object), errors="coerce").nunique() > 1
    ]
    for curve in (*HEADLINES, *other_curves(numeric)):
        name, drawing = curve.name, curve_figure(rows, curve, axes)
        if drawing is None:
            why = "nothing was measured along it" if curve.axis in axes else "not an axis"
            left_out.append(f"{name} ({curve.axis}: {why})")
            continue
        files |= figure_files(name, (drawing[0], drawing[1].drop(columns="family")))
        data = f"[Data](figures/data/{name}.csv)"
        lines += [f"![{name}](figures/{name}.png)", "", curve.caption, data, ""]
    lines += [f"* left out: {markdown(line)}" for line in left_out]
    table = speedups(points, rows)
    lines += ["", table.to_markdown(), "", markdown(table.note)]
    write_files(folder, files | {"sweep.md": ("\n".join(lines).rstrip() + "\n").encode()})
    return left_out


def speedups(points: Sequence[Point], rows: pd.DataFrame) -> Table:
    """Make the table of speed-ups over ar: a row per point, a column per decoder."""
    decoders = [d for d in dict.fromkeys(rows["decoder"].dropna()) if d != BASELINE]
    numbers = [column for column in rows.columns if column in COLUMNS]
    verdicts = rows.drop_duplicates("point").set_index("point")["verdict"]
    measured = rows[rows["decoder"].notna()]
    cells = {
        point.name: {
            row.decoder: speed(row)
            for row in summary_rows(measured.loc[measured["point"] == point.name, numbers], ALL)
        }
        for point in points
    }

    def cell(point: str, decoder: str) -> TableCell | str:
        return cells[point].get(decoder, UNKNOWN)

    columns: Columns = {"point": str, "verdict": lambda point: str(verdicts[point])}
    columns |= {decoder: partial(cell, decoder=decoder) for decoder in decoders}
    note = (
        f"Against {BASELINE} of the same run and point: geometric mean over prompts of paired "
        "time per token; bold where the interval excludes 1. Points were measured one after "
        "another: their times are not compared."
    )
    table = Table.of(f"Speed-up [{LEVEL}]", note, columns, cells)
    assert table is not None  # a sweep has points
    return table

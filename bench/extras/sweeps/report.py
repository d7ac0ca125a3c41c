"""Report a sweep: a summary (a row per point and decoder), figures along axes, and a page.

A figure shows one number per decoder along one axis, in a panel per other setting.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from bench.errors import BenchError
from bench.extras.sweeps.settings import Point, Sweep
from bench.extras.together.runs import run_summary
from bench.records.files import write_files
from bench.records.frames import csv_bytes
from bench.records.plan import BASELINE, WRONG
from bench.report.figures.canvas import Plot, figure_files, key, panels, styled
from bench.report.figures.style import GREY, Look, colours, lossy
from bench.report.tables.table import Columns, Table, TableCell, speed
from bench.stats.intervals import LEVEL
from bench.stats.metrics import COLUMNS, summary_rows
from bench.stats.side import load_side
from bench.stats.summary import ALL
from bench.stats.validity import VALID
from bench.text import UNKNOWN, markdown, portable

SUMMARY = "summary.csv"
MISSING = "not measured"
_MAX_PANELS = 8
_STEP_OCTAVES = 0.045
_STEP = 0.008
"""Offset between decoders at the same value: in doublings, or as a share of the axis."""
_WRAPPED = 24
"""Characters per line of a panel's title."""


def frame(
    points: Sequence[Point], runs: Mapping[str, Path], failed: Mapping[str, str]
) -> pd.DataFrame:
    """Return a row per point and decoder, or one row for a point without numbers.

    Columns: ``point``, the axes, ``run``, ``verdict``, ``comparability_key``, ``note``, and the
    columns of a run's summary. `runs` and `failed` are as in `write_sweep`.
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
        except BenchError as error:  # an unreadable point must not hide all others
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

    Args:
        folder: the sweep's folder (`BenchError` if writing fails).
        sweep: the points and axes.
        runs: the run folder of each point that has one, by the point's name.
        failed: why a point has no result, by the point's name.
    """
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
    for curve in map(curve_along, numeric):
        name, drawing = curve.name, curve_figure(rows, curve, axes)
        if drawing is None:
            left_out.append(f"{name} ({curve.axis}: nothing was measured along it)")
            continue
        files |= figure_files(name, (drawing[0], drawing[1].drop(columns="family")))
        data = f"[Data](figures/data/{name}.csv)"
        caption = curve.caption.format(base=_baseline(rows))
        lines += [f"![{name}](figures/{name}.png)", "", caption, data, ""]
    wrong = rows.loc[rows["guarantee"] == WRONG, "decoder"].unique()
    absent = [*left_out, *(f"{name} is {WRONG}" for name in wrong)]
    lines += [f"* left out: {markdown(line)}" for line in absent]
    table = speedups(points, rows)
    lines += ["", table.to_markdown(), "", markdown(table.note)]
    write_files(folder, files | {"sweep.md": ("\n".join(lines).rstrip() + "\n").encode()})
    return left_out


def speedups(points: Sequence[Point], rows: pd.DataFrame) -> Table:
    """Make the table of speed-ups over the baseline: a row per point, a column per decoder."""
    decoders = list(dict.fromkeys(rows.loc[_is_compared(rows), "decoder"]))
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
        f"Against {_baseline(rows)} of the same run and point: geometric mean over prompts of "
        "paired time per token; bold if its interval excludes 1 and it exceeds the A/A floor. "
        "Points were measured one after another: their times are not compared."
    )
    return Table.of(f"Speed-up [{LEVEL}]", note, columns, cells)


class Curve(NamedTuple):
    """Describe a figure of a sweep: its axis, file name and texts, and the number shown.

    Texts name the `base` of speed-ups. `doubling` makes the axis logarithmic with base 2.
    """

    axis: str
    name: str
    axis_label: str
    caption: str
    column: str = "speedup"
    label: str = "speed-up over {base}"
    doubling: bool = False

    @property
    def is_time(self) -> bool:
        """Return whether the number is a time, which the baseline has, too."""
        return self.column == "time_per_token_s"


HEADLINES = (
    Curve(
        *("batch_size", "speedup_by_batch_size", "batch size (sequences)"),
        f"Speed-up over {{base}} of the same run against batch size, with {LEVEL} intervals: "
        "below the line, a decoder is slower than {base}.",
        doubling=True,
    ),
    Curve(
        *("temperature", "tokens_by_temperature", "temperature"),
        f"Tokens per step after the first, against temperature, with {LEVEL} intervals.",
        *("acceptance_length", "tokens per step"),
    ),
    Curve(
        *("max_new_tokens", "time_by_length", "maximum tokens of an answer"),
        "Time of a token, prefill included, against output length. Without a KV cache "
        "(ar@LABEL:cache=false) it grows with the text.",
        *("time_per_token_s", "ms per token"),
        doubling=True,
    ),
)


def curve_along(axis: str) -> Curve:
    """Return the figure along an axis: a headline figure, or the speed-up's."""
    words, name = axis.replace("_", " "), f"speedup_by_{re.sub('[.@]', '_', axis)}"
    caption = f"Speed-up over {{base}} of the same run against {words}, with {LEVEL} intervals."
    headlines = (curve for curve in HEADLINES if curve.axis == axis)
    return next(headlines, Curve(axis, name, words, caption))


def curve_figure(frame: pd.DataFrame, curve: Curve, axes: Sequence[str]) -> Plot | None:
    """Draw a line per decoder along the curve's axis, a panel per combination of the other axes.

    An option is drawn for its decoder only. `frame` comes from the function of that name. WRONG
    decoders are left out. Only the first eight panels are drawn, but the data has the numbers of
    all panels.
    """
    scale = 1e3 if curve.is_time else 1.0
    groups = _groups(
        _select(frame, curve), curve.axis, [axis for axis in axes if axis != curve.axis]
    )
    if not groups:
        return None
    data = pd.concat([rows for _, rows in groups], ignore_index=True)
    decoders = list(data["decoder"].unique())
    look = Look(colours(decoders), lossy(frame))
    with styled():
        figure, grid = panels(min(len(groups), _MAX_PANELS), 2.4)
        for (title, rows), panel in zip(groups, grid, strict=False):
            for index, decoder in enumerate(decoders):
                points = rows[rows["decoder"] == decoder]
                x, steps = points[curve.axis].astype(float), index - (len(decoders) - 1) / 2
                if curve.doubling:  # shift the decoder's points, so that no intervals overlap
                    x = x * float(2 ** (_STEP_OCTAVES * steps))
                else:
                    x = x + _STEP * steps * (float(x.max()) - float(x.min()))
                style: dict[str, Any] = {"color": look.palette[decoder], "lw": 1.2, "ms": 4.5}
                panel.plot(x, scale * points[curve.column], **style, **look.marker(decoder))
                if f"{curve.column}_low" in points:
                    ends = (scale * points[f"{curve.column}_{end}"] for end in ("low", "high"))
                    panel.vlines(x, *ends, color=look.palette[decoder], lw=1, alpha=0.6)
            if not curve.is_time:
                panel.axhline(1.0, color=GREY, lw=1)
            panel.set_title(title, fontsize=8)
            if curve.doubling:
                panel.set_xscale("log", base=2)
            panel.minorticks_off()
            ticks = sorted(set(rows[curve.axis].astype(float)))
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            panel.set_ylim(bottom=0)
        key(figure, decoders, look)
        figure.supxlabel(curve.axis_label, fontsize=9)
        figure.supylabel(curve.label.format(base=_baseline(frame)), fontsize=9)
    return figure, data


def _select(frame: pd.DataFrame, curve: Curve) -> pd.DataFrame:
    """Return the rows of complete runs with the curve's number and a number on its axis."""
    if curve.column not in frame or "decoder" not in frame:
        return frame.iloc[:0]
    whole = frame["verdict"].isin([VALID, WRONG])  # in a WRONG run, other decoders still count
    rows = frame[whole & (frame["guarantee"] != WRONG)]
    if cell := curve.axis.rpartition(".")[0]:
        rows = rows[rows["decoder"] == cell]
    elif not curve.is_time:
        rows = rows[_is_compared(rows)]
    rows = rows.assign(**{curve.axis: pd.to_numeric(rows[curve.axis], errors="coerce")})
    return rows.dropna(subset=[curve.axis, curve.column])


def _baseline(rows: pd.DataFrame) -> str:
    names = rows["baseline"].dropna() if "baseline" in rows else ()
    return " or ".join(dict.fromkeys(names)) or BASELINE


def _is_compared(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are of a decoder other than the baseline of its run."""
    names = rows["baseline"].fillna(BASELINE) if "baseline" in rows else BASELINE
    return rows["decoder"].notna() & (rows["decoder"] != names)


def _groups(data: pd.DataFrame, axis: str, other_axes: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Group points that differ only on the axis, and title groups by the other axes' values."""
    names = data[other_axes].map(
        lambda v: "" if pd.isna(v) else f"{v:g}" if isinstance(v, int | float) else str(v)
    )
    values = pd.Series(list(names.itertuples(index=False, name=None)), data.index, dtype=object)
    groups = {}
    for shared in dict.fromkeys(values):
        rows = data[[value == shared for value in values]].sort_values(axis, kind="stable")
        if rows[axis].nunique() > 1:
            first = ["point", "decoder", axis, *other_axes]
            groups[shared] = rows[[*first, *(c for c in rows.columns if c not in first)]]
    varying = [name for name in other_axes if names[name].nunique() > 1]
    titled = []
    for shared, rows in groups.items():
        place = dict(zip(other_axes, shared, strict=True))
        text = ", ".join(f"{name.replace('_', ' ')} {place[name]}" for name in varying)
        titled.append((textwrap.fill(text, _WRAPPED), rows))
    return titled

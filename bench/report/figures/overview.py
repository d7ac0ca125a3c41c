"""The overview of a run for a slide: what counts about every decoder, one small panel each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd

from bench.records.plan import BASELINE
from bench.report.figures.axes import name_rows, percents, row_of_panels, whole_ticks
from bench.report.figures.canvas import Drawn, annotate_point, overall
from bench.report.figures.style import FAINT, GREY, INK, colours, lossy, marker
from bench.report.tables.table import number
from bench.text import UNKNOWN, factor, percent

_SLIDE = 3.83
"""Inches: 16:9 beside the width of figures; fewer decoders take less, many more."""
_NUMBER = 40.0
"""Points from a panel's right end to the right end of its numbers."""
_APART = 0.18
"""Between a panel's numbers and the next panel, as a share of a panel's width."""
_WIDE = 1.7
"""How much wider than its axis a panel is, for its numbers."""


class _Panel(NamedTuple):
    """A column of the summary in a panel; a `share` is a fraction of 1."""

    column: str
    title: str
    text: Callable[[float | None], str]
    share: bool = False


_PANELS = (
    _Panel("speedup", "speed-up over ar", factor),
    _Panel("acceptance_length", "accepted tokens/step", number),
    _Panel("quality", "quality", percent, share=True),
    _Panel("identical_to_ar", "identical to ar", percent, share=True),
)


def overview_figure(summary: pd.DataFrame) -> Drawn | None:
    """Speed-up, tokens per step, quality and identity, a row per decoder.

    A panel that only the baseline is in, or nobody, is left out; so is the figure where no decoder
    was compared with the baseline.
    """
    ends = [f"{panel.column}{end}" for panel in _PANELS[:3] for end in ("", "_low", "_high")]
    data = overall(summary, ["guarantee", *ends, "identical_to_ar"]).reset_index(drop=True)
    others = data[data["decoder"] != BASELINE]
    if others["speedup"].isna().all():
        return None
    shown = [panel for panel in _PANELS if others[panel.column].notna().any()]
    marks = lossy(summary)
    data = data.sort_values("decoder", key=lambda names: names.isin(marks), kind="stable")
    data = data.reset_index(drop=True)
    palette = colours(list(summary["decoder"].unique()))
    height = max(min(_SLIDE, 0.5 * len(data) + 0.8), 0.3 * len(data) + 1.1)
    figure, grid = row_of_panels(len(shown), height, rows=True, apart=_APART)
    for panel, axes in zip(shown, grid, strict=True):
        _draw(axes, panel, data, palette, marks)
    name_rows(grid[0], list(data["decoder"]))
    return figure, data


def _draw(axes: Any, panel: _Panel, data: pd.DataFrame, palette: Any, marks: Any) -> None:
    """One panel: a point with its interval per decoder, and its number at the right."""
    column = panel.column
    reach = data[[column, *(name for name in data if str(name).startswith(f"{column}_"))]]
    top = 1.0 if panel.share else max(1.0, float(reach.max(skipna=True).max()))
    axes.set_xlim(0, top * _WIDE)
    ar = data.loc[data["decoder"] == BASELINE, column]
    axes.axvline(float(ar.iloc[0]) if ar.notna().any() else math.nan, color=INK, lw=0.7, alpha=0.5)
    for y, row in enumerate(data.to_dict("records")):
        value, colour, hollow = row[column], palette[row["decoder"]], row["decoder"] in marks
        axes.plot([0, top], [y, y], color=FAINT, lw=0.5, zorder=0)
        if not math.isnan(value):
            low, high = row.get(f"{column}_low", math.nan), row.get(f"{column}_high", math.nan)
            axes.plot([low, high], [y, y], color=colour, lw=1.6)
            axes.plot(value, y, ms=6, clip_on=False, **marker(colour, hollow=hollow))
        text = UNKNOWN if math.isnan(value) else panel.text(value)
        annotate_point(
            axes, text, (top, y), _NUMBER, 8.5, "right", GREY if text == UNKNOWN else INK
        )
    emitted = panel.column == "acceptance_length" and bool(marks)
    axes.set_title(panel.title + "\n(hollow: emitted)" * emitted, fontsize=8.5)
    if panel.share:
        percents(axes.xaxis, 2)
        axes.set_xticks([0, 0.5, 1])
    else:
        axes.set_xticks(whole_ticks(top))
    axes.spines["bottom"].set_bounds(0, top)

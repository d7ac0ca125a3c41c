"""The declaration of a metric: formula, value, unit, direction, headings, format.

`bench.stats.metrics` has all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from bench.stats.cell_data import CellData
from bench.stats.units import NUMBER, SHARE, MetricUnit
from bench.text import UNKNOWN, csv_value, percent

_KEY = "metric"


@dataclass(frozen=True, slots=True)
class Heading:
    """A metric's place in the main table of a report.

    Args:
        text: its heading; a metric with an interval names the level behind it.
        rank: columns are sorted by rank.
        terminal: its heading on a terminal, in several lines; empty: `text`.
        first: whether terminal and page show the column at once; both fold the others.
        bare: whether a terminal shows no interval.
    """

    text: str
    rank: float = 99
    terminal: str = ""
    first: bool = False
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Paper:
    """A metric in the table of a paper: heading, words in the caption, format if it is another."""

    heading: str
    caption: str
    spec: str = ""


@dataclass(frozen=True, slots=True)
class Gated:
    """A metric in the gate of `bench compare`.

    Args:
        better: the better direction.
        relative: whether its change is relative to the base.
        tolerance: tolerance without a gate file; None: the gate's general one.
        name: its key in a gate file; empty: the metric's name.
    """

    better: Literal["more", "less", "same"]
    relative: bool = True
    tolerance: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric's declaration.

    Args:
        name: its column.
        formula: formula or meaning, in Markdown.
        section: the heading of docs/metrics.md that explains it.
        compute: its value or estimate from a cell's data; None for the end of an interval.
        end_of: the metric whose interval ends here, and `end`, ``low`` or ``high``.
        unit: its unit.
        better: the better direction.
        spec: format of a printed number; empty: the unit's.
    """

    name: str
    formula: str
    section: str
    compute: Callable[[CellData], object] | None = None
    end_of: str | None = None
    end: Literal["value", "low", "high"] = "value"
    unit: MetricUnit = NUMBER
    better: Literal["more", "less", "none"] = "none"
    spec: str = ""
    heading: Heading | None = None
    paper: Paper | None = None
    gate: Gated | None = None

    def text(self, value: float | None, spec: str = "") -> str:
        """Print a value in the format `spec`, by default the metric's, a share without its unit."""
        if self.unit is SHARE:
            return percent(value, "")
        if value is None or math.isnan(value):
            return UNKNOWN
        return f"{csv_value(value) * self.unit.scale:{spec or self.spec or self.unit.spec}}"


def metric(
    formula: str, compute: Callable[[CellData], object] | None, *, section: str = "", **facts: Any
) -> Any:
    """Declare a field of `SummaryRow`, with further fields of its `Metric` in `facts`."""
    entry = Metric(name="", formula=formula, section=section, compute=compute, **facts)
    return field(default=None, metadata={_KEY: entry})


def end(of: str, end: Literal["low", "high"]) -> Any:
    """Declare the field with one end of a metric's interval."""
    word = {"low": "lower", "high": "upper"}[end]
    return metric(f"{word} end of the interval of `{of}`", None, end_of=of, end=end)


def declared_metrics(row: type[Any]) -> dict[str, Metric]:
    """Return the metrics that a class like `SummaryRow` declares, by column."""
    metrics = {each.name: replace(each.metadata[_KEY], name=each.name) for each in fields(row)}
    return {
        name: replace(each, section=metrics[each.end_of].section) if each.end_of else each
        for name, each in metrics.items()
    }

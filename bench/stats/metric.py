"""Define a metric: the data from which it is computed, its unit, its declaration.

`bench.stats.metrics` declares all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from bench.records.plan import BASELINE, Cell
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.stats import calibration, counters, parallel_counters, times
from bench.stats.counters import Tally, by_cluster
from bench.stats.intervals import DECODE_TIME, TIME, Estimate, paired_speedup, ratio_of_sums
from bench.stats.quality import Quality
from bench.stats.speedups import Speedups, speedups
from bench.stats.times import Unit
from bench.text import UNKNOWN, csv_value, percent

_KEY = "metric"
_NO_ESTIMATE = Estimate()
_NOT_SCORED = Quality(_NO_ESTIMATE, None)


@dataclass(frozen=True, kw_only=True)
class CellData:
    """Hold records and timed units of a decoder in a family, from which metrics are computed.

    Args:
        decoder: the cell, NAME or NAME@LABEL.
        family: a family of tasks, or `all`.
        records: records of the cell; `baseline` has the records of ar.
        units: timed units of the cell; `baseline_units` and `second_units` have the units of the
            two arms of the baseline `over`.
        quality: quality of the cell; `telling_quality` leaves out families that show no loss.
        quality_tells: whether the family can show a loss; None if unknown.
        guarantee: the guarantee of the cell that the run confirms.
        cell: entry of the cell in the plan.
        prompts: the run's prompts by name, where they are kept.
        read_bytes: bytes of the target's weights that every call reads.
    """

    decoder: str
    family: str
    records: Sequence[SampleRecord]
    baseline: Sequence[SampleRecord] = ()
    units: Sequence[Unit] = ()
    baseline_units: Sequence[Unit] = ()
    second_units: Sequence[Unit] = ()
    quality: Quality = _NOT_SCORED
    telling_quality: Estimate = _NO_ESTIMATE
    quality_tells: bool | None = None
    guarantee: str | None = None
    cell: Cell | None = None
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    read_bytes: int | None = None
    over: str = BASELINE

    @property
    def comparable_to_ar(self) -> bool:
        """True if the cell's tokens can be compared with ar's."""
        return self.decoder == BASELINE or bool(self.cell and self.cell.comparable_to_ar)

    @cached_property
    def no_speedup(self) -> str | None:
        """The reason why no ratio of times is a speed-up of this decoder, or None.

        Most answers ended at the step of their first token, a single call in which hardly more than
        the prefill was timed. Or the decoder drafted nothing, so that its steps are ar's. (A loop
        that reports all its tokens at its end made further calls.)
        """
        steps = list(counters.timed_steps(self.records))
        if self.decoder == self.over or not steps:
            return None
        num = sum(max(len(s.emitted), sum(s.target_calls)) <= s.first + 1 for s in steps)
        if 2 * num > len(steps):
            return "most answers end in the first step"
        drafts = self.cell is not None and self.cell.drafts and self.cell.lossless
        return "it drafts nothing" if drafts and not self.tally.drafted else None

    @cached_property
    def timed(self) -> list[SampleRecord]:
        """The records of the timing pass without an error."""
        return counters.timed(self.records)

    @cached_property
    def tally(self) -> Tally:
        """The sums over timed answers."""
        return Tally.pool(self.timed)

    @cached_property
    def acceptance_length(self) -> Estimate:
        """Tokens per step, with a jackknife interval over conversations.

        The steps of an answer depend on each other, so their number is not the sample size. Unless
        steps are empty, each emits a token, and the interval ends at 1.
        """
        pooled = {name: Tally.pool(group) for name, group in by_cluster(self.timed).items()}
        steps = {n: (t.emitted - t.first_emitted, t.later_steps) for n, t in pooled.items()}
        return ratio_of_sums(steps).clipped(0 if self.tally.empty_steps else 1)

    @cached_property
    def time_per_token_s(self) -> float | None:
        """Seconds from request start to last token / emitted tokens."""
        return times.time_per_token_s(self.units)

    @cached_property
    def pairs(self) -> Estimate:
        """The speed-up end to end (of the baseline over itself, too)."""
        return paired_speedup(self.baseline_units, self.units, TIME)

    @cached_property
    def decode_pairs(self) -> Estimate:
        """The speed-up from the first token on (of the baseline over itself, too)."""
        return paired_speedup(self.baseline_units, self.units, DECODE_TIME)

    def over_ar(self, pairs: Estimate) -> Estimate:
        """Return a speed-up (exactly 1 for the baseline), or None if there is a `no_speedup`."""
        if self.decoder != self.over:
            return _NO_ESTIMATE if self.no_speedup else pairs
        return Estimate(value=1.0, low=1.0, high=1.0) if pairs.num else _NO_ESTIMATE

    @cached_property
    def estimators(self) -> Speedups:
        """All estimators of the speed-up, each 1 for the baseline."""
        if self.no_speedup:
            return Speedups(geometric=_NO_ESTIMATE)
        if self.decoder != self.over:
            return speedups(self.baseline_units, self.units)
        one = Estimate(value=1.0 if self.units else None)
        return Speedups(geometric=self.pairs, totals=one, specbench=one)

    @cached_property
    def rounds(self) -> Mapping[str, float | None]:
        """Shares of cold, accepted and rejected rounds."""
        return parallel_counters.round_shares(counters.timed_steps(self.records))

    @cached_property
    def passes(self) -> Mapping[str, float | None]:
        """Passes and tokens per finished block."""
        return parallel_counters.passes_per_block(counters.timed_steps(self.records))

    @cached_property
    def repeated_trigrams(self) -> float | None:
        """The share of 3-grams that occur earlier in the same answer."""
        return parallel_counters.repeated_trigrams(self.records)

    @cached_property
    def calibration(self) -> tuple[Estimate, Estimate]:
        """The expected calibration error and the Brier score of drafts' confidences."""
        return calibration.calibrate(self.records)

    def compared(self, part: str, whole: str) -> float | None:
        """Return the sum of a column of steps / the sum of another column, see `compared_ratio`."""
        return parallel_counters.compared_ratio(counters.timed_steps(self.records), part, whole)


@dataclass(frozen=True, slots=True)
class MetricUnit:
    """Hold the format of a metric's printed numbers, and the factor before formatting."""

    spec: str = ".2f"
    scale: float = 1.0
    is_time: bool = False


SHARE = MetricUnit(".1f", 100)
"""A fraction from 0 to 1, printed in per cent."""
FACTOR = MetricUnit(is_time=True)
"""A ratio of times, printed with its interval."""
MILLISECONDS = MetricUnit(".2f", 1e3, is_time=True)
"""Seconds, printed in milliseconds."""
PER_SECOND = MetricUnit(",.0f", is_time=True)
GIGABYTES_PER_SECOND = MetricUnit(",.1f", 1e-9, is_time=True)
MEGABYTES = MetricUnit(",.1f", 1e-6)
"""Bytes, printed in megabytes."""


@dataclass(frozen=True, slots=True)
class Heading:
    """Hold a metric's place in the main table of a report.

    Args:
        text: its heading; a metric with an interval names the level behind it.
        rank: columns are sorted by rank.
        terminal: its heading on a terminal, in several lines; empty: `text`.
        first: whether terminal and page show the column at once; both fold all other columns.
        bare: whether a terminal shows no interval.
    """

    text: str
    rank: float = 99
    terminal: str = ""
    first: bool = False
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Paper:
    """Hold a metric's heading in the table of a paper, words in the caption, and other format."""

    heading: str
    caption: str
    spec: str = ""


@dataclass(frozen=True, slots=True)
class Gated:
    """Hold a metric's rule in the gate of `bench compare`.

    Args:
        better: the better direction.
        tolerance: tolerance without a gate file; None: the gate's general tolerance.
        name: its key in a gate file; empty: the metric's name.
    """

    better: Literal["more", "less", "same"]
    tolerance: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Hold a metric's declaration.

    Args:
        name: its column.
        formula: formula or meaning, in Markdown.
        section: the heading of docs/metrics.md that explains it.
        compute: computes the value or estimate from a cell's data; None for an interval's end.
        end_of: the metric of whose interval this is the `end`, ``low`` or ``high``.
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
    unit: MetricUnit = MetricUnit()
    better: Literal["more", "less", "none"] = "none"
    spec: str = ""
    heading: Heading | None = None
    paper: Paper | None = None
    gate: Gated | None = None

    def text(self, value: float | None, spec: str = "") -> str:
        """Format a value by `spec`, by default the metric's format. A share has no unit."""
        if self.unit is SHARE:
            return percent(value, "")
        if value is None or math.isnan(value):
            return UNKNOWN
        return f"{csv_value(value) * self.unit.scale:{spec or self.spec or self.unit.spec}}"


def compute(data: CellData, metrics: Mapping[str, Metric]) -> dict[str, object]:
    """Compute all metrics of a cell, with the ends of an estimate as separate columns."""
    values = {name: each.compute(data) for name, each in metrics.items() if each.compute}
    entries = {name: values[each.end_of or name] for name, each in metrics.items()}
    return {
        name: getattr(entry, metrics[name].end) if isinstance(entry, Estimate) else entry
        for name, entry in entries.items()
    }


def metric(
    formula: str, compute: Callable[[CellData], object] | None, *, section: str = "", **facts: Any
) -> Any:
    """Declare a field of `SummaryRow`.

    Args:
        formula: as in `Metric`.
        compute: as in `Metric`.
        section: as in `Metric`; empty for an interval's end, which has that of its metric.
        facts: further fields of the `Metric`, by name.
    """
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

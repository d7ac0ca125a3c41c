"""The data of a row of the summary: a decoder's records in a family, beside the baseline's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.stats import counters, parallel_counters, times
from bench.stats.clusters import cluster_names
from bench.stats.counters import Tally
from bench.stats.intervals import DECODE_TIME, TIME, Estimate, paired_speedup, ratio_of_sums
from bench.stats.quality import Quality
from bench.stats.speedups import Speedups, speedups
from bench.stats.times import Unit

_UNKNOWN = Estimate()
_NOT_SCORED = Quality(_UNKNOWN, None)


@dataclass(frozen=True, kw_only=True)
class CellData:
    """Records and timed units of a decoder in a family, from which its metrics are computed.

    Args:
        decoder: the cell, NAME or NAME@LABEL.
        family: a family of tasks, or `all`.
        records: its records; `baseline` has those of ar.
        units: its timed units; `baseline_units` and `second_units` have those of ar's two arms.
        quality: its quality; `telling_quality` leaves out families that cannot show a loss.
        quality_tells: whether the family can show a loss; None if unknown.
        guarantee: what the run shows that it guarantees; `checked` is the outcome of the checks.
        comparable_to_ar: whether its tokens can be compared with ar's.
    """

    decoder: str
    family: str
    records: Sequence[SampleRecord]
    baseline: Sequence[SampleRecord] = ()
    units: Sequence[Unit] = ()
    baseline_units: Sequence[Unit] = ()
    second_units: Sequence[Unit] = ()
    quality: Quality = _NOT_SCORED
    telling_quality: Estimate = _UNKNOWN
    quality_tells: bool | None = None
    guarantee: str | None = None
    checked: str | None = None
    comparable_to_ar: bool = False

    @cached_property
    def timed(self) -> list[SampleRecord]:
        """The records of the timing pass without an error."""
        return counters.timed(self.records)

    @cached_property
    def tally(self) -> Tally:
        """The sums over timed answers."""
        return Tally.pool(self.timed)

    @cached_property
    def time_per_token_s(self) -> float | None:
        """Seconds from request start to last token / emitted tokens."""
        return times.time_per_token_s(self.units)

    @cached_property
    def pairs(self) -> Estimate:
        """The speed-up end to end, of the baseline over itself, too."""
        return paired_speedup(self.baseline_units, self.units, TIME)

    @cached_property
    def decode_pairs(self) -> Estimate:
        """The speed-up from the first token on, of the baseline over itself, too."""
        return paired_speedup(self.baseline_units, self.units, DECODE_TIME)

    def over_ar(self, pairs: Estimate) -> Estimate:
        """Return a speed-up, which is exactly 1 for the baseline."""
        if self.decoder != BASELINE:
            return pairs
        return Estimate(value=1.0, low=1.0, high=1.0) if pairs.num else _UNKNOWN

    @cached_property
    def estimators(self) -> Speedups:
        """All estimators of the speed-up, each 1 for the baseline."""
        if self.decoder != BASELINE:
            return speedups(self.baseline_units, self.units)
        one = Estimate(value=1.0 if self.units else None)
        return Speedups(geometric=self.pairs, totals=one, specbench=one)

    @cached_property
    def rounds(self) -> Mapping[str, float | None]:
        """Shares of cold, accepted and rejected rounds."""
        return parallel_counters.round_shares(counters.timed_steps(self.records))

    @cached_property
    def passes(self) -> Mapping[str, float | None]:
        """Passes per finished block."""
        return parallel_counters.passes_per_block(counters.timed_steps(self.records))

    @cached_property
    def repeated_trigrams(self) -> float | None:
        """The share of 3-grams that occur earlier in the same answer."""
        return parallel_counters.repeated_trigrams(self.records)

    def compared(self, part: str, whole: str) -> float | None:
        """Return the sum of a column of steps / the sum of another, see `compared_ratio`."""
        return parallel_counters.compared_ratio(counters.timed_steps(self.records), part, whole)


def acceptance_length(records: Iterable[SampleRecord]) -> Estimate:
    """Estimate tokens per step, with a jackknife interval over conversations.

    The steps of an answer depend on each other, so the number of steps is not the sample size.
    """
    parts: dict[str, list[tuple[float, float]]] = {}
    answers = counters.timed(records)
    clusters = cluster_names(answers)
    for record in answers:
        tally = Tally.of(record)
        steps = (tally.emitted - tally.first_emitted, tally.later_steps)
        parts.setdefault(clusters[record.conversation], []).append(steps)
    return ratio_of_sums(parts)

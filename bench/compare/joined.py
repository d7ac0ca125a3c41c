"""The answers that two runs gave to the same prompts, and the counters of each side.

Answers join on (pass, decoder with label, prompt hash, repeat). Counters are sums over the answers
that both sides finished, so neither gains by failing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.compare.comparable import RunPair
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.stats import counters
from bench.stats.counters import Tally
from bench.stats.quality import family_quality, overall_quality, scored
from bench.stats.side import RunSnapshot
from bench.stats.summary import family_order

QUALITY = "quality"
Key = tuple[str, str, str, int]
Values = dict[str, float | None]
Shared = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedAnswers:
    """One decoder's answers on both sides, in pairs; head's carry base's prompt names.

    `num_base` counts base's answers, joined or not. `shared` has, for each pass that both planned,
    the number of base's distinct prompts that head was asked too, and of all of base's.
    """

    base: tuple[SampleRecord, ...] = ()
    head: tuple[SampleRecord, ...] = ()
    num_base: int = 0
    shared: Shared = field(default_factory=dict)

    @property
    def coverage(self) -> float:
        """Return the share of base's prompts in head, in the pass with the fewest."""
        return min((both / num for both, num in self.shared.values()), default=0.0)

    @property
    def finished(self) -> list[tuple[SampleRecord, SampleRecord]]:
        """Return the pairs without an error on either side."""
        pairs = zip(self.base, self.head, strict=True)
        return [(ours, theirs) for ours, theirs in pairs if not (ours.error or theirs.error)]

    @property
    def changed(self) -> list[tuple[SampleRecord, SampleRecord]]:
        """Return the finished pairs whose token ids differ."""
        return [(ours, theirs) for ours, theirs in self.finished if ours.tokens != theirs.tokens]


def join(pair: RunPair, cell: str) -> PairedAnswers:
    """Pair the answers of one decoder to the same prompts under the same repeat."""
    mine, other = _of(pair.base, cell), _of(pair.head, cell)
    keys = [key for key in mine if key in other]
    return PairedAnswers(
        base=tuple(mine[key] for key in keys),
        head=tuple(_renamed(other[key], mine[key]) for key in keys),
        num_base=len(mine),
        shared=_shared(mine, other, sorted(pair.base.passes & pair.head.passes)),
    )


def _shared(base: Collection[Key], head: Collection[Key], passes: Sequence[str]) -> Shared:
    asked = {
        name: [{prompt for kind, _, prompt, _ in keys if kind == name} for keys in (base, head)]
        for name in passes
    }
    return {name: (len(ours & other), len(ours)) for name, (ours, other) in asked.items() if ours}


def _of(side: RunSnapshot, cell: str) -> dict[Key, SampleRecord]:
    records = [record for record in side.records if record.decoder == cell]
    return {(r.kind, r.decoder, r.prompt_hash, r.repeat): r for r in records}


def _renamed(record: SampleRecord, like: SampleRecord) -> SampleRecord:
    return replace(record, conversation=like.conversation, turn=like.turn, family=like.family)


# ---------------------------------------------------------------- what each side counted


@dataclass(frozen=True, slots=True, kw_only=True)
class HardMeasures:
    """Every hard measure as {name: {"base": …, "head": …}}, and the prompts scored by family."""

    values: dict[str, Values]
    num_scored: Mapping[str, int]

    def step(self, measure: str) -> float:
        """Return the effect of a single answer on a measure of quality; 0 for all others."""
        steps = {f"{QUALITY}.{family}": 1 / num for family, num in self.num_scored.items() if num}
        if measure == QUALITY and steps:
            return max(steps.values()) / len(steps)
        return steps.get(measure, 0.0)


def counted(joined: PairedAnswers, baseline: PairedAnswers, pair: RunPair) -> HardMeasures:
    """Count both sides of joined answers; exactness is held against `baseline`, ar's own join."""
    pairs, cell = joined.finished, joined.base[0].decoder
    sides = {"base": [b for b, _ in pairs], "head": [h for _, h in pairs]}
    ars = {"base": [b for b, _ in baseline.finished], "head": [h for _, h in baseline.finished]}
    held = cell != BASELINE and cell in pair.held_to_ar
    values: dict[str, Values] = {}
    for side, records in sides.items():
        measures = _counters(records) | _quality(records, pair.base)
        if held:
            measures["identical_to_ar"] = counters.identical_to_ar(records, ars[side])
        for name, value in measures.items():
            values.setdefault(name, {})[side] = value
    values["errors"] = {
        side: counters.ratio(sum(r.error is not None for r in records), len(records))
        for side, records in (("base", joined.base), ("head", joined.head))
    }
    timed = [(ours, theirs) for ours, theirs in pairs if ours.kind == "timing"]
    changed = sum(ours.tokens != theirs.tokens for ours, theirs in timed)
    values["changed_answers"] = {"base": 0.0, "head": counters.ratio(changed, len(timed))}
    families = counters.group_by(scored(sides["base"]), lambda record: record.family)
    return HardMeasures(values=values, num_scored={f: len(families[f]) for f in families})


def _counters(records: Sequence[SampleRecord]) -> Values:
    timed = counters.timed(records)
    if not timed:
        return {}
    tally = Tally.pool(timed)
    return {
        "calls": tally.target_calls,
        "rows": tally.later_rows,
        "draft_calls": sum(sum(r.steps.draft_calls) for r in timed if r.steps is not None),
        "emitted": tally.emitted,
        "accepted": tally.accepted,
    }


def _quality(records: Sequence[SampleRecord], base: RunSnapshot) -> Values:
    families = counters.group_by(scored(records), lambda record: record.family)
    by_family = {f: family_quality(f, families[f], base.gold) for f in family_order(families)}
    values: Values = {f"{QUALITY}.{family}": q.estimate.value for family, q in by_family.items()}
    if by_family:
        values[QUALITY] = overall_quality(list(by_family.values())).estimate.value
    return values

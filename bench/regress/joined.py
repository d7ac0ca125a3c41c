"""The answers that two runs gave to the same prompts, and what each run counted in them.

Answers join on (pass, decoder with label, prompt hash, repeat). Counters are sums over the answers
that both sides finished, so neither gains by failing. Of a stored reference only a summary is
there: its counters are per repeat, and what a summary does not hold is None. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench import metrics
from bench.metrics import BASELINE, Tally
from bench.records import SampleRecord
from bench.regress.sides import Side
from bench.scores import family_quality, overall_quality, scored
from bench.summary import ALL, family_order, summarise

Key = tuple[str, str, str, int]
Values = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One decoder's answers on both sides, in pairs; head's carry base's prompt names.

    `num_base` and `num_head` count what each side answered, joined or not.
    """

    base: tuple[SampleRecord, ...] = ()
    head: tuple[SampleRecord, ...] = ()
    num_base: int = 0
    num_head: int = 0

    @property
    def coverage(self) -> float:
        """The share of base's answers that have a partner."""
        return len(self.base) / self.num_base if self.num_base else 0.0

    @property
    def finished(self) -> list[tuple[SampleRecord, SampleRecord]]:
        """The pairs without an error on either side."""
        pairs = zip(self.base, self.head, strict=True)
        return [(ours, theirs) for ours, theirs in pairs if not (ours.error or theirs.error)]

    @property
    def changed(self) -> list[tuple[SampleRecord, SampleRecord]]:
        """The finished pairs whose token ids differ."""
        return [(ours, theirs) for ours, theirs in self.finished if ours.tokens != theirs.tokens]


def join(base: Side, head: Side, cell: str) -> Joined:
    """The answers of one decoder to the same prompts under the same repeat."""
    mine, other = _of(base, cell), _of(head, cell)
    keys = [key for key in mine if key in other]
    return Joined(
        base=tuple(mine[key] for key in keys),
        head=tuple(_renamed(other[key], mine[key]) for key in keys),
        num_base=len(mine),
        num_head=len(other),
    )


def _of(side: Side, cell: str) -> dict[Key, SampleRecord]:
    records = [record for record in side.records or () if record.decoder == cell]
    return {(r.kind, r.decoder, r.prompt_hash, r.repeat): r for r in records}


def _renamed(record: SampleRecord, like: SampleRecord) -> SampleRecord:
    return replace(record, conversation=like.conversation, turn=like.turn, family=like.family)


# ---------------------------------------------------------------- what each side counted


def counted(joined: Joined, baseline: Joined, base: Side, head: Side) -> dict[str, Values]:
    """Every hard measure as {name: {"base": …, "head": …}} over the joined answers.

    `baseline` is ar's own join, which exactness is held against.
    """
    pairs = joined.finished
    sides = {"base": [b for b, _ in pairs], "head": [h for _, h in pairs]}
    ars = {"base": [b for b, _ in baseline.finished], "head": [h for _, h in baseline.finished]}
    measures: dict[str, Values] = {}
    for side, records in sides.items():
        for name, value in _counters(records).items():
            measures.setdefault(name, {})[side] = value
        cell = joined.base[0].decoder
        if cell != BASELINE and cell in base.same_as_ar & head.same_as_ar:
            exact = metrics.identical_to_ar(records, ars[side])
            measures.setdefault("identical_to_ar", {})[side] = exact
        for name, value in _quality(records, base).items():
            measures.setdefault(name, {})[side] = value
    measures["errors"] = {
        side: metrics.ratio(sum(r.error is not None for r in records), len(records))
        for side, records in (("base", joined.base), ("head", joined.head))
    }
    timed = [(ours, theirs) for ours, theirs in pairs if ours.kind == "timing"]
    changed = sum(ours.tokens != theirs.tokens for ours, theirs in timed)
    measures["changed_answers"] = {"base": 0.0, "head": metrics.ratio(changed, len(timed))}
    return measures


def _counters(records: Sequence[SampleRecord]) -> Values:
    timed = metrics.timed(records)
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


def _quality(records: Iterable[SampleRecord], base: Side) -> Values:
    """Quality by family and over all, as ``quality.FAMILY`` and ``quality``."""
    families = metrics.by(scored(records), lambda record: record.family)
    found = {f: family_quality(f, families[f], base.gold or {}) for f in family_order(families)}
    values: Values = {f"quality.{family}": q.estimate.value for family, q in found.items()}
    if found:
        values["quality"] = overall_quality(list(found.values())).estimate.value
    return values


def counted_in_summaries(cell: str, base: Side, head: Side) -> dict[str, Values]:
    """The hard measures that a stored summary holds, for both sides.

    Empty where the two were not measured on the same number of prompts; no quality where it was
    not scored on the same number.
    """
    measures: dict[str, Values] = {}
    for name, side in (("base", base), ("head", head)):
        frame = side.summary
        if frame is None:
            manifest = {
                "cells": [{"cell": c, "comparable_to_ar": c in side.same_as_ar} for c in side.cells]
            }
            frame = summarise(side.records or (), manifest, side.gold)
        rows = frame[frame["decoder"] == cell].to_dict("records")
        for row in rows:
            for measure, value in _from_row({str(k): v for k, v in row.items()}).items():
                measures.setdefault(measure, {})[name] = value
    if cell == BASELINE:
        measures.pop("identical_to_ar", None)
    if _differ(measures.pop("prompts", {})):
        return {}
    if _differ(measures.pop("quality_prompts", {})):
        return {name: pair for name, pair in measures.items() if "quality" not in name}
    return measures


def _differ(pair: Values) -> bool:
    return pair.get("base") != pair.get("head")


def _from_row(row: Mapping[str, object]) -> Values:
    """Counters per repeat of a summary row, from its ratios; of a family only its quality."""
    family = row["family"]
    if family != ALL:
        return {f"quality.{family}": _known(row["quality"])}
    repeats, tokens = _known(row["repeats"]), _known(row["tokens"])
    per_call, rows = _known(row["tokens_per_call"]), _known(row["rows_per_token"])
    emitted = tokens / repeats if tokens and repeats else None
    answers = (_known(row["prompts"]) or 0) * (repeats or 0)
    return {
        "prompts": _known(row["prompts"]),
        "quality_prompts": _known(row["quality_prompts"]),
        "calls": emitted / per_call if emitted and per_call else None,
        "rows": emitted * rows if emitted and rows is not None else None,
        "emitted": emitted,
        "tokens_per_step": _known(row["acceptance_length"]),
        "identical_to_ar": _known(row["identical_to_ar"]),
        "quality": _known(row["quality"]),
        "errors": (_known(row["errors"]) or 0) / answers if answers else None,
    }


def _known(value: object) -> float | None:
    number = math.nan if value is None else float(str(value).replace("<NA>", "nan"))
    return None if math.isnan(number) else number

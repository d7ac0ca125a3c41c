"""Compare two runs, decoder by decoder, for `bench compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from bench.compare.gate import Gate
from bench.compare.judge import (
    OVER_AR,
    CellRegression,
    Comparison,
    Measure,
    Regression,
    change_interval,
    controlled,
    judge_hard,
    judge_time,
    worst,
)
from bench.compare.pair import PairedAnswers, RunPair, answer_effects, counted, join
from bench.records.plan import BASELINE, WRONG
from bench.records.record import SampleRecord
from bench.stats import times
from bench.stats.intervals import Repeats, log_ratio_of_medians, mean_log_ratio, paired_speedup
from bench.stats.side import RunSnapshot
from bench.stats.validity import INCOMPLETE, UNKNOWN, VALID, drifted

_MIN_COVERAGE = 0.5
"""Minimum share of base's prompts in each pass that both planned, below which nothing is judged."""


def compare(base: RunSnapshot, head: RunSnapshot, gate: Gate) -> Comparison:
    """Compare two loaded sides."""
    pair = RunPair(base, head)
    apart = "one kind of machine" if pair.same_machine else "another machine or setup"
    invalid = []
    for name, side in pair.sides.items():
        if side.verdict not in (VALID, WRONG, INCOMPLETE):  # a WRONG decoder leaves others valid
            invalid.append(f"{name} is {': '.join((side.verdict, *side.reasons[:1]))}")
        elif not side.status.complete:
            status = side.status.status or UNKNOWN
            invalid.append(f"{name} is {INCOMPLETE}: its status is {status}")
    return Comparison(
        base=base.name,
        head=head.name,
        base_code=base.code,
        head_code=head.code,
        benchmark=head.benchmark,
        control=pair.same_benchmark or not pair.interleaved,
        gate=gate,
        cells=tuple(_judge(cell, pair, gate) for cell in {**base.cells, **head.cells}),
        how="measured interleaved" if pair.interleaved else f"measured separately, {apart}",
        margin=_margin(pair, gate) if pair.same_machine else None,
        unlike=tuple(pair.unlike),
        changes=tuple(pair.changes()),
        unjudged=tuple(_unjudged_reason(pair)),
        invalid=tuple(invalid),
        warnings=tuple(
            f"{name}: {line}"
            for name, side in pair.sides.items()
            for line in (side.status.warnings if pair.same_machine else ())
        ),
    )


def _margin(pair: RunPair, gate: Gate) -> float:
    return gate.time.margin if pair.interleaved else gate.time.margin_apart


def _unjudged_reason(pair: RunPair) -> list[str]:
    rounded = filter(None, map(pair.rounded, sorted(pair.base.same_as_ar - {BASELINE})))
    lines = [
        f"identical_to_ar is measured but not judged in {dtype}, where equality "
        "proves nothing: `bench verify` judges it"
        for dtype in dict.fromkeys(rounded)
    ]
    lines += [
        f"the {name} pass is not judged: head did not plan it"
        for name in sorted(pair.base.passes - pair.head.passes)
    ]
    if not pair.same_machine:
        unknown = None in (side.env.comparability_key for side in pair.sides.values())
        why = "a comparability key is unknown" if unknown else "the runs are of different machines"
        lines.append(f"time is not judged: {why}" + (" or setups" if not unknown else ""))
    return lines


def _judge(cell: str, pair: RunPair, gate: Gate) -> CellRegression:
    """Judge a cell, always as WRONG if head claims losslessness and is not lossless."""
    if cell not in pair.base.cells:
        regression = CellRegression(cell=cell, verdict=Regression.new, notes=("not in base",))
    elif cell not in pair.head.cells:
        regression = _not_comparable(cell, "not in head")
    elif pair.unlike:
        regression = _not_comparable(cell)
    else:
        regression = _compared(cell, pair, gate)
    notes = list(regression.notes)
    if cell in pair.base.status.wrong:
        line = f"base is {WRONG}: it claims to be lossless and is not, so it proves nothing"
        notes.insert(0, line)
    if cell in pair.head.status.wrong:
        line = f"head is {WRONG}: it claims to be lossless but differs from ar beyond near-ties"
        regression = replace(regression, verdict=Regression.wrong)
        notes.insert(0, line)
    codes = pair.base.cell_code(cell), pair.head.cell_code(cell)
    return replace(regression, notes=tuple(notes), base_code=codes[0], head_code=codes[1])


def _not_comparable(cell: str, *notes: str, **numbers: Any) -> CellRegression:
    verdict = Regression.not_comparable
    return CellRegression(cell=cell, verdict=verdict, notes=notes, **numbers)


def _compared(cell: str, pair: RunPair, gate: Gate) -> CellRegression:
    joined, of_ar = join(pair, cell), join(pair, pair.control)
    numbers: dict[str, Any] = {"num_pairs": len(joined.base), "num_base": joined.num_base}
    numbers["options"] = tuple(pair.option_changes(cell))
    notes = []
    if cell in pair.base.same_as_ar - pair.head.same_as_ar:
        notes.append("base claims ar's tokens, head does not; head is judged by that claim")
    coverage = min((both / num for both, num in joined.shared.values()), default=0.0)
    if not joined.base or coverage < _MIN_COVERAGE:
        shares = ", ".join(f"{name} {both} of {num}" for name, (both, num) in joined.shared.items())
        note = f"head answered too few of base's prompts (by hash): {shares or 'none'}"
        if other := pair.other_template:
            note += f"; {other}"
        return _not_comparable(cell, *notes, note, **numbers)
    timed = _time(joined, of_ar, pair, gate)
    measures = (*_hard(cell, joined, of_ar, pair, gate), *timed)
    if not joined.finished and worst(measures) is Regression.passed:
        note = "no answer was finished on both sides, so nothing was compared"
        return _not_comparable(cell, *notes, note, measures=measures, **numbers)
    if len(joined.base) < joined.num_base:
        notes.append("only answers that both sides have count")
    if len(_batch_sizes(joined)) > 1:
        notes.append("time is not judged: the batch sizes differ")
    elif pair.same_machine and not timed and max(_batch_sizes(joined), default=1) > 1:
        notes.append("time is not judged: the groups of prompts differ")
    return CellRegression(
        cell=cell,
        verdict=worst(measures),
        measures=measures,
        num_changed=len(joined.changed),
        notes=tuple(notes),
        **numbers,
    )


def _hard(
    cell: str, joined: PairedAnswers, of_ar: PairedAnswers, pair: RunPair, gate: Gate
) -> list[Measure]:
    exact, steps, measures = pair.exact(cell), answer_effects(joined), []
    unlike = pair.head.difference(cell)
    is_tied = unlike is not None and unlike.num_wrong == 0
    for name, (base, head) in counted(joined, of_ar, pair).items():
        if base is None or head is None:
            continue
        step = steps.get(name, 0.0)
        measure = judge_hard(name, base, head, gate, exact=exact, step=step)
        if name == "identical_to_ar" and pair.rounded(cell) is not None:
            measure = replace(measure, verdict=Regression.passed)
        near_ties = name == "identical_to_ar" and not exact and is_tied
        if near_ties and measure.verdict is Regression.regressed:
            note = "near-ties on head's machine"
            measure = replace(measure, verdict=Regression.passed, note=note)
        measures.append(measure)
    return measures


def _time(joined: PairedAnswers, of_ar: PairedAnswers, pair: RunPair, gate: Gate) -> list[Measure]:
    """Judge time per token, if both sides have one machine and one batch size.

    The control is the change in units of ar's time (without ar, the baseline's) on each side: a
    slower machine or process slows ar down too, which cancels out. The control takes part in the
    verdict unless ar's own code may have changed between two interleaved sides.
    """
    if not pair.same_machine or len(_batch_sizes(joined)) != 1:
        return []
    old, new = _units(joined.base, pair.base), _units(joined.head, pair.head)
    log_ratio = mean_log_ratio if pair.interleaved else log_ratio_of_medians
    ratio = paired_speedup(old, new, log_ratio=log_ratio)
    if not ratio.num:
        return []
    seconds = times.time_per_token_s(old), times.time_per_token_s(new)
    measure = judge_time(ratio, *seconds, gate, margin=_margin(pair, gate))
    is_ar = joined.base[0].decoder == pair.control
    base = _relative_units(_units(of_ar.base, pair.base), old)
    head = _relative_units(_units(of_ar.head, pair.head), new)
    over = [] if is_ar else _over_ar(base, head, measure, log_ratio)
    if not pair.interleaved:
        drifts = [abs(side.status.drift or 0.0) for side in pair.sides.values()]
        drift = max(filter(drifted, drifts), default=0.0)
        measure = controlled(measure, over, drift)
    elif pair.same_benchmark and is_ar:
        measure = replace(measure, verdict=Regression.passed, note="")
    elif pair.same_benchmark:
        measure = controlled(measure, over, 0.0, interleaved=True)
    return [measure, *over]


def _units(records: Sequence[SampleRecord], side: RunSnapshot) -> list[times.Unit]:
    """Return timed units, of a batched run only groups with all their answers in `records`."""

    def sizes(of: Iterable[SampleRecord]) -> Counter[tuple[str, int]]:
        return Counter((r.decoder, r.block) for r in of if r.kind == "timing" and r.batch_size > 1)

    lost = sizes(side.records) - sizes(records)
    return times.timed_units(r for r in records if (r.decoder, r.block) not in lost)


def _over_ar(
    base: Sequence[times.Unit],
    head: Sequence[times.Unit],
    time: Measure,
    log_ratio: Callable[[Repeats], float],
) -> list[Measure]:
    ratio = paired_speedup(base, head, log_ratio=log_ratio)
    if ratio.value is None:
        return []
    low, high = change_interval(ratio)
    return [
        replace(
            time,
            name=OVER_AR,
            base=times.time_per_token_s(base),
            head=times.time_per_token_s(head),
            change=1 / ratio.value - 1,
            low=low,
            high=high,
            verdict=Regression.passed,
            note="",
        )
    ]


def _relative_units(baseline: Iterable[times.Unit], arm: Iterable[times.Unit]) -> list[times.Unit]:
    """Return the arm's units with times in units of the baseline's time per token of that answer.

    Units whose baseline failed or is missing are left out.
    """
    pairs = [
        (other.time_per_token, unit) for other, unit in times.matched(baseline, arm) if other.ok
    ]
    return [
        replace(unit, seconds=unit.seconds / each)
        for each, unit in pairs
        if each and unit.seconds is not None
    ]


def _batch_sizes(joined: PairedAnswers) -> set[int]:
    records = (*joined.base, *joined.head)
    return {record.batch_size for record in records if record.kind == "timing"}

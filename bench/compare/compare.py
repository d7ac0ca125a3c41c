"""`bench compare`: hold one run against another, decoder by decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.compare.comparable import (
    changes,
    half_precision,
    held_to_ar,
    interleaved,
    option_changes,
    same_machine,
    unlike,
)
from bench.compare.gate import Gate
from bench.compare.joined import HardMeasures, PairedAnswers, counted, join
from bench.compare.judge import (
    OVER_AR,
    CellRegression,
    Comparison,
    Measure,
    Regression,
    judge_hard,
    judge_time,
    worst,
)
from bench.compare.summaries import counted_in_summaries
from bench.records.plan import BASELINE, WRONG
from bench.stats import times
from bench.stats.intervals import log_ratio_of_medians, mean_log_ratio, paired_speedup
from bench.stats.side import FLOAT32, RunSnapshot
from bench.stats.validity import INCOMPLETE, UNKNOWN, VALID, from_here

_STORED = (
    "a stored reference has no answers: time, accepted drafts and changed answers are not judged"
)


def compare(base: RunSnapshot, head: RunSnapshot, gate: Gate) -> Comparison:
    """Compare two loaded sides."""
    why_not = unlike(base, head)
    together = interleaved(base, head)
    stored = base.records is None or head.records is None
    margin = gate.time.margin if together else gate.time.margin_apart
    timed = same_machine(base, head) and not stored
    cells = list(dict.fromkeys([*base.cells, *head.cells]))
    judged = tuple(
        _unless_wrong(
            _without(cell, base, head, why_not) or _judged(cell, base, head, gate, margin),
            base,
            head,
        )
        for cell in cells
    )
    return Comparison(
        base=base.name,
        head=head.name,
        base_code=base.code,
        head_code=head.code,
        gate=gate,
        cells=judged,
        how=_how(base, head),
        margin=margin if timed else None,
        unlike=tuple(why_not),
        changes=tuple(changes(base, head)),
        unjudged=tuple(_unjudged(base, head, stored=stored)),
        invalid=tuple(_invalid(base, head)),
        warnings=tuple(
            f"{which}: {line}"
            for which, side in (("base", base), ("head", head))
            for line in (side.status.warnings if timed else ())
        ),
    )


def _how(base: RunSnapshot, head: RunSnapshot) -> str:
    if interleaved(base, head):
        return "measured interleaved"
    return "measured apart, " + ("one kind of machine" if same_machine(base, head) else "elsewhere")


def _invalid(base: RunSnapshot, head: RunSnapshot) -> list[str]:
    """Say why a side carries no verdict at all; a wrong decoder spoils no other.

    INVALID, DAMAGED and INCOMPLETE do, also where they are not the run's first verdict.
    """
    lines = []
    for which, side in (("base", base), ("head", head)):
        if side.verdict not in (VALID, WRONG, INCOMPLETE):
            lines.append(
                ": ".join(
                    (
                        f"{which} is {side.verdict}",
                        *(from_here(line, side.path) for line in side.reasons[:1]),
                    )
                )
            )
        elif not side.status.complete:
            how = side.status.status or UNKNOWN
            lines.append(f"{which} is {INCOMPLETE}: its status is {how}")
    return lines


def _unless_wrong(
    regression: CellRegression, base: RunSnapshot, head: RunSnapshot
) -> CellRegression:
    """Mark a cell that claims to be lossless in head and is not as WRONG, whatever else it is."""
    notes = regression.notes
    if regression.cell in base.wrong:
        line = f"base is {WRONG} here: it claims to be lossless and is not, and is no measure"
        notes = (line, *notes)
    if regression.cell not in head.wrong:
        return replace(regression, notes=notes)
    line = f"head is {WRONG} here: it claims to be lossless and left ar's tokens, no near-ties"
    return replace(regression, verdict=Regression.wrong, notes=(line, *notes))


def _unjudged(base: RunSnapshot, head: RunSnapshot, *, stored: bool) -> list[str]:
    lines = [_STORED] if stored else []
    half = half_precision(base, head)
    if half is not None and held_to_ar(base, head) - {BASELINE}:
        lines.append(
            f"identical_to_ar is measured and not judged in {half}, where equality proves nothing: "
            "`bench verify` judges it"
        )
    if not stored:
        lines += [
            f"the {name} pass is not judged: head did not plan it"
            for name in sorted(base.passes - head.passes)
        ]
    if not stored and not same_machine(base, head):
        key = base.key is None or head.key is None
        lines.append(
            "time is not judged: "
            + (
                "a comparability key is unknown"
                if key
                else "the runs are of different machines or setups"
            )
        )
    return lines


def _without(
    cell: str, base: RunSnapshot, head: RunSnapshot, why_not: Sequence[str]
) -> CellRegression | None:
    if cell not in base.cells:
        return CellRegression(cell=cell, verdict=Regression.new, notes=("not in base",))
    if cell not in head.cells:
        return CellRegression(cell=cell, verdict=Regression.not_comparable, notes=("not in head",))
    if why_not:
        return CellRegression(cell=cell, verdict=Regression.not_comparable)
    return None


def _judged(
    cell: str, base: RunSnapshot, head: RunSnapshot, gate: Gate, margin: float
) -> CellRegression:
    if base.records is None or head.records is None:
        verdict = _from_summaries(cell, base, head, gate)
    else:
        verdict = _from_answers(cell, base, head, gate, margin)
    notes = verdict.notes
    if cell in held_to_ar(base, head) - head.same_as_ar and head.records is not None:
        notes = ("head does not claim ar's tokens; base does, and head is held to that", *notes)
    return replace(verdict, options=tuple(option_changes(base, head, cell)), notes=notes)


def _from_summaries(cell: str, base: RunSnapshot, head: RunSnapshot, gate: Gate) -> CellRegression:
    summaries = counted_in_summaries(cell, base, head)
    if summaries is None:
        note = "not measured on the same number of prompts"
        return CellRegression(cell=cell, verdict=Regression.not_comparable, notes=(note,))
    measures = _hard(cell, summaries, base, head, gate)
    return CellRegression(
        cell=cell, verdict=worst(measures), measures=tuple(measures), notes=summaries.notes
    )


def _from_answers(
    cell: str, base: RunSnapshot, head: RunSnapshot, gate: Gate, margin: float
) -> CellRegression:
    joined, of_ar = join(base, head, cell), join(base, head, BASELINE)
    numbers: dict[str, Any] = {"num_pairs": len(joined.base), "num_base": joined.num_base}
    if not joined.base or joined.coverage < gate.verdict.min_coverage:
        asked = ", ".join(f"{name} {both} of {num}" for name, (both, num) in joined.shared.items())
        note = f"too few of base's prompts (by their hashes) were asked in head: {asked or 'none'}"
        verdict = Regression.not_comparable
        return CellRegression(cell=cell, verdict=verdict, notes=(note,), **numbers)
    hard = counted(joined, of_ar, base, head)
    if cell not in held_to_ar(base, head):
        hard.values.pop("changed_answers")  # other answers are lawful there: quality judges them
    measures = _hard(cell, hard, base, head, gate)
    measures += _time(joined, of_ar, base, head, gate, margin)
    notes = ["only answers that both sides gave count"] * (len(joined.base) < joined.num_base)
    if len(_batch_sizes(joined)) > 1:
        notes.append("time is not judged: the batch sizes differ")
    return CellRegression(
        cell=cell,
        verdict=worst(measures),
        measures=tuple(measures),
        num_changed=len(joined.changed),
        notes=tuple(notes),
        **numbers,
    )


def _exact(base: RunSnapshot, head: RunSnapshot) -> bool:
    return same_machine(base, head) and base.dtype == FLOAT32


def _hard(
    cell: str, hard: HardMeasures, base: RunSnapshot, head: RunSnapshot, gate: Gate
) -> list[Measure]:
    exact, half = _exact(base, head), half_precision(base, head)
    rounded = base.records is None or head.records is None
    values, wrong = dict(hard.values), head.num_wrong(cell)
    if wrong is not None:
        values["wrong_answers"] = {"base": float(base.num_wrong(cell) or 0), "head": float(wrong)}
    if not exact:
        values.pop("changed_answers", None)  # near-ties swap
    measures = []
    for name, pair in values.items():
        old, new = pair.get("base"), pair.get("head")
        if old is None or new is None:
            continue
        step = hard.step(name)
        measure = judge_hard(name, old, new, gate, exact=exact, rounded=rounded, step=step)
        if name == "identical_to_ar" and half is not None:
            measure = replace(measure, verdict=Regression.passed)
        near_ties = name == "identical_to_ar" and not exact and head.near_ties_alone(cell)
        if near_ties and measure.verdict is Regression.regressed:
            measure = replace(
                measure, verdict=Regression.passed, note="near-ties on head's machine"
            )
        measures.append(measure)
    return measures


def _time(
    joined: PairedAnswers,
    of_ar: PairedAnswers,
    base: RunSnapshot,
    head: RunSnapshot,
    gate: Gate,
    margin: float,
) -> list[Measure]:
    """Judge time per token, where machine and batch size allow it.

    The change in units of ar's time on each side is shown beside it and not judged: a load that
    slows one side down slows its ar down too, and cancels.
    """
    if not same_machine(base, head) or len(_batch_sizes(joined)) != 1:
        return []
    old, new = times.timed_units(joined.base), times.timed_units(joined.head)
    of_prompt = mean_log_ratio if interleaved(base, head) else log_ratio_of_medians
    ratio = paired_speedup(old, new, lambda unit: unit.time_per_token, of_prompt)
    if not ratio.num:
        return []
    seconds = times.time_per_token_s(old), times.time_per_token_s(new)
    measures = [judge_time(ratio, seconds[0], seconds[1], gate, margin=margin)]
    if joined.base[0].decoder != BASELINE:
        measures += _over_ar(joined, of_ar, measures[0])
    return measures


def _over_ar(joined: PairedAnswers, of_ar: PairedAnswers, time: Measure) -> list[Measure]:
    base, head = (
        times.in_units_of(times.timed_units(ar), times.timed_units(records))
        for ar, records in ((of_ar.base, joined.base), (of_ar.head, joined.head))
    )
    ratio = paired_speedup(base, head, lambda unit: unit.time_per_token)
    if ratio.value is None:
        return []
    low, high = (None if end is None else 1 / end - 1 for end in (ratio.high, ratio.low))
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


def _batch_sizes(joined: PairedAnswers) -> set[int]:
    records = (*joined.base, *joined.head)
    return {record.batch_size for record in records if record.kind == "timing"}

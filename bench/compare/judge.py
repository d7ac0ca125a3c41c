"""Judge a measure, a decoder and the whole comparison, and return the exit code.

A hard measure regressed if it is worse by more than its tolerance. Time is judged by the interval
of head / base: regressed if the whole interval lies beyond the margin, improved if it lies as far
on the other side, passed if it excludes a slow-down beyond the margin, otherwise inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from bench.compare.gate import HARD, Gate
from bench.errors import Exit
from bench.stats.intervals import Estimate
from bench.text import counted

ROUNDING = 1e-12
"""Limit of a change that counts as floating-point error."""
OVER_AR = "time_over_ar"
"""Name of the measure "time in units of ar's time"."""
_MAX_TIMES = 20
"""Limit of the factor by which advice asks for more prompts."""


class Regression(StrEnum):
    """Enumerate the verdicts on a measure or a decoder."""

    passed = "pass"
    regressed = "regressed"
    improved = "improved"
    inconclusive = "inconclusive"
    not_comparable = "not comparable"
    new = "new"
    wrong = "WRONG"


_WORST_FIRST = [
    *(Regression.wrong, Regression.regressed, Regression.not_comparable),
    *(Regression(v) for v in ("inconclusive", "improved", "pass")),
]


@dataclass(frozen=True, slots=True)
class Measure:
    """Hold one number on both sides.

    `change` is relative for counters and times, else a difference. For times, `low` and `high` are
    its 95 % interval, and `tolerance` is the margin.
    """

    name: str
    base: float | None
    head: float | None
    change: float | None
    relative: bool
    tolerance: float
    verdict: Regression
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRegression:
    """Hold the verdict on one decoder, the measures behind the verdict, and remarks (`notes`).

    `num_pairs` of base's `num_base` answers have a pair in head; `num_changed` of these pairs
    differ in token ids. `base_code` and `head_code` are hashes of the decoder's own source files.
    Each of these is None if it was not determined.
    """

    cell: str
    verdict: Regression
    measures: tuple[Measure, ...] = ()
    num_pairs: int | None = None
    num_base: int | None = None
    num_changed: int | None = None
    options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    base_code: str | None = None
    head_code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hold the result of `bench compare`: verdicts, conditions of measuring, and unjudged sides.

    `invalid` names sides that are INVALID, DAMAGED or incomplete; such a comparison never passes.
    `warnings` are the runs' own, if time is judged. `base_code` and `head_code` name the commits,
    of the decoders' repository if it is not the `benchmark`'s. With `control`, a slow-down must
    also show in units of ar's time.
    """

    base: str
    head: str
    gate: Gate
    cells: tuple[CellRegression, ...]
    how: str
    margin: float | None
    unlike: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    base_code: str | None = None
    head_code: str | None = None
    benchmark: str | None = None
    control: bool = True

    @property
    def verdict(self) -> Regression:
        """Return the worst verdict of all cells that are not new (none: not comparable)."""
        verdicts = {cell.verdict for cell in self.cells} - {Regression.new}
        if not verdicts:
            return Regression.not_comparable
        invalid = {Regression.inconclusive} if self.invalid else set()
        return min(verdicts | invalid, key=_WORST_FIRST.index)

    @property
    def exit_code(self) -> Exit:
        """Return 3 (wrong, regressed), 5 (not comparable), 4 (invalid, or by the gate), or 0."""
        if self.verdict in (Regression.wrong, Regression.regressed):
            return Exit.REGRESSION
        if self.verdict is Regression.not_comparable:
            return Exit.UNAVAILABLE
        if self.invalid or (self.gate.strict and self.verdict is Regression.inconclusive):
            return Exit.INVALID
        return Exit.DONE


def worst(measures: Sequence[Measure]) -> Regression:
    """Return a decoder's verdict: the worst of its measures."""
    verdicts = (Regression.passed, *(measure.verdict for measure in measures))
    return min(verdicts, key=_WORST_FIRST.index)


def judge_hard(
    name: str, base: float, head: float, gate: Gate, *, exact: bool, step: float = 0.0
) -> Measure:
    """Judge one hard measure (``quality.FAMILY`` follows the rule of ``quality``).

    Args:
        name: key of `HARD`, or one with a family.
        base: base's number, in the measure's own unit.
        head: head's number.
        gate: tolerances.
        exact: whether equal work gives equal numbers, so that rounding excuses nothing.
        step: the effect of a single answer, in the unit of the tolerance.
    """
    rule = name.partition(".")[0]
    better, relative = HARD[rule]
    tolerance = gate.hard.of(rule, exact=exact, step=step)
    change = head - base
    if relative and change:
        change = change / base if base else math.copysign(math.inf, change)
    verdict = Regression.passed
    if abs(change) > tolerance + ROUNDING:
        good = (better == "more") == (change > 0) and better != "same"
        verdict = Regression.improved if good else Regression.regressed
    return Measure(name, base, head, change, relative, tolerance, verdict)


def judge_time(
    ratio: Estimate, base_s: float | None, head_s: float | None, gate: Gate, *, margin: float
) -> Measure:
    """Judge time per token.

    Args:
        ratio: base time / head time, paired by prompt: above 1, head is faster.
        base_s: base's seconds per token, which are only shown; None: unknown.
        head_s: likewise of head.
        gate: says whether a slow-down fails.
        margin: tolerated slow-down as a share: one of the two margins of `gate`.
    """
    low, high = change_interval(ratio)
    note = ""
    if low is None or high is None:
        verdict, note = Regression.inconclusive, "too few conversations for an interval"
    elif low > margin:
        verdict = Regression.regressed
    elif high < 1 / (1 + margin) - 1:
        verdict = Regression.improved
    elif high <= margin:
        verdict = Regression.passed
    else:
        verdict, note = Regression.inconclusive, need_more_data(ratio, margin)
    if not gate.time.fail:
        note = "slower; the gate only reports it" * (verdict is Regression.regressed)
        verdict = Regression.passed
    change = None if ratio.value is None else 1 / ratio.value - 1
    return Measure("time", base_s, head_s, change, True, margin, verdict, low, high, note)


def controlled(
    measure: Measure, over_ar: Sequence[Measure], drift: float, *, interleaved: bool = False
) -> Measure:
    """Withdraw a verdict on time that the machine may explain, where ar can tell.

    Separate runs of identical code differ by up to a quarter in time, for all decoders alike; two
    processes, by a few per cent. So a decoder regressed or improved only if it also did so in units
    of ar's time, and regressed only beyond the drift of a run. ar has no control.

    Args:
        measure: the time per token.
        over_ar: the control, in units of ar's time, if there is one.
        drift: the larger drift of the two runs, as a share.
        interleaved: the control's estimate decides, not its interval, which has ar's noise too.
    """
    advice = "" if interleaved else "; use `bench ab`"
    low, high = measure.low, measure.high
    if low is None or high is None:
        return measure
    control = over_ar[0] if over_ar else None
    if control is not None and interleaved:
        control = replace(control, low=control.change, high=control.change)
    if measure.verdict is Regression.regressed:
        if low <= measure.tolerance + drift:
            note = f"slower by no more than the machine's speed drifted in a run{advice}"
        elif control is None or (control.low or 0.0) <= measure.tolerance:
            note = f"the machine may have been slower, as ar was{advice}"
        else:
            return measure
        return replace(measure, verdict=Regression.inconclusive, note=note)
    fast = 1 / (1 + measure.tolerance) - 1
    as_ar = control is None or (control.high or 0.0) >= fast
    if measure.verdict is Regression.improved and as_ar:
        note = f"the machine may have been faster, as ar was{advice}"
        return replace(measure, verdict=Regression.passed, note=note)
    return measure


def change_interval(ratio: Estimate) -> tuple[float | None, float | None]:
    """Return the interval of the relative change of time, from that of base time / head time."""
    ends = (ratio.value, ratio.value) if ratio.error == 0 else (ratio.high, ratio.low)
    low, high = (None if end is None else 1 / end - 1 for end in ends)
    return low, high


def need_more_data(ratio: Estimate, margin: float) -> str:
    """Advise how many more conversations would move the interval to one side of the margin.

    The half-width of an interval shrinks with the square root of the number of conversations.
    """
    if ratio.high is None or ratio.value is None:
        return ""
    half_width = math.log(ratio.high / ratio.value)
    distance = abs(math.log1p(margin) + math.log(ratio.value))
    if half_width > _MAX_TIMES**0.5 * distance:
        more = f"more than {_MAX_TIMES} times as many prompts would be needed to decide"
        return f"{more}; allow a wider margin, or find a quieter machine (bench doctor)"
    num = math.ceil(ratio.clusters * (half_width / distance) ** 2)
    more = counted(num - ratio.clusters, "more conversation")
    return f"needs about {more} to decide: --limit {num}"

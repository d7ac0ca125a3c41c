"""The output of `bench project`: a run's steps priced on a cost curve, with caveats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.errors import UsageError
from bench.records.phases import PhasedAnswer, read_phases
from bench.records.plan import BASELINE
from bench.records.run_folder import Run
from bench.report.tables.table import estimated
from bench.report.texts.cost import cost_name
from bench.stats import summary as sums
from bench.stats.cost_curve import Cost
from bench.stats.counters import timed
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.limit import mismatch
from bench.stats.project import (
    Projection,
    Terms,
    draft_shares,
    overheads_s,
    project,
    proposal_shares,
)
from bench.text import change, percent

_MUCH, _MOST = 0.05, 0.5
"""Shares of calls beyond the curve above which intervals, and whole projections, are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """The projection of a run by decoder, with notes on assumptions and gaps."""

    decoders: Sequence[Projection]
    notes: Sequence[str]

    def table(self) -> list[list[str]]:
        """Return the headings and a line per decoder; errors only if something was measured."""
        columns: dict[str, Callable[[Projection], str]] = {
            "decoder": lambda each: each.decoder,
            f"projected [{LEVEL}]": lambda each: estimated(each.speedup),
            "ms per token": lambda each: f"{1e3 * each.time_per_token_s:.2f}",
            "rows per call": lambda each: f"{each.rows_per_call:.1f}",
        }
        if any(each.measured is not None for each in self.decoders):
            columns |= {
                "measured": lambda each: estimated(each.measured or Estimate()),
                "error": lambda each: change(each.error),
                "error of ms": lambda each: change(each.time_error),
            }
        return [[*columns], *([make(each) for make in columns.values()] for each in self.decoders)]


def projected(
    run: Run,
    cost: Cost,
    *,
    draft: Cost | None = None,
    against: Run | None = None,
) -> Projected:
    """Project a run onto a cost curve; compare with `against`, or with the run if the curve fits.

    Raises:
        BenchError: the run has no timed answer of ar (exit 2).
    """
    records = run.records
    if not any(record.decoder == BASELINE for record in timed(records)):
        line = f"{run.path} has no timed answer of {BASELINE}: nothing can be projected"
        raise UsageError(line)
    answers = read_phases(run.path)
    terms = Terms(
        curve=cost.curve,
        draft=None if draft is None else draft.curve,
        overhead_s=overheads_s(answers),
        draft_share=draft_shares(answers, records),
        proposal_share=proposal_shares(answers, records),
    )
    if against is None and mismatch(cost, run.env) is None:
        against = run
    decoders = sums.decoder_order(run.plan, records, run.status.wrong)
    made = project(records, terms, decoders, () if against is None else against.records)
    notes = [*_rests_on(run, cost, draft, answers), *_left_out(decoders, made)]
    made = _within(made)
    if against is not None:
        held = "itself" if against is run else against.path.name
        other = None if against is run else mismatch(cost, against.env)
        notes.append(
            f"compared with {held}: error is projected / measured - 1"
            + (f"; but {cost_name(cost)} does not match: {other}" if other else "")
        )
    return Projected(decoders=made, notes=notes)


def _rests_on(
    run: Run, cost: Cost, draft: Cost | None, answers: Sequence[PhasedAnswer]
) -> list[str]:
    """State the assumptions."""
    drafting = (
        "a draft call costs the same share of a one-row target call as in the run"
        if draft is None
        else f"draft calls cost what {cost_name(draft)} says"
    )
    notes = [
        f"{run.path.name} on {cost_name(cost)} ({cost.facts.name}), one sequence, after the first "
        f"token; {drafting}; slots in verifying calls cost as much as token rows",
        "acceptance is assumed to be as in the run",
    ]
    if answers:
        notes.append("sampling, scheduler and own code take the same seconds per step as there")
    else:
        notes.append("overheads are left out: the run has no second pass (phases.json)")
    return notes


def _beyond(made: Sequence[Projection]) -> dict[str, float]:
    """Return each decoder's share of calls beyond the curve, at least the baseline's share."""
    base = max((each.beyond for each in made if each.decoder == BASELINE), default=0.0)
    return {each.decoder: max(each.beyond, base) for each in made}


def _within(made: Sequence[Projection]) -> list[Projection]:
    """Drop intervals if many calls lie beyond the curve, and decoders if most calls do.

    An interval covers only the choice of prompts, not errors of the curve.
    """
    beyond = _beyond(made)
    return [
        each
        if beyond[each.decoder] <= _MUCH
        else replace(each, speedup=replace(each.speedup, low=None, high=None))
        for each in made
        if beyond[each.decoder] <= _MOST
    ]


def _left_out(decoders: Sequence[str], made: Sequence[Projection]) -> list[str]:
    there = {each.decoder for each in made}
    notes = [
        f"{decoder} is left out: the cost of its draft calls is unknown, give --draft-cost"
        for decoder in decoders
        if decoder not in there
    ]
    return notes + [
        f"{name}: {percent(share)} of its calls or ar's lie beyond the measured range, "
        + ("and it is left out" if share > _MOST else "and are extrapolated: no interval")
        + "; `bench cost` with --rows and --contexts measures them"
        for name, share in _beyond(made).items()
        if share > _MUCH
    ]

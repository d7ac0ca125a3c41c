"""Projection of a run's traces onto another model's or machine's cost curve.

A trace lists for each step of an answer the calls and rows of target and draft model, and the
emitted tokens. A target call costs what the curve gives for its rows and its cached tokens. A draft
call costs what the draft's curve gives; without such a curve, it costs the same share of a one-row
target call as in the run. A target call that only proposes (with slots) costs the same multiple of
a verifying call as in the run. All other time (sampling, scheduler, the decoder's own code) is
copied from the run, in seconds per step. Only the time after the first token is projected.

Assumptions: the acceptance is the run's, also for another model; all calls of a step have equally
many rows; slots in a verifying call cost as much as token rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.records.phases import PhasedAnswer
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord, StepColumns
from bench.stats import counters
from bench.stats.cost_curve import CostCurve
from bench.stats.counters import ratio, timed, timed_steps
from bench.stats.decompose import OVERHEAD, spent_s
from bench.stats.intervals import DECODE_TIME, Estimate, paired_speedup
from bench.stats.times import Unit, answer_unit, decode_time_per_token_s, units_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Costs that a projection uses: the target's `curve`, and the `draft` model's if known.

    By decoder, `overhead_s` is the seconds per step outside calls, `draft_share` the cost of a
    draft call in ar's target calls, and `proposal_share` the cost of a proposing target call in
    verifying calls. A step has at most one verifying call.
    """

    curve: CostCurve
    draft: CostCurve | None = None
    overhead_s: Mapping[str, float] = field(default_factory=dict)
    draft_share: Mapping[str, float] = field(default_factory=dict)
    proposal_share: Mapping[str, float] = field(default_factory=dict)

    def can(self, records: Iterable[SampleRecord], decoder: str) -> bool:
        """Tell whether the cost of a decoder's draft calls, if any, is known."""
        drafts = any(any(steps.draft_calls[1:]) for steps in timed_steps(records))
        return not drafts or self.draft is not None or decoder in self.draft_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One decoder's projection; `measured` is a real run's speed-up after the first token.

    `beyond` is the share of target calls outside the measured range of the curve.
    """

    decoder: str
    speedup: Estimate
    time_per_token_s: float
    rows_per_call: float
    beyond: float
    measured: Estimate | None = None
    measured_time_s: float | None = None

    @property
    def error(self) -> float | None:
        """Return projected / measured speed-up - 1; None if not measured."""
        value = None if self.measured is None else self.measured.value
        return self.speedup.value / value - 1 if value and self.speedup.value else None

    @property
    def time_error(self) -> float | None:
        """Return projected / measured time per token after the first - 1."""
        return self.time_per_token_s / self.measured_time_s - 1 if self.measured_time_s else None


def project(
    records: Sequence[SampleRecord],
    terms: Terms,
    decoders: Iterable[str],
    against: Sequence[SampleRecord] = (),
) -> list[Projection]:
    """Project every decoder whose calls have a cost, in the order of `decoders`.

    `against` holds records of a real run on that model and machine. Answers decoded in batches
    count like all others.
    """
    cells, real = counters.group_by(timed(records)), units_of(against)
    base = _units(cells.get(BASELINE, []), terms, BASELINE)
    made = []
    for decoder in decoders:
        mine = cells.get(decoder, [])
        if not terms.can(mine, decoder):
            continue
        units = _units(mine, terms, decoder)
        each = decode_time_per_token_s(units)
        if not base or each is None:
            continue
        steps = list(timed_steps(mine))
        base_there, there = real[BASELINE], real[decoder]
        both = base_there and there
        made.append(
            Projection(
                decoder=decoder,
                speedup=paired_speedup(base, units, DECODE_TIME),
                time_per_token_s=each,
                rows_per_call=ratio(later(steps, "target_rows"), later(steps, "target_calls"))
                or 0.0,
                beyond=_beyond(mine, terms.curve),
                measured=paired_speedup(base_there, there, DECODE_TIME) if both else None,
                measured_time_s=decode_time_per_token_s(there),
            )
        )
    return made


def _units(records: Iterable[SampleRecord], terms: Terms, decoder: str) -> list[Unit]:
    """Return the answers as units, with times after the first token from the curve."""
    return [
        replace(
            unit,
            ok=unit.decode_tokens > 0,
            seconds=None,
            decode_seconds=_decode_s(steps, record.num_prompt_tokens, terms, decoder),
        )
        for record in records
        if (steps := record.steps) is not None and len(steps.emitted) > 1
        for unit in [answer_unit(record)]
    ]


def _decode_s(steps: StepColumns, num_prompt_tokens: int, terms: Terms, decoder: str) -> float:
    overhead_s, share = terms.overhead_s.get(decoder, 0.0), terms.draft_share.get(decoder, 0.0)
    proposal = terms.proposal_share.get(decoder, 1.0)
    total_s = 0.0
    for step, context in _contexts(steps, num_prompt_tokens):
        num = steps.target_calls[step]
        calls_s = _calls_s(terms.curve, num, steps.target_rows[step], context)
        verifying = min(num, 1)
        total_s += overhead_s + calls_s * (verifying + (num - verifying) * proposal) / max(1, num)
        num_drafts = steps.draft_calls[step]
        if terms.draft is not None:
            rows = steps.draft_rows[step]
            total_s += _calls_s(terms.draft, num_drafts, rows, context)
        elif num_drafts:
            total_s += num_drafts * share * terms.curve.seconds(1, context)
    return total_s


def _calls_s(curve: CostCurve, calls: int, rows: int, context: int) -> float:
    return calls * curve.seconds(rows / calls, context) if calls else 0.0


def _contexts(steps: StepColumns, num_prompt_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield every later step with the number of cached tokens at its start (all but the last)."""
    have = num_prompt_tokens + steps.emitted[0] - 1
    for step in range(1, len(steps.emitted)):
        yield step, have
        have += steps.emitted[step]


def later(steps: Iterable[StepColumns], column: str) -> int:
    """Return the sum of a column over all steps except each answer's first."""
    return sum(sum(getattr(each, column)[1:]) for each in steps)


def _beyond(records: Sequence[SampleRecord], curve: CostCurve) -> float:
    """Return the share of later target calls that the curve does not cover."""
    outside = calls = 0
    for record in records:
        if (steps := record.steps) is None:
            continue
        for step, context in _contexts(steps, record.num_prompt_tokens):
            num = steps.target_calls[step]
            calls += num
            rows = steps.target_rows[step] / num if num else 0
            outside += 0 if curve.covers(rows, context) else num
    return ratio(outside, calls) or 0.0


def overheads_s(answers: Sequence[PhasedAnswer]) -> dict[str, float]:
    """Return each decoder's seconds per later step outside calls and the prefill."""
    found = {}
    for decoder, mine in counters.group_by(answers).items():
        if steps := sum(answer.later_steps for answer in mine):
            found[decoder] = spent_s(mine, *OVERHEAD) / steps
    return found


def draft_shares(
    answers: Sequence[PhasedAnswer], records: Iterable[SampleRecord]
) -> dict[str, float]:
    """Return measured seconds of a draft call / seconds of ar's target call, by decoder."""
    base = [answer for answer in answers if answer.decoder == BASELINE]
    call_s = ratio(spent_s(base, "verify"), sum(answer.later_steps for answer in base))
    return {
        decoder: spent_s(mine, "draft") / drafts / call_s
        for decoder, (mine, steps) in with_steps(answers, records).items()
        if (drafts := later(steps, "draft_calls")) and call_s
    }


def proposal_shares(
    answers: Sequence[PhasedAnswer], records: Iterable[SampleRecord]
) -> dict[str, float]:
    """Return seconds of a proposing target call / seconds of a verifying one, by decoder."""
    found = {}
    for decoder, (mine, steps) in with_steps(answers, records).items():
        verifying = sum(min(num, 1) for each in steps for num in each.target_calls[1:])
        proposals = later(steps, "target_calls") - verifying
        draft_s, verify_s = spent_s(mine, "draft"), spent_s(mine, "verify")
        if later(steps, "draft_calls"):
            continue  # draft calls and proposing target calls share a phase
        if draft_s and proposals and verify_s:
            found[decoder] = draft_s / proposals / (verify_s / verifying)
    return found


def with_steps(
    answers: Iterable[PhasedAnswer], records: Iterable[SampleRecord]
) -> dict[str, tuple[list[PhasedAnswer], list[StepColumns]]]:
    """Return each decoder's answers, with the steps timed for the same prompts and repeats."""
    counted = {(r.decoder, r.prompt, r.repeat): r.steps for r in timed(records)}
    found: dict[str, tuple[list[PhasedAnswer], list[StepColumns]]] = {}
    for answer in answers:
        asked = [counted.get((answer.decoder, prompt, answer.repeat)) for prompt in answer.prompts]
        steps = [each for each in asked if each is not None]
        if len(steps) == len(asked):
            mine, all_steps = found.setdefault(answer.decoder, ([], []))
            mine.append(answer)
            all_steps += steps
    return found

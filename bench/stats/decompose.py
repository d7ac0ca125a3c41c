"""Decomposition of a speed-up into tokens per step and costs per step, from records and phases.

Costs are in units of ar's time per token. After the first token, a decoder that emits AL tokens per
step at a cost of verify + draft + overhead has the speed-up AL / (verify + draft + overhead). The
costs come from the second pass (`bench.measure.phases`), the measured speed-up from the timed
blocks. The residual between the two shows disturbances of the second pass, and drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.records.plan import baseline_arms
from bench.records.record import SampleRecord
from bench.records.samples import PHASES, PhasedAnswer
from bench.stats import counters, times
from bench.stats.counters import ratio

MAX_RESIDUAL = 0.05
"""Largest residual that is not flagged as a disturbance of one of the two passes."""
OVERHEAD = ("sampling", "scheduler", "other")
"""Phases other than calls and the prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One decoder's time in the second pass, by phase.

    The `shares` add up to 1. `against_timed` is the second pass's time per token / the timed
    pass's, for the same answers.
    `padding` is the share of computed rows that only pad merged calls to one width.
    """

    decoder: str
    prompts: int
    time_per_token_s: float
    shares: Mapping[str, float]
    against_timed: float | None
    padding: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """The parts of one decoder's speed-up after the first token.

    Costs are in ar's seconds per token. `measured` is the ratio of totals of the same answers in
    the timed pass.
    """

    decoder: str
    prompts: int
    acceptance_length: float
    verify: float
    draft: float
    overhead: float
    measured: float | None

    @property
    def cost(self) -> float:
        """Return the cost of a step."""
        return self.verify + self.draft + self.overhead

    @property
    def predicted(self) -> float:
        """Return the speed-up predicted from the parts."""
        return self.acceptance_length / self.cost

    @property
    def residual(self) -> float | None:
        """Return measured / predicted - 1."""
        return None if self.measured is None else self.measured / self.predicted - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLength:
    """Speed-ups of a decoder after the first token with 1, 2, ... drafts per step."""

    speedups: tuple[float, ...]

    @property
    def best(self) -> int:
        """Return the number of drafts with the highest speed-up, the smallest of equals."""
        return 1 + self.speedups.index(max(self.speedups))


def draft_length(
    parts: Decomposition,
    joint: Sequence[float],
    drafted: float,
    max_drafts: int = 0,
    relative: Callable[[float], float] | None = None,
) -> DraftLength | None:
    """Extrapolate the speed-up of a run to other numbers of drafts per step.

    A step with k drafts emits as many other tokens as in the run, plus the sum of joint acceptances
    up to k (Leviathan et al. 2023, arXiv 2211.17192, section 3, for unequal acceptances). Drafting
    costs in proportion to k. So does verification beyond a one-row call, unless a measured curve
    gives its cost. The overhead is constant.

    Args:
        parts: decomposition of the run.
        joint: measured P(drafts 1..j all accepted), for j = 1, 2, ...
        drafted: mean number of drafts per step.
        max_drafts: extrapolate to this k with the last conditional acceptance (0: only measured k).
        relative: cost of a call by rows; only its shape matters (`bench.extras.cost.curve`).
    """
    if not joint or not drafted:
        return None
    last = joint[-1] / joint[-2] if len(joint) > 1 and joint[-2] else joint[-1]
    beyond = [joint[-1] * last**more for more in range(1, max_drafts - len(joint) + 1)]
    certain = parts.acceptance_length - sum(joint)
    accepted = 0.0
    speedups = []
    for k, stands in enumerate([*joint, *beyond], start=1):
        accepted += stands
        if relative is None:
            verify = min(parts.verify, 1.0) + max(0.0, parts.verify - 1) / drafted * k
        else:
            verify = parts.verify * relative(k + 1) / relative(drafted + 1)
        cost = verify + parts.draft / drafted * k + parts.overhead
        speedups.append((certain + accepted) / cost)
    return DraftLength(speedups=tuple(speedups))


def splits(
    answers: Sequence[PhasedAnswer], records: Iterable[SampleRecord], decoders: Iterable[str]
) -> list[Split]:
    """Split every decoder's time by phase, in the order of `decoders`."""
    units, phased = times.units_by_decoder(records), counters.group_by(answers)
    rows = []
    for decoder in decoders:
        repeats = phased.get(decoder, [])
        emitted, total_s = sum(a.emitted for a in repeats), sum(a.total_s for a in repeats)
        if not emitted or not total_s:
            continue
        timed = times.time_per_token_s(_repeated(units[decoder], repeats))
        each = total_s / emitted
        grouped = [answer for answer in repeats if len(answer.prompts) > 1]
        padded = sum(answer.padded_rows for answer in grouped)
        rows.append(
            Split(
                decoder=decoder,
                prompts=sum(len(answer.prompts) for answer in repeats),
                time_per_token_s=each,
                shares={phase: spent_s(repeats, phase) / total_s for phase in PHASES},
                against_timed=each / timed if timed else None,
                padding=ratio(padded, sum(answer.rows for answer in grouped) + padded),
            )
        )
    return rows


def decompositions(
    answers: Sequence[PhasedAnswer], records: Iterable[SampleRecord], decoders: Iterable[str]
) -> list[Decomposition]:
    """Decompose every decoder's speed-up, on unbatched prompts with later steps on both sides."""
    units = times.units_by_decoder(records)
    baseline = baseline_arms(units)[0]
    alone = [a for a in answers if len(a.prompts) == 1 and a.later_steps]
    reference = {a.prompts: a for a in alone if a.decoder == baseline}
    rows = []
    for decoder in decoders:
        repeats = [a for a in alone if a.decoder == decoder and a.prompts in reference]
        base = [reference[answer.prompts] for answer in repeats]
        unit_s = ratio(spent_s(base, *PHASES[1:]), sum(a.later_emitted for a in base))
        if decoder == baseline or not unit_s:
            continue
        num_steps = sum(answer.later_steps for answer in repeats)
        step_s = num_steps * unit_s
        sides = (_repeated(units[name], repeats) for name in (baseline, decoder))
        before, after = map(times.decode_time_per_token_s, sides)
        rows.append(
            Decomposition(
                decoder=decoder,
                prompts=len(repeats),
                acceptance_length=sum(a.later_emitted for a in repeats) / num_steps,
                verify=spent_s(repeats, "verify") / step_s,
                draft=spent_s(repeats, "draft") / step_s,
                overhead=spent_s(repeats, *OVERHEAD) / step_s,
                measured=before / after if before and after else None,
            )
        )
    return rows


def spent_s(answers: Iterable[PhasedAnswer], *phases: str) -> float:
    """Return the seconds that answers spent in the given phases."""
    return sum(answer.seconds.get(phase, 0.0) for answer in answers for phase in phases)


def _repeated(units: Iterable[times.Unit], answers: Iterable[PhasedAnswer]) -> list[times.Unit]:
    """Return the timed units that the second pass repeated."""
    repeats = {("|".join(sorted(answer.prompts)), answer.repeat) for answer in answers}
    return [u for u in units if (u.key, u.repeat) in repeats]

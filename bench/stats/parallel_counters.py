"""What the literature on parallel decoding counts, each once, from records alone.

`tpf`, `tokens_per_call` and `rows_per_token` (its query overhead, OH) are every decoder's and stand
in `bench.stats.counters`; acceptance per depth is `metrics.acceptance_by_position`. Here are the
rest: rounds, how near a drafter's distributions are to the target's, passes, accuracy under
parallelism, and what an output that is not the target's own lost. No torch here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.records.record import SampleRecord, StepColumns
from bench.stats.counters import ratio, timed

LOOP_SHARE = 0.5
"""Above it an answer's 3-grams are called a loop."""
LOOP_EXCESS = 0.1
"""So far above the baseline's share another decoder's may not be."""
AUP_STEEPNESS = 3.0
AUP_LARGEST_DROP = 5.0
AUP_FEWEST = 2


def columns(records: Iterable[SampleRecord]) -> dict[str, object]:
    """These columns of `SummaryRow` of one decoder's records in one family."""
    records = list(records)
    steps = _Steps(timed(records))
    rounds, passes = rounds_of(steps), passes_per_block(steps)
    return {
        "cold_rounds": rounds.cold,
        "accepted_rounds": rounds.accepted,
        "rejected_rounds": rounds.rejected,
        "overlap": overlap(steps),
        "alpha_all": alpha_all(steps),
        "passes_per_block": passes.mean,
        "passes_per_block_p95": passes.p95,
        "repetition": repetition(records),
        "repeated_trigrams": repeated_trigrams(records),
        "base_nll": base_nll(records),
        "base_agreement": base_agreement(records),
        "base_entropy": base_entropy(records),
    }


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of answers, read anew each time they are gone through: no list of them is held."""

    records: Sequence[SampleRecord]

    def __iter__(self) -> Iterator[StepColumns]:
        return (steps for record in self.records if (steps := record.steps) is not None)


# ---------------------------------------------------------------- rounds and distributions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Shares of later steps: nothing was verified, all drafts stood, one fell.

    None where a decoder never drafts. A step whose accepted drafts EOS or the budget cut off counts
    as one in which a draft fell, as it does in `Tally.acceptance_rate`.
    """

    cold: float | None = None
    accepted: float | None = None
    rejected: float | None = None


def rounds_of(steps: Iterable[StepColumns]) -> Rounds:
    """Cold, accepted and rejected rounds / later steps."""
    pairs: Counter[tuple[int, int]] = Counter()
    for columns in steps:
        pairs.update(zip(columns.depths[1:], columns.accepted[1:], strict=True))
    if not any(drafted for drafted, _ in pairs):
        return Rounds()
    cold = sum(n for (drafted, _), n in pairs.items() if not drafted)
    fell = sum(n for (drafted, accepted), n in pairs.items() if accepted < drafted)
    num = pairs.total()
    return Rounds(cold=cold / num, accepted=(num - cold - fell) / num, rejected=fell / num)


def overlap(steps: Iterable[StepColumns]) -> float | None:
    """Mean over tested drafts of the sum over the vocabulary of min(target, draft).

    A draft is tested if all before it in its step stood. It is the chance that such a draft stands
    (1 - total variation), with less noise than the count of those that did. None where
    distributions were not compared: greedy and coupled verification look at picks alone.
    """
    sums = [(sum(columns.overlap), sum(columns.tested)) for columns in steps if columns.tested]
    return ratio(sum(shared for shared, _ in sums), sum(tested for _, tested in sums))


def alpha_all(steps: Iterable[StepColumns]) -> float | None:
    """Mean over emitted tokens of min(1, target / draft); 1 for a token that was no draft.

    The introspective acceptance rate of I-DLM (arXiv 2604.11035, the target being the base model).
    It is not the chance p of the formula for tokens per call: accepted tokens are a selection, and
    the target's own count as 1. None where distributions were not compared.
    """
    sums = [(sum(columns.alpha), sum(columns.emitted)) for columns in steps if columns.tested]
    return ratio(sum(alpha for alpha, _ in sums), sum(emitted for _, emitted in sums))


# ---------------------------------------------------------------- passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How many times a block was predicted: mean and 95th percentile (nearest rank) of blocks."""

    blocks: int = 0
    mean: float | None = None
    p95: float | None = None


def passes_per_block(steps: Iterable[StepColumns]) -> Passes:
    """Passes of every finished block; the call that commits it is the next block's first pass."""
    counts = sorted(count for columns in steps for count in columns.passes if count)
    if not counts:
        return Passes()
    rank = math.ceil(0.95 * len(counts))
    return Passes(blocks=len(counts), mean=sum(counts) / len(counts), p95=float(counts[rank - 1]))


# ---------------------------------------------------------------- what an output lost


def _answers(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """The answers of the quality pass, whose tokens these numbers are taken of."""
    return [r for r in records if r.kind == "quality" and r.error is None and r.tokens]


def repetition(records: Iterable[SampleRecord]) -> float | None:
    """Share of tokens of quality answers that equal the token before them, pooled.

    Likelihood alone rewards loops: read it beside this.
    """
    pairs = [
        (one, other)
        for record in _answers(records)
        if record.tokens is not None
        for one, other in itertools.pairwise(record.tokens)
    ]
    return ratio(sum(one == other for one, other in pairs), len(pairs))


def repeated_trigrams(records: Iterable[SampleRecord]) -> float | None:
    """Share of an answer's 3-grams that stand earlier in the same answer, pooled; each answer once.

    A loop is easy to draft: accepted tokens per step are read with this (and with the baseline's).
    """
    seen = repeated = 0
    for record in records:
        if record.error is not None or record.repeat != 0:
            continue
        if (tokens := record.tokens) is not None:
            trigrams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
            seen += len(trigrams)
            repeated += len(trigrams) - len(set(trigrams))
    return ratio(repeated, seen)


def loops(mine: float | None, baseline: float | None) -> bool | None:
    """Whether repetition is a loop: above `LOOP_SHARE`, or `LOOP_EXCESS` above the baseline's."""
    if mine is None:
        return None
    return mine > LOOP_SHARE or (baseline is not None and mine > baseline + LOOP_EXCESS)


def base_nll(records: Iterable[SampleRecord]) -> float | None:
    """Mean negative log-likelihood (nats per token) of quality answers under the target, pooled.

    Teacher-forced, at temperature 1 and without truncation.
    """
    return _per_token(records, [r.nll for r in _answers(records)])


def base_agreement(records: Iterable[SampleRecord]) -> float | None:
    """Share of tokens of quality answers that are the target's likeliest after those before them.

    In greedy decoding it is 1 for a lossless decoder, and a lossy one's distance: `alpha_all` of
    one-hot distributions.
    """
    return _per_token(records, [r.agreement for r in _answers(records)])


def base_entropy(records: Iterable[SampleRecord]) -> float | None:
    """Mean entropy (nats) of the target's next-token distributions along quality answers, pooled.

    On the baseline's answers it says how much of a task is open, on which parallel gains depend
    at least as much as on the method.
    """
    return _per_token(records, [r.entropy for r in _answers(records)])


def _per_token(records: Iterable[SampleRecord], values: Sequence[float | None]) -> float | None:
    """The mean of per-answer means, weighted by tokens, of the answers that have one."""
    weighted = [
        (value, len(record.tokens or ()))
        for record, value in zip(_answers(records), values, strict=True)
        if value is not None
    ]
    return ratio(sum(value * num for value, num in weighted), sum(num for _, num in weighted))


def degradation(quality: float, baseline: float) -> float | None:
    """Per cent of the baseline's quality that is lost: 100 (baseline - quality) / baseline."""
    lost = ratio(baseline - quality, baseline)
    return None if lost is None else 100 * lost


# ---------------------------------------------------------------- accuracy under parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Accuracy under parallelism, and how many points were left out for losing too much."""

    value: float
    num_dropped: int


def accuracy_under_parallelism(
    points: Iterable[tuple[float, float]], best: float, baseline: float
) -> Area | None:
    """AUP of a method's curve of accuracy against tokens per forward (d3LLM, arXiv 2601.07568).

    With points (rho, y) sorted by rho and W(y) = min(exp(-3 (1 - y / best)), 1):

        rho_1 y_1 + sum over i > 1 of (rho_i - rho_(i-1)) (y_i W(y_i) + y_(i-1) W(y_(i-1))) / 2

    Theirs leaves out points of more than 5 points less accuracy than the method's own slowest
    setting, however bad that is. Here the baseline's accuracy is what they are held against.

    Args:
        points: tokens per forward and accuracy in per cent, one pair per setting.
        best: the highest accuracy of any method on the task, in per cent. It depends on what was
            compared.
        baseline: the baseline's accuracy, in per cent.

    Returns:
        None where fewer than two settings are left: a point spans no area.
    """
    ordered = sorted(points)
    curve = [(rho, y) for rho, y in ordered if y >= baseline - AUP_LARGEST_DROP]
    if len(curve) < AUP_FEWEST or best <= 0:
        return None

    def weighed(y: float) -> float:
        return y * min(math.exp(-AUP_STEEPNESS * (1 - y / best)), 1.0)

    area = curve[0][0] * curve[0][1]
    for (rho, y), (next_rho, next_y) in itertools.pairwise(curve):
        area += (next_rho - rho) * (weighed(y) + weighed(next_y)) / 2
    return Area(value=area, num_dropped=len(ordered) - len(curve))


def curves(cells: Iterable[str]) -> dict[str, list[str]]:
    """The settings of every method: cells whose names differ in a number at their end.

    ``idlm@t2`` and ``idlm@t4`` are settings of ``idlm@t…``; ``idlm`` and ``idlm@isd`` are two
    methods of one setting each.
    """
    stems: dict[str, list[str]] = {}
    for cell in cells:
        numbered = re.fullmatch(r"(.*\D)\d+", cell)
        stems.setdefault(f"{numbered[1]}…" if numbered else cell, []).append(cell)
    return {stem if len(own) > 1 else own[0]: own for stem, own in stems.items()}

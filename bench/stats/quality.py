"""Quality of a decoder's answers in the untimed pass, and the ceiling of lists.

A family's quality is the mean of its primary score over answers. For translation it is corpus
BLEU, or mean sentence BLEU if the run folder keeps no gold answers.

A decoder that fills several slots in one pass draws each slot from its own distribution, given the
earlier text. The best such distributions are the task's marginals (only they minimise the loss). A
list of n items drawn from them in one pass is right with these probabilities:

    copy      1
    replace   (1 - 1/n)^(n-1)                exactly one slot takes the new item
    shuffle   sum over the other orders of the product of marginals; without "other", n! / n^n

Filling slots in groups, each of which sees the earlier groups, can be better; filling them one by
one gives 1. These are ceilings of drawing from the task's distribution at temperature 1; always
giving the same right answer may do better. The groups are our own addition to ParallelBench (arXiv
2510.04767). Items decided in one pass over a block were drawn independently. The target's own token
of a pass is drawn in the same call, so it counts with that pass. Decoders that record no passes
have no ceiling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import comb, factorial, perm
from statistics import fmean

import pandas as pd

from bench.records.plan import Plan
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.stats.counters import cluster_names, group_by
from bench.stats.intervals import (
    CONFIDENCE,
    Estimate,
    cluster_mean,
    jackknife,
    mean_of_estimates,
    t_ppf,
)
from specbench_tasks.generators.questions import NUM_ITEMS
from specbench_tasks.task import LISTS

_CORPUS_FAMILY = "translation"
FLOOR = 0.01
"""A score below this, or less than two standard errors above 0, is at its floor."""
Gold = Mapping[str, tuple[str, ...]]
"""Prompt -> gold answers."""


@dataclass(frozen=True, slots=True)
class Quality:
    """A score from 0 to 1 with its interval, and the name of the metric."""

    estimate: Estimate
    metric: str | None

    @property
    def tells(self) -> bool:
        """Tell whether the (baseline's) quality is so far above 0 that a loss would be visible."""
        value = self.estimate.value
        return value is not None and value >= max(FLOOR, 2 * (self.estimate.error or 0.0))


def gold_answers(prompts: Mapping[str, Prompt], plan: Plan) -> Gold:
    """Return the gold answers of the prompts that a run kept, or else of its plan's prompts."""
    if prompts:
        pairs = prompts.items()
        by_prompt = {name: prompt.reference.answers for name, prompt in pairs if prompt.reference}
    else:
        by_prompt = {
            prompt.prompt: tuple((prompt.reference or {}).get("answers") or ())
            for prompt in plan.prompts
        }
    return {name: answers for name, answers in by_prompt.items() if answers}


def scored(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Return the records of the quality pass with scores and without an error."""
    return [r for r in records if r.kind == "quality" and r.error is None and r.scores]


def family_quality(family: str, records: Sequence[SampleRecord], gold: Gold) -> Quality:
    """Estimate one decoder's quality in one family, clustered by conversation.

    A failed answer has no text and a score of 0; the family is unknown if all answers failed.
    """
    answers = scored(records)
    if not answers:
        return Quality(Estimate(), None)
    failed = [r for r in records if r.kind == "quality" and r.error is not None]
    clusters = cluster_names([*answers, *failed])
    from specbench_tasks.scorers import PRIMARY, corpus_bleu

    if family == _CORPUS_FAMILY and all(r.text is not None and r.prompt in gold for r in answers):
        scorable = [*answers, *(r for r in failed if r.prompt in gold)]
        groups = group_by(scorable, lambda record: clusters[record.conversation]).items()
        items = {name: [(r.text or "", gold[r.prompt]) for r in of] for name, of in groups}
        return Quality(_clipped(_at_an_end(jackknife(items, corpus_bleu))), "corpus BLEU")
    primary = PRIMARY.get(family)
    metric = primary or min(key for r in answers for key in r.scores or ())
    rows = [(r.scores[metric], r) for r in answers if r.scores and metric in r.scores]
    rows += [(0.0, r) for r in failed]
    name = f"mean sentence {metric}" if family == _CORPUS_FAMILY else metric
    names = [clusters[r.conversation] for _, r in rows]
    estimate = cluster_mean([value for value, _ in rows], names)
    return Quality(_clipped(_at_an_end(estimate)), name)


def _at_an_end(estimate: Estimate) -> Estimate:
    """Return an interval of scores that are all 0 or all 1, whose spread tells nothing.

    It ends where Clopper and Pearson's does for as many right or wrong conversations.
    """
    if estimate.error != 0.0 or estimate.df is None or estimate.value not in (0.0, 1.0):
        return estimate
    reach = 1 - ((1 - CONFIDENCE) / 2) ** (1 / estimate.clusters)
    error = reach / t_ppf((1 + CONFIDENCE) / 2, estimate.df)
    return replace(estimate, low=estimate.value - reach, high=estimate.value + reach, error=error)


def overall_quality(families: Sequence[Quality], num_families: int = 0) -> Quality:
    """Estimate the unweighted mean over the scored families.

    The mean is unknown if fewer than `num_families` were scored. `num_families` counts families in
    which any decoder was scored: otherwise a decoder would gain by failing in a hard family.
    """
    estimates = [q.estimate for q in families if q.estimate.value is not None]
    if len(estimates) < num_families:
        return Quality(Estimate(), None)
    name = f"mean of {len(estimates)} families" if len(estimates) != 1 else "1 family"
    return Quality(_clipped(mean_of_estimates(estimates)), name if estimates else None)


def _clipped(estimate: Estimate) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(0.0, estimate.low), high=min(1.0, estimate.high))


def with_telling_quality(summary: pd.DataFrame) -> pd.DataFrame:
    """Replace quality in the `all` rows by quality over the families that can show a loss."""
    is_telling = summary["quality_tells"].notna() & summary["family"].eq("all")
    columns = {f"quality{end}": summary[f"telling_quality{end}"] for end in ("", "_low", "_high")}
    return summary.assign(
        **{name: summary[name].mask(is_telling, c) for name, c in columns.items()}
    )


def ceilings_hold(config: Mapping[str, object]) -> bool:
    """Tell whether a run draws its tokens from unwarped distributions."""
    warp = (config.get("temperature", 0), config.get("top_p", 1), config.get("top_k", 0))
    return warp == (1, 1, 0)


def answers_to_lists(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Return the scored answers to list tasks that were filled in passes."""
    return [
        record
        for record in records
        if record.kind == "quality"
        and record.family in LISTS
        and record.steps is not None
        and any(record.steps.passes)
        and record.steps.decided
    ]


def mean_ceiling(records: Sequence[SampleRecord], piece: Callable[[int], str]) -> float | None:
    """Return the mean ceiling of one decoder's answers in a family, or None without a full list."""
    grouped = [(record.family, groups_by_pass(record, piece)) for record in records]
    values = [ceiling(family, sizes) for family, sizes in grouped if sizes]
    return fmean(values) if values else None


def groups_by_pass(record: SampleRecord, piece: Callable[[int], str]) -> tuple[int, ...]:
    """Count the items that each pass decided, in the order of the passes.

    An item is a capital letter. It belongs to the token that contains it. The result is empty
    without exactly `NUM_ITEMS` items.
    """
    steps, tokens = record.steps, record.tokens
    assert steps is not None
    if tokens is None or len(tokens) != sum(map(len, steps.decided)):
        return ()
    text, owners = "", list[int]()
    for index, token in enumerate(tokens):
        text += piece(token)
        owners += [index] * (len(text) - len(owners))
    passes = _passes(steps.decided, steps.passes)
    letters = [index for index, sign in enumerate(text) if "A" <= sign <= "Z"]
    if len(letters) != NUM_ITEMS:
        return ()
    sizes = Counter(passes[owners[index]] for index in letters)
    return tuple(sizes[key] for key in sorted(sizes))


def _passes(decided: Sequence[Sequence[int]], finished: Sequence[int]) -> list[tuple[int, int]]:
    """Return the block, which ends where a step reports passes, and the pass of each token."""
    places: list[tuple[int, int]] = []
    block = last = 0
    for numbers, passes in zip(decided, finished, strict=True):
        for number in numbers:
            # the target's own token (0) belongs to the pass after the preceding tokens' passes
            places.append((block, number or last + 1))
            last = max(last, number)
        if passes:
            block, last = block + 1, 0
    return places


def ceiling(family: str, groups: Sequence[int]) -> float:
    """Return the probability that a list filled in groups of these sizes is right.

    Raises:
        ValueError: another family, or bad groups.
    """
    if family not in LISTS:
        raise ValueError(f"no ceiling is known of {family!r}; of {', '.join(LISTS)} it is")
    if not groups or min(groups) < 1 or sum(groups) < 2:
        raise ValueError(f"groups are {list(groups)}; give sizes of 1 or above, 2 items in all")
    sizes = tuple(groups)
    return {"copy": 1.0, "replace": _replaced(sizes), "shuffle": _reordered(sizes)}[family]


@cache
def _replaced(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if no earlier slot has the new item."""
    left = sum(groups)
    if not left:
        return 0.0
    size, rest = groups[0], groups[1:]
    none = (1 - 1 / left) ** size
    one = size / left * (1 - 1 / left) ** (size - 1)
    return one + none * _replaced(rest)  # once it is placed, all other items are certain


@cache
def _reordered(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if all earlier slots kept their item."""
    left = sum(groups)
    if left < 2:
        return 0.0
    size, rest = groups[0], groups[1:]
    kept = (factorial(left - 1) - 1) / (factorial(left) - 1)
    moved = (1 - kept) / (left - 1)
    total = kept**size * _reordered(rest)
    for num_kept in range(size):
        ways = comb(size, num_kept) * _without_fixed(size - num_kept, left - num_kept)
        total += ways * kept**num_kept * moved ** (size - num_kept) * _any_order(rest)
    return total


def _any_order(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if every order of the remaining items is right."""
    chance, left = 1.0, sum(groups)
    for size in groups:
        chance *= perm(left, size) / left**size
        left -= size
    return chance


def _without_fixed(slots: int, items: int) -> int:
    """Count the ways to give different items to the slots so that no slot gets its own item."""
    return sum(
        (-1) ** fixed * comb(slots, fixed) * perm(items - fixed, slots - fixed)
        for fixed in range(slots + 1)
    )

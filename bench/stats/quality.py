"""Compute the quality of a decoder's answers in the untimed pass.

A family's quality is the mean of its primary score over answers. For translation it is corpus
BLEU, or mean sentence BLEU if the plan has no gold answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bench.records.plan import Plan
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

_CORPUS_FAMILY = "translation"
FLOOR = 0.01
"""A score below this, or less than two standard errors above 0, is at its floor."""
Gold = Mapping[str, tuple[str, ...]]
"""Prompt -> gold answers."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Hold a score from 0 to 1 with its interval, and the name of the metric."""

    estimate: Estimate
    metric: str | None

    @property
    def tells(self) -> bool:
        """Return whether the (baseline's) quality is so far above 0 that a loss would show."""
        value = self.estimate.value
        return value is not None and value >= max(FLOOR, 2 * (self.estimate.error or 0.0))


def gold_answers(plan: Plan) -> Gold:
    """Return the gold answers of a plan's prompts."""
    references = {planned.prompt: planned.reference or {} for planned in plan.prompts}
    gold = {name: tuple(each.get("answers") or ()) for name, each in references.items()}
    return {name: answers for name, answers in gold.items() if answers}


def scored(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Return the records of the quality pass with scores and without an error."""
    return [r for r in records if r.kind == "quality" and r.error is None and r.scores]


def failed(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Return the records of the quality pass with an error, which count as wrong."""
    return [r for r in records if r.kind == "quality" and r.error is not None]


def family_quality(family: str, records: Sequence[SampleRecord], gold: Gold) -> Quality:
    """Estimate one decoder's quality in one family, clustered by conversation.

    A failed answer has no text and a score of 0; the family is unknown if all answers failed.
    """
    answers = scored(records)
    if not answers:
        return Quality(Estimate(), None)
    wrong = failed(records)
    clusters = cluster_names([*answers, *wrong])
    from specbench_tasks.scorers import PRIMARY, corpus_bleu

    if family == _CORPUS_FAMILY and all(r.text is not None and r.prompt in gold for r in answers):
        scorable = [*answers, *(r for r in wrong if r.prompt in gold)]
        groups = group_by(scorable, lambda record: clusters[record.conversation]).items()
        items = {name: [(r.text or "", gold[r.prompt]) for r in of] for name, of in groups}
        return Quality(_within_bounds(jackknife(items, corpus_bleu)), "corpus BLEU")
    primary = PRIMARY.get(family)
    metric = primary or min(key for r in answers for key in r.scores or ())
    rows = [(r.scores[metric], r) for r in answers if r.scores and metric in r.scores]
    rows += [(0.0, r) for r in wrong]
    name = f"mean sentence {metric}" if family == _CORPUS_FAMILY else metric
    names = [clusters[r.conversation] for _, r in rows]
    estimate = cluster_mean([value for value, _ in rows], names)
    return Quality(_within_bounds(estimate), name)


def _within_bounds(estimate: Estimate) -> Estimate:
    """Cut an interval at 0 and 1. Scores that are all 0 or all 1 have Clopper and Pearson's."""
    if estimate.error != 0.0 or estimate.df is None or estimate.value not in (0.0, 1.0):
        return estimate.clipped(0, 1)
    reach = 1 - ((1 - CONFIDENCE) / 2) ** (1 / estimate.clusters)
    error = reach / t_ppf((1 + CONFIDENCE) / 2, estimate.df)
    low, high = estimate.value - reach, estimate.value + reach
    return replace(estimate, low=low, high=high, error=error).clipped(0, 1)


def overall_quality(families: Sequence[Quality], num_families: int = 0) -> Quality:
    """Estimate the unweighted mean over the scored families.

    The mean is unknown if fewer than `num_families` were scored. `num_families` counts families in
    which any decoder was scored: otherwise a decoder would gain by a failure in a hard family.
    """
    estimates = [q.estimate for q in families if q.estimate.value is not None]
    if len(estimates) < num_families:
        return Quality(Estimate(), None)
    name = f"mean of {len(estimates)} families" if len(estimates) != 1 else "1 family"
    return Quality(mean_of_estimates(estimates).clipped(0, 1), name if estimates else None)


def with_telling_quality(summary: pd.DataFrame) -> pd.DataFrame:
    """Replace quality in the `all` rows by the quality over families that can show a loss."""
    is_telling = summary["quality_tells"].notna() & summary["family"].eq("all")
    columns = {f"quality{end}": summary[f"telling_quality{end}"] for end in ("", "_low", "_high")}
    return summary.assign(
        **{name: summary[name].mask(is_telling, c) for name, c in columns.items()}
    )

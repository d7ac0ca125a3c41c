"""Tests of a decoder's output distribution, for decoders that do not claim AR's exact tokens.

At temperatures above 0, an uncoupled decoder emits different tokens from AR, drawn from the same
distribution. Its answers under many seeds are tested against exact probabilities: on a table of
known distributions, and with ``--distribution`` on the target itself, after the contexts where the
target is least certain. The tests of one decoder form a family, corrected by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from bench.records.prompts import Prompt
from bench.verify.divergence import cold_logits
from bench.verify.verdict import CheckOutcome, Finding
from decoders.core.model import Model
from decoders.core.sampling import lawful, warp
from decoders.core.testing.goodness import POWER, Draws, detectable_distance, holm
from decoders.core.types import Sampling

FALSE_ALARM = 0.001
"""Probability that a lossless decoder fails any of its distribution tests."""
MAX_DISTANCE = 0.1
"""A test that can detect only larger total-variation distances is inconclusive."""
NUM_CONTEXTS = 4
NUM_TOKENS = 4
"""Tokens of an answer on a real model: one of the prefill, the rest of one or more steps."""

Context = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """Answers drawn from one decoder, and where: on a table or after a context."""

    where: str
    draws: Draws
    exact: bool = True
    """False in half precision, where the distribution itself depends on a call's shape."""


def findings(tests: Sequence[DistributionTest]) -> list[Finding]:
    """Judge each test, all at one joint significance level."""
    fits = [test.draws.fits for test in tests]
    flat = [fit.p_value for each in fits for fit in each]
    adjusted = iter(holm(flat))
    results = []
    for test, each in zip(tests, fits, strict=True):
        whole = each[-1]
        distance = detectable_distance(whole.dof, whole.num_draws, FALSE_ALARM / len(flat))
        p_value, _, fit = min((next(adjusted), number, fit) for number, fit in enumerate(each))
        outcome: CheckOutcome = "passed" if distance <= MAX_DISTANCE else "open"
        if p_value < FALSE_ALARM:
            outcome = "wrong" if test.exact else "open"
        words = (
            f"{fit.num_draws:,} draws, chi-square {fit.statistic:.4g} at {fit.dof} degrees of "
            f"freedom, p = {p_value:.2g} (Holm)"
        )
        data = {
            "num_draws": fit.num_draws,
            "statistic": fit.statistic if math.isfinite(fit.statistic) else None,
            "impossible_answers": test.draws.counts["impossible"],
            "dof": fit.dof,
            "p_value": fit.p_value,
            "p_value_holm": p_value,
            "detectable_distance": distance,
            "power": POWER,
        }
        check, power = f"distribution {test.where}", f"a distance of {distance:.3f}"
        results.append(Finding(check, outcome, words, data, power))
    return results


def unsure_contexts(
    target: Model,
    prompts: Sequence[Prompt],
    answers: Mapping[str, tuple[int, ...]],
    sampling: Sampling,
) -> list[Context]:
    """Find the `NUM_CONTEXTS` contexts, of different prompts, where the target is least certain.

    Every context is a position in one of the baseline's `answers` (by prompt). It has a name and
    ids: the prompt, and the answer up to the position.
    """
    unsure: list[tuple[float, Context]] = []
    for prompt in prompts:
        answer = answers.get(prompt.name, ())
        entropy = _entropies(target, prompt.ids, answer, sampling) if answer else []
        windows = [sum(entropy[i : i + NUM_TOKENS]) for i in range(len(entropy))]
        if windows:
            start = windows.index(max(windows))
            context = (f"{prompt.name}+{start}", (*prompt.ids, *answer[:start]))
            unsure.append((windows[start], context))
    unsure.sort(key=lambda item: -item[0])
    return [context for _, context in unsure[:NUM_CONTEXTS]]


def _entropies(
    target: Model, prompt: Sequence[int], answer: Sequence[int], sampling: Sampling
) -> list[float]:
    """Return the entropy, in nats, of the distribution of every token of an answer."""
    ids = (*prompt, *answer[:-1])
    logits = cold_logits(target, ids, range(len(prompt) - 1, len(ids)))
    logits = lawful(logits, [answer[:num] for num in range(len(answer))], sampling)
    distributions = warp(logits, sampling).double()
    entropies: list[float] = torch.special.entr(distributions).sum(-1).tolist()
    return entropies

"""Examine one decoder for `bench verify`: run its checks, and keep its findings.

One check is the output distribution of decoders that do not claim AR's exact tokens. At
temperatures above 0, an uncoupled decoder emits different tokens from AR, drawn from the same
distribution. Its answers under many seeds are tested against exact probabilities: on a table of
known distributions, and with ``--distribution`` on the target itself, after the contexts where the
target is least certain. The tests of one decoder form a family, corrected by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from bench.plan.setup import Arm
from bench.records.plan import BASELINE
from bench.records.prompts import Prompt
from bench.records.samples import error_line
from bench.verify.equality import EqualityCheck
from bench.verify.floor import read
from bench.verify.verdict import CheckOutcome, Examination, Finding
from decoders.core.checks import Check, StepsDifferError, is_verdict
from decoders.core.decoder import Memory
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import Model
from decoders.core.sampling import warp
from decoders.core.testing.goodness import POWER, Draws, detectable_distance, holm
from decoders.core.types import Outcome, Sampling

FALSE_ALARM = 0.001
"""Probability that a lossless decoder fails any of its distribution tests."""
MAX_DISTANCE = 0.1
"""A test that can detect only larger total-variation distances is inconclusive."""
NUM_CONTEXTS = 4
NUM_TOKENS = 4
"""Number of tokens of an answer on a real model: one from the prefill, the rest from steps."""

Context = tuple[str, tuple[int, ...]]


def answer(arm: Arm, sampling: Sampling, prompt: Prompt, memory: Memory | None = None) -> Outcome:
    """Return an arm's answer to a prompt, untimed.

    Args:
        arm: decoder, models and time limit.
        sampling: temperature, seed and budget of the answer.
        prompt: its ids are answered.
        memory: the decoder's earlier answers, to which this one is added; None: an empty one.
    """
    scheduler = Scheduler(arm.decoder, arm.models, sampling, deadline=arm.deadline, memory=memory)
    with arm.deadline.ticking():
        (outcome,) = scheduler.run([prompt.ids])
    return outcome


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """Hold answers drawn from one decoder, and their place: a table, or a context of the target."""

    where: str
    draws: Draws
    exact: bool = True
    """False in half precision, as the distribution itself then depends on a call's shape."""


def judge_distributions(tests: Sequence[DistributionTest]) -> list[Finding]:
    """Judge each test, all at one joint significance level."""
    fits = [test.draws.fits for test in tests]
    flat = [fit.p_value for each in fits for fit in each]
    adjusted = iter(holm(flat))
    results = []
    for test, each in zip(tests, fits, strict=True):
        whole = each[-1]
        distance = detectable_distance(whole, FALSE_ALARM / len(flat))
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


def uncertain_contexts(
    target: Model,
    prompts: Sequence[Prompt],
    answers: Mapping[str, tuple[int, ...]],
    sampling: Sampling,
) -> list[Context]:
    """Find the `NUM_CONTEXTS` contexts, of different prompts, where the target is least certain.

    Every context is a position in an answer. It has a name and ids: the prompt, and the answer up
    to the position.

    Args:
        target: its cache grows if it must.
        prompts: those without an answer have no context.
        answers: ids of the baseline's answers, by the prompts' names.
        sampling: warps the distributions.
    """
    unsure: list[tuple[float, Context]] = []
    for prompt in prompts:
        if not (answer := answers.get(prompt.name)):
            continue
        Models(target=target).ensure(1, len(prompt.ids) + len(answer))
        readings = read(target, prompt.ids, answer, len(answer), sampling)
        parts = [torch.special.entr(warp(logits, sampling).double()).sum(-1) for logits in readings]
        entropies: list[float] = torch.cat(parts).tolist()  # in nats
        windows = [sum(entropies[i : i + NUM_TOKENS]) for i in range(len(entropies))]
        start = windows.index(max(windows))
        context = (f"{prompt.name}+{start}", (*prompt.ids, *answer[:start]))
        unsure.append((windows[start], context))
    unsure.sort(key=lambda item: -item[0])
    return [context for _, context in unsure[:NUM_CONTEXTS]]


@dataclass(slots=True)
class Subject:
    """Hold one decoder and its findings."""

    arm: Arm
    tables: list[Finding] = field(default_factory=list)
    compared: list[EqualityCheck] = field(default_factory=list)
    distributions: list[DistributionTest] = field(default_factory=list)
    failed: list[Finding] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the decoder's cell."""
        return self.arm.cell.cell

    @property
    def lossless(self) -> bool:
        """Return whether the decoder claims to be lossless."""
        return self.arm.decoder.lossless

    @property
    def tests_distribution(self) -> bool:
        """Return whether the distribution is tested: of AR and of uncoupled lossless decoders."""
        return self.lossless and (self.name == BASELINE or not self.arm.decoder.coupled)

    @property
    def runs_on_tables(self) -> bool:
        """Return whether the decoder runs on tables."""
        return not any(finding.outcome == "elsewhere" for finding in self.tables[:1])

    def run(self, title: str, checks: Sequence[Check], failure: CheckOutcome = "wrong") -> None:
        """Run checks of the contract up to the first failure, and note steps that differ.

        A decoder that cannot run them (its own weights fit one model only) is left to the model.
        The outcome of a `failure` is ``open`` where the output may be right nevertheless.
        """
        names = [check.__name__.removeprefix("check_").replace("_", " ") for check in checks]
        words = ", ".join(names)
        outcome: CheckOutcome = "passed" if self.lossless else "measured"
        for name, check in zip(names, checks, strict=True):
            try:
                check(self.arm.decoder)
            except StepsDifferError as error:
                words, outcome = f"{name}: {error}", "noted"
            except Exception as error:
                verdict = is_verdict(error)
                outcome = failure if verdict else "elsewhere"
                raised = f"the model decides, because this check raised {error_line(error)}"
                words = f"{name}: {error if verdict else raised}"
                break
        self.tables.append(Finding(title, outcome, words, {"checks": names}))

    def begin(self, sampling: Sampling, precision: str) -> EqualityCheck | None:
        """Begin a comparison with AR, except of samples of an uncoupled or lossy decoder."""
        if not (sampling.greedy or (self.lossless and self.arm.decoder.coupled)):
            return None
        comparison = EqualityCheck(decoder=self.name, sampling=sampling, precision=precision)
        self.compared.append(comparison)
        return comparison

    def draw(self, test: DistributionTest, first_seed: int, num_rows: int) -> None:
        """Draw the answers of a test, which counts unless that fails."""
        try:
            test.draws.draw(first_seed, num_rows)
            self.distributions.append(test)
        except Exception as error:
            check = f"distribution {test.where}"
            self.failed.append(Finding(check, "open", error_line(error)))

    def examined(self, floors: Mapping[float, EqualityCheck]) -> Examination:
        """Return all findings, judged by the noise `floors` by temperature."""
        compared = [
            each.finding(self.lossless, floors[each.sampling.temperature]) for each in self.compared
        ]
        if self.name == BASELINE:
            compared += [floor.shapes() for floor in floors.values()]
        return Examination(
            decoder=self.name,
            lossless=self.lossless,
            findings=[
                *self.tables,
                *compared,
                *judge_distributions(self.distributions),
                *self.failed,
            ],
        )

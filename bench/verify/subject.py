"""A decoder that `bench verify` examines: its checks, and its findings so far.

One check is the control "draft = target": a model must accept every draft that it makes for itself.

Another is the output distribution of decoders that do not claim AR's exact tokens. At temperatures
above 0, an uncoupled decoder emits different tokens from AR, drawn from the same distribution. Its
answers under many seeds are tested against exact probabilities: on a table of known distributions,
and with ``--distribution`` on the target itself, after the contexts where the target is least
certain. The tests of one decoder form a family, corrected by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from bench.plan.setup import Arm
from bench.records.plan import BASELINE
from bench.records.prompts import Prompt
from bench.records.samples import error_line
from bench.verify.divergence import cold_logits
from bench.verify.equality import EqualityCheck, failed, mode
from bench.verify.verdict import CheckOutcome, Examination, Finding
from decoders.core.checks import Check, StepsDifferError, is_verdict
from decoders.core.decoder import Memory
from decoders.core.engine.forms import lawful
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import Model
from decoders.core.sampling import warp
from decoders.core.testing.goodness import POWER, Draws, detectable_distance, holm
from decoders.core.types import Generation, Outcome, Sampling

PROMPTS = 4
"""Number of prompts that the control answers."""
TOKENS = 64
"""Maximum number of tokens in an answer of the control."""
MAX_REJECTED_SHARE = {"float32": 0.002, "float16": 0.02, "bfloat16": 0.1, "invariant": 0.0}
"""Share of drafts that rounding between calls of different shapes may reject, by precision."""
FALSE_ALARM = 0.001
"""Probability that a lossless decoder fails any of its distribution tests."""
MAX_DISTANCE = 0.1
"""A test that can detect only larger total-variation distances is inconclusive."""
NUM_CONTEXTS = 4
NUM_TOKENS = 4
"""Tokens of an answer on a real model: one of the prefill, the rest of one or more steps."""

Context = tuple[str, tuple[int, ...]]


def answer(arm: Arm, sampling: Sampling, prompt: Prompt, memory: Memory | None = None) -> Outcome:
    """Return an arm's answer to a prompt, untimed."""
    scheduler = Scheduler(arm.decoder, arm.models, sampling, deadline=arm.deadline, memory=memory)
    with arm.deadline.ticking():
        (outcome,) = scheduler.run([prompt.ids])
    return outcome


def applies_to(arm: Arm) -> bool:
    """Return whether a decoder needs only a draft model and claims to be lossless."""
    return tuple(arm.decoder.needs) == ("draft",) and arm.decoder.lossless


@dataclass(slots=True)
class SelfDraft:
    """The control of one decoder under one sampling: its draft model is the target itself.

    Speculative decoding accepts a draft with probability min(1, p / q) (Leviathan et al. 2023,
    arXiv 2211.17192), which is 1 if p and q come from the same model. A penalty, a temperature or a
    cut of the distribution that is applied to only one of them lowers acceptance and nothing else,
    so no other check sees it. Rounding may reject a share that depends on the dtype.
    """

    sampling: Sampling
    precision: str
    accepted: int = 0
    rejected: int = 0
    errors: list[str] = field(default_factory=list)

    def answer(self, arm: Arm, prompt: Prompt) -> None:
        """Answer one prompt, and count its drafts or keep its error."""
        target = arm.models.target
        sampling = replace(self.sampling, max_new_tokens=min(TOKENS, self.sampling.max_new_tokens))
        num_tokens = len(prompt.ids) + sampling.max_new_tokens
        rows = 2 * arm.decoder.sequences  # as target and as draft model
        Models(target=target).reserve(rows, num_tokens)
        self_drafting = replace(arm, models=Models(target=target, draft=target))
        self.add(prompt.name, answer(self_drafting, sampling, prompt))

    def add(self, name: str, outcome: Outcome) -> None:
        """Count an answer's tested drafts, except in the last step, which the end cuts short."""
        if not isinstance(outcome, Generation):
            self.errors.append(f"{name}: {error_line(outcome)}")
            return
        for step in outcome.steps[:-1]:
            self.accepted += step.accepted
            self.rejected += step.accepted < step.drafted

    def finding(self) -> Finding:
        """Judge the control: `open` for rejected drafts, since the output may still be right."""
        tested, share = self.accepted + self.rejected, MAX_REJECTED_SHARE[self.precision]
        words = f"{self.accepted} of {tested} drafts accepted with the target as own draft model"
        outcome: CheckOutcome = "passed"
        power = ""
        if self.errors or not tested:
            outcome = "open"
            words += f"; {failed(self.errors)}" if self.errors else ""
        elif self.rejected > (max(1, share * tested) if share else 0):
            outcome = "open"
            words += ": draft model and target are treated differently"
        else:
            power = f"one rejection in {1 / (1 - (1 - POWER) ** (1 / tested)):,.0f}"
        data = {"accepted": self.accepted, "rejected": self.rejected, "errors": self.errors}
        return Finding(f"{mode(self.sampling)}, own drafts", outcome, words, data, power)


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """Answers drawn from one decoder, and where: on a table or after a context."""

    where: str
    draws: Draws
    exact: bool = True
    """False in half precision, where the distribution itself depends on a call's shape."""


def judge_distributions(tests: Sequence[DistributionTest]) -> list[Finding]:
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
    logits = lawful(logits, (answer[:num] for num in range(len(answer))), sampling)
    distributions = warp(logits, sampling).double()
    entropies: list[float] = torch.special.entr(distributions).sum(-1).tolist()
    return entropies


@dataclass(slots=True)
class Subject:
    """One decoder and its findings, stored at once so that an interruption loses nothing."""

    arm: Arm
    tables: list[Finding] = field(default_factory=list)
    compared: list[EqualityCheck] = field(default_factory=list)
    own_drafts: list[SelfDraft] = field(default_factory=list)
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
    def keeps_distribution_only(self) -> bool:
        """Return whether the distribution is tested: of AR and of uncoupled lossless decoders."""
        return self.lossless and (self.name == BASELINE or not self.arm.decoder.coupled)

    @property
    def fits_tables(self) -> bool:
        """Return whether the decoder runs on tables."""
        return not any(finding.outcome == "elsewhere" for finding in self.tables[:1])

    def run(self, title: str, checks: Sequence[Check]) -> None:
        """Run checks of the contract up to the first that fails, and remark steps that differ.

        A decoder that cannot run them (its own weights fit one model only) is left to the model.
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
                outcome = "wrong" if verdict else "elsewhere"
                raised = f"the model decides, because this check raised {error_line(error)}"
                words = f"{name}: {error if verdict else raised}"
                break
        self.tables.append(Finding(title, outcome, words, {"checks": names}))

    def begin(self, sampling: Sampling, precision: str) -> EqualityCheck | None:
        """Begin a comparison with AR, unless it is of an uncoupled or lossy decoder's samples."""
        if not (sampling.greedy or (self.lossless and self.arm.decoder.coupled)):
            return None
        comparison = EqualityCheck(decoder=self.name, sampling=sampling, precision=precision)
        self.compared.append(comparison)
        return comparison

    def draw(self, test: DistributionTest, first_seed: int, num_rows: int) -> None:
        """Draw the answers of a test, which counts if it is interrupted but not if it fails."""
        self.distributions.append(test)
        try:
            test.draws.draw(first_seed, num_rows)
        except Exception as error:
            self.distributions.remove(test)
            check = f"distribution {test.where}"
            self.failed.append(Finding(check, "open", error_line(error)))

    def examined(self, floors: Mapping[float, EqualityCheck], *, complete: bool) -> Examination:
        """Return all findings, judged by the noise `floors` by temperature."""
        compared = [
            each.finding(self.lossless, floors[each.sampling.temperature]) for each in self.compared
        ]
        if self.name == BASELINE:
            failures = [floor.failures() for floor in floors.values()]
            compared += [failed for failed in failures if failed is not None]
            compared += [floor.shapes() for floor in floors.values() if floor.num_answers]
        return Examination(
            decoder=self.name,
            lossless=self.lossless,
            findings=[
                *self.tables,
                *compared,
                *(control.finding() for control in self.own_drafts),
                *judge_distributions(self.distributions),
                *self.failed,
            ],
            complete=complete,
        )

"""The control "draft = target": a model that drafts for itself is accepted always.

Speculative decoding accepts a draft with probability min(1, p / q) (Leviathan et al. 2023, arXiv
2211.17192): where both distributions are the same model's, that is 1. A penalty, a temperature or a
cut of the distribution on one side only costs acceptance alone, and no other check sees it. The
share that rounding may reject is bounded by dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bench.plan.setup import Arm
from bench.records.failures import error_line
from bench.verify.verdict import CheckOutcome, Finding
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.testing.goodness import POWER
from decoders.core.types import Generation, Outcome, Sampling

PROMPTS = 4
"""Prompts that the control answers."""
TOKENS = 64
"""Tokens of such an answer at most."""
MOST_REJECTED = {"float32": 0.002, "float16": 0.02, "bfloat16": 0.1, "invariant": 0.0}
"""Share of drafts that rounding between calls of other shapes may reject, by precision."""


def applies_to(arm: Arm) -> bool:
    """Return whether a decoder drafts with a draft model alone, and claims to be lossless."""
    return tuple(arm.decoder.needs) == ("draft",) and arm.decoder.lossless


@dataclass(slots=True)
class SelfDraft:
    """Drafts of one decoder whose draft model is the target itself, under one sampling."""

    sampling: Sampling
    precision: str
    accepted: int = 0
    rejected: int = 0
    errors: list[str] = field(default_factory=list)

    def answer(self, arm: Arm, name: str, prompt: Sequence[int]) -> None:
        """Answer one prompt and count; failures are kept."""
        target = arm.models.target
        sampling = replace(self.sampling, max_new_tokens=min(TOKENS, self.sampling.max_new_tokens))
        models = Models(target=target, draft=target)
        Models(target=target).reserve(2, len(prompt) + sampling.max_new_tokens)  # a row for each
        scheduler = Scheduler(arm.decoder, models, sampling, deadline=arm.deadline)
        with arm.deadline.ticking():
            (outcome,) = scheduler.run([prompt])
        self.add(name, outcome)

    def add(self, name: str, outcome: Outcome) -> None:
        """Count the drafts that were tested; the end of an answer cuts its last step."""
        if not isinstance(outcome, Generation):
            self.errors.append(f"{name}: {error_line(outcome)}")
            return
        for step in outcome.steps[:-1]:
            self.accepted += step.accepted
            self.rejected += step.accepted < step.drafted

    def finding(self) -> Finding:
        """Judge the control: `open` where drafts fell, since the output may still be right."""
        tested, share = self.accepted + self.rejected, MOST_REJECTED[self.precision]
        mode = "greedy" if self.sampling.greedy else f"T = {self.sampling.temperature:g}"
        words = (
            f"{self.accepted} of {tested} drafts are accepted where the target drafts for itself"
        )
        outcome: CheckOutcome = "passed"
        power = ""
        if self.errors or not tested:
            outcome = "open"
            words += f"; {len(self.errors)} failed: {self.errors[0]}" if self.errors else ""
        elif self.rejected > (max(1, share * tested) if share else 0):
            outcome = "open"
            words += ": draft and target are not treated alike"
        else:
            power = f"one rejection in {1 / (1 - (1 - POWER) ** (1 / tested)):,.0f}"
        data = {"accepted": self.accepted, "rejected": self.rejected, "errors": self.errors}
        return Finding(f"{mode}, own drafts", outcome, words, data, power)

"""Compare a decoder's answers with the baseline's, and with the noise of another call shape.

If a decoder claims equality, every difference must be a near-tie (`bench.verify.divergence`), and
near-ties may not be much more frequent than in the noise floor: AR itself with as many rows per
call as a verifying call (`RESHAPED`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from scipy import stats

from bench.records.samples import error_line
from bench.verify.divergence import Divergence, examine
from bench.verify.verdict import CheckOutcome, Finding
from decoders.ar import Autoregressive
from decoders.core.model import Model
from decoders.core.testing.goodness import POWER
from decoders.core.types import Generation, Outcome, Sampling

RESHAPED = Autoregressive(rows=5)
"""AR with as many rows per call as a verifying call."""
ABOVE_FLOOR = 0.001
"""Significance level of the test for more near-ties than the noise floor."""


@dataclass(slots=True, kw_only=True)
class EqualityCheck:
    """Compare one decoder's answers with the baseline's under one sampling.

    `equal_tokens` has, for every compared answer, the number of tokens before the first difference.
    `parted` has the first differences, each with its prompt's name. `errors` has the errors of the
    decoder and of the baseline.
    """

    decoder: str
    sampling: Sampling
    precision: str
    equal_tokens: list[int] = field(default_factory=list)
    parted: list[tuple[str, Divergence]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(
        self,
        target: Model,
        name: str,
        prompt: Sequence[int],
        outcome: Outcome,
        expected: Sequence[int],
    ) -> None:
        """Compare one answer, and run the target once more at the first difference.

        Args:
            target: reads the common beginning again (`examine`).
            name: the prompt's name, for findings and errors.
            prompt: ids of the prompt.
            outcome: the decoder's answer, or the error that ended it.
            expected: ids of the baseline's answer.
        """
        if not isinstance(outcome, Generation):
            self.errors.append(f"{name}: {error_line(outcome)}")
            return
        divergence = examine(
            target, prompt, outcome.tokens, expected, self.sampling, self.precision
        )
        self.equal_tokens.append(len(expected) if divergence is None else divergence.num_equal)
        if divergence is not None:
            self.parted.append((name, divergence))

    @property
    def wrong(self) -> list[tuple[str, Divergence]]:
        """Return the differences that rounding does not explain."""
        return [(name, divergence) for name, divergence in self.parted if not divergence.near_tie]

    @property
    def num_answers(self) -> int:
        """Return the number of answers compared."""
        return len(self.equal_tokens)

    @property
    def num_tokens(self) -> int:
        """Return the total number of tokens before the first differences."""
        return sum(self.equal_tokens)

    def finding(self, lossless: bool, floor: EqualityCheck) -> Finding:
        """Judge the comparison by the decoder's claim, `lossless`, and the noise floor."""
        num_parted, num = len(self.parted), self.num_answers
        words = f"{num - num_parted} of {num} answers identical, {self.num_tokens:,} tokens"
        words += " before the first differences" if num_parted else ""
        outcome: CheckOutcome = "passed"
        power = ""
        if lossless and self.wrong:
            outcome = "wrong"
            words += f"; {len(self.wrong)} differ beyond rounding: {_parted(*self.wrong[0])}"
        elif self.errors or not num:
            outcome = "open"
            words += f"; {failed(self.errors)}" if self.errors else ""
        elif not lossless:
            outcome = "measured"
            if self.parted:
                tokens = median(divergence.num_equal for _, divergence in self.parted)
                words += f"; first difference after {tokens:g} tokens (median)"
        elif self._above(floor):
            outcome = "open"
            words += f"; {num_parted} near-ties, but {len(floor.parted)} of AR in another shape"
        else:
            words += f"; {num_parted} near-ties" if num_parted else ""
            rarest = 1 / (1 - (1 - POWER) ** (1 / max(1, self.num_tokens)))
            max_tokens = max(self.equal_tokens)
            power = f"one wrong token in {rarest:,.0f} (answers of up to {max_tokens} tokens)"
        check = f"{mode(self.sampling)}, tokens of ar"
        return Finding(check, outcome, words, self.as_data(), power)

    def shapes(self) -> Finding:
        """Judge the noise floor: calls of one row and of several may differ only by rounding.

        If they differ by more, the model's cache, masks or positions depend on a call's shape, and
        no decoder that verifies several tokens at once can be judged on the model.
        """
        num_parted, num_wrong = len(self.parted), len(self.wrong)
        words = f"{self.num_answers - num_parted} of {self.num_answers} answers identical"
        words += f"; {num_parted - num_wrong} near-ties" if num_parted > num_wrong else ""
        if num_wrong:
            words += f"; {num_wrong} differ beyond rounding: {_parted(*self.wrong[0])}"
        words += f"; {failed(self.errors)}" if self.errors else ""
        outcome: CheckOutcome = "open" if num_wrong or self.errors else "passed"
        if num_wrong and self.precision == "invariant":
            outcome = "wrong"
        return Finding(f"{mode(self.sampling)}, five rows a call", outcome, words, self.as_data())

    def _above(self, floor: EqualityCheck) -> bool:
        """Test whether the decoder differs from AR more often per token than the noise floor."""
        num, num_floor = len(self.parted), len(floor.parted)
        if not num:
            return False
        share = self.num_tokens / max(1, self.num_tokens + floor.num_tokens)
        test = stats.binomtest(num, num + num_floor, min(1.0, share), alternative="greater")
        return bool(test.pvalue < ABOVE_FLOOR)

    def as_data(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {
            "decoder": self.decoder,
            "temperature": self.sampling.temperature,
            "num_answers": self.num_answers,
            "num_identical": self.num_answers - len(self.parted),
            "num_tokens_equal": self.num_tokens,
            "num_near_ties": len(self.parted) - len(self.wrong),
            "num_wrong": len(self.wrong),
            "errors": self.errors,
            "divergences": [
                {
                    "prompt": name,
                    "token": divergence.num_equal,
                    "by": divergence.by,
                    "distance": None if divergence.by == "length" else divergence.distance,
                    "margin": divergence.margin,
                    "near_tie": divergence.near_tie,
                }
                for name, divergence in self.parted
            ],
        }


def mode(sampling: Sampling) -> str:
    """Return a sampling's label in the names of checks."""
    return "greedy" if sampling.greedy else f"T = {sampling.temperature:g}"


def failed(errors: Sequence[str]) -> str:
    """Return the number of failed answers, and the first failure's reason."""
    return f"{len(errors)} failed: {errors[0]}"


def _parted(name: str, divergence: Divergence) -> str:
    if divergence.by == "length":
        return f"{name} ends after {divergence.num_equal} tokens, or goes on where ar ends"
    sides = "the logits are" if divergence.by == "logits" else "u and the token's share are"
    return (
        f"token {divergence.num_equal} of {name}, where {sides} {divergence.distance:.2g} apart "
        f"(margin {divergence.margin:.2g})"
    )

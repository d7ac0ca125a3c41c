"""Compute held-out figures of parallel predictors.

*Survival* to slot g is the probability that the first g slots are all right. It is estimated slot
by slot (Kaplan-Meier), so that windows that end early count up to their end. Its sum over the first
n slots is the expected number of leading correct tokens out of n. Where a slot is right only with
some probability (isd), it counts with that probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from training.adapter.objectives import Judgement, Outcome
from training.loop import Report


class SlotTally:
    """Count slots over windows: ``[4, num_slots]``, float64.

    The four rows are the judged slots, the right slots, and the same two counts of slots whose
    predecessors were all right.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.counts = torch.zeros(4, num_slots, dtype=torch.float64)
        self.confidences: list[Tensor] = []
        self.rights: list[Tensor] = []
        self.num_windows = 0

    def add(self, outcome: Outcome, judgement: Judgement) -> None:
        """Add the judged slots of an outcome."""
        windows, usable = outcome.windows, outcome.usable.clone()
        right, confidence, counts = judgement
        table = torch.zeros(usable.shape, dtype=torch.float64, device=usable.device)
        table[usable] = right.double()
        usable[outcome.usable] = counts
        first = windows.depth[windows.number >= 0].min() if usable.any() else 0
        slots = (windows.depth - first).clamp(min=0)
        alive: dict[tuple[int, int], float] = {}
        for b, q in usable.nonzero().tolist():
            key, slot = (b, int(windows.number[b, q])), int(slots[b, q])
            hit, before = float(table[b, q]), alive.get(key, 1.0)
            self.num_windows += key not in alive
            seen = [1, hit, before, before * hit]
            self.counts[:, slot] += torch.tensor(seen, dtype=torch.float64)
            alive[key] = before * hit
        self.confidences.append(confidence[counts].cpu())
        self.rights.append(right[counts].cpu())

    def accuracy(self) -> list[float | None]:
        """Return the share of right slots by slot, regardless of earlier slots."""
        return _ratios(self.counts[1], self.counts[0])

    def survival(self) -> list[float]:
        """Return P(the first g slots are right) for g = 1 … `num_slots`."""
        shares, product = [], 1.0
        for ratio in _ratios(self.counts[3], self.counts[2]):
            product *= ratio or 0.0
            shares.append(round(product, 5))
        return shares

    def calibration(self) -> tuple[float, float]:
        """Fit (a, b) of ``sigmoid(a logit(c) + b)``, the probability that confidence c is right."""
        if not sum(map(len, self.rights)):
            return 1.0, 0.0
        logits = torch.logit(torch.cat(self.confidences).double().clamp(1e-6, 1 - 1e-6)).numpy()
        right = torch.cat(self.rights).double().numpy()

        def loss(line: np.ndarray) -> float:
            z = line[0] * logits + line[1]
            prior = 1e-4 * ((line[0] - 1) ** 2 + line[1] ** 2)
            return float((np.logaddexp(0, z) - right * z).mean() + prior)

        slope, offset = minimize(loss, (1.0, 0.0), tol=1e-9).x
        return round(float(slope), 4), round(float(offset), 4)


def _ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    pairs = zip(part.tolist(), whole.tolist(), strict=True)
    return [round(a / b, 5) if b else None for a, b in pairs]


def tokens_per_call(survival: Sequence[float], stride: int) -> float | None:
    """Return the tokens per call of introspective strided decoding.

    It is None for too few trained slots. ``(2 + C_1 + ... + C_{N-2}) / (2 - C_{N-1})``, where C_k
    (`survival`) is the probability that a stride's first k specs are accepted. If all specs of a
    round are accepted, the next round verifies; otherwise the next round only proposes.

    Source: I-DLM (arXiv 2604.11035), for probabilities that differ by depth.
    """
    if len(survival) < stride - 1:
        return None
    return round((2 + sum(survival[: stride - 2])) / (2 - survival[stride - 2]), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutReport(Report):
    """Hold an adapter's held-out figures in ``adapter.json``, by default of sampled windows.

    `accuracy` and `survival`, P(first g slots right), are by slot; `calibration` is as in
    `SlotTally`. Fields `greedy_*` are for greedy windows, or None if these are not trained. For
    isd, accuracy is the mean over windows of sum min(p, q) by depth, the acceptance rate of strict
    verification; `tokens_per_call` is by stride and distribution (``sampled``, ``greedy``). For
    blocks, figures compare fully masked blocks with the text.
    """

    windows: int
    accuracy: list[float | None]
    survival: list[float]
    leading_16: float
    calibration: tuple[float, float]
    greedy_accuracy: list[float | None] | None = None
    greedy_survival: list[float] | None = None
    greedy_leading_16: float | None = None
    greedy_calibration: tuple[float, float] | None = None
    tokens_per_call: Mapping[str, Mapping[str, float]] | None = None

    @classmethod
    def of(
        cls, sampled: SlotTally, greedy: SlotTally | None = None, *, strides: bool = False
    ) -> HeldOutReport:
        """Return the report of tallies, with `strides` (of isd) with tokens per call."""
        fields: dict[str, Any] = {"windows": sampled.num_windows}
        for prefix, tally in (("", sampled), ("greedy_", greedy)):
            if tally is not None:
                fields[f"{prefix}accuracy"] = tally.accuracy()
                fields[f"{prefix}survival"] = tally.survival()
                fields[f"{prefix}leading_16"] = round(sum(tally.survival()[:16]), 3)
                fields[f"{prefix}calibration"] = tally.calibration()
        if strides:
            kinds = {"sampled": sampled, "greedy": greedy}
            values = {
                str(stride): {
                    name: value
                    for name, tally in kinds.items()
                    if tally and (value := tokens_per_call(tally.survival(), stride)) is not None
                }
                for stride in (4, 8)
            }
            fields["tokens_per_call"] = {stride: by for stride, by in values.items() if by}
        return cls(**fields)

    @property
    def score(self) -> float:
        """Return the leading right slots, averaged over sampled and greedy windows."""
        if self.greedy_leading_16 is None:
            return self.leading_16
        return (self.leading_16 + self.greedy_leading_16) / 2

    def summary(self) -> str:
        """Return one line for the terminal."""
        every = 1 if self.tokens_per_call is not None else max(1, len(self.accuracy) // 6)
        shown = " ".join(f"{value:.2f}" for value in self.accuracy[::every] if value is not None)
        if self.tokens_per_call is not None:
            strides = "; ".join(
                f"N = {stride}: " + ", ".join(f"{name} {value:.2f}" for name, value in by.items())
                for stride, by in self.tokens_per_call.items()
            )
            strides = strides or "none of these strides"
            return f"overlap by depth {shown}; tokens per call: {strides}"
        line = f"leading correct of 16: {self.leading_16:.2f}"
        if self.greedy_leading_16 is not None:
            line += f", greedy {self.greedy_leading_16:.2f}"
        return f"{line}; accuracy of slots 1, {1 + every}, … {shown}"

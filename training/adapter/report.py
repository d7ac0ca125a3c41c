"""How good a parallel predictor is on held-out windows.

*Survival* to slot g is the probability that the first g slots are all right, estimated slot by slot
(Kaplan-Meier), so that windows that end early with their answer count as far as they go. Its sum
over the first n slots is the expected number of leading correct tokens out of n. Where a slot is
right by chance only (isd), it counts by that chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.adapter.objectives import Outcome, SlotJudgement


class SlotTally:
    """Counts over windows of `num_slots` slots.

    Attributes:
        by_row: float64 ``[4, num_slots]`` of each row of text: slots judged, slots right, slots
            judged whose predecessors were right, and those of them that were right too.
    """

    def __init__(self, num_slots: int) -> None:
        """Nothing is counted yet."""
        self.num_slots = num_slots
        self.by_row: list[Tensor] = []
        self.confidences: list[Tensor] = []
        self.rights: list[Tensor] = []
        self.num_windows = 0

    def add(self, outcome: Outcome, judged: SlotJudgement) -> None:
        """Counts what was judged of an outcome."""
        windows, usable = outcome.windows, outcome.usable.clone()
        table = torch.zeros(usable.shape, dtype=torch.float64, device=usable.device)
        table[usable] = judged.right.double()
        usable[outcome.usable] = judged.counts
        first = windows.depth[windows.number >= 0].min() if usable.any() else 0
        slot = (windows.depth - first).clamp(min=0)
        alive: dict[tuple[int, int], float] = {}
        counts = torch.zeros(len(usable), 4, self.num_slots, dtype=torch.float64)
        for b, q in usable.nonzero().tolist():
            key, place = (b, int(windows.number[b, q])), int(slot[b, q])
            hit, before = float(table[b, q]), alive.get(key, 1.0)
            self.num_windows += key not in alive
            counts[b, 0, place] += 1
            counts[b, 1, place] += hit
            counts[b, 2, place] += before
            counts[b, 3, place] += before * hit
            alive[key] = before * hit
        self.by_row += counts.unbind()
        self.confidences.append(judged.confidence[judged.counts].cpu())
        self.rights.append(judged.right[judged.counts].cpu())

    @property
    def counts(self) -> Tensor:
        """`by_row`, summed."""
        return torch.stack(self.by_row).sum(0) if self.by_row else torch.zeros(4, self.num_slots)

    def accuracy(self) -> list[float | None]:
        """Share of right slots by slot, whatever the slots before were."""
        return _ratios(self.counts[1], self.counts[0])

    def survival(self) -> list[float]:
        """P(the first g slots are right) for g = 1 … `num_slots`."""
        shares, product = [], 1.0
        for ratio in _ratios(self.counts[3], self.counts[2]):
            product *= 0.0 if ratio is None else ratio
            shares.append(round(product, 5))
        return shares

    def calibration(self) -> tuple[float, float]:
        """(a, b) of ``sigmoid(a logit(c) + b)``, the chance that confidence c is right."""
        if not self.rights:
            return 1.0, 0.0
        c = torch.cat(self.confidences).double().clamp(1e-6, 1 - 1e-6)
        right = torch.cat(self.rights).double()
        parameters = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
        move = torch.optim.LBFGS([parameters], max_iter=50, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            move.zero_grad()
            logits = parameters[0] * torch.logit(c) + parameters[1]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, right)
            loss = loss + 1e-4 * ((parameters[0] - 1) ** 2 + parameters[1] ** 2)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            move.step(closure)  # type: ignore[no-untyped-call]
        slope, offset = parameters.detach().tolist()
        return round(slope, 4), round(offset, 4)


def _ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    return [
        round(a / b, 5) if b else None for a, b in zip(part.tolist(), whole.tolist(), strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutReport:
    """Held-out figures of an adapter, as they stand in ``adapter.json``.

    Attributes:
        windows: how many sampled windows were looked at.
        accuracy: by slot, in sampled windows.
        survival: P(first g slots right), sampled windows.
        leading_16: expected leading correct tokens of the first 16 slots, sampled windows.
        calibration: (a, b), see `SlotTally.calibration`.
        greedy_accuracy: as `accuracy`, in greedy windows (None: not trained on them).
        greedy_survival: as `survival`.
        greedy_leading_16: as `leading_16`.
        greedy_calibration: as `calibration`.
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

    @classmethod
    def of(cls, sampled: SlotTally, greedy: SlotTally | None) -> HeldOutReport:
        """The report of tallies."""
        return cls(**cls.fields_of(sampled, greedy))

    @staticmethod
    def fields_of(sampled: SlotTally, greedy: SlotTally | None) -> dict[str, Any]:
        """The fields above, by name."""
        fields = {
            "windows": sampled.num_windows,
            "accuracy": sampled.accuracy(),
            "survival": sampled.survival(),
            "leading_16": leading(sampled.survival(), 16),
            "calibration": sampled.calibration(),
        }
        if greedy is not None:
            fields |= {
                "greedy_accuracy": greedy.accuracy(),
                "greedy_survival": greedy.survival(),
                "greedy_leading_16": leading(greedy.survival(), 16),
                "greedy_calibration": greedy.calibration(),
            }
        return fields

    @property
    def score(self) -> float:
        """What the best is chosen by: leading slots of sampled and greedy windows, their mean."""
        leading = [self.leading_16, self.greedy_leading_16]
        known = [value for value in leading if value is not None]
        return sum(known) / len(known)

    def every_few(self) -> list[float]:
        """Accuracy at about six slots."""
        shown = self.accuracy[:: self._every]
        return [value for value in shown if value is not None]

    @property
    def _every(self) -> int:
        return max(1, len(self.accuracy) // 6)

    def summary(self) -> str:
        """One line for the terminal."""
        shown = " ".join(f"{value:.2f}" for value in self.every_few())
        line = f"leading correct of 16: {self.leading_16:.2f}"
        if self.greedy_leading_16 is not None:
            line += f", greedy {self.greedy_leading_16:.2f}"
        return f"{line}; accuracy at every {self._every}th slot {shown}"


def leading(survival: list[float], num_slots: int) -> float:
    """Expected leading correct tokens of the first `num_slots` slots."""
    return round(sum(survival[:num_slots]), 3)

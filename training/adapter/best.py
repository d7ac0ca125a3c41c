"""The weights of the best evaluation so far, kept beside the checkpoint.

Judged by accepted tokens, not by loss: the expected number of leading correct slots or drafts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Best:
    """Keeps the best weights in one file."""

    def __init__(self, path: Path) -> None:
        """Goes on from the file at `path` if there is one."""
        self.path = path

    def offer(self, step: int, score: float, trained: nn.Module) -> None:
        """Keeps these weights if their score is better than that of those kept."""
        if self._kept_score() >= score:
            return
        partial = self.path.with_suffix(".partial")
        torch.save({"score": score, "step": step, "model": trained.state_dict()}, partial)
        partial.replace(self.path)

    def better_than(self, score: float) -> dict[str, Tensor] | None:
        """The weights kept, where their score was better than this one."""
        if self._kept_score() <= score:
            return None
        weights: dict[str, Tensor] = self._kept()["model"]
        return weights

    def _kept_score(self) -> float:
        return float(self._kept()["score"]) if self.path.exists() else -1.0

    def _kept(self) -> dict[str, Any]:
        kept: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
        return kept

"""The teacher's likeliest tokens for stored rows, computed once and kept in files of one row each.

A row of 100 answer tokens takes the teacher a second on one core and 10 kB here; a small model
passes over its rows many times.

Letters: P taught places of a row, T likeliest tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.text.data import Row
from training.text.pool import row_hash

Top = tuple[Tensor, Tensor]
"""Token ids int64 and logits float32, ``[P, T]`` each, the likeliest first."""


class TeacherCache:
    """Asks the teacher about a row's answer the first time, and remembers."""

    def __init__(self, folder: Path, logits: Callable[[Row], Tensor], num_top: int) -> None:
        """`logits` gives ``[P, V]`` before the taught tokens of a row."""
        self._folder, self._logits, self._num_top = folder / f"top{num_top}", logits, num_top
        self._folder.mkdir(parents=True, exist_ok=True)

    def top(self, row: Row) -> Top:
        """What the teacher finds likeliest at each taught place."""
        path = self._folder / f"{row_hash(row):016x}.npz"
        if not path.exists():
            top = self._logits(row).topk(self._num_top)
            partial = path.with_suffix(f".{os.getpid()}")
            with partial.open("wb") as file:
                np.savez(
                    file,
                    ids=top.indices.to(torch.int32).numpy(),
                    logits=top.values.to(torch.float16).numpy(),
                )
            partial.replace(path)
        with np.load(path) as kept:
            ids, logits = torch.from_numpy(kept["ids"]), torch.from_numpy(kept["logits"])
        return ids.long(), logits.float()

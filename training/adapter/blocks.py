"""Blocks of a refining adapter: slots that show tokens, and masked slots to predict.

A block covers consecutive answer tokens. Its first token comes from the target and is shown, except
in a fully masked block, whose call yields it. A random share of the other tokens is masked. A slot
predicts the token after its own, so the last slot's prediction is unused. After a stop token, all
further slots hold that token, because the decoder's block does not know where the answer ends.
Source: mask-predict (arXiv 1904.09324), shifted as in I-DLM (arXiv 2604.11035).

Letters: B rows, Q slots of a row, n slots of a block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from decoders.core.types import MASKED
from training.recipe import RecipeTable, Share
from training.text.data import Row

T = TypeVar("T", bound=Any)
Stride = Annotated[int, Field(ge=2)]


class BlocksTable(RecipeTable):
    """[blocks]: equally likely sizes of blocks (empty: the longest possible), and their masks.

    A share `hidden` of blocks is fully masked; in the others, a share of tokens drawn between
    `ratios`. In a share `own` of the others, unmasked tokens after the first are the student's own
    predictions. These are learnt too, so that the student learns which of its tokens to replace.
    """

    sizes: tuple[Stride, ...] = ()
    hidden: Share = 0.2
    ratios: tuple[Share, Share] = (0.0, 1.0)
    own: Share = 0.0


class BlockRules(BlocksTable):
    """Draws blocks below position `room` that end at tokens in `stops`."""

    stops: frozenset[int] = frozenset()
    room: int = 2**31

    def end(self, row: Row, start: int, end: int) -> int:
        """Return the end of the answer that contains `start`: after its stop token, or `end`."""
        stops = (index + 1 for index in range(start, end) if row.ids[index] in self.stops)
        return next(stops, end)

    def size(self, row: Row, start: int, end: int, max_size: int, rng: np.random.Generator) -> int:
        """Return a block's size n, which may pass a stop token, but not truncated text's end."""
        size = self.sizes[rng.integers(len(self.sizes))] if self.sizes else max_size
        stopped = row.ids[end - 1] in self.stops
        return min(size, max_size, (self.room if stopped else min(end, self.room)) - start)

    def masked(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Draw a mask ``[n]`` of a block's masked slots."""
        masked = np.zeros(size, bool)
        if rng.random() < self.hidden:
            masked[:] = True
        elif size > 1:
            share = rng.uniform(*self.ratios)
            count = max(1, math.ceil(share * (size - 1)))
            masked[1 + rng.permutation(size - 1)[:count]] = True
        return masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Shown tokens and targets of the slots of blocks, all ``[B, Q]``.

    `shown` is the token at a slot's own position, or `MASKED`; `target` is the token it predicts
    (0: none). `is_own` marks slots that show the student's predictions; `learn` marks slots whose
    target is masked or `is_own`; `inside` marks targets in the answer, stop token included.
    """

    shown: Tensor
    target: Tensor
    learn: Tensor
    inside: Tensor
    is_own: Tensor

    def to(self, device: torch.device) -> Blocks:
        """Return the same blocks on a device."""
        return moved(self, device)


def moved(parts: T, device: torch.device) -> T:
    """Return a dataclass with its tensors moved to a device."""
    fields = {field.name: getattr(parts, field.name) for field in dataclasses.fields(parts)}
    return dataclasses.replace(
        parts, **{name: part.to(device) for name, part in fields.items() if hasattr(part, "to")}
    )


Placed = tuple[int, slice, int, int]
"""A block: its row, its slots, the index of its first token, and the end of its answer."""


def hide(
    rules: BlockRules,
    shape: tuple[int, int],
    rows: Sequence[Row],
    placed: Sequence[Placed],
    rng: np.random.Generator,
) -> Blocks:
    """Draw the masks of the `placed` blocks and return slots of `shape` ``[B, Q]``."""
    shown, target = np.full(shape, MASKED, np.int64), np.zeros(shape, np.int64)
    learn, inside, is_own = (np.zeros(shape, bool) for _ in range(3))
    for b, where, start, end in placed:
        size = where.stop - where.start
        text = rows[b].ids[start : min(end, start + size)]
        tokens = np.array(text + text[-1:] * (size - len(text)))
        masked = rules.masked(size, rng)
        shows = ~masked
        shows[0] = False  # the first token comes from the target
        is_own[b, where] = shows & (rng.random() < rules.own)
        shown[b, where] = np.where(masked, MASKED, tokens)
        predicts = slice(where.start, where.stop - 1)
        target[b, predicts] = tokens[1:]
        learn[b, predicts] = (masked | is_own[b, where])[1:]
        inside[b, predicts] = np.arange(start + 1, start + size) < end
    arrays = {"shown": shown, "target": target, "learn": learn, "inside": inside, "is_own": is_own}
    return Blocks(**{name: torch.from_numpy(array) for name, array in arrays.items()})

"""Blocks of a refining adapter: which of their slots show a token, and what the others shall say.

A block stands for consecutive answer tokens. Its first token is the target's own: it is shown,
except in a fully masked block, whose call is the one that yields it. Of the others a random share
is masked. A slot predicts the token after its own place, so a block of n slots predicts n - 1
tokens, and the last slot's prediction is not looked at. After a token that ends the answer
every further place holds that token again, as many as the block has left: the decoder's block
does not know beforehand where the answer ends.

Source: mask-predict (Ghazvininejad et al. 2019, arXiv 1904.09324), shifted as in I-DLM (arXiv
2604.11035).
Letters: B rows, Q slots of a row, n slots of a block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoders.core.types import MASKED
from training.text.data import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRules:
    """How blocks are drawn.

    Attributes:
        sizes: n is one of these, each as likely (none: the longest there may be).
        hidden: share of blocks that are fully masked, the first token too.
        ratios: share of masked tokens in the others, drawn uniformly between these two.
        own: share of the others that show the student's own predictions, not the text's tokens,
            and shall predict these places too: so it learns which of its tokens to replace.
        stops: ids that end an answer.
        room: slots stand before this place only.
    """

    sizes: tuple[int, ...] = ()
    hidden: float = 0.2
    ratios: tuple[float, float] = (0.0, 1.0)
    own: float = 0.0
    stops: frozenset[int] = frozenset()
    room: int = 2**31

    def end(self, row: Row, start: int, end: int) -> int:
        """Where the answer that goes on at `start` ends: behind its stop, or at `end`."""
        for place in range(start, end):
            if row.ids[place] in self.stops:
                return place + 1
        return end

    def size(self, row: Row, start: int, end: int, longest: int, rng: np.random.Generator) -> int:
        """N of a block at `start`; it goes on behind a stop, but not behind text that was cut."""
        size = self.sizes[rng.integers(len(self.sizes))] if self.sizes else longest
        stopped = row.ids[end - 1] in self.stops
        return min(size, longest, (self.room if stopped else min(end, self.room)) - start)

    def masked(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Which of a block's n places are masks: bool ``[n]``."""
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
    """What the slots of blocks show and predict; every field is ``[B, Q]``.

    Attributes:
        shown: int64, the token at a slot's own place, or `MASKED`.
        target: int64, the token it predicts; 0 where it predicts none.
        learn: bool, whether that token is in the block and is a mask there, or the student's own.
        inside: bool, whether that token is the answer's, its stop included.
        own: bool, whether a slot shows what the student itself predicts.
    """

    shown: Tensor
    target: Tensor
    learn: Tensor
    inside: Tensor
    own: Tensor

    def to(self, device: torch.device) -> Blocks:
        """The same blocks on a device."""
        return Blocks(**{name: getattr(self, name).to(device) for name in self.__slots__})

    def masked_own(self) -> Blocks:
        """The same blocks with masks where they show the student's own predictions."""
        return dataclasses.replace(self, shown=self.shown.masked_fill(self.own, MASKED))

    def with_own(self, predicted: Tensor) -> Blocks:
        """The same blocks showing what slots `predicted` ``[B, Q]``: each about the next one."""
        said = torch.nn.functional.pad(predicted, (1, 0))[:, :-1]
        return dataclasses.replace(self, shown=torch.where(self.own, said, self.shown))


Place = tuple[int, slice, int, int]
"""A block: its row, its slots, the place of its first token, and where its answer ends."""


def hide(
    rules: BlockRules,
    shape: tuple[int, int],
    rows: Sequence[Row],
    places: Sequence[Place],
    rng: np.random.Generator,
) -> Blocks:
    """Chooses the masks of blocks that stand at `places` within `shape` ``[B, Q]``."""
    shown, target = np.full(shape, MASKED, np.int64), np.zeros(shape, np.int64)
    learn, inside, own = (np.zeros(shape, bool) for _ in range(3))
    for b, where, start, end in places:
        size = where.stop - where.start
        text = rows[b].ids[start : min(end, start + size)]
        tokens = np.array(text + text[-1:] * (size - len(text)))
        masked = rules.masked(size, rng)
        shows = ~masked
        shows[0] = False  # the first token is never the student's
        own[b, where] = shows & (rng.random() < rules.own)
        shown[b, where] = np.where(masked, MASKED, tokens)
        predicts = slice(where.start, where.stop - 1)
        target[b, predicts] = tokens[1:]
        learn[b, predicts] = (masked | own[b, where])[1:]
        inside[b, predicts] = np.arange(start + 1, start + size) < end
    arrays = {"shown": shown, "target": target, "learn": learn, "inside": inside, "own": own}
    return Blocks(**{name: torch.from_numpy(array) for name, array in arrays.items()})

"""Draw windows of slots to train a parallel predictor, and the uniforms that explain the text.

A window starts at a random answer token of a row. Its slots predict that token and the following
ones from only the row's tokens before the start and from uniforms. A token's uniform is drawn from
the token's own interval of the teacher's warped CDF, so the teacher would have picked the token.

Indices (PTP, arXiv 2512.21323): the slot that predicts the token at index p has position p - 1. It
sees the tokens before the window's start and the earlier slots of its window. It carries u of token
p (O-PTP) or of token p - 1 (C-PTP). Masks are placed as in C-PTP and carry no u: `isd` slots see
the same as C-PTP slots, `refine` slots see their whole block.

A block covers consecutive answer tokens. Its first token comes from the target and is shown, except
in a fully masked block, whose call yields it. A random share of the other tokens is masked. A slot
predicts the token after its own, so the last slot's prediction is unused. After a stop token, all
further slots hold that token, because the decoder's block does not know where the answer ends.
Source: mask-predict (arXiv 1904.09324), shifted as in I-DLM (arXiv 2604.11035).

Letters: B rows, S tokens of a row, Q slots of a row, n slots of a block, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from decoders.core.adapter_config import Variant
from decoders.core.sampling import nucleus, tempered
from decoders.core.types import MASKED, NO_UNIFORM
from training.recipe import NotNegative, Rate, RecipeTable, Share, TopP
from training.text.data import Row, padded

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
    """Draw blocks below position `room` that end at tokens in `stops`."""

    stops: frozenset[int] = frozenset()
    room: int = 2**31

    def ends(self, ids: Sequence[int], start: int, end: int) -> tuple[int, int]:
        """Return the end of the answer that contains `start`, and the limit of its blocks.

        An answer ends after its stop token or, if it is truncated, at `end`. Its blocks may pass a
        stop token, but not the end of truncated text.
        """
        end = next((index + 1 for index in range(start, end) if ids[index] in self.stops), end)
        return end, self.room if ids[end - 1] in self.stops else min(end, self.room)

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


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Share the move of a dataclass's tensors to a device."""

    def to(self, device: torch.device) -> Self:
        """Return the same fields, with all tensors on a device."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        moved = {name: part.to(device) for name, part in fields.items() if hasattr(part, "to")}
        return dataclasses.replace(self, **moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks(_Tensors):
    """Hold shown tokens and targets of the slots of blocks, all ``[B, Q]``.

    `shown` is the token at a slot's own position, or `MASKED`; `target` is the token it predicts
    (0: none). `is_own` marks slots that show the student's predictions; `learn` marks slots whose
    target is masked or `is_own`; `inside` marks targets in the answer, stop token included.
    """

    shown: Tensor
    target: Tensor
    learn: Tensor
    inside: Tensor
    is_own: Tensor


Placed = tuple[int, slice, int, int]
"""A block: its row, its slots, the index of its first token, and the end of its answer."""


def _hide(
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


MIN_MASS = 2.0**-40  # less likely tokens count as impossible: u cannot pick them


class WindowSampling(RecipeTable):
    """[sampling]: distributions of windows, drawn once per window.

    Temperatures are uniform between two values; in half of the sampled windows, the temperature is
    `usual_temperature` if set. Top-p is one of `top_ps`. A share `greedy` of windows follows the
    greedy continuation. Uniforms within a token's interval follow Beta(beta, beta).
    """

    temperatures: tuple[Rate, Rate] = (1.0, 1.0)
    usual_temperature: Rate | None = None
    top_ps: tuple[TopP, ...] = Field(default=(1.0,), min_length=1)
    top_k: NotNegative = 0
    greedy: Share = 0.0
    beta: Rate = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows(_Tensors):
    """Hold the windows of a batch of rows. Fields are ``[B, Q]`` unless stated otherwise.

    Attributes:
        ids: ``[B, S]`` int64, right-padded.
        index: int64, index in `ids` of the token that a slot predicts; 0 for padding.
        depth: int64, distance of `index` from the window's start; the first slot has 0 in O-PTP
            and 1 in all other variants.
        number: int64, number of the slot's window in its row; -1 for padding.
        warp: float32 ``[B, Q, 2]``, temperature and top-p.
        noise: float64 in (0, 1), relative place of u within its token's interval.
        standalone: hide the token before the window, which its first slot represents.
        blocks: shown tokens of a refining adapter's slots; None for other variants.
        stride: number of slots that each window takes, padding included; 0: no padding.
    """

    ids: Tensor
    index: Tensor
    depth: Tensor
    number: Tensor
    warp: Tensor
    greedy: Tensor
    noise: Tensor
    standalone: bool = False
    blocks: Blocks | None = None
    stride: int = 0

    @property
    def start(self) -> Tensor:
        """Return the number of tokens before the window, its context."""
        return self.index - self.depth

    @property
    def position(self) -> Tensor:
        """Return the positions of slots, each one before the token that the slot predicts."""
        return (self.index - 1).clamp(min=0)

    def slot(self, variant: Variant) -> Tensor:
        """Return the number of each slot in its window, from 0."""
        return (self.depth - first_target(variant)).clamp(min=0)

    def mask(self) -> Tensor:
        """Return a mask ``[B, Q, S + Q]`` of the tokens and slots that each slot sees.

        Padding slots see the first token, so that no row of the mask is empty.
        """
        tokens = torch.arange(self.ids.shape[1], device=self.ids.device)
        context = tokens < (self.start - int(self.standalone)).clamp(min=1)[..., None]
        same = self.number[:, :, None] == self.number[:, None, :]
        if self.blocks is None:
            same &= self.depth[:, None, :] <= self.depth[:, :, None]
        return torch.cat([context, same & (self.number >= 0)[:, :, None]], -1)

    def masks(self) -> tuple[Tensor, Tensor]:
        """Return `mask` as ``[B, W, S]`` for tokens and ``[B, W, L, L]`` for slots of a window.

        The W windows must have been drawn with a stride, L.
        """
        shape = len(self.ids), -1, self.stride
        start, number = self.start.view(shape), self.number.view(shape)
        tokens = torch.arange(self.ids.shape[1], device=self.ids.device)
        same = number[..., None] == number[..., None, :]
        if self.blocks is None:
            same &= torch.ones_like(same).tril()
        return tokens < (start[..., :1] - int(self.standalone)).clamp(min=1), same


def draw_windows(
    rows: Sequence[Row],
    *,
    num_slots: int,
    length: int,
    sampling: WindowSampling,
    pad: int,
    rng: np.random.Generator,
    variant: Variant = "o-ptp",
    standalone: bool = False,
    aligned: bool = False,
    blocks: BlockRules | None = None,
    stride: int = 0,
) -> Windows:
    """Fill slots of every row with windows, which end early at the end of their answer.

    Args:
        rows: texts.
        num_slots: Q; with `stride` rounded down to a multiple of it.
        length: number of slots of a window that nothing cuts.
        sampling: distributions to draw from, once per window.
        pad: token that `Windows.ids` are padded with.
        rng: generator of all draws.
        variant: the adapter's.
        standalone: see `Windows`.
        aligned: leave out a row's last window if it does not fit (evaluation); False: cut it.
        blocks: rules of the windows of a refining adapter; None for other variants.
        stride: see `Windows`; with it, no start repeats until all starts of the row are used.
    """
    if stride:
        num_slots -= num_slots % stride
    shape = (len(rows), num_slots)
    token, depth = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    number = np.full(shape, -1, np.int64)
    warp, greedy = np.ones((*shape, 2), np.float32), np.zeros(shape, bool)
    shift = first_target(variant)
    placed: list[Placed] = []
    for b, row in enumerate(rows):
        ends = [*range(len(row.ids) + 1)]  # of the run of learnt tokens that an index is in
        for index in reversed(range(len(row.ids))):
            if row.learn[index]:
                ends[index] = max(index + 1, ends[index + 1])
        first = 1 + int(standalone)  # leave some context
        starts = [t for t in range(first, len(row.ids) - shift) if ends[t] > t + shift]
        filled = index = 0
        order = rng.permutation(len(starts)) if stride else ()
        while starts and filled < num_slots:
            if index < len(order):
                start = starts[order[index]]
            elif stride and aligned:
                break
            else:
                start = starts[rng.integers(len(starts))]
            end = ends[start]
            count = min(length, end - start - shift)
            if blocks is not None:
                size = blocks.sizes[rng.integers(len(blocks.sizes))] if blocks.sizes else length
                end, limit = blocks.ends(row.ids, start, end)
                count = min(size, length, limit - start)
            if filled + count > num_slots and aligned:
                break
            count = min(count, num_slots - filled)
            where = slice(filled, filled + count)
            token[b, where] = np.arange(start + shift, start + shift + count)
            depth[b, where] = np.arange(shift, shift + count)
            number[b, where] = index
            if row.temperature is None:
                greedy[b, where] = rng.random() < sampling.greedy
                temperature = rng.uniform(*sampling.temperatures)
                if sampling.usual_temperature is not None and rng.random() < 0.5:
                    temperature = sampling.usual_temperature
                warp[b, where] = temperature, sampling.top_ps[rng.integers(len(sampling.top_ps))]
            else:
                greedy[b, where] = not row.temperature
                warp[b, where] = row.temperature or 1.0, 1.0
            placed.append((b, where, start, end))
            filled, index = filled + (stride or count), index + 1
    noise = rng.beta(sampling.beta, sampling.beta, shape).clip(2**-30, 1 - 2**-30)
    return Windows(
        ids=padded(rows, pad),
        index=torch.from_numpy(token),
        depth=torch.from_numpy(depth),
        number=torch.from_numpy(number),
        warp=torch.from_numpy(warp),
        greedy=torch.from_numpy(greedy),
        noise=torch.from_numpy(noise),
        standalone=standalone,
        stride=stride,
        blocks=None if blocks is None else _hide(blocks, shape, rows, placed, rng),
    )


def first_target(variant: Variant) -> int:
    """Return the distance from a window's start to the first token that a slot predicts."""
    return int(variant != "o-ptp")


def explain(
    windows: Windows, likeliest: Tensor, left: Tensor, mass: Tensor, variant: Variant
) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, target and `usable` of slots, ``[B, Q]`` each, from the teacher's distributions.

    Greedy slots and padding carry `NO_UNIFORM`. A slot is usable if, up to its own u, the uniforms
    make the teacher pick the text. A sampled window is usable until the text leaves the nucleus,
    where no u explains it. A greedy window is usable through its first target that is not the
    teacher's argmax; O-PTP learns the argmax there.

    Args:
        windows: windows drawn for `variant`.
        likeliest: the teacher's argmax where it predicts each token of `sources`, ``[B, Q]``.
        left: left edge of that token's interval, ``[B, Q]`` (see `edges`).
        mass: width of that interval, ``[B, Q]``.
        variant: the adapter's.
    """
    tokens = windows.ids.gather(1, sources(windows, variant))
    real = windows.number >= 0
    u = (left + mass * windows.noise).clamp(0, 1 - 2**-53)
    agrees = torch.where(windows.greedy, tokens == likeliest, mass > MIN_MASS) & real
    broken = torch.nn.functional.pad((~agrees).long().cumsum(1), (1, 0))[:, :-1]
    first = torch.ones_like(agrees)
    first[:, 1:] = windows.number[:, 1:] != windows.number[:, :-1]
    # breaks before the window's first slot do not count; cummax carries them along the window
    before = broken == torch.where(first, broken, 0).cummax(1).values
    if variant == "o-ptp":
        usable = before & (agrees | windows.greedy) & real
        target = torch.where(windows.greedy, likeliest, tokens)
    else:
        usable = before & agrees & real
        target = windows.ids.gather(1, windows.index)
    return torch.where(windows.greedy | ~real, NO_UNIFORM, u), target, usable


def sources(windows: Windows, variant: Variant) -> Tensor:
    """Return the index of the token whose u each slot carries, or 0 for padding."""
    return (windows.index - first_target(variant)).clamp(min=0)


def edges(logits: Tensor, tokens: Tensor, warp: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return left edge and width ``[...]`` of each token's interval in its warped CDF, float64.

    Args:
        logits: ``[..., V]``.
        tokens: ``[...]``.
        warp: temperature and top-p, ``[..., 2]``.
        top_k: number of likeliest words that stay; 0: all.
    """
    shape, vocab = tokens.shape, logits.shape[-1]
    flat = tokens.reshape(-1, 1)
    distribution = warped(logits.reshape(-1, vocab), warp.reshape(-1, 2), top_k)
    below = torch.arange(vocab, device=distribution.device) < flat
    left = (distribution * below).sum(-1, dtype=torch.float64)
    total = distribution.sum(-1, dtype=torch.float64)
    mass = distribution.gather(1, flat).squeeze(1).double()
    return (left / total).view(shape), (mass / total).view(shape)


def warped(logits: Tensor, warp: Tensor, top_k: int) -> Tensor:
    """Return the distributions ``[R, V]`` of logits at temperatures and top-ps ``[R, 2]``."""
    distribution = tempered(logits.float(), warp[:, :1], top_k)
    cut = warp[:, 1] < 1
    if bool(cut.any()):
        distribution = distribution.clone()
        distribution[cut] = nucleus(distribution[cut], warp[cut, 1:])
    return distribution

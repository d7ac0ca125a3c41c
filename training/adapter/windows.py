"""Slot windows: where a parallel predictor is trained, and the uniforms that explain the text.

A window starts at a random answer token of a row. Its slots predict that token and the ones after
it from the row's tokens before the start and from uniforms alone; the uniform of a token is drawn
from the token's own interval of the teacher's warped CDF, so the teacher would have picked it.

Index-exact (PTP, arXiv 2512.21323): the slot that predicts the token at place p stands at position
p - 1 and sees the tokens before the window's start and the earlier slots of its window. It carries
u of token p (O-PTP) or of token p - 1 (C-PTP). Masks stand as in C-PTP and carry no u: `isd` slots
see what C-PTP's see, `refine` slots their whole block (`training.adapter.blocks`).

Letters: B rows, S places of a row, Q slots of a row, M slots of a batch that count, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoders.core.adapter.config import Variant
from decoders.core.sampling import nucleus, tempered
from decoders.core.types import NO_UNIFORM
from training.adapter.blocks import BlockRules, Blocks, Place, hide
from training.text.data import Row

LEAST_MASS = 2.0**-40
"""Tokens the teacher finds less likely than this count as impossible: no float64 u hits them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSampling:
    """Which sampling windows are trained at.

    Attributes:
        temperatures: drawn uniformly between these two ...
        usual_temperature: ... or, in half of the sampled windows, this one (None: never).
        top_ps: one of these, each as likely.
        top_k: of all sampled windows.
        greedy: share of windows that follow the greedy continuation.
        beta: uniforms within a token's interval follow Beta(beta, beta).
    """

    temperatures: tuple[float, float] = (1.0, 1.0)
    usual_temperature: float | None = None
    top_ps: tuple[float, ...] = (1.0,)
    top_k: int = 0
    greedy: float = 0.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows of a batch of rows; every field is ``[B, Q]`` unless said otherwise.

    Attributes:
        ids: ``[B, S]`` int64, right-padded.
        place: int64, the place in `ids` of the token a slot predicts; 0 for padding.
        depth: int64, how far `place` lies behind the window's start: in O-PTP the first slot's
            is 0, in all other variants 1.
        number: int64, which window of its row it belongs to; -1 for padding.
        warp: float32 ``[B, Q, 2]``, temperature and top-p.
        greedy: bool.
        noise: float64 in (0, 1), the place of u within its token's interval.
        standalone: bool, not a tensor: the token before a window is not seen, its first slot
            stands for it.
        blocks: what slots of a refining adapter show; None: of the other variants.
        stride: not a tensor: every window takes so many slots, the last ones padding where it is
            shorter; 0: windows follow one another without gaps.
    """

    ids: Tensor
    place: Tensor
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
        """Tokens before this place are the window's context."""
        return self.place - self.depth

    def to(self, device: torch.device) -> Windows:
        """The same windows on a device."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        moves = {name: part.to(device) for name, part in fields.items() if hasattr(part, "to")}
        return dataclasses.replace(self, **moves)

    def mask(self) -> Tensor:
        """Which of the S tokens and Q slots each slot sees: bool ``[B, Q, S + Q]``.

        Padding sees the first token, so that no row of attention is empty.
        """
        tokens = torch.arange(self.ids.shape[1], device=self.ids.device)
        context = tokens < (self.start - int(self.standalone)).clamp(min=1)[..., None]
        same = self.number[:, :, None] == self.number[:, None, :]
        if self.blocks is None:
            same &= self.depth[:, None, :] <= self.depth[:, :, None]
        return torch.cat([context, same & (self.number >= 0)[:, :, None]], -1)


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
    """Fills `num_slots` slots of every row with windows of at most `length` slots.

    Args:
        rows: token ids with their trained places.
        num_slots: Q; the last window of a row is cut to fit.
        length: slots of a window; it ends early at the end of its answer.
        sampling: temperatures and so on, drawn once a window.
        pad: id that fills rows up.
        rng: decides everything.
        variant: all but O-PTP windows predict one token later than they start.
        standalone: see `Windows`; windows then start one token later in a row than they could.
        aligned: never cut a window to fit (evaluation); slots may stay empty.
        blocks: how blocks of a refining adapter are drawn, which windows then are.
        stride: see `Windows`; `num_slots` is cut to a multiple of it, and a row has each start at
            most once as long as it has enough of them.
    """
    if stride:
        num_slots -= num_slots % stride
    width = max(len(row.ids) for row in rows)
    shape = (len(rows), num_slots)
    place, depth = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    number = np.full(shape, -1, np.int64)
    warp, greedy = np.ones((*shape, 2), np.float32), np.zeros(shape, bool)
    shift = shift_of(variant)
    drawn: list[Place] = []
    for b, row in enumerate(rows):
        ends = _ends(row)
        first = 1 + int(standalone)  # some context must be left
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
                end = blocks.end(row, start, end)
                count = blocks.size(row, start, end, length, rng)
            if filled + count > num_slots and aligned:
                break
            count = min(count, num_slots - filled)
            where = slice(filled, filled + count)
            place[b, where] = np.arange(start + shift, start + shift + count)
            depth[b, where] = np.arange(shift, shift + count)
            number[b, where] = index
            if row.temperature is None:
                greedy[b, where] = rng.random() < sampling.greedy
                warp[b, where] = _draw_warp(sampling, rng)
            else:
                greedy[b, where] = not row.temperature
                warp[b, where] = row.temperature or 1.0, 1.0
            drawn.append((b, where, start, end))
            filled, index = filled + (stride or count), index + 1
    return Windows(
        ids=torch.tensor([row.ids + [pad] * (width - len(row.ids)) for row in rows]),
        place=torch.from_numpy(place),
        depth=torch.from_numpy(depth),
        number=torch.from_numpy(number),
        warp=torch.from_numpy(warp),
        greedy=torch.from_numpy(greedy),
        noise=torch.from_numpy(
            rng.beta(sampling.beta, sampling.beta, shape).clip(2**-30, 1 - 2**-30)
        ),
        standalone=standalone,
        stride=stride,
        blocks=None if blocks is None else hide(blocks, shape, rows, drawn, rng),
    )


def shift_of(variant: Variant) -> int:
    """How far behind its window's start the first token lies that a slot predicts."""
    return int(variant != "o-ptp")


def _ends(row: Row) -> list[int]:
    """For each place, where the stretch of trained tokens that it is in ends (itself if none)."""
    ends = list(range(len(row.ids) + 1))
    for place in reversed(range(len(row.ids))):
        if row.learn[place]:
            ends[place] = max(place + 1, ends[place + 1])
    return ends


def _draw_warp(sampling: WindowSampling, rng: np.random.Generator) -> tuple[float, float]:
    temperature = rng.uniform(*sampling.temperatures)
    if sampling.usual_temperature is not None and rng.random() < 0.5:
        temperature = sampling.usual_temperature
    return temperature, sampling.top_ps[rng.integers(len(sampling.top_ps))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowTargets:
    """What the teacher says about windows; every field is ``[B, Q]``.

    Attributes:
        u: float64, what each slot carries; `NO_UNIFORM` in greedy windows and padding.
        target: int64, the token it shall predict.
        usable: bool, whether the slot counts: its target is what the teacher picks given the
        uniforms.
    """

    u: Tensor
    target: Tensor
    usable: Tensor


def explain(windows: Windows, logits: Tensor, top_k: int, variant: Variant) -> _WindowTargets:
    """Uniforms and targets of windows from the teacher's logits.

    In a sampled window the chain ends where the text leaves the nucleus (no u explains it). In a
    greedy one it ends after the first place where the text is not the teacher's argmax; that
    argmax is still a target.

    Args:
        windows: where the slots are.
        logits: ``[B, Q, V]``, what the teacher says before each token of `carried_places`.
        top_k: of the sampled windows.
        variant: which token's u a slot carries, and whether the chain includes its own target.
    """
    tokens = windows.ids.gather(1, carried_places(windows, variant))
    left, mass = edges(logits, tokens, windows.warp, top_k)
    return explain_places(windows, logits.argmax(-1), left, mass, variant)


def explain_places(
    windows: Windows, likeliest: Tensor, left: Tensor, mass: Tensor, variant: Variant
) -> _WindowTargets:
    """As `explain`, from what the teacher says of the tokens at `carried_places`, ``[B, Q]`` each.

    Args:
        windows: where the slots are.
        likeliest: int64, the teacher's argmax.
        left: float64, left edges of the tokens' intervals, see `edges`.
        mass: float64, their widths.
        variant: see `explain`.
    """
    tokens = windows.ids.gather(1, carried_places(windows, variant))
    real = windows.number >= 0
    u = (left + mass * windows.noise).clamp(0, 1 - 2**-53)
    agrees = torch.where(windows.greedy, tokens == likeliest, mass > LEAST_MASS) & real
    before = _chain(agrees, windows.number)
    if variant == "o-ptp":
        usable = before & (agrees | windows.greedy) & real
        target = torch.where(windows.greedy, likeliest, tokens)
    else:
        usable = before & agrees & real
        target = windows.ids.gather(1, windows.place)
    return _WindowTargets(
        u=torch.where(windows.greedy | ~real, NO_UNIFORM, u), target=target, usable=usable
    )


def carried_places(windows: Windows, variant: Variant) -> Tensor:
    """Place in the row of the token whose u each slot carries (0 for padding)."""
    return (windows.place - shift_of(variant)).clamp(min=0)


def edges(logits: Tensor, tokens: Tensor, warp: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Left edge and width of each token's interval in its warped CDF, both float64.

    Args:
        logits: ``[..., V]``.
        tokens: ``[...]`` int64.
        warp: ``[..., 2]``, temperature and top-p.
        top_k: 0 is off.
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
    """Distributions ``[R, V]`` of logits ``[R, V]`` at temperatures and top-ps ``[R, 2]``."""
    distribution = tempered(logits.float(), warp[:, :1], top_k)
    cut = warp[:, 1] < 1
    if bool(cut.any()):
        distribution = distribution.clone()
        distribution[cut] = nucleus(distribution[cut], warp[cut, 1:])
    return distribution


def _chain(agrees: Tensor, number: Tensor) -> Tensor:
    """Whether all earlier slots of a slot's window agree: bool ``[B, Q]``."""
    broken = torch.nn.functional.pad((~agrees).long().cumsum(1), (1, 0))[:, :-1]
    first = torch.ones_like(agrees)
    first[:, 1:] = number[:, 1:] != number[:, :-1]
    # breaks before the window's first slot do not count; cummax carries them along the window
    at_first = torch.where(first, broken, 0).cummax(1).values
    return broken == at_first

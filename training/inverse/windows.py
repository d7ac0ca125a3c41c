"""Windows of inverse autoregressive training: uniforms from a model's own distributions.

There is no teacher. The last row of the context predicts the distribution of a window's first
token. The token's u is drawn from the true token's interval of this distribution. Given this u, a
slot predicts the second token's distribution, whose interval gives the second u, and so on (PTP,
arXiv 2512.21323, section 3). This takes N - 1 one-slot steps for all windows of a batch at once,
without gradients; interval edges carry none.

Letters: B rows, W windows of a row, N tokens of a window, S + 1 tokens of a row, D width, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoders.core.sampling import pick
from training.adapter.windows import edges
from training.inverse.data import Trips
from training.inverse.model import Past, SlotTransformer

_FIRST_START = 2  # the source's distributions are known from the third symbol


@dataclass(frozen=True, slots=True)
class TextWindows:
    """Rows of text with windows.

    `ids` ``[B, S + 1]``, `starts` of windows ``[B, W]``, and `noise` ``[B, W, N]``, float64 in
    [0, 1): the relative place of each u within its token's interval.
    """

    ids: Tensor
    starts: Tensor
    noise: Tensor

    @property
    def indices(self) -> Tensor:
        """Return the indices ``[B, W, N]`` of the windows' tokens in their rows."""
        return self.starts[..., None] + torch.arange(self.noise.shape[2])

    @property
    def tokens(self) -> Tensor:
        """Return the windows' tokens ``[B, W, N]``."""
        return at_indices(self.ids, self.indices)

    def part(self, rows: slice) -> TextWindows:
        """Return a part of the rows."""
        return TextWindows(self.ids[rows], self.starts[rows], self.noise[rows])


def at_indices(values: Tensor, indices: Tensor) -> Tensor:
    """Return the values ``[B, S, ...]`` at `indices` ``[B, W, N]``, ``[B, W, N, ...]``."""
    rows = torch.arange(len(values), device=values.device)
    return values[rows[:, None, None], indices]


def draw_text(
    trips: Trips, rng: np.random.Generator, *, rows: int, length: int, windows: int, slots: int
) -> TextWindows:
    """Draw rows of `length` predicted symbols, with `windows` windows of `slots` tokens each.

    If a window does not fit into a row, raise `ValueError`.
    """
    num_starts = length + 2 - slots - _FIRST_START
    if num_starts < 1 or slots < 2:
        raise ValueError(
            f"windows of {slots} tokens in rows of {length}: use 2 to {length + 1 - _FIRST_START}"
        )
    return TextWindows(
        ids=torch.from_numpy(trips.rows(rows, length + 1, rng)),
        starts=torch.from_numpy(rng.integers(num_starts, size=(rows, windows)) + _FIRST_START),
        noise=torch.from_numpy(rng.random((rows, windows, slots))),
    )


def explain(
    first: Tensor, tokens: Tensor, noise: Tensor, follow: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Draw each token's u from the token's interval of its distribution given earlier uniforms.

    Return uniforms ``[..., N]`` (float64), and logits ``[..., N, V]`` of each token given the
    uniforms before. `first` are logits ``[..., V]`` of the first of `tokens` ``[..., N]``; `noise`
    places each u within its interval; `follow` takes the last u ``[...]`` and returns the next
    token's logits.
    """
    warp = torch.ones(*tokens.shape[:-1], 2)
    us: list[Tensor] = []
    distributions: list[Tensor] = []
    for n in range(tokens.shape[-1]):
        logits = follow(us[-1]) if n else first
        left, mass = edges(logits, tokens[..., n], warp, 0)
        us.append((left + mass * noise[..., n]).clamp(0, 1 - 2**-53))
        distributions.append(logits)
    return torch.stack(us, -1), torch.stack(distributions, -2)


def roll(first: Tensor, u: Tensor, follow: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the tokens ``[..., N]`` that `u` picks, each given the tokens before.

    `first` are the logits ``[..., V]`` of the first token; `follow` takes the last picked token and
    returns the next token's logits.
    """
    tokens: list[Tensor] = []
    for n in range(u.shape[-1]):
        tokens.append(picked(follow(tokens[-1]) if n else first, u[..., n]))
    return torch.stack(tokens, -1)


def picked(logits: Tensor, u: Tensor) -> Tensor:
    """Return the tokens ``[...]`` that `u` picks from the distributions of logits ``[..., V]``."""
    distributions = logits.float().softmax(-1).flatten(0, -2)
    return pick(distributions, u.flatten()).view(u.shape)


class Read:
    """Hidden states ``[B, S, D]`` of rows (without their last tokens), from which windows go on."""

    def __init__(self, model: SlotTransformer, windows: TextWindows) -> None:
        """Run the rows, with gradients if they are enabled."""
        self.model, self.windows = model, windows
        self.hidden, self.context = model.context(windows.ids[:, :-1])

    def text_logits(self) -> Tensor:
        """Return the logits ``[B, S, V]`` of each token after a row's first, given those before."""
        logits: Tensor = self.model.head(self.hidden)
        return logits

    def window_logits(self) -> Tensor:
        """Return the logits ``[B, W, N, V]`` of windows' tokens given all *tokens* before (AR)."""
        logits: Tensor = self.model.head(at_indices(self.hidden, self.windows.indices - 1))
        return logits

    def first_logits(self) -> Tensor:
        """Return the logits ``[B, W, V]`` of the windows' first tokens."""
        before = self.windows.starts[..., None] - 1
        logits: Tensor = self.model.head(at_indices(self.hidden, before)[:, :, 0])
        return logits

    @torch.no_grad()
    def explained(self) -> tuple[Tensor, Tensor]:
        """Draw uniforms of the windows' tokens from the model's intervals and return logits too."""
        feed = self._follow(self.model.embed_uniforms)
        return explain(self.first_logits(), self.windows.tokens, self.windows.noise, feed)

    @torch.no_grad()
    def rolled(self, u: Tensor) -> Tensor:
        """Return the tokens ``[B, W, N]`` of ordinary (AR) sampling with uniforms `u`."""
        return roll(self.first_logits(), u, self._follow(self.model.tokens))

    def slot_logits(self, u: Tensor) -> Tensor:
        """Return the logits ``[B, W, N, V]`` of the N tokens that follow the first u's token."""
        starts = self.windows.starts
        positions = starts[..., None] + torch.arange(u.shape[2])
        past = Past(self.context, starts)
        logits: Tensor = self.model.head(self.model(self.model.embed_uniforms(u), positions, past))
        return logits

    def drafted(self, u: Tensor) -> Tensor:
        """Return the tokens ``[B, W, N]`` that C-PTP proposes for uniforms `u`."""
        rest = self.slot_logits(u[..., :-1])
        return picked(torch.cat([self.first_logits()[:, :, None], rest], 2), u)

    def _follow(self, embed: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return a function that feeds each window one input and returns logits ``[B, W, V]``."""
        past = Past(self.context, self.windows.starts)

        def feed(inputs: Tensor) -> Tensor:
            positions = (past.starts + past.num_inputs)[..., None]
            hidden = self.model(embed(inputs)[:, :, None], positions, past)
            logits: Tensor = self.model.head(hidden[:, :, 0])
            return logits

        return feed

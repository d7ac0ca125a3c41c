"""Model tokens and uniforms, and draw uniforms that explain windows of text (inverse training).

A small Llama reads tokens and uniforms with the same weights. A C-PTP slot is a further row, after
the tokens of its context and the earlier slots of its window. Its input embeds the uniform that
picked a token, where an ordinary row embeds the token. So a window's rows are those of a plain
causal model on ``[tokens before the start, u, u, ...]``. Many windows of a row share the KV cache
of its tokens.

There is no teacher. The last row of the context predicts the distribution of a window's first
token. The token's u is drawn from the true token's interval of this distribution. Given this u, a
slot predicts the second token's distribution, whose interval gives the second u, and so on (PTP,
arXiv 2512.21323, section 3). This takes N - 1 one-slot steps for all windows of a batch at once,
without gradients; interval edges carry none.

Letters: B rows, W windows of a row, N tokens (or inputs) of a window, S + 1 tokens of a row, D
width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from decoders.core.adapter.embedding import UniformEmbedding
from decoders.core.adapter_config import Code
from decoders.core.sampling import pick
from training.adapter.student import ContextCache
from training.adapter.windows import edges
from training.forward import additive, fresh_llama, last_states
from training.inverse.data import Trips
from training.recipe import Count, NotNegative, RecipeTable, Seed


class ModelSettings(RecipeTable):
    """[model]: sizes, the code of uniforms (`UniformEmbedding`), and the seed of the weights."""

    width: Count = 128
    layers: Count = 5
    heads: Count = 4
    intermediate: Count = 344
    code: Code = "dyadic"
    embedding_hidden: NotNegative = 128
    seed: Seed = 1


class Past:
    """Cache keys and values of tokens (seen: those before `starts` ``[B, W]``) and of windows."""

    def __init__(self, context: ContextCache, starts: Tensor) -> None:
        """Begin with only the context."""
        self.cache, self.starts, self.num_inputs = context.fork(), starts, 0
        self.num_tokens = context.get_seq_length()


class SlotTransformer(nn.Module):
    """Define an ordinary causal LM with an embedding of slots, `uniforms`."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        """Draw fresh weights from the settings' seed."""
        super().__init__()
        self.llama = fresh_llama(settings, vocab_size=vocab_size, tie_word_embeddings=False)
        self.tokens, self.head = self.llama.model.embed_tokens, self.llama.lm_head
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)  # noqa: TID251 - layers draw from it; forked
            for module in self.llama.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    module.reset_parameters()
            self.uniforms = UniformEmbedding(
                settings.code, settings.width, hidden=settings.embedding_hidden
            )
        self.uniforms.match(self.tokens.weight)

    def embed_uniforms(self, u: Tensor) -> Tensor:
        """Return the slot inputs ``[..., D]`` for u ``[...]``."""
        warp = torch.ones(u.numel(), 2)
        embedded: Tensor = self.uniforms(u.flatten(), warp)
        return embedded.view(*u.shape, -1)

    def context(self, ids: Tensor) -> tuple[Tensor, ContextCache]:
        """Return the hidden states ``[B, S, D]`` of rows of tokens, and their KV cache."""
        cache, x = ContextCache(), self.tokens(ids)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self._run(x, torch.arange(x.shape[1]).expand(ids.shape), seen, cache), cache

    def forward(self, x: Tensor, positions: Tensor, past: Past) -> Tensor:
        """Return the final hidden states of the windows' next inputs, both ``[B, W, N, D]``.

        `past` keeps their keys and values, ordered by number in the window, then by window.
        """
        num_rows, num_windows, num, width = x.shape
        first, past.num_inputs = past.num_inputs, past.num_inputs + num
        before = torch.arange(past.num_tokens) < past.starts[..., None]
        earlier = torch.arange(past.num_inputs) <= torch.arange(first, past.num_inputs)[:, None]
        window = torch.kron(earlier, torch.eye(num_windows, dtype=torch.bool))
        seen = torch.cat([before.repeat(1, num, 1), window.expand(num_rows, -1, -1)], -1)
        flat = x.transpose(1, 2).flatten(1, 2)
        hidden = self._run(flat, positions.transpose(1, 2).flatten(1), seen, past.cache)
        return hidden.view(num_rows, num, num_windows, width).transpose(1, 2)

    def _run(self, x: Tensor, positions: Tensor, seen: Tensor, cache: ContextCache) -> Tensor:
        mask = additive(~seen, x.dtype)
        return last_states(
            self.llama,
            inputs_embeds=x,
            position_ids=positions,
            attention_mask=mask.expand(len(x), *mask.shape[-2:])[:, None],
            cache=cache,
        )


@dataclass(frozen=True, slots=True)
class TextWindows:
    """Hold rows of text with windows.

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
    """Draw rows of text and windows.

    Args:
        trips: source of the text.
        rng: generator of all draws.
        rows: B.
        length: S, the number of predicted symbols of a row.
        windows: W.
        slots: N.
    """
    # windows start at the third symbol at the earliest, where the source's distributions are known
    return TextWindows(
        ids=torch.from_numpy(trips.rows(rows, length + 1, rng)),
        starts=torch.from_numpy(rng.integers(length - slots, size=(rows, windows)) + 2),
        noise=torch.from_numpy(rng.random((rows, windows, slots))),
    )


def explain(
    first: Tensor, tokens: Tensor, noise: Tensor, follow: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Draw each token's u from the token's interval of its distribution given earlier uniforms.

    Args:
        first: logits of the first token, ``[..., V]``.
        tokens: the windows' tokens, ``[..., N]``.
        noise: relative place of each u within its interval, ``[..., N]``.
        follow: takes the last u ``[...]`` and returns the next token's logits.

    Returns:
        Uniforms ``[..., N]`` (float64), and each token's logits ``[..., N, V]`` given those before.
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
    """Hold hidden states ``[B, S, D]`` of rows (without last tokens), which windows continue."""

    def __init__(self, model: SlotTransformer, windows: TextWindows) -> None:
        """Run the rows, with gradients if they are enabled."""
        self.model, self.windows = model, windows
        self.hidden, self.context = model.context(windows.ids[:, :-1])

    def window_logits(self) -> Tensor:
        """Return the logits ``[B, W, N, V]`` of windows' tokens given all earlier *tokens* (AR)."""
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

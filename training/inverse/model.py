"""A small Llama that reads tokens and uniforms with the same weights.

A C-PTP slot is a further row of the same model, after the tokens of its context and the earlier
slots of its window. Its input embeds the uniform that picked a token, where an ordinary row embeds
the token. So a window's rows are those of a plain causal model on ``[tokens before the start, u, u,
...]``. Many windows of a row share the KV cache of its tokens.

Letters: B rows, W windows of a row, N inputs of a window, S tokens of a row, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decoders.core.adapter.embedding import UniformEmbedding
from decoders.core.adapter_config import Code
from training.adapter.student import ContextCache
from training.forward import additive, fresh_llama


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Sizes, the code of uniforms (see `UniformEmbedding`), and the seed of initial weights."""

    width: int = 128
    layers: int = 5
    heads: int = 4
    intermediate: int = 344
    code: Code = "dyadic"
    embedding_hidden: int = 128
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse heads that do not divide the width into even sizes."""
        if self.heads < 1:
            raise ValueError(f"{self.heads} heads: use 1 or more")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} with {self.heads} heads: use a multiple of {2 * self.heads}"
            )


class Past:
    """A KV cache of rows' tokens (windows see those before `starts` ``[B, W]``) and of windows."""

    def __init__(self, context: ContextCache, starts: Tensor) -> None:
        """Begin with only the context."""
        self.cache, self.starts, self.num_inputs = context.fork(), starts, 0
        self.num_tokens = context.get_seq_length()


class SlotTransformer(nn.Module):
    """An ordinary causal LM with an embedding of slots, `uniforms`."""

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
        out = self.llama.model(
            inputs_embeds=x,
            position_ids=positions,
            attention_mask=mask.expand(len(x), *mask.shape[-2:])[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

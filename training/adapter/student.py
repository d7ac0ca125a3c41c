"""A causal LM and the adapter being trained on it, for any architecture.

The context runs through the unchanged base weights without gradients. Slots then run through base +
adapter and attend to the context's keys and values.

Letters: B rows, S tokens of a row, Q slots of a row, D width.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from decoders.core.adapter.gating import Delta, Forward, GatedModule
from decoders.core.adapter.module import SlotAdapter
from decoders.core.hf.architecture import Architecture
from decoders.core.hf.checkpoint import is_of_memory
from decoders.core.types import MASKED
from training.adapter.windows import Windows
from training.forward import ATTENTION, additive, head_logits

_CHECKED_TOKENS, _CHECKED_CONTEXT = 9, 5


class ContextCache(DynamicCache):
    """A KV cache of the context, and the context's states before the layer where slots enter."""

    entering: Tensor | None = None

    def fork(self) -> ContextCache:
        """Return a copy to extend, leaving this cache unchanged."""
        other = copy.copy(self)
        other.layers = [copy.copy(layer) for layer in self.layers]
        return other


class Student:
    """Runs contexts and slots of a causal LM.

    With `gated` False the context runs through the adapter too (ungated LoRA, an ablation). The
    context then carries gradients, and its states differ from the base model's.
    """

    def __init__(
        self, module: Any, adapter: SlotAdapter, *, gated: bool = True, teacher: Any = None
    ) -> None:
        """Freeze `module` (on its device, in the dtype to compute in) to train `adapter` on it.

        `teacher` is another causal LM with the same vocabulary, whose picks the adapter learns;
        None: `module` itself. An unsuitable adapter or architecture raises `ValueError`.
        """
        adapter.check_fits(module)
        self.facts = _study(module)
        self.module = module.eval().requires_grad_(False)
        self.other: Any = None
        if teacher is not None:
            _study(teacher)
            sizes = [m.get_output_embeddings().weight.shape[0] for m in (module, teacher)]
            if sizes[0] != sizes[1]:
                raise ValueError(
                    f"the teacher's vocabulary has {sizes[1]} tokens, the model's {sizes[0]}; "
                    "they must share one"
                )
            self.other = teacher.eval().requires_grad_(False)
        self.adapter, self.gated = adapter, gated
        # ids from the whole vocabulary: in half precision, adjacent special tokens round far apart
        num, last = min(_CHECKED_TOKENS, max_row_length(self.facts)), self.facts.vocab_size - 1
        ids = torch.linspace(last / _CHECKED_TOKENS, last, num).long()[None].to(module.device)
        with torch.no_grad():
            expected = module.base_model(input_ids=ids, use_cache=False).last_hidden_state
        self.wrapped = GatedModule(module)
        self.module.set_attn_implementation(ATTENTION)
        self.head = module.get_output_embeddings()
        self.dtype: torch.dtype = module.dtype
        self.device: torch.device = module.device
        # per layer, merging costs in * out * r, and the unmerged delta rows * (in + out) * r
        self.merged = all(a * b < 2048 * (a + b) for a, b in adapter.config.layers.values())
        self._check_states(ids, expected)

    def context(self, ids: Tensor) -> tuple[Tensor, ContextCache]:
        """Return the hidden states ``[B, S, D]`` of right-padded rows, and their KV cache."""
        cache = ContextCache()
        if self.gated:
            with torch.no_grad():
                return self._run_rows(ids, cache), cache
        with self.wrapped.active(self._forward()):
            return self._run_rows(ids, cache), cache

    @torch.no_grad()
    def teacher(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Return the teacher's hidden states ``[B, S, D]`` (`hidden` are those of `context`)."""
        if self.other is not None:
            states: Tensor = self.other.base_model(input_ids=ids, use_cache=False).last_hidden_state
            return states
        return hidden if self.gated else self._run_rows(ids, ContextCache())

    def teacher_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits of the teacher's hidden states."""
        return head_logits((self.other or self.module).get_output_embeddings(), hidden)

    def _run_rows(self, ids: Tensor, cache: ContextCache) -> Tensor:
        length = ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        masks = self._masks(causal.expand(len(ids), -1, -1), length)
        # explicit, because a module would derive other positions from our mask
        positions = torch.arange(length, device=ids.device)[None]
        return self._base(cache, masks, input_ids=ids, position_ids=positions)

    def slots(
        self, cache: ContextCache, embedded: Tensor, positions: Tensor, mask: Tensor
    ) -> Tensor:
        """Return hidden states ``[B, Q, D]`` of embedded slots under `mask` ``[B, Q, S + Q]``."""
        reach = cache.get_seq_length()
        if any(self.facts.windows.values()):  # a block's slots may go past their row
            reach = max(reach, int(positions.max()) + 1)
        with self.wrapped.active(self._forward()):
            return self._base(
                cache.fork(),
                self._masks(mask.to(self.device), reach),
                inputs_embeds=embedded.to(self.dtype),
                position_ids=positions.to(self.device),
            )

    @torch.no_grad()
    def _check_states(self, ids: Tensor, expected: Tensor) -> None:
        """Compare the student's states of a text (its beginning and slots) with the module's.

        A student uses its own masks, positions and attention. If an architecture does more (sinks,
        biases, caps, masks by index), the student would train on states that no decoder produces.
        """
        name, rest = type(self.module).__name__, expected[:, _CHECKED_CONTEXT:]
        line = f"{name} cannot train an adapter of slots: its attention is not plain"
        try:
            # the text's beginning, then two windows of slots that replace the rest
            cache = ContextCache()
            hidden = self._run_rows(ids[:, :_CHECKED_CONTEXT], cache)
            num_rest, length = rest.shape[1], ids.shape[1]
            causal = torch.ones(num_rest, num_rest, dtype=torch.bool).tril()
            both = torch.eye(2, dtype=torch.bool).kron(causal)
            before = torch.ones(2 * num_rest, _CHECKED_CONTEXT, dtype=torch.bool)
            embedded = self.module.get_input_embeddings()(ids[:, _CHECKED_CONTEXT:])
            slots = self._base(
                cache,
                self._masks(torch.cat([before, both], -1)[None], length),
                inputs_embeds=embedded.repeat(1, 2, 1),
                position_ids=torch.arange(_CHECKED_CONTEXT, length).repeat(2)[None].to(ids),
            )
            gap = torch.cat([hidden, slots], 1) - torch.cat([expected, rest], 1)
        except Exception as error:
            if is_of_memory(error):
                raise
            reason = str(error).partition("\n")[0] or type(error).__name__
        else:
            relative = (gap.float().norm() / expected.float().norm()).item()
            if relative < (1e-3 if expected.dtype == torch.float32 else 0.1):
                return
            reason = f"its states differ by {relative:.1%}"
        raise ValueError(f"{line} ({reason}); train medusa or eagle")

    def states(self, cache: Any, u: Tensor, windows: Windows) -> Tensor:
        """Return the hidden states ``[B, Q, D]`` of windows' slots that carry u ``[B, Q]``."""
        return self.slots(cache, self.embed(u, windows), windows.position, windows.mask())

    def embed(self, u: Tensor, windows: Windows) -> Tensor:
        """Return the slots' inputs ``[B, Q, D]`` for u ``[B, Q]`` or the tokens of blocks."""
        number = windows.slot(self.adapter.config.variant)
        tokens, anchors, shown = self.module.get_input_embeddings(), None, None
        if self.adapter.config.anchored:
            before = windows.ids.gather(1, (windows.start - 1).clamp(min=0))
            anchors = tokens(before).flatten(0, 1)
        if windows.blocks is not None:
            of_slots = windows.blocks.shown.flatten()
            shown = tokens(of_slots.clamp(min=0)), of_slots != MASKED
        flat = self.adapter.embed(
            u.flatten(), windows.warp.flatten(0, 1), number.flatten(), anchors, shown
        )
        return flat.view(*u.shape, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits of hidden states."""
        return head_logits(self.head, hidden)

    @torch.no_grad()
    def merge(self) -> Any:
        """Add the deltas to the module's weights permanently, and return the module."""
        for layer, weight in zip(self.wrapped.layers, self._merged(), strict=True):
            layer.weight.copy_(weight)
        self.module.set_attn_implementation("eager")
        return self.module

    def _merged(self) -> list[Tensor]:
        """Return ``W + B A`` ``[in, out]`` of every layer, merged in float32."""
        factors = self.adapter.factors(torch.float32)
        merged = []
        for layer in self.wrapped.layers:
            weight = layer.weight
            if (pair := factors.get(layer.name)) is not None:
                weight = weight.float() + Delta(*pair).whole.t()
            merged.append(weight.to(self.dtype))
        return merged

    def _forward(self) -> Forward:
        """Return what layers compute with an open gate."""
        layers = self.wrapped.layers
        if self.merged:
            weights = self._merged()
            return lambda index, x: F.linear(x, weights[index].t(), layers[index].bias)
        factors = self.adapter.factors(self.dtype)

        def forward(index: int, x: Tensor) -> Tensor:
            out = layers[index].plain(x)
            if (pair := factors.get(layers[index].name)) is None:
                return out
            return out + Delta(*pair).rows(x)

        return forward

    def _base(self, cache: ContextCache, mask: Any, **fed: Any) -> Tensor:
        out = self.module.base_model(
            attention_mask=mask, past_key_values=cache, use_cache=True, **fed
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    def _masks(self, seen: Tensor, reach: int) -> Any:
        """Return additive masks ``[B, 1, N, T]``, one per kind of layer if there are several.

        If a sliding window hides part of a row of `reach` tokens, raise `ValueError`.
        """
        limit = max_row_length(self.facts)
        if limit < min(reach, self.facts.max_length):
            raise ValueError(
                f"rows of {reach} tokens exceed the model's sliding window of {limit}; use [data] "
                f"that is cut into rows, with data.max_tokens at most {limit}"
            )
        added = additive(~seen.to(self.device), self.dtype)[:, None]
        kinds = self.facts.windows
        return added if len(kinds) == 1 else dict.fromkeys(kinds, added)


def _study(module: Any) -> Architecture:
    facts = Architecture.of(module, DynamicCache())
    if not facts.reads_hidden:
        raise ValueError(
            f"{type(module).__name__} does more to its logits than a linear head; "
            "adapters are trained on plain heads only"
        )
    return facts


def max_row_length(facts: Architecture) -> int:
    """Return the length of the longest row that every layer of a model sees in full."""
    return min([facts.max_length, *filter(None, facts.windows.values())])


def gather_rows(states: Tensor, indices: Tensor) -> Tensor:
    """Return the states ``[B, S, D]`` of each row at its `indices` ``[B, Q]``, ``[B, Q, D]``."""
    return states.gather(1, indices[..., None].expand(-1, -1, states.shape[-1]))

"""Train an adapter on a causal LM of any architecture.

The context runs through the unchanged base weights without gradients. Slots then run through base +
adapter and attend to the context's keys and values. Both run by the function of `hf.llama`, or
through transformers' modules where it lacks the architecture.

Letters: B rows, S tokens of a row, Q slots of a row, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from decoders.core.adapter.gating import Change, Delta, GatedModule, layer_weight
from decoders.core.adapter.module import SlotAdapter
from decoders.core.hf import llama
from decoders.core.hf.architecture import Architecture
from decoders.core.hf.checkpoint import is_of_memory
from decoders.core.hf.layout import Masks
from decoders.core.masks import causal
from decoders.core.types import MASKED
from training.adapter.windows import Windows
from training.forward import ATTENTION, additive, attend, head_logits, last_states

_CHECKED_TOKENS, _CHECKED_CONTEXT = 9, 5


class ContextCache(DynamicCache):
    """Hold a context's KV cache, and the context's states before the layer where slots enter."""

    entering: Tensor | None = None

    def fork(self, first: int = 0) -> ContextCache:
        """Return a copy of the layers from `first` on to extend, leaving this cache unchanged."""
        other = copy.copy(self)
        other.layers = [copy.copy(layer) for layer in self.layers[first:]]
        return other


@dataclass(frozen=True, slots=True)
class _Deltas(Delta):
    """Join the deltas of layers that share an input: the As, and the Bs with `sizes` outputs."""

    sizes: Sequence[int]

    def rows(self, x: Tensor) -> Tensor:
        """Return ``B A x`` of the layers side by side (a block diagonal of Bs would cost more)."""
        highs = self.high.split(self.sizes)  # type: ignore[no-untyped-call]
        assert self.low is not None
        parts = F.linear(x, self.low).chunk(len(highs), -1)
        return torch.cat([F.linear(*pair) for pair in zip(parts, highs, strict=True)], -1)


class Student:
    """Run contexts and slots of a causal LM."""

    def __init__(self, module: Any, adapter: SlotAdapter, *, teacher: Any = None) -> None:
        """Freeze `module` (on its device, in the dtype to compute in) to train `adapter` on it.

        `teacher` is another causal LM with the same vocabulary, whose picks the adapter learns;
        None: `module` itself. An unsuitable adapter or architecture raises `ValueError`.
        """
        adapter.check_fits(module)
        self.facts, self.enter = _architecture(module), adapter.config.enter
        self.module = module.eval().requires_grad_(False)
        self.other: Any = None
        if teacher is not None:
            _architecture(teacher)
            sizes = [m.get_output_embeddings().weight.shape[0] for m in (module, teacher)]
            if sizes[0] != sizes[1]:
                raise ValueError(
                    f"the teacher's vocabulary has {sizes[1]} tokens, the model's {sizes[0]}; "
                    "they must share one"
                )
            self.other = teacher.eval().requires_grad_(False)
        self.adapter = adapter
        # ids from the whole vocabulary: in half precision, adjacent special tokens round far apart
        num, last = min(_CHECKED_TOKENS, max_row_length(self.facts)), self.facts.vocab_size - 1
        ids = torch.linspace(last / _CHECKED_TOKENS, last, num).long()[None].to(module.device)
        with torch.no_grad():
            expected = last_states(module, input_ids=ids)
        self.weights = llama.join_weights(module)
        if self.weights is not None:
            self.weights = replace(self.weights, attend=attend)
            upper = self.weights.layers[self.enter :]
            self.linears = [part for layer in upper for part in layer.linears]
        elif self.enter:
            raise ValueError(
                f"adapter.enter is {self.enter}; in {type(module).__name__} slots can only be "
                f"trained from the first layer on, use 0 (or one of {', '.join(llama.FAMILY)})"
            )
        else:
            self.wrapped = GatedModule(module)
            layers: Mapping[str, Any] = self.wrapped.layers
            self.linears = [
                llama.Linear([name], [len(weight)], weight, layer.bias)
                for name, layer in layers.items()
                for weight in [layer_weight(layer).t()]
            ]
            module.set_attn_implementation(ATTENTION)
        self.head = module.get_output_embeddings()
        self.dtype: torch.dtype = module.dtype
        self.device: torch.device = module.device
        # merged deltas cost the whole weight's gradient, in * out per row; others cost three
        # products of (in + out) * r, which are thin and therefore a third slower
        rank, shapes = adapter.config.rank, list(adapter.config.layers.values())
        self.merged = sum(a * b for a, b in shapes) < 4 * rank * sum(map(sum, shapes)) or not rank
        self._check_states(ids, expected)

    @torch.no_grad()
    def context(self, ids: Tensor) -> tuple[Tensor, ContextCache]:
        """Return the hidden states ``[B, S, D]`` of right-padded rows, and their KV cache.

        If a sliding window hides part of a row, raise `ValueError`.
        """
        length, cache, ids = ids.shape[1], ContextCache(), ids.to(self.device)
        limit = max_row_length(self.facts)
        if limit < min(length, self.facts.max_length):
            raise ValueError(
                f"rows of {length} tokens exceed the model's sliding window of {limit}; use [data] "
                f"that is cut into rows, with data.max_tokens at most {limit}"
            )
        masks = self._masks(causal(length).expand(len(ids), -1, -1))
        positions = torch.arange(length, device=ids.device)[None]
        rows, states = self.module.get_input_embeddings()(ids), dict.fromkeys([self.enter])
        hidden = self._run(rows, positions, masks, cache, (), states)
        cache.entering = states[self.enter]
        return hidden, cache

    @torch.no_grad()
    def teacher(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Return the teacher's hidden states ``[B, S, D]`` (`hidden` are those of `context`)."""
        return hidden if self.other is None else last_states(self.other, input_ids=ids)

    def teacher_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits of the teacher's hidden states."""
        return head_logits((self.other or self.module).get_output_embeddings(), hidden)

    def slots(self, cache: ContextCache, entering: Tensor, positions: Tensor, mask: Any) -> Tensor:
        """Return hidden states ``[B, Q, D]`` of slots.

        Args:
            cache: the context's, which stays unchanged.
            entering: the slots' inputs ``[B, Q, D]`` of the layer that they enter.
            positions: ``[B, Q]``.
            mask: what slots see, as `Windows.mask` or `Windows.masks` returns it.
        """
        deltas = self.adapter.deltas(torch.float32 if self.merged else self.dtype)

        def change(part: llama.Linear) -> Change:
            parts = [deltas[name] for name in part.names]
            lows = [each.low for each in parts if each.low is not None]
            if self.merged or not lows:
                whole = torch.cat([each.whole for each in parts])
                return (part.weight + whole).to(self.dtype)
            if len(parts) == 1:
                return parts[0]
            return _Deltas(torch.cat(lows), torch.cat([each.high for each in parts]), part.sizes)

        fed = entering.to(self.dtype), positions.to(self.device), self._masks(mask)
        return self._run(*fed, cache.fork(self.enter), [change(part) for part in self.linears])

    def _run(
        self,
        rows: Tensor,
        positions: Tensor,
        masks: Masks,
        cache: Any,
        changes: Sequence[Change],
        states: Any = None,
    ) -> Tensor:
        """Return hidden states ``[B, N, D]`` of rows, all with `changes` of `linears`, if any."""
        if self.weights is not None:
            weights, gate = self.weights, None
            if changes:
                gate = llama.SlotGate([changes[n : n + 4] for n in range(0, len(changes), 4)], None)
                weights = replace(weights, layers=weights.layers[self.enter :])
            return llama.forward(weights, rows, positions, masks, cache, gate=gate, states=states)

        def forward(index: int, x: Tensor) -> Tensor:
            return llama.linear(x, self.linears[index], changes[index], None)

        with self.wrapped.active(forward) if changes else nullcontext():
            # positions are explicit, because a module would derive others from our mask
            mask = masks if len(masks) > 1 else next(iter(masks.values()))
            fed = {"position_ids": positions, "attention_mask": mask}
            return last_states(self.module, cache, inputs_embeds=rows, **fed)

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
            hidden, cache = self.context(ids[:, :_CHECKED_CONTEXT])
            num_rest, length = rest.shape[1], ids.shape[1]
            both = torch.eye(2, dtype=torch.bool).kron(causal(num_rest))
            before = torch.ones(2 * num_rest, _CHECKED_CONTEXT, dtype=torch.bool)
            embedded = self.module.get_input_embeddings()(ids[:, _CHECKED_CONTEXT:])
            positions = torch.arange(_CHECKED_CONTEXT, length).repeat(2)[None].to(ids)
            masks = self._masks(torch.cat([before, both], -1)[None])
            slots = self._run(embedded.repeat(1, 2, 1), positions, masks, cache, ())
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

    def states(self, cache: ContextCache, u: Tensor, windows: Windows) -> Tensor:
        """Return the hidden states ``[B, Q, D]`` of windows' slots that carry u ``[B, Q]``."""
        x, entering = self.embed(u, windows), cache.entering
        if entering is not None:
            before = gather_rows(entering, (windows.start - 1).clamp(min=0)).to(x.dtype)
            number = windows.slot(self.adapter.config.variant).flatten()
            flat = self.adapter.entering(x.flatten(0, 1), number, before.flatten(0, 1))
            x = flat.view(before.shape)
        by_window = windows.stride and self.weights is not None
        mask = windows.masks() if by_window else windows.mask()
        return self.slots(cache, x, windows.position, mask)

    def embed(self, u: Tensor, windows: Windows) -> Tensor:
        """Return the slots' inputs ``[B, Q, D]`` for u ``[B, Q]`` or the tokens of blocks."""
        adapter, tokens = self.adapter, self.module.get_input_embeddings()
        flat = adapter.embedding(u.flatten(), windows.warp.flatten(0, 1))
        embedded: Tensor = flat.view(*u.shape, -1)
        if windows.blocks is not None:
            shown = windows.blocks.shown
            words = tokens(shown.clamp(min=0)).to(embedded.dtype)
            embedded = torch.where((shown != MASKED).unsqueeze(-1), words, embedded)
        number = windows.slot(adapter.config.variant)
        if adapter.numbers is not None:
            embedded = embedded + adapter.numbers[number.clamp(max=len(adapter.numbers) - 1)]
        if adapter.config.anchored:
            before = tokens(windows.ids.gather(1, (windows.start - 1).clamp(min=0)))
            embedded = embedded + before.to(embedded.dtype) * (number == 0).unsqueeze(-1)
        return embedded

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits of hidden states."""
        return head_logits(self.head, hidden)

    def _masks(self, seen: Tensor | tuple[Tensor, Tensor]) -> Masks:
        """Return additive masks ``[B, 1, N, T]``, or pairs of them, by kind of layer."""
        added: Any
        if isinstance(seen, tuple):
            added = tuple(additive(~each, self.dtype) for each in seen)
        else:
            added = additive(~seen.to(self.device), self.dtype)[:, None]
        return dict.fromkeys(self.facts.windows, added)


def _architecture(module: Any) -> Architecture:
    facts = Architecture.of(module)
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

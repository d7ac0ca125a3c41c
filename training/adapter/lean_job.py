"""Trains an adapter with the lean pass: base and teacher run once per row, for many windows.

The loss uses an output head of few words, and compares with the teacher's likeliest tokens only.

Letters: B rows, S tokens of a row, Q slots of a row, W windows of L slots each, N = W L, H query
heads, K key heads, E head size, M slots in the loss, T likeliest tokens of the teacher, U words of
the head, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.module import SlotAdapter
from decoders.core.types import NO_UNIFORM
from training.adapter.job import AdapterJob
from training.adapter.student import ContextCache, Student, gather_rows
from training.adapter.windows import Windows, edges, explain, sources
from training.forward import additive
from training.loop import Piece
from training.text.data import Row, learnt, stored_completions


class LeanStudent(Student):
    """A faster `Student`, whose slots may also enter above the first layer.

    All windows have the same length (`draw_windows` with a stride), so attention is two products:
    of all slots with the context, and of each window with itself.
    """

    def __init__(self, module: Any, adapter: SlotAdapter) -> None:
        """Freeze `module`, a Llama in float32 or bfloat16 (others raise `ValueError`)."""
        if not adapter.config.rank or adapter.config.standalone:
            raise ValueError(
                "run.lean trains low-rank adapters that are not standalone; set adapter.rank to "
                "1 or above and adapter.standalone = false, or run.lean = false"
            )
        if type(module).__name__ != "LlamaForCausalLM":
            raise ValueError(
                f"{type(module).__name__} cannot be trained by run.lean: it is for Llama models; "
                "set run.lean = false"
            )
        super().__init__(module, adapter)
        self.merged = False  # many layers, few slots per window
        base, enter = module.base_model, adapter.config.enter
        layers = list(base.layers)
        self._upper = copy.copy(base)
        self._upper._modules = {**base._modules, "layers": nn.ModuleList(layers[enter:])}
        self._entering: Tensor | None = None
        layers[enter].register_forward_pre_hook(self._note)

    def _note(self, _: Any, args: tuple[Tensor, ...]) -> None:
        self._entering = args[0]

    def context(self, ids: Tensor) -> tuple[Tensor, ContextCache]:
        """Cache a context (`Student.context`) and the inputs of the layer where slots enter."""
        hidden, cache = super().context(ids.to(self.device))
        cache.entering, self._entering = self._entering, None
        return hidden, cache

    def states(self, cache: ContextCache, u: Tensor, windows: Windows) -> Tensor:
        """See `Student.states`."""
        assert windows.stride, "the lean pass needs windows that are drawn with a stride"
        batch, num_slots = windows.index.shape
        shape = (batch, num_slots // windows.stride, windows.stride)
        x = self.embed(u, windows)
        if self.adapter.config.enter:
            assert cache.entering is not None
            before = gather_rows(cache.entering, (windows.start - 1).clamp(min=0)).to(x.dtype)
            number = windows.slot(self.adapter.config.variant).flatten()
            entering = self.adapter.entering(x.flatten(0, 1), number, before.flatten(0, 1))
            x = entering.view(before.shape)
        # additive masks for the context [B, W, S] and for windows [B, W, L, L]
        start = windows.start.view(shape)[..., 0].clamp(min=1)
        tokens, number = torch.arange(windows.ids.shape[1]).to(start), windows.number.view(shape)
        same = number[..., None] == number[..., None, :]
        if windows.blocks is None:
            same &= torch.ones(shape[2], shape[2], dtype=torch.bool, device=start.device).tril()
        hides = tokens >= start[..., None], ~same
        masks = additive(hides[0], self.dtype), additive(hides[1], self.dtype)
        with self.wrapped.active(self._forward()):
            out = self._upper(
                inputs_embeds=x.to(self.dtype),
                position_ids=windows.position,
                attention_mask=x.new_empty((batch, 1, 1, 1)),  # stops transformers making masks
                past_key_values=cache.fork(),
                use_cache=True,
                windows=partial(attend_windows, masks=masks),
            )
        hidden: Tensor = out.last_hidden_state
        return hidden


def attend_windows(
    query: Tensor, key: Tensor, value: Tensor, scale: float, masks: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the attention ``[B, N, H, E]`` of slots to the context and to their own windows.

    Queries are ``[B, H, N, E]``; keys and values are ``[B, K, S + N, E]``, the context's first. The
    additive `masks` are ``[B, W, S]`` for the context and ``[B, W, L, L]`` for windows. Query heads
    that share a key head are rows of one matrix product.
    """
    (batch, windows, slots, _), length = masks[1].shape, masks[0].shape[2]
    heads, groups, size = query.shape[1], key.shape[1], query.shape[3]
    share = heads // groups
    q = query.reshape(batch, groups, share, windows, slots, size).permute(0, 1, 3, 4, 2, 5)
    q = q.reshape(batch * groups, windows * slots * share, size)
    far_key, far_value = (part[:, :, :length].flatten(0, 1) for part in (key, value))
    k, v = (part[:, :, length:].reshape(-1, slots, size) for part in (key, value))
    far = torch.baddbmm(q.new_empty(()), q, far_key.mT, beta=0, alpha=scale)
    near = torch.baddbmm(
        q.new_empty(()), q.reshape(-1, slots * share, size), k.mT, beta=0, alpha=scale
    )
    far.view(batch, groups, windows, -1, length).add_(masks[0][:, None, :, None])
    near.view(batch, groups, windows, slots, share, slots).add_(masks[1][:, None, :, :, None])
    seen = torch.cat([far, near.view(len(far), -1, slots)], -1).softmax(-1)
    near_values = torch.bmm(seen[..., length:].reshape(len(near), -1, slots), v)
    mixed = torch.bmm(seen[..., :length], far_value) + near_values.view(q.shape)
    mixed = mixed.view(batch, groups, windows, slots, share, size).permute(0, 2, 3, 1, 4, 5)
    return mixed.reshape(batch, windows * slots, heads, size)


GREEDY_TEMPERATURE = 0.7
"""Temperature of the compared distributions where the text is greedy."""
Top = tuple[Tensor, Tensor]
"""The teacher's likeliest tokens, int64 ``[M, T]`` in descending order, and their logits."""


class WordHead:
    """The rows of an output head for frequent words, and for the words that a batch needs."""

    def __init__(self, weight: Tensor, words: Tensor) -> None:
        """Take `weight` ``[V, D]`` and distinct int64 `words` (empty: all)."""
        self.weight, self.words = weight, words.sort().values
        self._index = torch.full((len(weight),), -1, device=weight.device)
        self._index[self.words] = torch.arange(len(self.words), device=weight.device)

    def of(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows ``[U, D]`` that include all words `words`, and the indices of these words."""
        if not len(self.words):
            return self.weight, words
        missing = torch.unique(words[self._index[words] < 0])
        index, first = self._index.clone(), len(self.words)
        index[missing] = torch.arange(first, first + len(missing), device=index.device)
        return self.weight[torch.cat([self.words, missing])], index[words]


def taught_loss(
    states: Tensor,
    rows_of: Callable[[Tensor], tuple[Tensor, Tensor]],
    target: Tensor,
    top: Top | None,
    temperature: Tensor,
    weight: Tensor,
    *,
    label_share: float | Tensor,
) -> Tensor:
    """Return the summed loss of slots with final hidden states ``[M, D]``.

    The loss mixes cross-entropy with the teacher's distribution and cross-entropy with labels
    (`target` ``[M]``, by `label_share`, one number or ``[M]``). Without `top`, it uses labels only.
    Distributions are at the slots' temperatures ``[M]``: the student's over the head's words (see
    `WordHead.of`), the teacher's over its T likeliest tokens. Each slot has a weight ``[M]``.
    """
    words = target[:, None] if top is None else torch.cat([target[:, None], top[0]], 1)
    rows, index = rows_of(words)
    logits = F.linear(states, rows).float()
    soft = None if top is None else top[1]
    return mixed_loss(logits, index, soft, temperature, weight, label_share=label_share)


def mixed_loss(
    logits: Tensor,
    index: Tensor,
    top: Tensor | None,
    temperature: Tensor,
    weight: Tensor,
    *,
    label_share: float | Tensor,
) -> Tensor:
    """Return `taught_loss` of logits ``[M, U]``.

    `index` ``[M, 1 + T]`` are the words of the label and of the teacher's likeliest tokens, whose
    logits are `top` ``[M, T]``.
    """
    logs = (logits / temperature[:, None]).log_softmax(-1)
    values = logs.gather(1, index)
    labels = -values[:, 0]
    if top is None:
        return (labels * weight).sum()
    distribution = (top / temperature[:, None]).softmax(-1)
    soft = -(distribution * values[:, 1:]).sum(-1)
    return (((1 - label_share) * soft + label_share * labels) * weight).sum()


_CHUNK, _CHUNK_ON_GPU = 256, 4096  # tokens whose logits are in memory at a time


class LeanJob(AdapterJob):
    """An `AdapterJob` with the lean pass and its loss, on rows with their sampling temperature."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        """Take the arguments of `AdapterJob` (data other than completions raise `ValueError`)."""
        super().__init__(*parts, **options)
        words = stored_completions(self.source, "run.lean").frequent(self.run.head_words)
        weight = self.student.head.weight
        self.head = WordHead(weight, torch.tensor(words, dtype=torch.int64, device=weight.device))

    def _piece(self, rows: Sequence[Row], windows: Windows) -> Piece | None:
        student, variant, run = self.student, self.student.adapter.config.variant, self.run
        windows = windows.to(student.device)
        hidden, cache = student.context(windows.ids)
        if windows.blocks is not None:
            u = torch.full_like(windows.noise, NO_UNIFORM)
            target, usable, top = windows.blocks.target, windows.blocks.learn, None
        else:
            mask = learnt(rows).to(windows.ids.device)
            temperature = torch.tensor([row.temperature or 1.0 for row in rows]).to(mask.device)
            facts, (ids, logits) = ask_teacher(
                *(student.teacher_logits, windows.ids, hidden, mask),
                *(temperature, run.teacher_top),
            )
            before = sources(windows, variant)
            likeliest, left, mass = (fact.gather(1, before) for fact in facts)
            u, target, usable = explain(windows, likeliest, left, mass, variant)
            row, slot = usable.nonzero().unbind(1)
            at = row, windows.index[row, slot]
            top = ids[at], logits[at]
        count = int(usable.sum())
        if not count:
            return None
        loss = taught_loss(
            student.states(cache, u, windows)[usable],
            self.head.of,
            target[usable],
            None if run.objective == "one-hot" else top,
            torch.where(windows.greedy, GREEDY_TEMPERATURE, windows.warp[..., 0])[usable],
            torch.exp(-windows.slot(variant)[usable] * run.position_decay),
            label_share=run.label_share,
        )
        return loss, count, int((windows.number >= 0).sum())


@torch.no_grad()
def ask_teacher(
    read: Callable[[Tensor], Tensor],
    ids: Tensor,
    hidden: Tensor,
    mask: Tensor,
    temperature: Tensor,
    num_top: int,
) -> tuple[tuple[Tensor, Tensor, Tensor], Top]:
    """Compute the teacher's distributions once per token of `ids` ``[B, S]``, for all windows.

    `read` computes logits from the hidden states ``[B, S, D]``. `mask` is a mask ``[B, S]`` of the
    tokens to compute, never the first of a row. `temperature` ``[B]`` is that of each row's windows
    (1 if greedy). Return, ``[B, S]`` each, the teacher's argmax for each token, and the left edge
    and width of the token's interval (float64); and the teacher's likeliest tokens and their
    logits, ``[B, S, num_top]``. Values of tokens outside `mask` are 0.
    """
    likeliest, left = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.float64)
    mass = torch.zeros_like(left)
    top_ids = torch.zeros(*ids.shape, num_top, dtype=torch.int64, device=ids.device)
    top_logits = torch.zeros(*ids.shape, num_top, device=ids.device)
    for chunk in torch.split(mask.nonzero(), _CHUNK_ON_GPU if ids.is_cuda else _CHUNK):
        row, index = chunk.unbind(1)
        logits = read(hidden[row, index - 1])
        top = logits.topk(num_top)
        warp = torch.stack([temperature[row], torch.ones_like(temperature[row])], 1)
        left[row, index], mass[row, index] = edges(logits, ids[row, index], warp, 0)
        likeliest[row, index] = top.indices[:, 0]
        top_ids[row, index], top_logits[row, index] = top.indices, top.values
    return (likeliest, left, mass), (top_ids, top_logits)

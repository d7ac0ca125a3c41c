"""Train adapters of a frozen causal LM's hidden states: losses, held-out report, export.

Head h (from 0) reads the hidden state at index t, from which the target predicts token t + 1, and
learns token t + 2 + h. The target runs without gradients, and its output head is reused unchanged.

A draft layer is fed with its own states as in decoding. Depth d (from 0) at token t drafts token t
+ 2 + d. The layer is fed the target's states up to t and then d of its own states, joined with the
true tokens. A row sees the text's rows up to t and the layer's own earlier rows (training-time test
of EAGLE-3, arXiv 2503.01840). The layer learns the target's distribution of the drafted token.

Letters: B rows, T tokens of a row, M states in the loss, H heads, D hidden width, E width of an
attention head, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.draft_pass import short_head
from decoders.core.adapter.heads import DraftHeads
from training.forward import head_logits
from training.heads.recipe import HeadsRunTable
from training.loop import JudgedJob, Piece, Report, muon_and_adamw
from training.reporter import Reporter, TrainingProgress
from training.text.data import PoolSource, Row, groups, learnt, padded
from training.text.sources import Source

NONE = -100
"""Target of a head without a learnt token that far ahead."""
_OF_SLOTS = ("anchors_per_row", "position_decay", "teacher_top", "label_share")


class HiddenJob(JudgedJob):
    """Train an adapter that reads the same last hidden state as the target's output head."""

    matrices: Sequence[str] = ()  # that Muon updates
    unread: Sequence[str] = ("muon_lr", "keep_states", *_OF_SLOTS)  # recipes cannot set these

    def __init__(
        self, module: Any, heads: Any, source: Source, run: HeadsRunTable, reporter: Reporter
    ) -> None:
        self.module, self.trained = module.eval().requires_grad_(False), heads
        self.heads, self.source, self.run, self.reporter = heads, source, run, reporter
        self._head = self._whole_head = module.get_output_embeddings()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return AdamW for all weights of the adapter, or with `muon_lr` Muon for `matrices`."""
        if self.run.muon_lr is not None:
            parts = self.heads.named_parameters()
            matrices = (part for name, part in parts if name.split(".")[0] in self.matrices)
            return muon_and_adamw(self.heads, matrices, self.run)
        return [torch.optim.AdamW(self.heads.parameters(), lr=self.run.adamw_lr, betas=(0.9, 0.95))]

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield the losses of a step's groups, each in pieces that bound the logits in memory."""
        for group in self._groups(self.source.rows(progress.step)):
            tokens = sum(len(row.ids) for row in group)
            for loss, num in self._losses(group):
                yield loss, num, tokens
                tokens = 0  # count the group's tokens once

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Yield groups of rows whose logits do not exceed the limit of a piece."""
        max_tokens = self.run.max_logits // (self.heads.config.num_slots * len(self._head.weight))
        return groups(rows, max(1, min(self.run.max_tokens, max_tokens)))

    def _batch(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Return ids ``[B, T]`` and `head_targets` ``[B, T, H]`` of rows."""
        ids, device = padded(rows), next(self.heads.parameters()).device
        targets = head_targets(rows, self.heads.config.num_slots)
        return ids.to(device), targets.to(device)

    def _states(self, ids: Tensor, layers: Sequence[int] = ()) -> list[Tensor]:
        """Return the target's last hidden states ``[B, T, D]``, then the states of `layers`."""
        how = {"output_hidden_states": bool(layers), "use_cache": False}
        out = self.module.base_model(input_ids=ids, **how)
        return [out[0].float(), *(out.hidden_states[layer].float() for layer in layers)]

    def _losses(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, int]]:
        """Yield the depth-weighted loss, against the target's distribution or text, and counts."""
        for logits, targets, truth in self._drafted(rows):
            counts = targets != NONE
            if truth is None:
                pair = logits.flatten(0, 1), targets.flatten()
                losses = F.cross_entropy(*pair, ignore_index=NONE, reduction="none")
                losses = losses.view(targets.shape)
            else:
                losses = -(truth.softmax(-1) * logits.log_softmax(-1)).sum(-1)
            depths = torch.arange(targets.shape[1], device=losses.device)
            yield (losses * counts * self.run.head_decay**depths).sum(), int(counts.sum())

    def _drafted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Yield logits ``[M, H, W]``, `head_targets` ``[M, H]``, and target logits if learnt.

        Each item covers some of the states. With None as the target's logits, the text is learnt.
        """
        raise NotImplementedError

    def _indices(self, targets: Tensor) -> Tensor:
        """Return the indices of tokens among the W words of the logits (negative: not included)."""
        return targets

    @torch.no_grad()
    def held_out(self) -> HeldOut | ByKind:
        """Return the report on held-out rows."""
        rows = self.source.held_out(self.run.eval_rows)
        hits, masks = [], []
        for group in self._groups(rows):
            for logits, targets, _ in self._drafted(group):
                hits.append((logits.argmax(-1) == self._indices(targets)).cpu())
                masks.append((targets != NONE).cpu())
        return HeldOut.of(torch.cat(hits), torch.cat(masks), len(rows))


class HeadsJob(HiddenJob):
    """Train heads that each read the target's state and learn the text's token."""

    heads: DraftHeads

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        return groups(rows, self.run.max_tokens)

    def _drafted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor, None]]:
        with torch.no_grad():
            ids, targets = self._batch(rows)
            counts = (targets != NONE).any(-1)
            states, labels = self._states(ids)[0][counts], targets[counts]
        size = max(1, self.run.max_logits // (targets.shape[-1] * len(self._head.weight)))
        for some, targets in zip(torch.split(states, size), torch.split(labels, size), strict=True):
            yield head_logits(self._head, self.heads(some)), targets, None


def head_targets(rows: Sequence[Row], num_heads: int) -> Tensor:
    """Return each head's target at each index (`NONE`: not learnt), int64 ``[B, T, H]``.

    The target of head h is the token 2 + h positions later. An index has targets only if the
    next token is in an answer, because states inside a prompt draft nothing.
    """
    mask = learnt(rows)
    tokens = F.pad(padded(rows).where(mask, NONE), (0, 2 + num_heads), value=NONE)
    targets = tokens[:, 2:].unfold(1, num_heads, 1)[:, : mask.shape[1]]
    return targets.where(F.pad(mask, (0, 1))[:, 1:, None], NONE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Report):
    """Hold the held-out accuracy of heads for ``adapter.json``, by head and for leading tokens.

    `places` counts hidden states.
    """

    rows: int
    places: int
    accuracy: list[float]
    leading: float

    @classmethod
    def of(cls, hits: Tensor, mask: Tensor, rows: int) -> HeldOut:
        """Return the report of right drafts ``[M, H]``.

        `mask` ``[M, H]`` marks existing targets; a run of leading tokens ends where these do.
        """
        hits = hits & mask
        shares = (hits.sum(0) / mask.sum(0).clamp(min=1)).tolist()
        runs = hits.long().cumprod(-1).sum(-1).double()
        return cls(
            rows=rows,
            places=len(hits),
            accuracy=[round(share, 4) for share in shares],
            leading=round(runs.mean().item(), 3) if len(runs) else 0.0,
        )

    @property
    def score(self) -> float:
        """Return the mean number of leading right drafts."""
        return self.leading

    def summary(self) -> str:
        """Return one line for the terminal."""
        shown = " ".join(f"{value:.2f}" for value in self.accuracy)
        leading = f"leading correct of {len(self.accuracy)}: {self.leading:.2f}"
        return f"{leading}; accuracy by head {shown}"


@dataclasses.dataclass(frozen=True, slots=True)
class ByKind(Report):
    """Hold held-out reports of greedy and of sampled text, each empty without such text."""

    greedy: HeldOut
    sampled: HeldOut

    @property
    def score(self) -> float:
        """Return the leading right drafts, averaged over the kinds of text that exist."""
        scores = [kind.leading for kind in (self.greedy, self.sampled) if kind.places]
        return sum(scores) / max(1, len(scores))

    def summary(self) -> str:
        """Return one line for the terminal."""
        return f"greedy: {self.greedy.summary()}; sampled: {self.sampled.summary()}"


_KEPT_DTYPES = {torch.float32: torch.float16, torch.int64: torch.int32}
_Compute = Callable[[Sequence[Row], Tensor], Sequence[Tensor]]


class LayerJob(HiddenJob):
    """Train a draft layer, with all depths of a group of rows in one piece."""

    heads: DraftLayer
    matrices: Sequence[str] = ("join", "attention", "attention_out", "feed", "feed_out")
    unread: Sequence[str] = _OF_SLOTS

    def __init__(self, module: Any, heads: DraftLayer, source: Source, *parts: Any) -> None:
        """Prepare a `HiddenJob`, with the answers' most frequent words if words are limited."""
        super().__init__(module, heads, source, *parts)
        self._kept: dict[tuple[Any, ...], list[Tensor]] = {}
        if num := heads.config.num_words:  # the most frequent ids, then the lowest other ids
            frequent = source.frequent(num) if isinstance(source, PoolSource) else []
            every = dict.fromkeys([*frequent, *range(len(self._whole_head.weight))])
            heads.words.copy_(torch.tensor(sorted([*every][:num])))
            self._head = short_head(self._whole_head, heads.words)

    def _indices(self, targets: Tensor) -> Tensor:
        if not self.heads.config.num_words:
            return targets
        index = targets.new_full((len(self._whole_head.weight),), NONE)
        index[self.heads.words] = torch.arange(len(self.heads.words), device=index.device)
        return index[targets.clamp(min=0)].where(targets != NONE, NONE)

    def _compute(self, rows: Sequence[Row], ids: Tensor, compute: _Compute) -> list[Tensor]:
        """Return the tensors ``[B, T, …]`` that `compute` computes for rows.

        Padding is arbitrary. With `keep_states`, `compute` runs once per row, whose tensors stay
        in half precision.
        """
        if not self.run.keep_states:
            return list(compute(rows, ids))
        keys = [(row.temperature, *row.ids) for row in rows]
        missing = [n for n, key in enumerate(keys) if key not in self._kept]
        # on a CPU one by one: beside other rows, as after a stop, a row is rounded otherwise
        for some in [missing] * bool(missing) if ids.is_cuda else [[n] for n in missing]:
            length = max(len(rows[n].ids) for n in some)
            tensors = compute([rows[n] for n in some], ids[some, :length])
            for place, n in enumerate(some):
                parts = (each[place, : len(rows[n].ids)] for each in tensors)
                self._kept[keys[n]] = [
                    each.to(_KEPT_DTYPES.get(each.dtype, each.dtype), copy=True) for each in parts
                ]
        columns = zip(*(self._kept[key] for key in keys), strict=True)
        wide = (pad_sequence(list(each), batch_first=True) for each in columns)
        return [each.float() if each.dtype == torch.float16 else each for each in wide]

    def _drafted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        depths = self.heads.config.num_slots
        ids, targets = self._batch(rows)
        counts = (targets != NONE).any(-1)
        with torch.no_grad():
            (hidden,) = self._compute(rows, ids, lambda _, ids: self._states(ids))
            embedded = self.module.get_input_embeddings()(ids).float()
            read = head_logits(self._head, hidden)
            truth = torch.stack([_ahead(read, 1 + depth)[counts] for depth in range(depths)], 1)
        states = unrolled(self.heads, hidden, embedded, depths)
        drafted = head_logits(self._head, torch.stack([each[counts] for each in states], 1))
        yield drafted, targets[counts], truth


def unrolled(layer: DraftLayer, hidden: Tensor, embedded: Tensor, depths: int) -> list[Tensor]:
    """Return the layer's states ``[B, T, D]`` at each depth.

    States too near the end of the text are invalid, because the tokens they need do not exist.

    Args:
        layer: the draft layer.
        hidden: the target's states, ``[B, T, D]``.
        embedded: embeddings of the same tokens, ``[B, T, D]``.
        depths: number of tokens to draft, one after another.
    """
    positions = torch.arange(hidden.shape[1], device=hidden.device)
    causal = torch.ones(len(positions), len(positions), dtype=torch.bool).tril_().to(hidden.device)
    states, out = hidden, []
    steps: list[tuple[Tensor, Tensor]] = []
    for depth in range(depths):
        rows = layer.enter(states, _ahead(embedded, 1 + depth))
        query, key, value = layer.project(rows, layer.turn(positions + depth))
        if depth == 0:
            text_keys, text_values = key, value
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:  # attend to the text up to each row, and to the row's earlier depths
            steps.append((key, value))
            scores = (query @ text_keys.transpose(-1, -2)).masked_fill(~causal, float("-inf"))
            step_scores = [(query * each).sum(-1, keepdim=True) for each, _ in steps]
            scale = query.shape[-1] ** -0.5
            chances = (torch.cat([scores, *step_scores], -1) * scale).softmax(-1)
            attended = chances[..., : len(positions)] @ text_values
            for number, (_, each) in enumerate(steps):
                attended = attended + chances[..., len(positions) + number, None] * each
        states = layer.leave(rows, attended)
        out.append(states)
    return out


def _ahead(values: Tensor, by: int) -> Tensor:
    """Return values ``[B, T, D]`` shifted left by `by`, with the first values moved to the end."""
    return values.roll(-by, 1)

"""Train layers that draft in one forward pass, at many places at once, given uniforms if any.

The target and the drafter each run over an answer once. K slots follow each of some random places
("anchors"); they see the text up to the anchor and the anchor's earlier slots. A slot's uniform
lies in the interval of the text's own token (PTP, arXiv 2512.21323), which the slot learns. Greedy
text has no uniforms and is learnt against the target's distribution; so is all text in the control.

Letters: B rows, T tokens of a row, A anchors of a row, K slots of an anchor, D hidden width, R rank
of the bias, W words.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.device import upload
from decoders.core.types import NO_UNIFORM
from training.adapter.lean_job import GREEDY_TEMPERATURE, compute_teacher, teacher_loss
from training.adapter.windows import MIN_MASS
from training.forward import additive, attend, head_logits
from training.heads.job import ByKind, HeldOut, LayerJob
from training.loop import Piece
from training.reporter import TrainingProgress
from training.text.data import Row, groups, learnt, padded


class _SlotBatch(NamedTuple):
    """Hold the slots of a group of rows, ``[B, A, K, …]``.

    The output head reads `features` ``[…, D + R]``, or ``[…, D]`` before a selector, which reads
    the factors of the previous tokens, `left` ``[…, 1, R]``. `inside` marks slots whose `label` is
    in the answer. `usable` marks slots whose label is a word, too, and not nearly impossible.
    `top` holds the target's likely tokens, and their logits at the temperature to learn.
    """

    features: Tensor
    left: Tensor
    label: Tensor
    inside: Tensor
    usable: Tensor
    top: tuple[Tensor, Tensor]


class ParallelJob(LayerJob):
    """Train `ParallelLayers` on a source's rows, each at its sampling temperature."""

    heads: ParallelLayers  # type: ignore[assignment]
    matrices, unread = ("join", "start", "layers"), ("head_decay", "max_logits")

    def __init__(self, *parts: Any) -> None:
        """Initialise as `LayerJob`, with states scaled to the size of the target's."""
        super().__init__(*parts)
        self._generator, rows = torch.Generator(), self.source.rows(0)[:8]
        with torch.no_grad():
            ids = padded(rows).to(self.heads.scale.device)
            seen = self._states(ids)[0][learnt(rows).to(ids.device)]
            self.heads.scale.copy_(seen.square().mean(0).sqrt())

    @functools.cached_property
    def _frozen(self) -> Tensor:
        """Rows of the head for the words ``[W, D]``, plus a column for a bias of the head."""
        weight, bias = self._head.weight, self._head.bias
        parts = [weight] if bias is None else [weight, bias[:, None]]
        return torch.cat(parts, -1).float()

    @property
    def _rows(self) -> Tensor:
        """Frozen rows ``[W, …]``, joined with the drafter's bias unless a selector adds it."""
        if self.heads.num_candidates:
            return self._frozen
        return torch.cat([self._frozen, self.heads.right], -1)

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield `HiddenJob.pieces` with anchors and uniforms that depend only on the step."""
        self._generator.manual_seed(progress.step)
        return super().pieces(progress)

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        return groups(rows, self.run.max_tokens)

    def _losses(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, int]]:
        slots, run, device = self._slots(rows), self.run, self.heads.scale.device
        depths = torch.arange(slots.label.shape[-1], device=device)
        weight = slots.usable * torch.exp(-run.position_decay * depths)
        control = self.heads.config.code == "constant"
        share = [run.label_share if control or row.temperature == 0 else 1.0 for row in rows]
        label_share = upload(share, device, torch.float32)[:, None, None].expand_as(weight)
        words = torch.cat([slots.label[..., None], slots.top[0]], -1)
        with self._autocast():
            logits = F.linear(slots.features, self._rows).float()
            loss = teacher_loss(
                logits.flatten(0, 2),
                self._indices(words).clamp(min=0).flatten(0, 2),
                slots.top[1].flatten(0, 2),
                torch.ones_like(weight).flatten(),
                weight.flatten(),
                label_share=label_share.flatten(),
            )
            if self.heads.num_candidates:
                label = self._indices(slots.label).clamp(min=0)[..., None]
                words, logs = self._selected(logits, slots.left, label)
                loss = loss - (logs.where(words == label, 0.0).sum(-1) * weight).sum()
        yield loss, int(slots.usable.sum())

    def _selected(
        self, logits: Tensor, left: Tensor, label: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return candidates ``[…, C]`` and their log probabilities after the true tokens.

        A `label` ``[…, 1]`` that is not among the likeliest words replaces the last of them.
        """
        words = logits.topk(self.heads.num_candidates).indices
        if label is not None:
            missing = ~(words == label).any(-1, keepdim=True)
            words = torch.cat([words[..., :-1], label.where(missing, words[..., -1:])], -1)
        return words, self.heads.candidate_logs(logits, words, left).squeeze(-2)

    def _autocast(self) -> torch.autocast:
        """Compute the drafter's products in bfloat16 on a GPU (weights and rows in float32)."""
        on_gpu = self.heads.scale.device.type == "cuda" and torch.cuda.is_available()
        return torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16, enabled=on_gpu)

    def _slots(self, rows: Sequence[Row]) -> _SlotBatch:
        """Run the slots of some anchors of each row."""
        heads, device = self.heads, self.heads.scale.device
        anchors, inside, noise = (upload(each, device) for each in self._anchors(rows))
        ids = upload(padded(rows), device)
        temperatures = [1.0 if row.temperature is None else row.temperature for row in rows]
        warm = upload(temperatures, device, torch.float32)[:, None, None]  # 0: greedy
        places = anchors[..., None] + 2 + torch.arange(inside.shape[-1], device=device)
        at = places.clamp(max=ids.shape[1] - 1).flatten(1)

        def select(values: Tensor) -> Tensor:
            values = values[torch.arange(len(at), device=device)[:, None], at]
            return values.view(*places.shape, *values.shape[2:])

        with torch.no_grad():
            hidden, *facts = self._compute(rows, ids, self._targets)
            embedded = self.module.get_input_embeddings()(ids).float().roll(-1, 1)
            label, left, mass, likely, logits = map(select, (ids, *facts))
            likely = likely.long()
            before = heads.index(select(ids.roll(1, 1)))
            u = (left + mass * noise).clamp(0, 1 - 2**-53)
            u = torch.where(warm == 0, NO_UNIFORM, u)
            logits = logits / torch.where(warm == 0, GREEDY_TEMPERATURE, warm)[..., None]
            logits = logits.masked_fill(self._indices(likely) < 0, -1e9)
            usable = inside & ((mass > MIN_MASS) | (warm == 0)) & (self._indices(label) >= 0)
        with self._autocast():
            text = heads.enter(hidden, embedded).float()
            last = text.gather(1, anchors[..., None].expand(-1, -1, text.shape[-1]))
            slots = heads.slots(last, heads.embedded(u), warm[..., None]).float()
            states = run_slots(heads, text, slots.flatten(1, 2), anchors).view(slots.shape)
        ones = [] if self._head.bias is None else [torch.ones_like(slots[..., :1])]
        left = heads.left[before]
        features = [states, *ones] if heads.num_candidates else [states, *ones, left]
        if heads.num_candidates:
            left = heads.factors(before[..., None], states)
        return _SlotBatch(torch.cat(features, -1), left, label, inside, usable, (likely, logits))

    def _targets(self, rows: Sequence[Row], ids: Tensor) -> list[Tensor]:
        """Return states, left edges and widths of intervals, likely tokens and their logits."""
        layers = self.heads.config.sizes.get("hidden_layers", ())
        hidden, *lower = self._states(ids, layers)
        states = torch.cat(lower, -1) if lower else hidden
        mask = upload(learnt(rows), ids.device)
        heat = upload([row.temperature or 1.0 for row in rows], ids.device, torch.float32)
        read = functools.partial(head_logits, self._whole_head)
        (_, left, mass), top = compute_teacher(read, ids, hidden, mask, heat, self.run.teacher_top)
        return [states, left, mass, *top]

    def _anchors(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Draw anchors ``[B, A]`` of rows, so that the first slot's token is in the answer.

        Return them with a mask ``[B, A, K]`` of slots inside the answer (all tokens up to the
        slot's are), and with random places of u within the slots' intervals.
        """
        mask, num_slots = learnt(rows), self.heads.config.num_slots
        ahead = F.pad(mask, (0, num_slots + 2)).unfold(1, num_slots + 1, 1)
        inside = ahead[:, 1 : mask.shape[1] + 1].long().cumprod(-1)[..., 1:].bool()
        order = torch.rand(mask.shape, generator=self._generator)
        order = order.masked_fill(~inside[..., 0], -1.0)
        anchors = order.topk(min(self.run.anchors_per_row, mask.shape[1])).indices
        inside = inside.gather(1, anchors[..., None].expand(-1, -1, num_slots))
        noise = torch.rand(inside.shape, generator=self._generator, dtype=torch.float64)
        return anchors, inside, noise

    @torch.no_grad()
    def held_out(self) -> ByKind:
        """Return the reports on held-out rows by kind of text."""
        self._generator.manual_seed(2**40)  # above every step, the seeds of training
        rows, results = self.source.held_out(self.run.eval_rows), list[tuple[Tensor, ...]]()
        for group in self._groups(rows):
            slots = self._slots(group)
            with self._autocast():
                logits = F.linear(slots.features, self._rows).float()
                if self.heads.num_candidates:  # only these words are drafted
                    words, logs = self._selected(logits, slots.left)
                    logits = torch.full_like(logits, float("-inf")).scatter(-1, words, logs)
            right = (logits.argmax(-1) == self._indices(slots.label)).cpu()
            inside = slots.inside.cpu()
            greedy = torch.tensor([row.temperature == 0 for row in group])[:, None]
            drafts = inside[..., 0]
            results.append((right[drafts], inside[drafts], greedy.expand_as(drafts)[drafts]))
        right, inside, greedy = (torch.cat(parts) for parts in zip(*results, strict=True))
        reports = (HeldOut.of(right[kind], inside[kind], len(rows)) for kind in (greedy, ~greedy))
        return ByKind(*reports)


def run_slots(heads: ParallelLayers, text: Tensor, slots: Tensor, anchors: Tensor) -> Tensor:
    """Return the states ``[B, A K, D]`` of slots.

    Args:
        heads: the drafter.
        text: its inputs of the text, ``[B, T, D]``.
        slots: its inputs of the slots, ``[B, A K, D]``.
        anchors: indices of the text that slots follow, ``[B, A]``.
    """
    steps, num_slots = torch.arange(text.shape[1], device=text.device), heads.config.num_slots
    offsets = torch.arange(num_slots, device=text.device)
    positions = anchors[..., None] + 1 + offsets
    entries = heads.entries(text, heads.turn(steps))
    later = (offsets > offsets[:, None]).expand(*positions.shape, -1)
    hidden = steps > anchors[..., None], later

    def read(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (
            torch.cat(both, -2) for both in zip(entries[number], (key, value), strict=True)
        )
        masks = tuple(additive(each, query.dtype) for each in hidden)
        return attend(query, key, value, masks, query.shape[-1] ** -0.5).transpose(1, 2)

    states: Tensor = heads(slots, heads.turn(positions.flatten(1)), read)
    return states

"""Training layers that draft in one pass: from many places at once, by u where it is known.

An answer's text is run once, by the target and as rows of the drafter; K slots stand behind each of
some random places and see the text up to there and the earlier slots of their own. The uniform of a
slot lies inside the interval of the text's own token (PTP, arXiv 2512.21323), which it learns;
greedy text has no uniforms and is learnt against the target's distribution. A drafter without
uniforms (the control) learns sampled text against the distribution at its temperature.

Letters: B rows, T tokens of a row, A places ("anchors") of a row, K slots of each, M = B A K, D
hidden width, R rank of the bias, H heads, E width of a head, W words.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.types import NO_UNIFORM
from decoders.core.upload import upload
from training.adapter.lean_job import (
    GREEDY_TEMPERATURE,
    ShortHead,
    Top,
    ask_teacher,
    attend_windows,
    taught_loss,
)
from training.adapter.windows import LEAST_MASS
from training.heads.job import NONE, ByKind, HeldOut, ranks_of
from training.heads.layer_job import LayerJob
from training.loop import Piece, TrainingProgress, muon_and_adamw
from training.text.data import Row, groups, learnt, padded

_HELD_OUT_SEED = 2**40  # beyond all steps
_SEEN_ROWS = 8  # whose states give the scale of the drafter's own at first


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Slots:
    """Slots of a group, ``[B, A, K, …]`` unless said otherwise.

    `features` ``[…, D + R]`` are what the head of words and bias reads; `label` is the text's own
    token; a slot is `inside` where it is of the answer, and `usable` where it is among the words,
    too, and not all but impossible; rows are `greedy` ``[B]`` or not; `top` are the target's
    likeliest tokens ``[…, top]``, and their logits at the temperature to learn.
    """

    features: Tensor
    label: Tensor
    inside: Tensor
    usable: Tensor
    greedy: Tensor
    top: Top


class _Head(ShortHead):
    """The frozen head of the words, its bias if any, and the drafter's, in one product."""

    def __init__(self, job: ParallelJob) -> None:
        self._job = job
        self.rows = torch.cat([job.frozen, job.heads.right], -1)

    def of(self, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows ``[W, …]`` and where tokens stand among them; 0 for those that do not."""
        return self.rows, self._job.indices(asked).clamp(min=0)


class ParallelJob(LayerJob):
    """`ParallelLayers` on the rows of a source, each at the temperature it was sampled at."""

    heads: ParallelLayers  # type: ignore[assignment]

    def __init__(self, *parts: Any) -> None:
        """See `LayerJob`; the drafter's states begin as large as the target's."""
        super().__init__(*parts)
        self._generator = torch.Generator()
        with torch.no_grad():
            rows = self.source.rows(0)[:_SEEN_ROWS]
            ids = padded(rows).to(self.heads.scale.device)
            seen = self._states(rows, ids)[learnt(rows).to(ids.device)]
            self.heads.scale.copy_(seen.square().mean(0).sqrt())

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Muon for matrices between rows where it has a rate, AdamW for all else."""
        if self.run.muon_lr is None:
            return super().optimizers()
        matrices = self.heads.join, self.heads.start, *self.heads.layers.parameters()
        return muon_and_adamw(self.heads, matrices, self.run)

    @functools.cached_property
    def frozen(self) -> Tensor:
        """The head's rows of the words ``[W, D]``, and a column of its bias if it has one."""
        bias = self._short.bias
        parts = [self._short.weight] if bias is None else [self._short.weight, bias[:, None]]
        return torch.cat(parts, -1).float()

    def indices(self, tokens: Tensor) -> Tensor:
        """Return where tokens stand among the words; `NONE` where they do not."""
        index = self.heads.index(tokens)
        return index.masked_fill(index == len(self.heads.words), NONE)

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """See `HiddenJob.pieces`; places and uniforms depend on the step alone."""
        self._generator.manual_seed(progress.step)
        return super().pieces(progress)

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        return groups(rows, self.run.max_tokens)

    def _losses(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, int]]:
        slots, run = self._slots(rows), self.run
        taught, top = slots.greedy.view(-1, 1, 1), slots.top
        if self.heads.config.code == "constant":
            taught = torch.ones_like(taught)
        own = torch.full_like(top[1], float("-inf"))
        own[..., 0] = 0.0  # all of it on the text's token
        top = (
            torch.where(taught[..., None], top[0], slots.label[..., None]),
            torch.where(taught[..., None], top[1], own),
        )
        depths = torch.arange(slots.label.shape[-1], device=own.device)
        weight = slots.usable * torch.exp(-run.position_decay * depths)
        with self._autocast():
            loss = taught_loss(
                slots.features.flatten(0, 2),
                _Head(self),
                slots.label.flatten(),
                (top[0].flatten(0, 2), top[1].flatten(0, 2)),
                torch.ones((), device=own.device).expand(slots.label.numel()),
                weight.flatten(),
                label_share=run.label_share,
                overlap_share=run.overlap_share,
            )
        yield loss, int(slots.usable.sum())

    def _autocast(self) -> torch.autocast:
        """Half the drafter's products on a GPU; weights and rows stay in float32."""
        on_gpu = self.heads.scale.device.type == "cuda" and torch.cuda.is_available()
        return torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16, enabled=on_gpu)

    def _slots(self, rows: Sequence[Row]) -> _Slots:
        """Run the slots of some places of each row."""
        heads, device = self.heads, self.heads.scale.device
        anchors, inside, noise = (upload(each, device) for each in self._anchors(rows))
        ids, asked = upload(padded(rows), device), upload(learnt(rows), device)
        # the temperature of a row is 0 where its text is greedy, and 1 where it is not known
        known = [1.0 if row.temperature is None else row.temperature for row in rows]
        warm, num = upload(known, device, torch.float32), ids.shape[1]
        offsets = torch.arange(inside.shape[-1], device=device)
        greedy, places = warm == 0, anchors[..., None] + 2 + offsets
        at = places.clamp(max=num - 1).flatten(1)
        with torch.no_grad():
            hidden = self._states(rows, ids)
            embedded = self.module.get_input_embeddings()(ids).float().roll(-1, 1)
            heat = torch.where(greedy, 1.0, warm)
            (_, left, mass), top = ask_teacher(
                super(LayerJob, self)._read, ids, hidden, asked, heat, self.run.teacher_top
            )
            left, mass = (each.gather(1, at).view(places.shape) for each in (left, mass))
            label, before = (ids.gather(1, where).view(places.shape) for where in (at, at - 1))
            u = (left + mass * noise).clamp(0, 1 - 2**-53)
            u = torch.where(greedy[:, None, None], NO_UNIFORM, u)
            row = torch.arange(len(rows), device=device)[:, None]
            sharp = torch.where(greedy, GREEDY_TEMPERATURE, warm)
            chosen = top[0][row, at].view(*places.shape, -1)
            logits = (top[1][row, at] / sharp[:, None, None]).view(chosen.shape)
            logits = logits.masked_fill(self.indices(chosen) < 0, -1e9)
            possible = (mass > LEAST_MASS) | greedy[:, None, None]
            usable = inside & possible & (self.indices(label) >= 0)
        with self._autocast():
            text = heads.enter(hidden, embedded).float()
            last = text.gather(1, anchors[..., None].expand(-1, -1, text.shape[-1]))
            slots = heads.slots(last, u, warm[:, None, None, None]).float()
            states = run_slots(heads, text, slots.flatten(1, 2), anchors)
        parts = [states.view(slots.shape), heads.left[heads.index(before)]]
        if self._short.bias is not None:
            parts.insert(1, torch.ones_like(slots[..., :1]))
        features = torch.cat(parts, -1)
        truth: dict[str, Any] = {"label": label, "inside": inside, "usable": usable}
        return _Slots(features=features, greedy=greedy, top=(chosen, logits), **truth)

    def _anchors(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Draw places ``[B, A]`` of rows, after each of which a slot's token is of the answer.

        A slot is inside, ``[B, A, K]``, where all tokens up to its own are. Of each comes a number
        that says where u lies in its interval.
        """
        known, num_slots = learnt(rows), self.heads.config.num_slots
        ahead = F.pad(known, (0, num_slots + 2)).unfold(1, num_slots + 1, 1)
        inside = ahead[:, 1 : known.shape[1] + 1].long().cumprod(-1)[..., 1:].bool()
        order = torch.rand(known.shape, generator=self._generator)
        order = order.masked_fill(~inside[..., 0], -1.0)
        anchors = order.topk(min(self.run.anchors_per_row, known.shape[1])).indices
        inside = inside.gather(1, anchors[..., None].expand(-1, -1, num_slots))
        noise = torch.rand(inside.shape, generator=self._generator, dtype=torch.float64)
        return anchors, inside, noise

    @torch.no_grad()
    def held_out(self) -> ByKind:
        """Return the reports on held-out rows by kind."""
        self._generator.manual_seed(_HELD_OUT_SEED)
        found: dict[bool, list[tuple[Tensor, Tensor]]] = {True: [], False: []}
        rows = self.source.held_out(self.run.eval_rows)
        for group in self._groups(rows):
            slots = self._slots(group)
            with self._autocast():
                logits = F.linear(slots.features, _Head(self).rows).float()
            ranks = ranks_of(logits, self.indices(slots.label))
            for kind, its in found.items():
                chosen = slots.inside[..., 0] & (slots.greedy == kind)[:, None]
                its.append((ranks[chosen].cpu(), slots.inside[chosen].cpu()))
        reports = {
            kind: HeldOut.of(torch.cat(ranks), torch.cat(known), len(rows))
            for kind, its in found.items()
            for ranks, known in [zip(*its, strict=True)]
            if sum(map(len, ranks))
        }
        return ByKind(greedy=reports.get(True), sampled=reports.get(False))

    def export(self, folder: Path) -> None:
        """Write the drafter; its range of temperatures is that of the held-out rows."""
        rows = self.source.held_out(self.run.eval_rows)
        warm = [row.temperature for row in rows if row.temperature] or [1.0]
        self.heads.config = dataclasses.replace(
            self.heads.config,
            temperatures=(min(warm), max(warm)),
            greedy=any(row.temperature == 0 for row in rows),
        )
        super().export(folder)


def run_slots(heads: ParallelLayers, text: Tensor, slots: Tensor, anchors: Tensor) -> Tensor:
    """Return states ``[B, A K, D]`` of slots behind rows `anchors` ``[B, A]`` of text.

    The rows of text are ``[B, T, D]``, slots ``[B, A K, D]``.
    """
    steps, num_slots = torch.arange(text.shape[1], device=text.device), heads.config.num_slots
    offsets = torch.arange(num_slots, device=text.device)
    positions = anchors[..., None] + 1 + offsets
    entries = heads.entries(text, steps)
    later = (offsets > offsets[:, None]).expand(*positions.shape, -1)
    hidden = steps > anchors[..., None], later

    def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (
            torch.cat(both, -2) for both in zip(entries[number], (key, value), strict=True)
        )
        least = torch.finfo(query.dtype).min
        masks = [torch.zeros_like(x, dtype=query.dtype).masked_fill_(x, least) for x in hidden]
        scale = query.shape[-1] ** -0.5
        return attend_windows(query, key, value, scale, (masks[0], masks[1])).transpose(1, 2)

    states: Tensor = heads(slots, positions.flatten(1), attend)
    return states

"""Training what reads a frozen causal LM's states: losses in answers, held-out report, export.

Head h (from 0) reads the hidden state at place t, whose own logits are of token t + 1, and learns
token t + 2 + h. The target is run without gradients and its own head is used as it is.

Letters: B rows, T places, M places that count, H heads, D hidden width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter.module import HiddenAdapter
from training.heads.recipe import RunTable
from training.loop import Piece, TrainingProgress
from training.reporter import Reporter
from training.text.data import Row, groups
from training.text.sources import Source

NONE = -100
"""Stands where a place has no token so far ahead."""
CANDIDATES = 4
"""How many candidates of a head a report looks at."""


class HiddenJob:
    """What a loop trains where an adapter reads the last hidden state."""

    def __init__(
        self, module: Any, heads: HiddenAdapter, source: Source, run: RunTable, reporter: Reporter
    ) -> None:
        """`module`: the target, a causal LM whose head reads its last hidden state."""
        self.module = module.eval().requires_grad_(False)
        self.heads, self.source, self.run, self.reporter = heads, source, run, reporter
        self.report: HeldOut | None = None

    @property
    def trained(self) -> nn.Module:
        """The adapter."""
        return self.heads

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Losses of a step's groups, each in as many pieces as its logits ask for."""
        for group in self._groups(self.source.rows(progress.step)):
            tokens = sum(len(row.ids) for row in group)
            for loss, num in self._losses(group):
                yield loss, num, tokens
                tokens = 0  # counted once

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        return groups(sorted(rows, key=lambda row: len(row.ids)), self.run.max_tokens)

    def _losses(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, int]]:
        """Loss in nats, summed over places and depths by the depths' weights, of how many."""
        raise NotImplementedError

    def _predicted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits ``[M, H, V]`` and `targets_of` ``[M, H]``, some places at a time."""
        raise NotImplementedError

    def evaluate(self, progress: TrainingProgress) -> None:
        """Tells how often drafts are right on held-out answers."""
        self.report = self.held_out()
        record = {
            "held_out": dataclasses.asdict(self.report),
            "parameters": self.heads.num_parameters,
        }
        self.reporter.evaluation(progress, self.report.summary(), record)

    @torch.no_grad()
    def held_out(self) -> HeldOut:
        """The report on held-out rows."""
        rows = self.source.held_out(self.run.eval_rows)
        ranks, known = [], []
        for group in self._groups(rows):
            for logits, targets in self._predicted(group):
                own = logits.gather(-1, targets.clamp(min=0)[..., None])
                ranks.append((logits > own).sum(-1).cpu())
                known.append((targets != NONE).cpu())
        return HeldOut.of(torch.cat(ranks), torch.cat(known), len(rows))

    def export(self, folder: Path, base: dict[str, Any]) -> None:
        """Writes the adapter with their held-out report."""
        report = self.report or self.held_out()
        config = dataclasses.replace(
            self.heads.config, base=base, measured=dataclasses.asdict(report)
        )
        fresh = type(self.heads)(config)
        fresh.load_state_dict(self.heads.state_dict())
        fresh.save(folder, torch.float16 if self.run.half else torch.float32)


class HeadsJob(HiddenJob):
    """Heads: each reads the state that the target left at a place."""

    heads: DraftHeads

    def _parts(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor]]:
        """States ``[M, D]`` and targets ``[M, H]`` of a group, no more than a piece may have."""
        states, targets = self._states(rows)
        num_heads, vocabulary = (
            targets.shape[1],
            self.module.get_output_embeddings().weight.shape[0],
        )
        size = max(1, self.run.max_logits // (num_heads * vocabulary))
        yield from zip(torch.split(states, size), torch.split(targets, size), strict=True)

    @torch.no_grad()
    def _states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """States ``[M, D]`` in front of answers' tokens, and their `targets_of` ``[M, H]``."""
        width = max(len(row.ids) for row in rows)
        device = self.heads.bias.device
        # padded on the right, where a causal model needs no mask
        ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows], device=device)
        hidden = self.module.base_model(input_ids=ids, use_cache=False).last_hidden_state
        targets = targets_of(rows, width, self.heads.config.num_slots).to(device)
        counts = (targets != NONE).any(-1)
        return hidden[counts].float(), targets[counts]

    def _logits(self, states: Tensor) -> Tensor:
        """``[M, H, V]`` of states ``[M, D]``."""
        head = self.module.get_output_embeddings()
        logits: Tensor = head(self.heads(states).to(head.weight.dtype))
        return logits.float()

    def _losses(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, int]]:
        for states, targets in self._parts(rows):
            yield self._loss(states, targets), int((targets != NONE).sum())

    def _predicted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor]]:
        for states, targets in self._parts(rows):
            yield self._logits(states), targets

    def _loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy in nats, summed over places and heads by the heads' weights."""
        losses = F.cross_entropy(
            self._logits(states).flatten(0, 1),
            targets.flatten(),
            ignore_index=NONE,
            reduction="none",
        ).view(targets.shape)
        heads = torch.arange(targets.shape[1], device=losses.device)
        return (losses * self.run.head_decay**heads).sum()


def targets_of(rows: Sequence[Row], width: int, num_heads: int, *, ahead: int = 2) -> Tensor:
    """The token of each head at each place, int64 ``[B, width, H]``; `NONE` where it is not learnt.

    A place counts where the token after it is of an answer, as well: states inside a prompt draft
    nothing. Head h has the token `ahead` + h places on.
    """
    targets = torch.full((len(rows), width, num_heads), NONE)
    for number, row in enumerate(rows):
        learnt = torch.tensor(
            [token if learn else NONE for token, learn in zip(row.ids, row.learn, strict=True)]
        )
        for head in range(min(num_heads, max(0, len(learnt) - ahead))):
            own = learnt[ahead + head :]
            follows = learnt[1 : 1 + len(own)] != NONE
            targets[number, : len(own), head] = torch.where(follows, own, NONE)
    return targets


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """How often heads are right, as it stands in ``adapter.json``.

    Attributes:
        rows: how many answers were looked at.
        places: how many hidden states.
        accuracy: by head, of its likeliest token.
        among: by head, how often the token is among its `CANDIDATES` likeliest.
        leading: expected leading right tokens, the likeliest of each head alone.
        leading_among: the same, where it is enough to be among the candidates.
    """

    rows: int
    places: int
    accuracy: list[float]
    among: list[float]
    leading: float
    leading_among: float

    @classmethod
    def of(cls, ranks: Tensor, known: Tensor, rows: int) -> HeldOut:
        """From the rank ``[M, H]`` of each token among its head's logits (0: the likeliest).

        `known`: bool ``[M, H]``, where there is a token. Where an answer ends, nothing leads on.
        """
        counts = known.sum(0).clamp(min=1)

        def shares(hits: Tensor) -> list[float]:
            return [round(share, 4) for share in ((hits & known).sum(0) / counts).tolist()]

        def leading(hits: Tensor) -> float:
            runs = (hits & known).long().cumprod(-1).sum(-1).double()
            return round(runs.mean().item(), 3) if len(runs) else 0.0

        return cls(
            rows=rows,
            places=len(ranks),
            accuracy=shares(ranks == 0),
            among=shares(ranks < CANDIDATES),
            leading=leading(ranks == 0),
            leading_among=leading(ranks < CANDIDATES),
        )

    def summary(self) -> str:
        """One line for the terminal."""
        shown = " ".join(f"{value:.2f}" for value in self.accuracy)
        return (
            f"leading right of {len(self.accuracy)}: {self.leading:.2f}, among {CANDIDATES} "
            f"candidates {self.leading_among:.2f}; accuracy by head {shown}"
        )

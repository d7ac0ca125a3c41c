"""Training an exit of a frozen causal LM: its first layers and a block say what all layers say.

At every place of an answer the exit learns the target's own distribution of the next token. Only
the block behind the first layers is trained; last norm and head are the target's.

Letters: B rows, T places, M places that count, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.core.adapter.heads import ExitBlock
from decoders.core.hf.copies import early_exit
from training.heads.job import NONE, HiddenJob, targets_of
from training.heads.recipe import RunTable
from training.reporter import Reporter
from training.text.data import Row, groups
from training.text.sources import Source


class ExitJob(HiddenJob):
    """An exit: a group of rows in one piece."""

    heads: ExitBlock

    def __init__(
        self, module: Any, heads: ExitBlock, source: Source, run: RunTable, reporter: Reporter
    ) -> None:
        """See `HiddenJob`.

        Raises:
            ValueError: the target has no layer after the exit.
        """
        super().__init__(module, heads, source, run, reporter)
        self._early = early_exit(module, heads.config.exit_layer, self._block)

    def _block(self, hidden: Tensor) -> Tensor:
        """The block in its own precision, between layers in the target's."""
        out: Tensor = self.heads(hidden.float())
        return out.to(hidden.dtype)

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Groups whose logits are no more than a piece may have."""
        vocabulary = self.module.get_output_embeddings().weight.shape[0]
        most = max(1, min(self.run.max_tokens, self.run.max_logits // vocabulary))
        return groups(sorted(rows, key=lambda row: len(row.ids)), most)

    def _losses(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, int]]:
        logits, targets, truth = self._drafted(rows)
        yield -(truth.softmax(-1) * logits.log_softmax(-1)).sum(), len(targets)

    def _predicted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor]]:
        logits, targets, _ = self._drafted(rows)
        yield logits[:, None], targets[:, None]

    def _drafted(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """The exit's logits ``[M, V]``, the next tokens ``[M]``, the target's logits ``[M, V]``."""
        width = max(len(row.ids) for row in rows)
        device = self.heads.bias.device
        # padded on the right, where a causal model needs no mask
        ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows], device=device)
        targets = targets_of(rows, width, 1, ahead=1)[..., 0].to(device)
        counts = targets != NONE
        with torch.no_grad():
            truth = self._read(self.module, ids, counts)
        return self._read(self._early, ids, counts), targets[counts], truth

    def _read(self, module: Any, ids: Tensor, counts: Tensor) -> Tensor:
        states = module.base_model(input_ids=ids, use_cache=False).last_hidden_state[counts]
        logits: Tensor = module.get_output_embeddings()(states)
        return logits.float()

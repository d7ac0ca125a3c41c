"""The training of the bigram head on the text's own tokens."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from training.forward import head_logits
from training.heads.job import NONE, HiddenJob
from training.text.data import Row


class BigramJob(HiddenJob):
    """Every draft sees the true token before it."""

    def _drafted(self, rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor, None]]:
        with torch.no_grad():
            ids, targets = self._batch(rows)
            hidden = self.module.base_model(input_ids=ids, use_cache=False).last_hidden_state
            embedded = self.module.get_input_embeddings()(ids)
        counts = (targets != NONE).any(-1)
        steps = range(targets.shape[-1])
        mixed = [self.heads(hidden, embedded.roll(-1 - step, 1))[counts] for step in steps]
        yield head_logits(self._head, torch.stack(mixed, 1)), targets[counts], None

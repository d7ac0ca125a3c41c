"""What the teacher says about each place of a batch, once for all the windows that stand there.

Letters: B rows, S places of a row, P places that are asked about, T likeliest tokens kept,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.adapter.student import Student
from training.adapter.windows import edges

CHUNK = 256
"""Places whose logits are held at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Of the token at each place ``[B, S]``, by what the teacher says before it.

    Attributes:
        likeliest: int64, the teacher's argmax.
        left: float64, left edge of the text's token in the warped CDF.
        mass: float64, width of its interval; 0 where the place was not asked about.
        top_ids: int64 ``[B, S, T]``, the likeliest tokens, the first one first.
        top_logits: float32 ``[B, S, T]``, theirs.
    """

    likeliest: Tensor
    left: Tensor
    mass: Tensor
    top_ids: Tensor
    top_logits: Tensor


@torch.no_grad()
def places_of(
    student: Student, ids: Tensor, hidden: Tensor, asked: Tensor, temperature: Tensor, num_top: int
) -> Places:
    """Asks the teacher.

    Args:
        student: whose teacher it is.
        ids: int64 ``[B, S]``.
        hidden: ``[B, S, D]``, the teacher's hidden states.
        asked: bool ``[B, S]``, about which places; never the first of a row.
        temperature: float32 ``[B]``, of each row's windows (1 where they are greedy).
        num_top: T.
    """
    shape = ids.shape
    places = Places(
        likeliest=torch.zeros_like(ids),
        left=torch.zeros(shape, dtype=torch.float64, device=ids.device),
        mass=torch.zeros(shape, dtype=torch.float64, device=ids.device),
        top_ids=torch.zeros(*shape, num_top, dtype=torch.int64, device=ids.device),
        top_logits=torch.zeros(*shape, num_top, device=ids.device),
    )
    for chunk in torch.split(asked.nonzero(), CHUNK):
        row, place = chunk.unbind(1)
        logits = student.teacher_logits(hidden[row, place - 1])
        top = logits.topk(num_top)
        warp = torch.stack([temperature[row], torch.ones_like(temperature[row])], 1)
        places.left[row, place], places.mass[row, place] = edges(logits, ids[row, place], warp, 0)
        places.likeliest[row, place] = top.indices[:, 0]
        places.top_ids[row, place], places.top_logits[row, place] = top.indices, top.values
    return places

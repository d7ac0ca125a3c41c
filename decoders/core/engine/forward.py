"""Forward passes of calls of any length: a long prompt is fed in chunks, and counts as one call.

Letters: R rows read, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from decoders.core import masks
from decoders.core.model import Model
from decoders.core.types import Call

PREFILL_CHUNK = 512  # rows a prompt is fed at a time


def forward(calls: Sequence[Call]) -> Tensor:
    """Logits ``[sum R, V]``; long prompts run in chunks that count as the one call they are."""
    model: Model = calls[0].session.model
    widest = max(len(call.tokens) for call in calls)
    if widest <= PREFILL_CHUNK:
        return model.forward(calls)
    bases = [(call.session, call.session.length, call.session.calls) for call in calls]
    tails = [_feed_head(call) for call in calls]
    logits = model.forward(tails)
    for session, base, num_calls in bases:
        session.base, session.calls = base, num_calls + 1
    return logits


def _feed_head(call: Call) -> Call:
    """Feed all but the last chunk of a long call; the rest of it, read as the call asks.

    A mask must be causal in the rows that are fed, and hide none of them from later rows.
    """
    tokens, positions, session, mask = call.tokens, call.positions, call.session, call.mask
    first_read = min(call.read, default=len(tokens) - 1)
    fed = 0
    while len(tokens) - fed > PREFILL_CHUNK and first_read - fed >= PREFILL_CHUNK:
        chunk = slice(fed, fed + PREFILL_CHUNK)
        head = dataclasses.replace(
            call,
            tokens=tokens[chunk],
            positions=None if positions is None else positions[chunk],
            read=(),
            slots=None,
            mask=None,
            hidden=False,
        )
        session.model.forward([head])
        fed += PREFILL_CHUNK
    if mask is not None:
        causal = masks.causal(call.num_rows)
        assert bool((mask[:fed] == causal[:fed]).all() and mask[fed:, :fed].all()), "unfit mask"
        mask = mask[fed:, fed:]
    return dataclasses.replace(
        call,
        tokens=tokens[fed:],
        mask=mask,
        positions=None if positions is None else positions[fed:],
        read=tuple(row - fed for row in call.read),
    )

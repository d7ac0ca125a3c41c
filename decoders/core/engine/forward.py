"""Run the forward passes of calls, where a long prompt runs in chunks but counts as one call."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decoders.core import masks
from decoders.core.model import Call, DraftCall, Model
from decoders.core.token_reads import TokenReads
from decoders.core.types import CallResult

PREFILL_CHUNK = 512  # rows of a prompt in one forward pass


def draft(calls: Sequence[DraftCall]) -> Sequence[CallResult]:
    """Run draft calls of one network and shape as one."""
    return calls[0].session.model.draft(calls)


def forward(calls: Sequence[Call], reads: TokenReads | None = None) -> Tensor:
    """Return logits ``[sum R, V]``, skipping tokens that a session kept from an earlier text.

    A model may do the `reads` with the pass (`Model.ahead`).
    """
    model: Model = calls[0].session.model
    longer = [c for c in calls if c.session.kept or len(c.tokens) > PREFILL_CHUNK]
    before = [(call.session, call.session.length, call.session.calls) for call in longer]
    fed = {id(call): _feed_first_chunks(_skip_cached(call)) for call in longer}
    if fed:
        calls = [fed[id(call)][0] if id(call) in fed else call for call in calls]
    logits = model.forward_reading(calls, reads) if reads else model.forward(calls)
    for (session, base, num_calls), (_, states) in zip(before, fed.values(), strict=True):
        session.base, session.calls = base, num_calls + 1
        if states:
            last = [] if session.hidden is None else [session.hidden]
            session.hidden = torch.cat([*states, *last])
    return logits


def _skip_cached(call: Call) -> Call:
    """Skip leading tokens that are cached already, but feed all read rows and at least one row."""
    session, tokens = call.session, call.tokens
    kept, session.kept = session.kept, ()
    branches = 1 if call.slots is None else max(1, len(call.slots.sizes))
    max_skipped = min(*call.read, *call.hidden, len(tokens) - branches, len(kept))
    ordered = call.positions is None or call.positions[:max_skipped] == tuple(range(max_skipped))
    num = next((n for n in range(max_skipped) if tokens[n] != kept[n]), max(max_skipped, 0))
    if session.length or not ordered or not _is_causal(call, num):
        return call
    session.length = num
    return _rest(call, num)


def _rest(call: Call, fed: int) -> Call:
    return dataclasses.replace(
        call,
        chain=None,  # the engine follows the chain, as the uniforms are those of the whole call
        tokens=call.tokens[fed:],
        mask=None if call.mask is None else call.mask[fed:, fed:],
        positions=None if call.positions is None else call.positions[fed:],
        read=tuple(row - fed for row in call.read),
        hidden=tuple(row - fed for row in call.hidden if row >= fed),
    )


def _is_causal(call: Call, fed: int) -> bool:
    if call.mask is None:
        return True
    causal = masks.causal(call.num_rows)
    return bool((call.mask[:fed] == causal[:fed]).all() and call.mask[fed:, :fed].all())


def _feed_first_chunks(call: Call) -> tuple[Call, list[Tensor]]:
    """Feed a long call up to its last chunk, or to the first row whose mask is not causal.

    Returns the rest, and hidden states of fed rows. Chunks are the same with and without hidden
    states, because a row's rounding may depend on the rows of its pass.
    """
    tokens, positions, fed, states = call.tokens, call.positions, 0, list[Tensor]()
    in_order = all(a < b for a, b in itertools.pairwise(call.hidden))
    first_read_row = min(call.read if in_order else (*call.read, *call.hidden), default=math.inf)
    while len(tokens) - fed > PREFILL_CHUNK and first_read_row - fed >= PREFILL_CHUNK:
        if not _is_causal(call, fed + PREFILL_CHUNK):
            break
        chunk = slice(fed, fed + PREFILL_CHUNK)
        hidden = tuple(row - fed for row in call.hidden if 0 <= row - fed < PREFILL_CHUNK)
        head = dataclasses.replace(
            call,
            tokens=tokens[chunk],
            positions=None if positions is None else positions[chunk],
            read=(),
            slots=None,
            mask=None,
            hidden=hidden,
            hidden_layers=call.hidden_layers if hidden else (),
        )
        call.session.model.forward([head])
        if call.session.hidden is not None:
            states.append(call.session.hidden)
        fed += PREFILL_CHUNK
    return _rest(call, fed), states

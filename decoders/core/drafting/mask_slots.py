"""Make slots that carry a mask, a token that is not final (naive NAR, I-DLM), or a vector.

A slot has the position of the token that it masks, and predicts the token after it. The last token
row therefore predicts the token that the first slot masks:

    rows        ... last token | slot 0 | slot 1 | ... | slot K-1
    position        s - 1      |   s    | s + 1  |     | s + K - 1
    predicts          s        | s + 1  | s + 2  |     | s + K

Source: the shifted masks of I-DLM (arXiv 2604.11035).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from decoders.core import masks
from decoders.core.model import Call, Session
from decoders.core.types import MASKED, NO_UNIFORM, Confidence, Slots


def mask_slots(
    adapter: str,
    slot_tokens: Sequence[int],
    *,
    anchors: Sequence[int],
    output: str | Sequence[str],
    sizes: Sequence[int] | None = None,
    read: int | None = None,
    confidence: Confidence = "prob",
    barred: frozenset[int] = frozenset(),
) -> Slots | None:
    """Make branches of slots, each after a token (None if no slot would be read).

    Args:
        adapter: name of the adapter that the slots run through.
        slot_tokens: the token of every slot, branch after branch, or `MASKED`.
        anchors: the token before each branch.
        output: the form of the predictions, or several (see `Slots`).
        sizes: number of slots of each branch; None: all are one branch.
        read: number of first slots that are read; None: all.
        confidence: measure of confidence (see `Slots`).
        barred: ids that are never predicted.
    """
    count = len(slot_tokens) if read is None else read
    if not count:
        return None
    return Slots(
        adapter=adapter,
        uniforms=(NO_UNIFORM,) * len(slot_tokens),
        sizes=(len(slot_tokens),) if sizes is None else tuple(sizes),
        anchors=tuple(anchors),
        read=tuple(range(count)),
        output=output if isinstance(output, str) else tuple(output),
        slot_tokens=tuple(slot_tokens) if any(token != MASKED for token in slot_tokens) else (),
        confidence=confidence,
        barred=barred,
    )


def vector_slots(vectors: Tensor, **options: Any) -> Slots | None:
    """Make slots of `vectors` ``[S, E]`` that the model reads. Options as in `mask_slots`."""
    options = {"anchors": (), "output": "argmax"} | options
    slots = mask_slots("", [MASKED] * len(vectors), **options)
    return None if slots is None else dataclasses.replace(slots, vectors=vectors)


def branch_positions(
    start: int, num_tokens: int, sizes: Sequence[int], shift: int = 0
) -> tuple[int, ...]:
    """Return the positions of tokens, then of the slots of branches after the last tokens.

    Args:
        start: position of the first token.
        num_tokens: number of tokens.
        sizes: number of slots of each branch; as many tokens at the end have one, in order.
        shift: 0 if a branch begins one position after its token, 1 if at the token's own.
    """
    positions = [*range(start, start + num_tokens)]
    first = start + num_tokens - len(sizes) + 1 - shift
    for m, size in enumerate(sizes):
        positions += range(first + m, first + m + size)
    return tuple(positions)


def block_call(target: Session, tokens: Sequence[int], slots: Slots | None) -> Call:
    """Commit tokens, draw the next token, and predict the block that begins with that token.

    Args:
        target: the target's session.
        tokens: the final tokens that it lacks; none: the block is predicted again.
        slots: the block's slots, which see each other in both directions; None: a block of one.
    """
    if slots is None:
        return target.call(tokens)
    return target.call(
        tokens,
        slots=slots,
        positions=branch_positions(target.length, len(tokens), slots.sizes),
        mask=masks.block(len(slots.uniforms), stem=len(tokens)),
    )

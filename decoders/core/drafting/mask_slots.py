"""Slots that carry a mask, or a token that is not final: naive NAR and I-DLM.

A slot stands at the place of the token it is a mask for and predicts the token after it, so that
the last token row predicts what the first slot stands for:

    rows        ... last token | slot 0 | slot 1 | ... | slot K-1
    position        s - 1      |   s    | s + 1  |     | s + K - 1
    predicts          s        | s + 1  | s + 2  |     | s + K

Source: the shifted masks of I-DLM (arXiv 2604.11035).
Letters: K slots, s the place of the first one.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoders.core import masks
from decoders.core.model import Session
from decoders.core.types import MASKED, NO_UNIFORM, Call, Confidence, SlotOutput, Slots


def mask_slots(
    adapter: str,
    slot_tokens: Sequence[int],
    *,
    anchor: int,
    output: SlotOutput,
    read: int | None = None,
    confidence: Confidence = "prob",
    barred: frozenset[int] = frozenset(),
) -> Slots | None:
    """One branch of slots after token `anchor`; None where there are none or none is read.

    Args:
        adapter: its name.
        slot_tokens: a token or `MASKED` for every slot.
        anchor: the last token before them.
        output: see `Slots`, as `confidence` and `barred`.
        read: how many are read, from the first on; None: all.
        confidence: see `Slots`.
        barred: see `Slots`.
    """
    count = len(slot_tokens) if read is None else read
    if not count:
        return None
    return Slots(
        adapter=adapter,
        uniforms=(NO_UNIFORM,) * len(slot_tokens),
        sizes=(len(slot_tokens),),
        anchors=(anchor,),
        read=tuple(range(count)),
        output=output,
        slot_tokens=tuple(slot_tokens) if any(token != MASKED for token in slot_tokens) else (),
        confidence=confidence,
        barred=barred,
    )


def branch_places(
    start: int, num_tokens: int, sizes: Sequence[int], shift: int = 0
) -> tuple[int, ...]:
    """Positions of a call of tokens from `start` on with a branch behind each of the last of them.

    A branch begins one place after its token, or `shift` places before that.
    """
    positions = [*range(start, start + num_tokens)]
    first = start + num_tokens - len(sizes) + 1 - shift
    for m, size in enumerate(sizes):
        positions += range(first + m, first + m + size)
    return tuple(positions)


def places_after(start: int, num_tokens: int, slots: Slots | None) -> tuple[int, ...] | None:
    """Positions of a call of tokens from `start` on whose slots come after the last of them."""
    if slots is None:
        return None
    return tuple(range(start, start + num_tokens + len(slots.uniforms)))


def block_call(target: Session, tokens: Sequence[int], slots: Slots | None) -> Call:
    """A call that commits `tokens`, draws the token after them, and predicts a block of slots.

    The slots stand for the block that begins with that very token and see one another both ways.
    Without tokens the block is predicted again.
    """
    if slots is None:
        return target.call(tokens)
    return target.call(
        tokens,
        slots=slots,
        positions=places_after(target.length, len(tokens), slots),
        mask=masks.block(len(slots.uniforms), stem=len(tokens)),
    )

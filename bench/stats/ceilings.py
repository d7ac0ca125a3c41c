"""The score ceiling of decoders that fill slots in parallel (`specbench_tasks.generators.lists`).

Items decided in one pass over a block were drawn independently. The target's own token of a pass is
drawn in the same call, so it counts with that pass. Decoders that record no passes have no ceiling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from bench.records.record import SampleRecord
from specbench_tasks.generators.lists import NUM_ITEMS, ceiling
from specbench_tasks.task import LISTS

Piece = Callable[[int], str]
"""The text of a token id."""


def holds(config: Mapping[str, object]) -> bool:
    """Tell whether a run draws its tokens from unwarped distributions."""
    warp = (config.get("temperature", 0), config.get("top_p", 1), config.get("top_k", 0))
    return warp == (1, 1, 0)


def on_lists(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Return the scored answers to list tasks that were filled in passes."""
    return [
        record
        for record in records
        if record.kind == "quality"
        and record.family in LISTS
        and record.steps is not None
        and any(record.steps.passes)
        and record.steps.decided
    ]


def mean_ceiling(records: Sequence[SampleRecord], piece: Piece) -> float | None:
    """Return the mean ceiling of one decoder's answers in a family, or None without a full list."""
    grouped = [(record.family, groups(record, piece)) for record in records]
    values = [ceiling(family, sizes) for family, sizes in grouped if sizes]
    return fmean(values) if values else None


def groups(record: SampleRecord, piece: Piece) -> tuple[int, ...]:
    """Count the items that each pass decided, in the order of the passes.

    An item is a capital letter. It belongs to the token that contains it. The result is empty
    without exactly `NUM_ITEMS` items.
    """
    steps, tokens = record.steps, record.tokens
    assert steps is not None
    if tokens is None or len(tokens) != sum(map(len, steps.decided)):
        return ()
    text, owners = "", list[int]()
    for index, token in enumerate(tokens):
        text += piece(token)
        owners += [index] * (len(text) - len(owners))
    passes = _passes(steps.decided, steps.passes)
    letters = [index for index, sign in enumerate(text) if "A" <= sign <= "Z"]
    if len(letters) != NUM_ITEMS:
        return ()
    sizes = Counter(passes[owners[index]] for index in letters)
    return tuple(sizes[key] for key in sorted(sizes))


def _passes(decided: Sequence[Sequence[int]], finished: Sequence[int]) -> list[tuple[int, int]]:
    """Return the block, which ends where a step reports passes, and the pass of each token."""
    places: list[tuple[int, int]] = []
    block = last = 0
    for numbers, passes in zip(decided, finished, strict=True):
        for number in numbers:
            # the target's own token (0) belongs to the pass after the preceding tokens' passes
            places.append((block, number or last + 1))
            last = max(last, number)
        if passes:
            block, last = block + 1, 0
    return places

"""The answers of a run so far, of which decoders that remember get their memory.

A scope is one cell in one repeat of the timing pass, or in the quality pass; nothing else fills its
memory. An answer's memory has the answers to all earlier blocks of its scope, in the plan's order
(in a batch, also those that ended before it). So it can be made again from the stored answers: for
a run that is resumed, and for the second pass, which takes the steps of the timed answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bench.plan.setup import Setup
from bench.records.plan import Block
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from decoders.core.decoder import Memory
from decoders.core.types import Generation, Outcome

_Entry = tuple[int, Sequence[int], Sequence[int]]
"""The block of an answer (quality pass: -1), the prompt's ids, and the answer's tokens."""


class Past:
    """The answers of decoders that remember, by cell and scope."""

    def __init__(
        self, setup: Setup, prompts: Mapping[str, Prompt], records: Iterable[SampleRecord] = ()
    ) -> None:
        """Begin with the answers that a run's earlier attempts left."""
        arms = setup.arms.items()
        self._decoders = {cell: arm.decoder for cell, arm in arms if arm.decoder.remembers}
        self._entries: defaultdict[tuple[str, str, int], list[_Entry]] = defaultdict(list)
        self._live: dict[str, tuple[int, int, Memory]] = {}
        for record in records:
            if record.decoder in self._decoders and record.tokens is not None:
                scope = record.decoder, record.kind, record.repeat
                ids = prompts[record.prompt].ids
                self._entries[scope].append((record.block, ids, record.tokens))

    def before(self, cell: str, block: Block) -> Memory | None:
        """Return a cell's memory before a timed block, None if the cell remembers nothing."""
        entries = self._entries[cell, "timing", block.repeat]
        earlier = [entry for entry in entries if entry[0] < block.block]
        repeat, size, memory = self._live.get(cell, (-1, -1, None))
        if memory is not None and (repeat, size) == (block.repeat, len(earlier)):
            del self._live[cell]  # the block fills it, so it serves once
            return memory
        return self._make(cell, earlier)

    def add(
        self,
        cell: str,
        block: Block,
        prompts: Sequence[Prompt],
        outcomes: Sequence[Outcome],
        memory: Memory | None,
    ) -> None:
        """Add a block's answers, which its `memory` has too."""
        entries = self._entries[cell, "timing", block.repeat]
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            if memory is not None and isinstance(outcome, Generation):
                entries.append((block.block, prompt.ids, outcome.tokens))
        if memory is not None and len(prompts) == 1:  # of a batch, the answers' order may differ
            self._live[cell] = block.repeat, len(entries), memory

    def scored(self, cell: str) -> Memory | None:
        """Return a cell's memory of the answers that the quality pass has."""
        return self._make(cell, self._entries[cell, "quality", 0])

    def _make(self, cell: str, entries: Iterable[_Entry]) -> Memory | None:
        decoder = self._decoders.get(cell)
        memory = None if decoder is None else decoder.memory()
        if memory is not None:
            for _, ids, tokens in entries:
                memory.add(ids, tokens)
        return memory

"""Keep the past answers of a run, from which decoders that remember get their memory.

A scope is a cell in one repeat of the timing pass, or in the quality pass. A memory belongs to one
scope. Before a block, it has the answers to all earlier blocks in the plan's order, so it can be
rebuilt from stored answers: for a resumed run, and for the second pass of a block. An answer to a
later turn may quote answers to earlier turns, so it is added only after these have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bench.records.plan import Block
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from decoders.core.decoder import Decoder, Memory
from decoders.core.types import Generation, Outcome

_Entry = tuple[int, Sequence[int], Sequence[int]]  # block, prompt, answer
_Pairs = Sequence[tuple[Prompt, Outcome]]
_QUALITY = -1  # in place of a repeat, and in records of a block


def later_turns(prompts: Sequence[Prompt]) -> frozenset[int]:
    """Return the indices of later turns in a batch, which may end before turns that they quote."""
    return frozenset(i for i, each in enumerate(prompts) if each.turn > 1 and len(prompts) > 1)


class Memories:
    """Hold the answers that decoders remember, by cell and repeat, and their memories."""

    def __init__(self) -> None:
        """Begin without answers."""
        self._entries: defaultdict[tuple[str, int], list[_Entry]] = defaultdict(list)
        self._live: dict[str, tuple[int, int, Memory]] = {}  # repeat, number of answers, memory

    def load(self, records: Iterable[SampleRecord], prompts: Mapping[str, Prompt]) -> None:
        """Restart with the answers of a run's earlier attempts."""
        self._entries.clear()
        self._live.clear()
        for record in records:
            if record.tokens is not None:
                repeat = _QUALITY if record.kind == "quality" else record.repeat
                entry = record.block, prompts[record.prompt].ids, record.tokens
                self._entries[record.decoder, repeat].append(entry)

    def memory(self, cell: str, decoder: Decoder, block: Block | None = None) -> Memory | None:
        """Return a cell's memory before a timed block, or that of the quality pass."""
        repeat, end = (_QUALITY, 0) if block is None else (block.repeat, block.block)
        earlier = [entry for entry in self._entries[cell, repeat] if entry[0] < end]
        *size, memory = self._live.pop(cell, (0, 0, None))  # a block fills it, so it serves once
        if memory is None or size != [repeat, len(earlier)]:
            memory = decoder.memory()
            if memory is not None:
                for _, prompt, tokens in earlier:
                    memory.add(prompt, tokens)
        return memory

    def add(self, cell: str, block: Block, pairs: _Pairs, memory: Memory | None) -> None:
        """Add a cell's answers to a block.

        Args:
            cell: the cell, or the baseline's second arm.
            block: the block, already timed.
            pairs: its prompts and their outcomes, of which errors are left out.
            memory: the cell's memory, which already has the answers; None: the cell keeps none.
        """
        if memory is not None:
            entries = self._entries[cell, block.repeat]
            answers = [(p.ids, a.tokens) for p, a in pairs if isinstance(a, Generation)]
            entries += [(block.block, *answer) for answer in answers]
            if len(answers) == len(pairs) == 1:  # several answers may have ended in another order
                self._live[cell] = block.repeat, len(entries), memory

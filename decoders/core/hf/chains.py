"""Calls that feed their own picks, in the graph of the call that begins them.

The calls of a draft model differ from what is known beforehand in their token alone, which a GPU
has picked before the host can read it. So the first call's graph runs those that the decoder
announces (`Call.chain`), and they are answered from its results if they come as announced.

Letters: B sequences of a pass, S announced calls, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoders.core.device import upload
from decoders.core.hf.layout import Layout, Pass
from decoders.core.model import Call
from decoders.core.outputs import chain_steps, reads_its_last
from decoders.core.token_reads import Ahead, TokenReads

_MAX_VALUES = 1 << 26
"""Most logits of a chain, 268 MB of float32."""


def num_steps(calls: Sequence[Call], reads: TokenReads, layout: Layout) -> int:
    """Return how many announced calls the graph of the first ones can run."""
    if len(reads) != 1 or layout.window or not (steps := chain_steps(calls)):
        return 0
    size = calls[0].session.model.vocab_size * len(calls)
    return steps if steps * size <= _MAX_VALUES else 0


def with_steps(
    rows: Pass, calls: Sequence[Call], steps: int, reads: TokenReads, scrap: int
) -> Pass:
    """Return a pass with the numbers of S further rows ``[S, B]`` of each sequence, step by step.

    They are the `order` ``[B]`` of the first picks, positions, entries, and the uniforms' bits.
    """
    place = {id(call): number for number, call in enumerate(calls)}
    order = [place.get(id(call), 0) for call in rows.calls]
    ends = [call.session.length + call.num_rows - 1 for call in rows.calls]
    rooms = [call.session.capacity for call in rows.calls]  # 0 for an empty call
    ahead, pairs = range(1, steps + 1), [*zip(ends, rooms, strict=True)]
    numbers = {
        "chain.order": order,
        "chain.positions": [end + step for step in ahead for end in ends],
        "chain.entries": [
            end + step if end + step < room else scrap for step in ahead for end, room in pairs
        ],
    }
    ((_, uniforms),) = reads.values()
    if uniforms:
        values = [uniforms[step * len(calls) + number] for step in ahead for number in order]
        bits = torch.tensor(values, dtype=torch.float64).view(torch.int64)
        numbers["chain.uniforms"] = bits.tolist()
    return rows._replace(numbers={**rows.numbers, **numbers})


class Chain:
    """Results of announced calls, which answer those that come as announced.

    `num_unused` rows have not been asked for.
    """

    def __init__(self, calls: Sequence[Call], reads: TokenReads, results: Sequence[Tensor]) -> None:
        """Take the first calls before they are committed, their reads, and the graph's results.

        Args:
            calls: the first calls.
            reads: of the first calls, with the uniforms of all.
            results: numbers ``[1 + S, (2,) B]`` of the first and the announced calls, logits ``[S,
                B, V]`` and any distributions of the announced ones.
        """
        self._members = {
            call.session: (number, call.session.length + call.num_rows)
            for number, call in enumerate(calls)
        }
        ((self._read, (_, self._uniforms)),) = reads.items()
        self._results, self._step = results, 0
        self._numbers: Tensor | None = None
        self.num_unused = len(results[1]) * len(calls)

    def answer(self, calls: Sequence[Call], reads: TokenReads) -> tuple[Tensor, Ahead] | None:
        """Return the logits ``[R, V]`` of calls and what is read, or None if they differ."""
        step, members = self._step, [*filter(None, [self._members.get(c.session) for c in calls])]
        if step == len(self._results[1]) or [*reads] != [self._read] or len(members) < len(calls):
            return None
        if self._numbers is None:
            self._numbers = self._results[0].cpu()
        picks = self._numbers[step] if self._read.form == "picks" else self._numbers[step, 0]
        ((_, uniforms),) = reads.values()
        values = list[float]()
        rows = [call.session.row for call in calls]  # a graph has all cache rows from the first on
        for call, row, (number, length) in zip(calls, rows, members, strict=True):
            follows = call.tokens == (int(picks[row]),) and call.session.length == length + step
            if not follows or not reads_its_last(call):
                return None
            if self._uniforms:
                values.append(self._uniforms[(step + 1) * len(self._members) + number])
        if values != [*uniforms][: len(values)]:
            return None
        self._step += 1
        self.num_unused -= len(calls)
        logits, *probs = [self._rows(each[step], rows) for each in self._results[1:]]
        numbers = self._numbers[step + 1][..., rows]
        return logits, {self._read.form: (numbers, probs[0] if probs else None)}

    def _rows(self, values: Tensor, rows: Sequence[int]) -> Tensor:
        if rows == [*range(len(rows))]:
            return values[: len(rows)]
        return values.index_select(0, upload(rows, values.device))

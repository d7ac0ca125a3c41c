"""Calls that a GPU runs before the host has read the token that they feed.

They differ from what is known beforehand in their token alone. A chain of a draft model
(`Call.chain`) runs in the graph of the call that begins it. The next call of `ar` (`Call.ahead`) is
queued behind the call that picks its token, which is copied on the device, so that the GPU works
while the host records tokens (vLLM's asynchronous scheduling, SGLang's overlap scheduler). If
another call comes, the queued one has only written entries beyond the text.

Letters: B sequences of a pass, S calls that follow, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoders.core.hf.compiled import Outputs
from decoders.core.hf.layout import Layout, Pass
from decoders.core.model import Call, Session
from decoders.core.outputs import chain_steps, reads_its_last
from decoders.core.token_reads import TokenReads
from decoders.core.types import CallResult

_MAX_VALUES = 1 << 26
"""Most probabilities of a chain, 268 MB of float32."""


def chain_length(calls: Sequence[Call], reads: TokenReads, layout: Layout) -> int:
    """Return how many following calls the graph of the first ones can run."""
    if len(reads) != 1 or layout.window or not (steps := chain_steps(calls)):
        return 0
    (read,), size = reads, calls[0].session.model.vocab_size * (1 + steps) * len(calls)
    return steps if read.form != "probs" or size <= _MAX_VALUES else 0


def with_chain(
    rows: Pass, calls: Sequence[Call], steps: int, reads: TokenReads, scrap: int
) -> Pass:
    """Return a pass with the numbers of S further rows ``[S, B]`` of each sequence, step by step.

    They are the `order` ``[B]`` of the first picks, positions, entries, and the uniforms' bits.

    Args:
        rows: the pass of the first calls, on the host.
        calls: the first calls, in the order of their reads.
        steps: S.
        reads: the one read of the first calls; the uniforms of each step follow theirs.
        scrap: the entry that is written where a sequence has no room.
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


def chain_results(
    calls: Sequence[Call], numbers: Tensor, probs: Sequence[Tensor]
) -> list[CallResult]:
    """Return each call's result with those of the chain's calls that follow it, if any can.

    A row that top-p left open ends a chain before it, and all chains if it is a first call's. The
    graph read `numbers` ``[1 + S, (2,) B]`` and, in some forms, distributions ``[B, 1 + S, V]``.
    """
    steps: Any = numbers.tolist()
    parts = [steps, []] if numbers.dim() == 2 else [*zip(*steps, strict=True)]
    size = calls[0].session.model.vocab_size
    joined = list[CallResult]()
    for call in calls:
        row, chain = call.session.row, call.chain  # a graph has all cache rows from the first on
        assert chain is not None
        picks, sure = [[step[row] for step in part] for part in parts]
        if picks[0] >= size:
            return []
        num = 1
        while num <= chain.num and picks[num] < size and not (sure and sure[num - 1] < chain.stop):
            num += 1
        law, tokens = probs[0][row, :num] if probs else None, tuple(map(int, picks[:num]))
        joined.append(CallResult(picks=tokens, confidences=tuple(sure[:num]), probs=law))
    return joined


class Launch(NamedTuple):
    """A queued pass of the calls that are `expected`, as sessions, lengths and tokens."""

    expected: Sequence[tuple[Session, int, tuple[int, ...]]]
    reads: TokenReads
    rows: Pass
    outputs: Outputs

    def serves(self, calls: Sequence[Call], reads: TokenReads) -> bool:
        """Tell whether calls are the expected ones, and are read as expected."""
        ((read, (_, uniforms)),) = self.reads.items()
        return (
            [(call.session, call.session.length, call.tokens) for call in calls] == self.expected
            and all(map(reads_its_last, calls))
            and not [call for call in calls if call.chain is not None]
            and [*reads] == [read]
            and [*reads[read][1]][: len(uniforms)] == uniforms
        )

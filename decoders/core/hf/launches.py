"""Calls that a GPU begins before the host has read the token that they feed.

The next call of `ar` differs in its tokens alone from what is known beforehand (`Call.ahead`). It
is queued behind the call that picks them, which are copied on the device, so that the GPU works
while the host records tokens and prepares the call after it (vLLM's asynchronous scheduling,
SGLang's overlap scheduler). If another call comes, the queued one has only written entries beyond
the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from decoders.core.hf.compiled import Outputs
from decoders.core.hf.layout import Pass
from decoders.core.model import Call, Session
from decoders.core.outputs import reads_its_last
from decoders.core.token_reads import TokenReads


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
            and [*reads] == [read]
            and [*reads[read][1]][: len(uniforms)] == uniforms
        )


def next_reads(reads: TokenReads) -> TokenReads:
    """Return the reads of the calls that follow, whose uniforms are behind those of a pass."""
    return {read: (rows, [*uniforms][len(rows) :]) for read, (rows, uniforms) in reads.items()}

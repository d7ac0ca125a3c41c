"""The rows of calls that are read, and in which form.

Letters: R rows read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from decoders.core.model import Call
from decoders.core.sampling import Uniforms

Fields = dict[str, Any]
"""Fields of a `CallResult` by name."""
Read = tuple[Tensor, Callable[[list[float]], list[Fields]]]
"""Numbers on the device, and a function that makes fields, in order, from them on the host."""
Member = tuple[list[int], Read]
"""The numbers of the readouts that a read covers, and the read."""


@dataclass(frozen=True, slots=True)
class Readout:
    """Rows of one call that are read: its tokens or, if `slots`, its slots.

    `outputs` are the output positions that the rows predict (negative inside the prompt).
    """

    call: Call
    uniforms: Uniforms
    output: str | tuple[str, ...]
    outputs: Sequence[int]
    slots: bool = False


def readouts(call: Call, uniforms: Uniforms, prompt_length: int) -> tuple[Readout, ...]:
    """Return the readouts of a call before it runs: read tokens, and read slots if it has any."""
    masked = call.session.model.masked
    positions, shift = call.row_positions(), int(not masked or masked.shifted) - prompt_length
    uniforms = call.uniforms or uniforms
    outputs = [positions[row] + shift for row in call.read]
    tokens = Readout(call, uniforms, call.output, outputs)
    if call.slots is None:
        return (tokens,)
    num_tokens = len(call.tokens)
    outputs = [positions[num_tokens + slot] + shift for slot in call.slots.read]
    return tokens, Readout(call, uniforms, call.slots.output, outputs, slots=True)


Readouts = Sequence[Readout]

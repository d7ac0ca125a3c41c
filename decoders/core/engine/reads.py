"""The rows of calls that are read, and in which form.

Letters: R rows read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from decoders.core.model import Call
from decoders.core.outputs import forms
from decoders.core.sampling import Uniforms
from decoders.core.token_reads import FORMS, TokenRead, TokenReads
from decoders.core.types import Confidence, Sampling

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


def confidence(readout: Readout, form: str) -> Confidence:
    """Return the measure of confidence in the tokens of a form (`picks` has none)."""
    slots = readout.call.slots if readout.slots and readout.output != "probs" else None
    return "prob" if slots is None or form == "picks" else slots.confidence


def token_reads(readouts: Readouts, sampling: Sampling) -> TokenReads:
    """Return the reads of a pass if all are of tokens and change no logits, else none."""
    reads: dict[TokenRead, tuple[list[int], list[float]]] = {}
    warping = Sampling(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
    first = 0
    for each in readouts:
        source = each.call.slots if each.slots and each.call.slots else each.call
        if sampling.law is not None or source.barred or not FORMS.issuperset(forms(each.output)):
            return {}
        for form in forms(each.output):
            read = TokenRead(form, confidence(each, form), warping)
            rows, uniforms = reads.setdefault(read, ([], []))
            rows += range(first, first + len(each.outputs))
            uniforms += [each.uniforms.at("draw", out) for out in each.outputs if read.draws]
        first += len(each.outputs)
    return reads if first else {}

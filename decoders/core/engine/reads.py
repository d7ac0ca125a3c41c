"""List the rows of calls that are read, and the forms in which they are read.

Letters: R rows read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from decoders.core.model import Call
from decoders.core.outputs import chain_steps, forms, launches_next
from decoders.core.sampling import Uniforms
from decoders.core.token_reads import FORMS, TokenRead, TokenReads
from decoders.core.types import Confidence, Sampling, Slots

Fields = dict[str, Any]
"""Fields of a `CallResult` by name."""
Read = tuple[Tensor, Callable[[list[float]], list[Fields]]]
"""Numbers on the device, and a function that turns them, once on the host, into fields in order."""
Member = tuple[list[int], Read]
"""Indices of the readouts that a read covers, and the read."""


class Readout(NamedTuple):
    """Describe the rows of one call that are read in the same `forms`: token rows, or slots.

    `outputs` are the output positions that the rows predict (negative inside the prompt), and
    `confidence` is the measure of confidence in their tokens, unless the form is `picks`.
    """

    call: Call
    uniforms: Uniforms
    forms: tuple[str, ...]
    outputs: Sequence[int]
    slots: Slots | None = None
    confidence: Confidence = "prob"


def readouts(call: Call, uniforms: Uniforms, prompt_length: int) -> tuple[Readout, ...]:
    """Return the readouts of a call: its read tokens, and its read slots if any.

    Args:
        call: the call, which has not run.
        uniforms: those of its sequence, for a call that has no `uniforms`.
        prompt_length: number of tokens of the prompt, from which output positions are counted.
    """
    masked, slots = call.session.model.masked, call.slots
    positions, shift = call.positions or call.row_positions(), int(not masked or masked.shifted)
    uniforms = call.uniforms or uniforms
    outputs = [positions[row] + shift - prompt_length for row in call.read]
    tokens = Readout(call, uniforms, forms(call.output), outputs)
    if slots is None:
        return (tokens,)
    outputs = [positions[len(call.tokens) + slot] + shift - prompt_length for slot in slots.read]
    return tokens, Readout(call, uniforms, forms(slots.output), outputs, slots, slots.confidence)


Readouts = Sequence[Readout]


def token_reads(readouts: Readouts, warping: Sampling) -> TokenReads:
    """Return the reads of tokens in a pass, or none if logits change before they are read.

    Graphs serve one `warping`: sampling settings without budget, stop ids and seed. The uniforms
    of a pass come before those of the calls that follow it (`Call.chain`, `ahead`), by step.
    """
    reads: dict[tuple[str, Confidence], tuple[list[int], list[float]]] = {}
    first, greedy = 0, warping.greedy
    for each in readouts:
        source = each.slots or each.call
        if warping.law is not None or source.barred:
            return {}
        for form in filter(FORMS.__contains__, each.forms):
            confidence = "prob" if form == "picks" else each.confidence
            rows, uniforms = reads.setdefault((form, confidence), ([], []))
            rows += range(first, first + len(each.outputs))
            if not greedy and form != "argmax":
                uniforms += [each.uniforms.at("draw", output) for output in each.outputs]
        first += len(each.outputs)
    if len(reads) == 1 and not greedy:
        ((_, uniforms),) = reads.values()
        calls = [each.call for each in readouts]
        num_early = (chain_steps(calls) or int(launches_next(calls))) if uniforms else 0
        for step in range(num_early):
            uniforms += [each.uniforms.at("draw", each.outputs[0] + 1 + step) for each in readouts]
    return {TokenRead(*kind, warping): read for kind, read in reads.items()} if first else {}

"""Turn the logits of merged calls into the results that each call requests, all rows at once.

Rows of one output form are warped, picked or verified together, and their numbers reach the host in
one copy. Distributions and logits stay on the device. Letters: R rows read, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decoders.core.device import upload
from decoders.core.engine.acceptances import read_acceptances
from decoders.core.engine.forms import READERS, answers_before, apply_law, bar, fields, split_rows
from decoders.core.engine.reads import Fields, Member, Read, Readouts
from decoders.core.outputs import VERIFYING
from decoders.core.token_reads import Ahead, TokenRead
from decoders.core.types import CallResult, Sampling


def read_out(logits: Tensor, readouts: Readouts, sampling: Sampling) -> Sequence[CallResult]:
    """Turn the logits of merged calls into the results of their readouts, in order.

    Args:
        logits: float32 ``[sum R, V]``, readout after readout.
        readouts: the readouts of all calls, which have run.
        sampling: settings by which the logits are warped; its seed and budget are not read.
    """
    if chained := [done for each in readouts if (done := each.call.session.chained) is not None]:
        return chained
    if sampling.law is not None:
        parts = list(split_rows(logits, readouts))
        for i, each in enumerate(readouts):
            if each.slots is None:  # a law concerns tokens, never slots
                dead_ends = each.call.session.root.dead_ends
                parts[i] = apply_law(parts[i], answers_before(each), sampling, dead_ends)
        logits = torch.cat(parts)
    logits, masses = bar(logits, readouts)
    sync = sampling.top_p == 1 or logits.device.type == "cpu"
    read = _read_at_once(logits, readouts, sampling, masses, sync)
    if sync:
        return read
    compared = [sum(each.acceptance.overlaps) for each in read if each.acceptance is not None]
    if not (any(map(math.isnan, compared)) or has_nan(read, logits.shape[-1])):
        return read
    return _read_at_once(logits, readouts, sampling, masses, True)  # top-p made rows NaN: `nucleus`


def _read_at_once(
    logits: Tensor, readouts: Readouts, sampling: Sampling, masses: Sequence[Member], sync: bool
) -> Sequence[CallResult]:
    """Read all forms and the barred `masses`, and copy their numbers to the host at once."""
    kinds = sorted({form for each in readouts for form in each.forms})
    again = sync and sampling.top_p < 1
    ahead: Ahead = {} if again else readouts[0].call.session.model.ahead(logits)
    parts = split_rows(logits, readouts) if len(kinds) > max(1, len(ahead)) else ()
    reads: list[Member] = [*masses]
    for form in kinds:
        group = [i for i, each in enumerate(readouts) if form in each.forms]
        is_part = parts and form not in ahead and len(group) < len(readouts)
        some = [parts[i] for i in group] if is_part else [logits]
        rows = torch.cat(some) if some[1:] else some[0]
        read = _READERS.get(form.partition(":")[0]) or functools.partial(_read_tokens, form, ahead)
        reads.append((group, read(rows, [readouts[i] for i in group], sampling, sync)))
    numbers = [values.flatten() for _, (values, _) in reads]
    flat = numbers[0] if len(numbers) == 1 else torch.cat([each.double() for each in numbers])
    left = iter(flat.tolist() if len(flat) else ())
    results: list[Fields] = [{} for _ in readouts]
    for (group, (_, finish)), each in zip(reads, numbers, strict=True):
        for i, new in zip(group, finish([*itertools.islice(left, len(each))]), strict=True):
            results[i] |= new
    return [CallResult(**result) for result in results]


def joined(tokens: CallResult, slots: CallResult) -> CallResult:
    """Join the results of a call's read tokens and read slots."""
    return dataclasses.replace(
        tokens,
        slot_picks=slots.picks,
        slot_confidences=slots.confidences,
        slot_probs=slots.probs,
        slot_barred=slots.barred,
        slots=slots,
    )


def has_nan(results: Sequence[CallResult], vocab_size: int) -> bool:
    """Return whether any result came from NaN or infinite logits: token V, or confidence NaN.

    The check reads only numbers on the host; decoders themselves must check raw logits.
    """
    for result in results:
        if result.acceptance is not None and result.acceptance.token >= vocab_size:
            return True
        total = sum(result.confidences) + sum(result.slot_confidences)
        for each in (result,) if result.slots is None else (result, result.slots):
            total += sum(each.entropies) + sum(map(sum, each.top_probs))
        if total != total or max((*result.picks, *result.slot_picks), default=0) >= vocab_size:
            return True
    return False


def _read_tokens(
    form: str, ahead: Ahead, logits: Tensor, readouts: Readouts, sampling: Sampling, sync: bool
) -> Read:
    """Read tokens of logits ``[R, V]``, or take those that the model read `ahead`."""
    confidences = {"prob" if form == "picks" else each.confidence for each in readouts}
    assert len(confidences) == 1, f"one decoder asks for confidences of kinds {sorted(confidences)}"
    if form in ahead:
        numbers, probs = ahead[form]
    else:
        read, uniforms = TokenRead(form, confidences.pop(), sampling), None
        if read.draws:
            values = [each.uniforms.at("draw", out) for each in readouts for out in each.outputs]
            uniforms = upload(values, logits.device, torch.float64)
        numbers, probs = read(logits, uniforms, sync=sync)
    if form == "picks":
        return numbers, lambda values: fields(readouts, picks=map(int, values))
    num, parts = numbers.shape[1], {} if probs is None else {"probs": probs}
    return numbers, lambda values: fields(
        readouts, picks=map(int, values[:num]), confidences=values[num:], **parts
    )


def _read_logits(logits: Tensor, readouts: Readouts, _sampling: Sampling, _sync: bool) -> Read:
    return logits.new_empty(0), lambda _: fields(readouts, logits=logits)


_READERS = {"logits": _read_logits, **dict.fromkeys(VERIFYING, read_acceptances), **READERS}

"""Turn the logits of merged calls into the results that each call requests, all rows at once.

Rows of one output form are warped, picked or verified together, and their numbers reach the host in
one copy. Distributions and logits stay on the device. Letters: R rows read, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from decoders.core.device import upload
from decoders.core.engine.acceptances import read_acceptances
from decoders.core.engine.forms import READERS, bar, fields, lawful_parts, split_rows
from decoders.core.engine.reads import Fields, Member, Read, Readout, Readouts
from decoders.core.outputs import forms
from decoders.core.sampling import highest, in_parts, likeliest, pick, warp
from decoders.core.types import CallResult, Confidence, Sampling


def read_out(logits: Tensor, readouts: Readouts, sampling: Sampling) -> Sequence[CallResult]:
    """Return the results of readouts, in order, from merged calls' logits ``[sum R, V]``."""
    if sampling.law is not None:
        logits = torch.cat(lawful_parts(split_rows(logits, readouts), readouts, sampling))
    logits, masses = bar(logits, readouts)
    sync = sampling.top_p == 1 or logits.device.type == "cpu"
    read = _read_at_once(logits, readouts, sampling, masses, sync)
    if sync or not any(_is_open(result, logits.shape[-1]) for result in read):
        return read
    return _read_at_once(logits, readouts, sampling, masses, True)  # top-p made rows NaN: `nucleus`


def _read_at_once(
    logits: Tensor, readouts: Readouts, sampling: Sampling, masses: Sequence[Member], sync: bool
) -> Sequence[CallResult]:
    """Read all forms, and copy their numbers to the host at once, with those of `masses`."""
    kinds = sorted({form for readout in readouts for form in forms(readout.output)})
    parts = split_rows(logits, readouts) if len(kinds) > 1 else ()
    reads: list[Member] = [*masses]
    for form in kinds:
        group = [i for i, each in enumerate(readouts) if form in forms(each.output)]
        some = [parts[i] for i in group] if len(group) < len(readouts) else [logits]
        rows = torch.cat(some) if some[1:] else some[0]
        read, some_readouts = _READERS[form.partition(":")[0]], [readouts[i] for i in group]
        reads.append((group, read(rows, some_readouts, sampling, sync)))
    numbers = [values.flatten() for _, (values, _) in reads]
    flat = numbers[0] if len(numbers) == 1 else torch.cat([each.double() for each in numbers])
    left = iter(flat.tolist() if len(flat) else ())
    results: list[Fields] = [{} for _ in readouts]
    for (group, (_, finish)), each in zip(reads, numbers, strict=True):
        for i, new in zip(group, finish([*itertools.islice(left, len(each))]), strict=True):
            results[i] |= new
    return [CallResult(**result) for result in results]


def _is_open(result: CallResult, vocab_size: int) -> bool:
    compared = sum(() if result.acceptance is None else result.acceptance.overlaps)
    return compared != compared or not_a_number(result, vocab_size)


def joined(tokens: CallResult, slots: CallResult) -> CallResult:
    """Join the results of a call's read tokens and its read slots."""
    return dataclasses.replace(
        tokens,
        slot_picks=slots.picks,
        slot_confidences=slots.confidences,
        slot_probs=slots.probs,
        slot_barred=slots.barred,
        slots=slots,
    )


def not_a_number(result: CallResult, vocab_size: int) -> bool:
    """Tell whether a result came from NaN or infinite logits: a token is V or a confidence NaN.

    The check reads only numbers on the host. It is left to decoders to check raw logits.
    """
    if result.acceptance is not None and result.acceptance.token >= vocab_size:
        return True
    if any(token >= vocab_size for token in (*result.picks, *result.slot_picks)):
        return True
    sure = sum(result.confidences) + sum(result.slot_confidences)
    for each in (result,) if result.slots is None else (result, result.slots):
        sure += sum(each.entropies) + sum(map(sum, each.top_probs))
    return sure != sure


def _uniforms(readouts: Sequence[Readout], device: torch.device) -> Tensor:
    values = [r.uniforms.at("draw", output) for r in readouts for output in r.outputs]
    return upload(values, device, torch.float64)


def _draw(distribution: Tensor, readouts: Sequence[Readout]) -> Tensor:
    return pick(distribution, _uniforms(readouts, distribution.device))


def _read_picks(logits: Tensor, readouts: Readouts, sampling: Sampling, sync: bool) -> Read:
    if sampling.greedy:
        picks = likeliest(logits)
    else:  # in parts, because no distribution is kept
        uniforms = _uniforms(readouts, logits.device)
        picks = in_parts(lambda rows, u: pick(warp(rows, sampling, sync=sync), u), logits, uniforms)
    return picks, lambda values: fields(readouts, picks=map(int, values))


def _read_draws(logits: Tensor, readouts: Readouts, sampling: Sampling, sync: bool) -> Read:
    if sampling.greedy:
        return _read_argmax(logits, readouts, sampling, sync)
    distribution = warp(logits, sampling, sync=sync)
    return _with_confidences(_draw(distribution, readouts), distribution, readouts)


def _read_argmax(logits: Tensor, readouts: Readouts, _sampling: Sampling, _sync: bool) -> Read:
    distribution = torch.softmax(logits, dim=-1)
    probs, tokens = highest(distribution)
    return _with_confidences(tokens, distribution, readouts, probs)


def _with_confidences(
    tokens: Tensor,
    distribution: Tensor,
    readouts: Readouts,
    sure: Tensor | None = None,
    **parts: Tensor,
) -> Read:
    """Read tokens ``[R]``, their confidences from distributions ``[R, V]``, and `parts` as fields.

    `sure` are the tokens' probabilities if they are there already.
    """
    kinds: set[Confidence] = set()
    for each in readouts:
        slots = each.call.slots if each.slots and each.output != "probs" else None
        kinds.add("prob" if slots is None else slots.confidence)
    assert len(kinds) == 1, f"one decoder asks for confidences of kinds {sorted(kinds)}"
    confidences = sure if kinds == {"prob"} else None
    if confidences is None:
        indices = tokens.clamp(max=distribution.shape[-1] - 1)  # V marks NaN and is no index
        confidences = rate_confidence(distribution, indices, kinds.pop())
    num = len(tokens)
    return torch.stack((tokens.double(), confidences.double())), lambda values: fields(
        readouts, picks=map(int, values[:num]), confidences=values[num:], **parts
    )


def rate_confidence(distribution: Tensor, tokens: Tensor, kind: Confidence) -> Tensor:
    """Return the confidences of tokens ``[R]`` in distributions ``[R, V]`` (`Slots.confidence`)."""
    if kind == "neg_entropy":
        return torch.exp(torch.xlogy(distribution, distribution).sum(-1))
    prob = distribution.gather(-1, tokens[:, None]).squeeze(-1)
    if kind == "prob":
        return prob
    return prob - distribution.scatter(-1, tokens[:, None], 0.0).amax(-1)


def _read_probs(logits: Tensor, readouts: Readouts, sampling: Sampling, sync: bool) -> Read:
    distribution = warp(logits, sampling, sync=sync)
    picks = likeliest(logits) if sampling.greedy else _draw(distribution, readouts)
    return _with_confidences(picks, distribution, readouts, probs=distribution)


def _read_logits(logits: Tensor, readouts: Readouts, _sampling: Sampling, _sync: bool) -> Read:
    return logits.new_empty(0), lambda _: fields(readouts, logits=logits)


_READERS = {
    "picks": _read_picks,
    "draws": _read_draws,
    "argmax": _read_argmax,
    "probs": _read_probs,
    "logits": _read_logits,
    "acceptance": read_acceptances,
    "block": read_acceptances,
    **READERS,
}

"""Turn the logits of merged calls into the results that each call requests, all rows at once.

Rows of one output form are warped, picked or verified together, and their numbers reach the host in
one copy. Distributions and logits stay on the device. Letters: R rows read, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from decoders.core.engine.acceptances import read_acceptances
from decoders.core.engine.law import lawful_parts
from decoders.core.engine.reads import Read, Readout, Readouts
from decoders.core.sampling import highest, in_parts, likeliest, pick, warp
from decoders.core.types import CallResult, Confidence, Sampling
from decoders.core.upload import upload

T = TypeVar("T")


def read_out(logits: Tensor, readouts: Readouts, sampling: Sampling) -> Sequence[CallResult]:
    """Return the results of readouts, in order, from merged calls' logits ``[sum R, V]``."""
    if sampling.law is not None:
        logits = torch.cat(lawful_parts(_split_rows(logits, readouts), readouts, sampling))
    if any(_barred(readout) for readout in readouts):
        return _read_barred(logits, readouts, sampling)
    return _read_forms(logits, readouts, sampling)


def _barred(readout: Readout) -> frozenset[int]:
    slots = readout.call.slots
    return slots.barred if slots is not None and readout.slots else frozenset()


def _read_barred(logits: Tensor, readouts: Readouts, sampling: Sampling) -> Sequence[CallResult]:
    """Set the logits of barred ids to -inf, and report the ids' mass."""
    masses: dict[int, tuple[float, ...]] = {}
    parts = list(_split_rows(logits, readouts))
    for number, readout in enumerate(readouts):
        if barred := _barred(readout):
            ids = upload(sorted(barred), logits.device)
            mass = torch.softmax(parts[number], -1)[:, ids].sum(-1)
            masses[number] = tuple(mass.tolist())
            parts[number] = parts[number].index_fill(-1, ids, float("-inf"))
    results = _read_forms(torch.cat(parts), readouts, sampling)
    return [
        dataclasses.replace(result, slot_barred=masses[number]) if number in masses else result
        for number, result in enumerate(results)
    ]


def _read_forms(logits: Tensor, readouts: Readouts, sampling: Sampling) -> Sequence[CallResult]:
    """Read all forms, on a GPU again if top-p made rows NaN (`nucleus`)."""
    sync = sampling.top_p == 1 or logits.device.type == "cpu"
    results = _read_at_once(logits, readouts, sampling, sync)
    if sync or not any(_is_open(result, logits.shape[-1]) for result in results):
        return results
    return _read_at_once(logits, readouts, sampling, True)


def _read_at_once(
    logits: Tensor, readouts: Readouts, sampling: Sampling, sync: bool
) -> Sequence[CallResult]:
    """Read all forms, and copy their numbers to the host at once."""
    forms = sorted({readout.output for readout in readouts})
    members = [[i for i, each in enumerate(readouts) if each.output == form] for form in forms]
    rows = [logits]
    if len(forms) > 1:
        parts = _split_rows(logits, readouts)
        rows = [torch.cat(p) if p[1:] else p[0] for p in ([parts[i] for i in g] for g in members)]
    reads = [
        _READERS[form](form_logits, [readouts[i] for i in group], sampling, sync)
        for form, form_logits, group in zip(forms, rows, members, strict=True)
    ]
    numbers = [values.flatten() for values, _ in reads]
    flat = numbers[0] if len(numbers) == 1 else torch.cat([each.double() for each in numbers])
    left = iter(flat.tolist() if len(flat) else ())
    results: dict[int, CallResult] = {}
    for (_, results_of), group, each in zip(reads, members, numbers, strict=True):
        results.update(zip(group, results_of([*itertools.islice(left, len(each))]), strict=True))
    return [results[i] for i in range(len(readouts))]


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
        slot_barred=slots.slot_barred,
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
    return picks, lambda values: [
        CallResult(picks=part) for part in _split([*map(int, values)], readouts)
    ]


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
    tokens: Tensor, distribution: Tensor, readouts: Readouts, probs: Tensor | None = None
) -> Read:
    """Read tokens ``[R]``, and their confidences from distributions ``[R, V]``.

    `probs` are the tokens' probabilities if they are there already.
    """
    kinds = {_confidence(readout) for readout in readouts}
    assert len(kinds) == 1, f"one decoder asks for confidences of kinds {sorted(kinds)}"
    confidences = probs if kinds == {"prob"} else None
    if confidences is None:
        indices = tokens.clamp(max=distribution.shape[-1] - 1)  # V marks NaN and is no index
        confidences = rate_confidence(distribution, indices, kinds.pop())

    def results(values: list[float]) -> list[CallResult]:
        picks = _split([*map(int, values[: len(tokens)])], readouts)
        sure = _split(values[len(tokens) :], readouts)
        return [
            CallResult(picks=tokens_of, confidences=confidences_of)
            for tokens_of, confidences_of in zip(picks, sure, strict=True)
        ]

    return torch.stack((tokens.double(), confidences.double())), results


def _confidence(readout: Readout) -> Confidence:
    slots = readout.call.slots if readout.output != "probs" else None
    return slots.confidence if slots is not None and readout.slots else "prob"


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
    numbers, results = _with_confidences(picks, distribution, readouts)
    return numbers, lambda values: [
        dataclasses.replace(result, probs=probs)
        for result, probs in zip(results(values), _split_rows(distribution, readouts), strict=True)
    ]


def _read_logits(logits: Tensor, readouts: Readouts, _sampling: Sampling, _sync: bool) -> Read:
    parts = _split_rows(logits, readouts)
    return logits.new_empty(0), lambda _: [CallResult(logits=part) for part in parts]


def _split_rows(rows: Tensor, readouts: Readouts) -> Sequence[Tensor]:
    return torch.split(rows, [len(readout.outputs) for readout in readouts])


def _split(values: Sequence[T], readouts: Readouts) -> list[tuple[T, ...]]:
    left = iter(values)
    return [tuple(itertools.islice(left, len(readout.outputs))) for readout in readouts]


_READERS = {
    "picks": _read_picks,
    "draws": _read_draws,
    "argmax": _read_argmax,
    "probs": _read_probs,
    "logits": _read_logits,
    "acceptance": read_acceptances,
    "block": read_acceptances,
}

"""From the logits of a merged call to what each sequence asked for, all rows at once.

Rows are grouped by the form wanted; each group is warped, picked or verified in one go on the
device, and its integers reach the host in one copy. Probabilities and logits stay on the device.

Letters: R rows read, B sequences, K drafts (padded to the longest), V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from decoders.core.sampling import Stream, Uniforms, one_hot, pick, verify_rejection, warp
from decoders.core.types import Call, CallResult, Sampling, SlotWant, Verdict, Want

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Readout:
    """Rows of one call that are read in one form.

    Attributes:
        call: whose rows they are.
        uniforms: of its sequence.
        want: the form.
        outputs: output position that each row predicts (negative inside the prompt).
    """

    call: Call
    uniforms: Uniforms
    want: Want | SlotWant
    outputs: Sequence[int]


def readouts(call: Call, uniforms: Uniforms, prompt_length: int) -> tuple[Readout, ...]:
    """The read tokens of a call that has not run yet, and its read slots if it has any."""
    positions, shift = call.row_positions(), 1 - prompt_length
    outputs = [positions[row] + shift for row in call.read]
    tokens = Readout(call, uniforms, call.want, outputs)
    if call.slots is None:
        return (tokens,)
    num_tokens = len(call.tokens)
    outputs = [positions[num_tokens + slot] + shift for slot in call.slots.read]
    return tokens, Readout(call, uniforms, call.slots.want, outputs)


def read_out(
    logits: Tensor, readouts: Sequence[Readout], sampling: Sampling
) -> Sequence[CallResult]:
    """Results of merged calls' readouts from their logits ``[sum R, V]``, in the same order."""
    sizes = [len(readout.outputs) for readout in readouts]
    wants = {readout.want for readout in readouts}
    if len(wants) == 1:
        return _READERS[wants.pop()](logits, readouts, sizes, sampling)
    parts = torch.split(logits, sizes)
    results: dict[int, CallResult] = {}
    for want in sorted(wants):
        members = [i for i, readout in enumerate(readouts) if readout.want == want]
        group = _READERS[want](
            torch.cat([parts[i] for i in members]),
            [readouts[i] for i in members],
            [sizes[i] for i in members],
            sampling,
        )
        results.update(zip(members, group, strict=True))
    return [results[i] for i in range(len(readouts))]


def joined(tokens: CallResult, slots: CallResult) -> CallResult:
    """One result of a call's read tokens and its read slots."""
    return dataclasses.replace(tokens, slot_picks=slots.picks, slot_confidences=slots.confidences)


def _uniforms(readouts: Sequence[Readout], stream: Stream, device: torch.device) -> Tensor:
    """Uniforms ``[sum R]`` float64 of all read rows."""
    values = [r.uniforms.at(stream, output) for r in readouts for output in r.outputs]
    return torch.tensor(values, dtype=torch.float64, device=device)


def _draw(law: Tensor, readouts: Sequence[Readout]) -> list[int]:
    picks: list[int] = pick(law, _uniforms(readouts, "draw", law.device)).tolist()
    return picks


def _read_picks(
    logits: Tensor, readouts: Sequence[Readout], sizes: Sequence[int], sampling: Sampling
) -> list[CallResult]:
    if sampling.greedy:
        picks: list[int] = logits.argmax(-1).tolist()
    else:
        picks = _draw(warp(logits, sampling), readouts)
    return [CallResult(picks=part) for part in _split(picks, sizes)]


def _read_draws(
    logits: Tensor, readouts: Sequence[Readout], sizes: Sequence[int], sampling: Sampling
) -> list[CallResult]:
    if sampling.greedy:
        return _read_argmax(logits, readouts, sizes, sampling)
    law = warp(logits, sampling)
    drawn = pick(law, _uniforms(readouts, "draw", law.device))
    return _weighed(drawn, law.gather(-1, drawn[:, None]).squeeze(-1), sizes)


def _read_argmax(
    logits: Tensor, readouts: Sequence[Readout], sizes: Sequence[int], sampling: Sampling
) -> list[CallResult]:
    confidences, tokens = torch.softmax(logits, dim=-1).max(-1)
    return _weighed(tokens, confidences, sizes)


def _weighed(tokens: Tensor, confidences: Tensor, sizes: Sequence[int]) -> list[CallResult]:
    """Results of tokens ``[R]`` and their probabilities ``[R]``, one copy to the host."""
    both: list[list[float]] = torch.stack((tokens.double(), confidences.double())).tolist()
    picks = _split([int(token) for token in both[0]], sizes)
    return [
        CallResult(picks=tokens_of, confidences=confidences_of)
        for tokens_of, confidences_of in zip(picks, _split(both[1], sizes), strict=True)
    ]


def _read_probs(
    logits: Tensor, readouts: Sequence[Readout], sizes: Sequence[int], sampling: Sampling
) -> list[CallResult]:
    law = warp(logits, sampling)
    picks = logits.argmax(-1).tolist() if sampling.greedy else _draw(law, readouts)
    return [
        CallResult(picks=part, probs=probs)
        for part, probs in zip(_split(picks, sizes), torch.split(law, list(sizes)), strict=True)
    ]


def _read_logits(
    logits: Tensor, readouts: Sequence[Readout], sizes: Sequence[int], sampling: Sampling
) -> list[CallResult]:
    return [CallResult(logits=part) for part in torch.split(logits, list(sizes))]


def _read_verdict(
    logits: Tensor, readouts: Sequence[Readout], sizes: Sequence[int], sampling: Sampling
) -> list[CallResult]:
    law, device = warp(logits, sampling), logits.device
    counts = [size - 1 for size in sizes]
    most = max(counts)
    if most == 0:  # nothing drafted anywhere: the bonus token alone
        picks = pick(law, _uniforms(readouts, "recover", device)).tolist()
        return [CallResult(verdict=Verdict(0, token)) for token in picks]
    drafts = [list(r.call.drafts) + [0] * (most - len(r.call.drafts)) for r in readouts]
    drafts_on_device = torch.tensor(drafts, device=device)
    accepted, tokens = verify_rejection(
        _pad_rows(torch.split(law, list(sizes)), most + 1),
        _pad_rows([_draft_law(r.call, law) for r in readouts], most),
        drafts_on_device,
        torch.tensor(counts, device=device),
        _padded_uniforms(readouts, "accept", most, device),
        _padded_uniforms(readouts, "recover", most + 1, device),
    )
    verdicts = torch.stack((accepted, tokens)).tolist()
    return [CallResult(verdict=Verdict(*verdict)) for verdict in zip(*verdicts, strict=True)]


def _draft_law(call: Call, like: Tensor) -> Tensor:
    """The laws ``[K, V]`` that a call's drafts were drawn from."""
    if not call.drafts:
        return like[:0]
    if call.draft_probs is None:
        return one_hot(torch.tensor(call.drafts, device=like.device), like.shape[-1])
    return torch.stack(call.draft_probs).to(like.device)


def _pad_rows(laws: Sequence[Tensor], length: int) -> Tensor:
    """Laws of unequal length, padded with zero rows to ``[B, length, V]``."""
    if all(len(law) == length for law in laws):
        return torch.stack(list(laws))
    padded = laws[0].new_zeros(len(laws), length, laws[0].shape[-1])
    for row, law in enumerate(laws):
        padded[row, : len(law)] = law
    return padded


def _padded_uniforms(
    readouts: Sequence[Readout], stream: Stream, length: int, device: torch.device
) -> Tensor:
    """Uniforms ``[B, length]`` float64 of each call's first `length` read rows, padded with 0."""
    rows = []
    for readout in readouts:
        values = [readout.uniforms.at(stream, output) for output in readout.outputs[:length]]
        rows.append(values + [0.0] * (length - len(values)))
    return torch.tensor(rows, dtype=torch.float64, device=device)


def _split(values: Sequence[T], sizes: Sequence[int]) -> list[tuple[T, ...]]:
    """Cut a flat list into tuples of the given sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(tuple(values[start : start + size]))
        start += size
    return parts


_READERS = {
    "picks": _read_picks,
    "draws": _read_draws,
    "argmax": _read_argmax,
    "probs": _read_probs,
    "logits": _read_logits,
    "verdict": _read_verdict,
}

"""Verify the drafts of merged calls by speculative sampling, and compare the distributions.

Letters: R rows read, B sequences, K drafts (padded to the longest), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from decoders.core.sampling import (
    Stream,
    compare_distributions,
    one_hot,
    pick,
    verify_rejection,
    warp,
)
from decoders.core.types import EXACT, Acceptance, Call, CallResult, Sampling
from decoders.core.upload import upload

if TYPE_CHECKING:
    from decoders.core.engine.readout import Readout


def read_acceptances(
    logits: Tensor, readouts: Sequence[Readout], sampling: Sampling
) -> list[CallResult]:
    """Verify merged calls' drafts by the logits ``[sum R, V]`` of their K + 1 read rows each."""
    distribution, device = warp(logits, sampling), logits.device
    sizes = [len(readout.outputs) for readout in readouts]
    counts = [size - 1 for size in sizes]
    most = max(counts)
    if most == 0:  # nothing drafted anywhere: the bonus token alone
        picks = pick(
            distribution, _padded_uniforms(readouts, "recover", 1, device).view(-1)
        ).tolist()
        return [CallResult(acceptance=Acceptance(0, token)) for token in picks]
    drafts = [list(r.call.drafts) + [0] * (most - len(r.call.drafts)) for r in readouts]
    drafts_on_device = upload(drafts, device)
    target_distribution = _pad_rows(torch.split(distribution, sizes))
    draft_distribution = _pad_rows([_draft_distribution(r.call, distribution) for r in readouts])
    accepted, tokens = verify_rejection(
        target_distribution,
        draft_distribution,
        drafts_on_device,
        upload(counts, device),
        _padded_uniforms(readouts, "accept", most, device),
        _padded_uniforms(readouts, "recover", most + 1, device),
        *_relaxed(logits, readouts, sizes, drafts_on_device),
    )
    near = compare_distributions(target_distribution, draft_distribution, drafts_on_device)
    acceptances = torch.cat((torch.stack((accepted, tokens), -1).double(), *near), -1).tolist()
    return [
        CallResult(
            acceptance=Acceptance(
                int(numbers[0]),
                int(numbers[1]),
                ratios=tuple(numbers[2 : 2 + count]),
                overlaps=tuple(numbers[2 + most : 2 + most + count]),
            )
        )
        for numbers, count in zip(acceptances, counts, strict=True)
    ]


def _relaxed(
    logits: Tensor, readouts: Sequence[Readout], sizes: list[int], drafts: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    rules = [readout.call.acceptance_rule for readout in readouts]
    if all(rule == EXACT for rule in rules):
        return None, None
    raw = _pad_rows(torch.split(logits, sizes))[:, :-1]
    ranks = (raw > raw.gather(-1, drafts.unsqueeze(-1))).sum(-1)
    lenience = upload([[rule.lenience] for rule in rules], logits.device, torch.float32)
    return lenience, ranks < upload([[rule.top] for rule in rules], logits.device)


def _draft_distribution(call: Call, like: Tensor) -> Tensor:
    if not call.drafts:
        return like[:0]
    if call.draft_probs is None:
        return one_hot(upload(call.drafts, like.device), like.shape[-1])
    return torch.stack(call.draft_probs).to(like.device)


def _pad_rows(distributions: Sequence[Tensor]) -> Tensor:
    """Stack distributions as ``[B, N, V]``, padded with zero rows to the longest."""
    if len({len(distribution) for distribution in distributions}) == 1:
        return torch.stack(list(distributions))
    return pad_sequence(list(distributions), batch_first=True)


def _padded_uniforms(
    readouts: Sequence[Readout], stream: Stream, length: int, device: torch.device
) -> Tensor:
    """Return uniforms ``[B, length]`` of each call's first read rows, padded with 0."""
    rows = []
    for readout in readouts:
        values = [readout.uniforms.at(stream, output) for output in readout.outputs[:length]]
        rows.append(values + [0.0] * (length - len(values)))
    return upload(rows, device, torch.float64)

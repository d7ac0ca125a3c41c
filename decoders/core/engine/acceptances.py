"""Verify the drafts of merged calls one by one or as a block, and compare distributions.

Letters: R rows read, B sequences, K drafts (padded to the longest), V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from decoders.core.block_verification import verify_block
from decoders.core.device import upload
from decoders.core.engine.reads import Read, Readout
from decoders.core.sampling import (
    MAX_VALUES,
    Stream,
    compare_distributions,
    in_parts,
    one_hot,
    pick,
    verify_rejection,
    warp,
)
from decoders.core.types import EXACT, Acceptance, Sampling


def read_acceptances(
    logits: Tensor, readouts: Sequence[Readout], sampling: Sampling, sync: bool
) -> Read:
    """Verify the drafts of merged calls by the logits ``[sum R, V]`` of K + 1 read rows each.

    Sequences are verified in parts to bound the memory needed besides the logits (see `in_parts`).
    """
    sizes = [len(readout.outputs) for readout in readouts]
    counts = [size - 1 for size in sizes]
    max_drafts = max(counts)
    if max_drafts == 0:  # no drafts anywhere: only bonus tokens
        uniforms = _padded_uniforms(readouts, "recover", 1, logits.device).view(-1)
        picks = in_parts(lambda rows, u: pick(warp(rows, sampling, sync=sync), u), logits, uniforms)
        return picks, lambda values: [{"acceptance": Acceptance(0, int(token))} for token in values]
    num = max(1, MAX_VALUES // ((max_drafts + 1) * logits.shape[-1]))  # sequences at once
    starts = [0, *itertools.accumulate(sizes)]
    parts = [
        _verified(
            logits[starts[first] : starts[min(first + num, len(sizes))]],
            readouts[first : first + num],
            sampling,
            max_drafts,
            sync,
        )
        for first in range(0, len(sizes), num)
    ]
    return torch.cat(parts), lambda values: [
        {"acceptance": _acceptance(values[start : start + 2 + 2 * max_drafts], count)}
        for start, count in zip(itertools.count(0, 2 + 2 * max_drafts), counts, strict=False)
    ]


def _acceptance(numbers: Sequence[float], count: int) -> Acceptance:
    ratios, overlaps = numbers[2 : 2 + count], numbers[len(numbers) // 2 + 1 :][:count]
    return Acceptance(
        int(numbers[0]), int(numbers[1]), ratios=tuple(ratios), overlaps=tuple(overlaps)
    )


def _verified(
    logits: Tensor, readouts: Sequence[Readout], sampling: Sampling, max_drafts: int, sync: bool
) -> Tensor:
    """Return accepted count, next token, ratios and overlaps per sequence: ``[B, 2 + 2 K]``."""
    distribution, device = warp(logits, sampling, sync=sync), logits.device
    sizes = [len(readout.outputs) for readout in readouts]
    drafts = [list(r.call.drafts) + [0] * (max_drafts - len(r.call.drafts)) for r in readouts]
    drafts_on_device = upload(drafts, device)
    target_distribution = _pad_rows(torch.split(distribution, sizes), max_drafts + 1)
    proposed = [
        one_hot(ids[: len(call.drafts)], distribution.shape[-1])
        if call.draft_probs is None or not call.drafts
        else torch.stack(call.draft_probs).to(device)
        for ids, call in zip(drafts_on_device, (each.call for each in readouts), strict=True)
    ]
    draft_distribution = _pad_rows(proposed, max_drafts)
    is_block = "block" in readouts[0].forms
    accepted, tokens = (verify_block if is_block else verify_rejection)(
        target_distribution,
        draft_distribution,
        drafts_on_device,
        upload([size - 1 for size in sizes], device),
        _padded_uniforms(readouts, "accept", max_drafts, device),
        _padded_uniforms(readouts, "recover", max_drafts + 1, device),
        *(() if is_block else _relaxed(logits, readouts, sizes, drafts_on_device)),
    )
    near = compare_distributions(target_distribution, draft_distribution, drafts_on_device)
    return torch.cat((torch.stack((accepted, tokens), -1).double(), *near), -1)


def _relaxed(
    logits: Tensor, readouts: Sequence[Readout], sizes: list[int], drafts: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    rules = [readout.call.acceptance_rule for readout in readouts]
    if all(rule == EXACT for rule in rules):
        return None, None
    raw = _pad_rows(torch.split(logits, sizes), drafts.shape[1] + 1)[:, :-1]
    ranks = (raw > raw.gather(-1, drafts.unsqueeze(-1))).sum(-1)
    lenience = upload([[rule.lenience] for rule in rules], logits.device, torch.float32)
    return lenience, ranks < upload([[rule.top] for rule in rules], logits.device)


def _pad_rows(distributions: Sequence[Tensor], num_rows: int) -> Tensor:
    """Stack distributions as ``[B, N, V]``, padded with zero rows."""
    missing = [num_rows - len(distribution) for distribution in distributions]
    return torch.stack(
        [pad(d, (0, 0, 0, n)) if n else d for d, n in zip(distributions, missing, strict=True)]
    )


def _padded_uniforms(
    readouts: Sequence[Readout], stream: Stream, length: int, device: torch.device
) -> Tensor:
    """Return uniforms ``[B, length]`` of each call's first read rows, padded with 0."""
    rows = []
    for readout in readouts:
        values = [readout.uniforms.at(stream, output) for output in readout.outputs[:length]]
        rows.append(values + [0.0] * (length - len(values)))
    return upload(rows, device, torch.float64)

"""Verify the drafts of merged calls one by one or as a block, and compare distributions.

Letters: R rows read, B sequences, K drafts (padded to the longest), V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.core.block_verification import verify_block
from decoders.core.device import staged, upload
from decoders.core.engine.reads import Read, Readout
from decoders.core.sampling import (
    MAX_VALUES,
    compare_distributions,
    one_hot,
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
    max_drafts = max(1, *counts)  # without drafts anywhere, one of padding
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
    return torch.cat(parts) if parts[1:] else parts[0], lambda values: [
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
    device, numbers, values, rows, laws = logits.device, [], [], list[int](), list[Tensor]()
    has_laws, first = any(each.call.draft_probs for each in readouts), 0
    for call, uniforms, _, outputs, *_ in readouts:
        padding = [0] * (max_drafts + 1 - len(outputs))
        rows += [*range(first, first + len(outputs)), *[first] * len(padding)]
        first += len(outputs)
        accept, recover = [
            [*[uniforms.at(stream, output) for output in outputs], *padding]
            for stream in ("accept", "recover")
        ]
        numbers.append([len(outputs) - 1, call.acceptance_rule.top, *call.drafts, *padding])
        values.append([call.acceptance_rule.lenience, *accept[:-1], *recover])
        if has_laws:
            each = [law.to(device) for law in call.draft_probs or ()]
            each = each or [*one_hot(upload([*call.drafts, 0], device), logits.shape[-1])]
            laws += [*each, *[each[0]] * max_drafts][:max_drafts]
    bits = torch.tensor(values, dtype=torch.float64).view(torch.int64)
    inputs = {"numbers": staged(torch.cat((torch.tensor(numbers), bits), 1), device)}
    padded = logits if len(rows) == len(logits) else logits.index_select(0, upload(rows, device))
    inputs |= {"logits": padded, **({"laws": torch.stack(laws)} if laws else {})}
    is_exact = all(each.call.acceptance_rule == EXACT for each in readouts)
    test = DraftTest(sampling, max_drafts, "block" in readouts[0].forms, is_exact, sync)
    if sync and sampling.top_p < 1:  # it waits for numbers
        return test(inputs)
    return readouts[0].call.session.model.as_graph(test, inputs)


@dataclass(frozen=True, slots=True)
class DraftTest:
    """The test of K = `num` drafts of each sequence, which a graph can hold.

    `is_exact` says that no rule is relaxed (`AcceptanceRule`).
    """

    sampling: Sampling
    num: int
    is_block: bool
    is_exact: bool
    sync: bool

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return accepted counts, tokens, ratios and overlaps, ``[B, 2 + 2 K]``.

        Args:
            inputs: `logits` ``[B (K + 1), V]``; `laws` ``[B K, V]``, the drafts' distributions
                (without them one-hot); and `numbers` int64 ``[B, 3 K + 4]``: number of drafts, top,
                drafts, and the bits of lenience and uniforms.
        """
        logits, num = inputs["logits"], self.num
        numbers: Any = inputs["numbers"].to(logits.device, non_blocking=True)
        counts, tops, drafts = numbers[:, : num + 2].split((1, 1, num), 1)
        bits = numbers[:, num + 2 :].view(torch.float64)
        lenience, *uniforms = bits.split((1, num, num + 1), 1)
        target = warp(logits, self.sampling, sync=self.sync).view(len(drafts), num + 1, -1)
        laws = inputs.get("laws")
        proposed = (
            one_hot(drafts, logits.shape[-1])
            if laws is None
            else laws.view(-1, num, target.shape[-1])
        )
        relaxed: tuple[Tensor, ...] = ()
        if not (self.is_exact or self.is_block):
            raw = logits.view_as(target)[:, :-1]
            ranks = (raw > raw.gather(-1, drafts.unsqueeze(-1))).sum(-1)
            relaxed = lenience.float(), ranks < tops
        test: Any = verify_block if self.is_block else verify_rejection
        accepted, tokens = test(target, proposed, drafts, counts.squeeze(1), *uniforms, *relaxed)
        near = compare_distributions(target, proposed, drafts)
        return torch.cat((torch.stack((accepted, tokens), -1).double(), *near), -1)

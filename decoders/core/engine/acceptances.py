"""Verify the drafts of merged calls singly, as a block or a tree, and compare distributions.

Letters: R rows read, B sequences, K drafts of each, W of them behind one row (both padded to the
most; 1 in a chain), V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.core.device import staged, upload
from decoders.core.engine.reads import Fields, Read, Readout
from decoders.core.joint_verification import verify_block, verify_tree
from decoders.core.model import Call
from decoders.core.outputs import VERIFYING
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
    """Verify the drafts of merged calls.

    Sequences are verified in parts to bound the memory needed besides the logits (see `in_parts`).

    Args:
        logits: ``[sum R, V]`` of the read rows, call after call.
        readouts: their readouts, all of one verifying form.
        sampling: settings by which the logits are warped.
        sync: see `warp`.
    """
    (form,), sizes = {*VERIFYING} & {*readouts[0].forms}, [len(each.outputs) for each in readouts]
    max_drafts = max(2, *sizes) - 1  # without drafts anywhere, one of padding
    trees = [_children(readout.call, form, max_drafts) for readout in readouts]
    width = max(1, *map(len, itertools.chain(*trees)))
    is_exact = all(each.call.acceptance_rule == EXACT for each in readouts)
    test = DraftTest(form, sampling, max_drafts, width, is_exact, sync)
    num = max(1, MAX_VALUES // ((max_drafts + 1) * logits.shape[-1]))  # sequences at once
    starts, parts = [0, *itertools.accumulate(sizes)], list[Tensor]()
    for first in range(0, len(sizes), num):
        last = min(first + num, len(sizes))
        rows = logits[starts[first] : starts[last]]
        parts.append(_verified(test, rows, readouts[first:last], trees[first:last]))
    results = torch.cat(parts) if parts[1:] else parts[0]
    length = results.shape[1]
    return results, lambda values: [
        _fields(form, values[number * length : (number + 1) * length], size - 1)
        for number, size in enumerate(sizes)
    ]


def _fields(form: str, numbers: Sequence[float], count: int) -> Fields:
    if form == "tree":
        *path, token = map(int, numbers)
        return {"path": tuple(dict.fromkeys(path)), "picks": (token,)}
    ratios, overlaps = numbers[2 : 2 + count], numbers[len(numbers) // 2 + 1 :][:count]
    accepted, token = map(int, numbers[:2])
    return {"acceptance": Acceptance(accepted, token, tuple(ratios), tuple(overlaps))}


def _children(call: Call, form: str, num: int) -> list[list[int]]:
    """Return the drafts behind `num` rows: the next row, or in a tree the children by the mask."""
    read, children, mask = [*call.read], [list[int]() for _ in range(num)], call.mask
    sees = None if mask is None or form != "tree" else mask[read][:, read].tolist()
    for row in range(1, len(read)):
        parent = row - 1 if sees is None else max(itertools.compress(range(row), sees[row]))
        children[parent].append(row)
    return children


def _verified(
    test: DraftTest,
    logits: Tensor,
    readouts: Sequence[Readout],
    trees: Sequence[Sequence[Sequence[int]]],
) -> Tensor:
    """Test the drafts behind each row of sequences, with all numbers in one upload."""
    device, numbers, values, rows, laws = logits.device, [], [], list[int](), list[Tensor]()
    spare, first = next((law for each in readouts for law in each.call.draft_probs or ()), None), 0
    for (call, uniforms, _, outputs, *_), tree in zip(readouts, trees, strict=True):
        padding, rule = [0] * (test.num + 1 - len(outputs)), call.acceptance_rule
        rows += [*range(first, first + len(outputs)), *[first] * len(padding)]
        first += len(outputs)
        drafts = [[*children, *[0] * (test.width - len(children))] for children in tree]
        accept = [
            uniforms.at("accept", outputs[row], number) if draft else 0.0
            for row, line in enumerate(drafts)
            for number, draft in enumerate(line)
        ]
        recover = [*[uniforms.at("recover", output) for output in outputs], *padding]
        tokens, behind = [0, *call.drafts, *padding], itertools.chain(*drafts)
        numbers.append([len(outputs) - 1, rule.top, *tokens, *behind])
        values.append([rule.lenience, *accept, *recover])
        if spare is not None:
            each: Any = call.draft_probs or ()
            if call.drafts and not each:
                each = one_hot(upload(call.drafts, device), logits.shape[-1])
            laws += [each[draft - 1] if draft else spare for draft, *_ in drafts]
    bits = torch.tensor(values, dtype=torch.float64).view(torch.int64)
    inputs = {"numbers": staged(torch.cat((torch.tensor(numbers), bits), 1), device)}
    padded = logits if len(rows) == len(logits) else logits.index_select(0, upload(rows, device))
    stacked = {"laws": torch.stack([law.to(device) for law in laws])} if laws else {}
    inputs |= {"logits": padded, **stacked}
    if test.sync and test.sampling.top_p < 1:  # an upload waits for the host
        return test(inputs)
    return readouts[0].call.session.model.as_graph(test, inputs)


@dataclass(frozen=True, slots=True)
class DraftTest:
    """Test K = `num` drafts of each sequence, by operations that a graph can hold.

    At most W = `width` are behind one row; `is_exact`: no `AcceptanceRule` is relaxed.
    """

    form: str
    sampling: Sampling
    num: int
    width: int
    is_exact: bool
    sync: bool

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return accepted counts, tokens, ratios and overlaps, ``[B, 2 + 2 K]``.

        Args:
            inputs: `logits` ``[B (K + 1), V]``; `laws` ``[B K, V]``, the distributions of the
                drafts behind a row (without them one-hot); and `numbers` int64 ``[B, …]``: number
                of drafts, top, tokens, the W drafts behind each row but the last (0: none), and
                the bits of lenience and uniforms.

        Returns:
            For trees, the result of `verify_tree` instead.
        """
        logits, num, num_tests = inputs["logits"], self.num, self.num * self.width
        numbers: Any = inputs["numbers"].to(logits.device, non_blocking=True)
        sizes = 1, 1, num + 1, num_tests, num_tests + num + 2
        counts, tops, tokens, children, bits = numbers.split(sizes, 1)
        lenience, *uniforms = bits.view(torch.float64).split((1, num_tests, num + 1), 1)
        target = warp(logits, self.sampling, sync=self.sync).view(len(tokens), num + 1, -1)
        laws, drafts = inputs.get("laws"), tokens[:, 1:]
        if laws is None:
            laws = one_hot(tokens.gather(1, children[:, :: self.width]), logits.shape[-1])
        proposed = laws.view(-1, num, target.shape[-1])
        if self.form == "tree":
            return verify_tree(target, proposed, tokens, children, *uniforms).double()
        relaxed: tuple[Tensor, ...] = ()
        is_block = self.form == "block"
        if not (self.is_exact or is_block):
            raw = logits.view_as(target)[:, :-1]
            ranks = (raw > raw.gather(-1, drafts.unsqueeze(-1))).sum(-1)
            relaxed = lenience.float(), ranks < tops
        test: Any = verify_block if is_block else verify_rejection
        accepted, tokens = test(target, proposed, drafts, counts.squeeze(1), *uniforms, *relaxed)
        near = compare_distributions(target, proposed, drafts)
        return torch.cat((torch.stack((accepted, tokens), -1).double(), *near), -1)

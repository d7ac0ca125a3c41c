"""Apply a law of the logits (`Sampling.law`), as in constrained or contrastive decoding.

Letters: R rows read, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from decoders.core.engine.reads import Readout, Readouts
from decoders.core.types import Sampling


def lawful(
    logits: Tensor, answers: Iterable[Sequence[int]], sampling: Sampling, *, drafts: bool = False
) -> Tensor:
    """Apply the law of `sampling`, if any, to logits ``[R, V]`` after R answers.

    A row in which it forbids every token stays as it is: such a row follows a draft. In the first
    row, which follows the committed text unless the call `drafts`, it raises `ValueError`, as
    another shape does.
    """
    if sampling.law is None or not len(logits):
        return logits
    rows: list[Tensor] = []
    for row, answer in zip(logits, answers, strict=True):
        changed = sampling.law(tuple(answer), row.clone())
        if not isinstance(changed, Tensor) or changed.shape != row.shape:
            shape = list(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise ValueError(f"the law returned {shape}; return logits of shape {list(row.shape)}")
        if not bool((changed > -torch.inf).any()):
            if not (rows or drafts):
                raise ValueError(f"the law forbids every token after {len(answer)} tokens")
            changed = row
        rows.append(changed.to(row))
    return torch.stack(rows)


def lawful_parts(parts: Iterable[Tensor], readouts: Readouts, sampling: Sampling) -> list[Tensor]:
    """Apply the law to the logits ``[R, V]`` of each readout: to rows of tokens, not of slots."""
    return [
        rows if each.slots else lawful(rows, answers_before(each), sampling, drafts=each.drafts)
        for rows, each in zip(parts, readouts, strict=True)
    ]


def answers_before(readout: Readout) -> list[list[int]]:
    """Return the answer before each row's prediction, drafts included, once the call ran."""
    call, session = readout.call, readout.call.session
    before = session.text[: session.base]
    answers = []
    for row, output in zip(call.read, readout.outputs, strict=True):
        sees = itertools.repeat(True) if call.mask is None else call.mask[row].tolist()
        text = [*before, *itertools.compress(call.tokens[: row + 1], sees)]
        answers.append(text[len(text) - max(0, output) :])
    return answers

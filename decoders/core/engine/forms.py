"""Read entropies and likeliest tokens, bar ids, apply a law of the logits, and join chains.

Entropies, likeliest tokens and bars concern distributions before warping and after the law
(`Sampling.law`), as in constrained or contrastive decoding.
Letters: R rows read, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from decoders.core.device import upload
from decoders.core.engine.reads import Fields, Member, Read, Readout, Readouts
from decoders.core.model import Call
from decoders.core.types import CallResult, Sampling


def split_rows(rows: Tensor, readouts: Readouts) -> Sequence[Tensor]:
    """Split ``[sum R, …]`` by readout."""
    return torch.split(rows, [len(readout.outputs) for readout in readouts])


def fields(readouts: Readouts, **columns: Any) -> list[Fields]:
    """Split columns of R values or rows by readout, into fields of results."""

    def parts(column: Any) -> Sequence[Any]:
        if isinstance(column, Tensor):
            return split_rows(column, readouts)
        left = iter(column)
        return [tuple(itertools.islice(left, len(readout.outputs))) for readout in readouts]

    rows = zip(*map(parts, columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def follow(
    call: Call, result: CallResult, before: list[CallResult]
) -> tuple[Sequence[Call], Sequence[CallResult]]:
    """Return the next call of a call's chain, or at its end the joint result.

    Args:
        call: a call that ran.
        result: the call's result.
        before: earlier results of the chain; `result` is added, and at the end all are removed.
    """
    chain, confidences = call.chain, result.confidences
    assert chain is not None
    before.append(result)
    rest = chain._replace(num=chain.num - len(result.picks))
    if rest.num >= 0 and not (confidences and confidences[-1] < chain.stop):
        return (replace(call, tokens=result.picks[-1:], read=(0,), chain=rest),), ()
    results, before[:] = before.copy(), []
    if len(results) == 1:
        return (), results
    probs = [each.probs for each in results if each.probs is not None]
    joined = CallResult(
        picks=tuple([pick for each in results for pick in each.picks]),
        confidences=tuple([value for each in results for value in each.confidences]),
        probs=torch.cat(probs) if probs else None,
    )
    return (), [joined]


def _read_entropies(logits: Tensor, readouts: Readouts, _sampling: Sampling, _sync: bool) -> Read:
    probs = torch.softmax(logits, -1)
    entropies = -torch.xlogy(probs, probs).sum(-1)
    return entropies, lambda values: fields(readouts, entropies=values)


def _read_top(logits: Tensor, readouts: Readouts, _sampling: Sampling, _sync: bool) -> Read:
    (form,) = (each for each in readouts[0].forms if each.startswith("topk:"))
    probs, ids = torch.softmax(logits, -1).topk(min(int(form[5:]), logits.shape[-1]), -1)
    count, num = ids.shape

    def read(values: list[float]) -> list[Fields]:
        rows = [tuple(values[i : i + num]) for i in range(0, len(values), num)]
        tokens = [tuple(map(int, row)) for row in rows[:count]]
        return fields(readouts, top_ids=tokens, top_probs=rows[count:])

    return torch.stack((ids.double(), probs.double())), read


READERS = {"entropy": _read_entropies, "topk": _read_top}


def bar(logits: Tensor, readouts: Readouts) -> tuple[Tensor, list[Member]]:
    """Return logits with -inf at barred ids, and a read of the barred mass if any id is barred.

    If a row allows barred ids only, it becomes NaN, and the answer an error.
    """
    barring = [number for number, r in enumerate(readouts) if (r.slots or r.call).barred]
    if not barring:
        return logits, []
    parts, masses = list(split_rows(logits, readouts)), list[Tensor]()
    members = [readouts[number] for number in barring]
    for number, each in zip(barring, members, strict=True):
        ids = upload(sorted((each.slots or each.call).barred), logits.device)
        masses.append(torch.softmax(parts[number], -1)[:, ids].sum(-1))
        part = parts[number].index_fill(-1, ids, -torch.inf)
        parts[number] = part.masked_fill((part == -torch.inf).all(-1, keepdim=True), torch.nan)
    read = torch.cat(masses), lambda values: fields(members, barred=values)
    return torch.cat(parts), [(barring, read)]


def apply_law(
    logits: Tensor,
    answers: Iterable[Sequence[int]],
    sampling: Sampling,
    dead_ends: set[tuple[int, ...]] | None = None,
) -> Tensor:
    """Apply a law to logits, except to rows in which it forbids every token.

    A law that returns another shape raises `ValueError`.

    Args:
        logits: ``[R, V]``, which stay as they are.
        answers: the answer before each row.
        sampling: the settings that have the law; without a law `logits` are the result.
        dead_ends: gets the answers after which every token is forbidden.
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
            changed = row
            if dead_ends is not None:
                dead_ends.add(tuple(answer))
        rows.append(changed.to(row))
    return torch.stack(rows)


def answers_before(readout: Readout) -> list[list[int]]:
    """Return the answer before each row's prediction, drafts included, after the call ran."""
    call, session = readout.call, readout.call.session
    before = session.text[: session.base]
    answers = []
    for row, output in zip(call.read, readout.outputs, strict=True):
        sees = itertools.repeat(True) if call.mask is None else call.mask[row].tolist()
        text = [*before, *itertools.compress(call.tokens[: row + 1], sees)]
        answers.append(text[len(text) - output :])  # empty inside the prompt
    return answers

"""The quality pass: held-out prompts, untimed and batched, scored against their references.

It answers "how good", never "how fast": its prompts are many and its batches large, so that the
scores mean something. One line per decoder and prompt is written as soon as the answer is there;
a resumed run asks only for what is missing. The baseline's second arm takes no part. Beside the
score stands what the target says of the answer: its likelihood, token by token. An answer that
several decoders gave (all those that keep the baseline's tokens) is read by the target once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, MutableMapping, Sequence
from typing import NamedTuple

import torch

from bench.measure.timing import fill_record
from bench.plan.make import batch_size
from bench.plan.setup import Arm, Setup
from bench.progress import Progress
from bench.records.failures import Tracebacks
from bench.records.files import Sink
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import Model
from decoders.core.types import Outcome
from specbench_tasks.scorers import score

ADVICE = "lower --max-new-tokens, or leave it out: --quality-limit 0"
"""What helps where this pass does not fit into memory."""
_NO_BLOCK = -1
"""The block number of quality records: they belong to none."""
_LIKELIHOOD_ROWS = 64
"""Rows of the vocabulary's size that are read at a time."""
_ReadAnswers = MutableMapping[tuple[str, tuple[int, ...]], "TargetScores"]
"""What the target said, by the prompt's name and the answer's tokens."""


def score_quality(
    setup: Setup,
    prompts: Sequence[Prompt],
    writer: Sink,
    progress: Progress,
    *,
    attempt: int,
    done: Collection[tuple[str, str]] = (),
    errors: Tracebacks | None = None,
) -> None:
    """Answer and score `prompts` with every arm, but for the (cell, prompt) pairs in `done`.

    `errors` takes the tracebacks of failed answers; None: nobody keeps them.
    """
    if not prompts:
        return
    progress.start("quality", len(prompts) * len(setup.arms), len(done))
    read: _ReadAnswers = {}
    for cell, arm in setup.arms.items():
        left = [prompt for prompt in prompts if (cell, prompt.name) not in done]
        if left:
            _score_arm(setup, cell, arm, left, writer, progress, attempt, errors, read)
        writer.sync()


def _score_arm(
    setup: Setup,
    cell: str,
    arm: Arm,
    prompts: Sequence[Prompt],
    writer: Sink,
    progress: Progress,
    attempt: int,
    errors: Tracebacks | None,
    read: _ReadAnswers,
) -> None:
    num_rows = batch_size(setup)

    def write(index: int, outcome: Outcome) -> None:
        record = _record(setup, cell, prompts[index], outcome, attempt, num_rows, read)
        writer.record(record)
        if errors is not None and isinstance(outcome, Exception):
            errors.add(record, outcome)
        progress.step(cell)

    scheduler = Scheduler(arm.decoder, arm.models, setup.sampling, num_rows, arm.deadline)
    with arm.deadline.ticking(), arm.models.uncompiled():  # large batches: graphs of their own
        scheduler.run([prompt.ids for prompt in prompts], on_finish=write)


def _record(
    setup: Setup,
    cell: str,
    prompt: Prompt,
    outcome: Outcome,
    attempt: int,
    num_rows: int,
    read: _ReadAnswers,
) -> SampleRecord:
    record = SampleRecord(
        kind="quality",
        decoder=cell,
        family=prompt.family,
        conversation=prompt.conversation,
        turn=prompt.turn,
        prompt_hash=prompt.hash,
        repeat=0,
        seed=setup.sampling.seed,
        block=_NO_BLOCK,
        order=0,
        attempt=attempt,
        batch_size=num_rows,
        num_prompt_tokens=len(prompt.ids),
    )
    record = fill_record(setup, record, outcome)
    if record.tokens:
        answer = (prompt.name, record.tokens)
        if answer not in read:
            read[answer] = target_scores(setup.models.target, prompt.ids, record.tokens)
        of_target = read[answer]
        if of_target.nll != of_target.nll:
            error = "FloatingPointError: the target's logits for this answer are NaN"
            return dataclasses.replace(
                record, tokens=None, text=None, stop=None, steps=None, error=error
            )
        record = dataclasses.replace(
            record, nll=of_target.nll, agreement=of_target.agreement, entropy=of_target.entropy
        )
    if record.text is None or prompt.reference is None:
        return record
    scores = score(prompt.family, record.text, prompt.reference)
    return dataclasses.replace(record, scores=scores)


class TargetScores(NamedTuple):
    """Means over an answer's tokens, see `SampleRecord`."""

    nll: float
    agreement: float
    entropy: float


def target_scores(target: Model, prompt: Sequence[int], tokens: Sequence[int]) -> TargetScores:
    """What the target says of an answer, teacher-forced.

    One sequence is free in the cache, as an answer that is reported has left it.
    """
    nll = entropy = agreed = 0.0
    session = target.open()
    try:
        fed, rest = list(prompt), list(tokens)
        while rest:
            now, rest = rest[:_LIKELIHOOD_ROWS], rest[_LIKELIHOOD_ROWS:]
            ids = [*fed, *now[:-1]]
            call = session.call(ids, output="logits", read=range(len(fed) - 1, len(ids)))
            distribution = target.forward([call]).log_softmax(-1)
            at = torch.tensor(now, device=distribution.device)
            nll -= float(distribution.gather(-1, at[:, None]).sum())
            agreed += int((distribution.argmax(-1) == at).sum())
            entropy -= float(torch.xlogy(distribution.exp(), distribution.exp()).sum())
            fed = now[-1:]
    finally:
        target.close(session)
    num = len(tokens)
    return TargetScores(nll / num, agreed / num, entropy / num)

"""The quality pass: held-out prompts, untimed and batched, scored against their references.

It answers "how good", never "how fast": its prompts are many and its batches large, so that the
scores mean something. One line per decoder and prompt is written as soon as the answer is there;
a resumed run asks only for what is missing. The baseline's second arm takes no part. Beside the
score stands what the target says of the answer: its likelihood, token by token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from bench.failures import ErrorLog
from bench.files import SampleWriter
from bench.plan import BASELINE
from bench.progress import Progress
from bench.prompts import Prompt
from bench.records import SampleRecord
from bench.runner import answered
from bench.workbench import Arm, Workbench
from decoders.core.model import Model
from decoders.core.models import Models
from decoders.core.scheduler import Scheduler
from decoders.core.types import Generation, Outcome
from specbench_tasks.scorers import score

BATCH_ON_CPU = 8
BATCH_ON_GPU = 32
NO_BLOCK = -1
"""The block number of quality records: they belong to none."""
LIKELIHOOD_ROWS = 64
"""Rows of the vocabulary's size that are read at a time."""


def batch_size(bench: Workbench) -> int:
    """Sequences at a time in untimed passes."""
    return BATCH_ON_GPU if bench.on_gpu else BATCH_ON_CPU


def score_quality(
    bench: Workbench,
    prompts: Sequence[Prompt],
    writer: SampleWriter,
    progress: Progress,
    *,
    attempt: int,
    done: Collection[tuple[str, str]] = (),
    errors: ErrorLog | None = None,
) -> None:
    """Answer and score `prompts` with every arm, but for the (cell, prompt) pairs in `done`.

    `errors` takes the tracebacks of failed answers; None: nobody keeps them.
    """
    if not prompts:
        return
    progress.start("quality", len(prompts) * len(bench.arms), len(done))
    for cell, arm in bench.arms.items():
        left = [prompt for prompt in prompts if (cell, prompt.name) not in done]
        if left:
            _score_arm(bench, cell, arm, left, writer, progress, attempt, errors)
        writer.sync()


def _score_arm(
    bench: Workbench,
    cell: str,
    arm: Arm,
    prompts: Sequence[Prompt],
    writer: SampleWriter,
    progress: Progress,
    attempt: int,
    errors: ErrorLog | None,
) -> None:
    num_rows = batch_size(bench)

    def write(index: int, outcome: Outcome) -> None:
        record = _record(bench, cell, prompts[index], outcome, attempt, num_rows)
        writer.record(record)
        if errors is not None and isinstance(outcome, Exception):
            errors.add(record, outcome)
        progress.step(cell)

    scheduler = Scheduler(arm.decoder, arm.models, bench.sampling, num_rows, arm.patience)
    with arm.patience.ticking():
        scheduler.run([prompt.ids for prompt in prompts], on_finish=write)


def _record(
    bench: Workbench, cell: str, prompt: Prompt, outcome: Outcome, attempt: int, num_rows: int
) -> SampleRecord:
    record = SampleRecord(
        kind="quality",
        decoder=cell,
        family=prompt.family,
        conversation=prompt.conversation,
        turn=prompt.turn,
        prompt_hash=prompt.hash,
        repeat=0,
        seed=bench.sampling.seed,
        block=NO_BLOCK,
        order=0,
        attempt=attempt,
        batch_size=num_rows,
        num_prompt_tokens=len(prompt.ids),
    )
    record = answered(bench, record, outcome)
    if record.tokens:
        told = what_the_target_says(bench.models.target, prompt.ids, record.tokens)
        if told.nll != told.nll:
            error = "FloatingPointError: the target's logits for this answer are NaN"
            return dataclasses.replace(
                record, tokens=None, text=None, stop=None, steps=None, error=error
            )
        record = dataclasses.replace(
            record, nll=told.nll, agreement=told.agreement, entropy=told.entropy
        )
    if record.text is None or prompt.reference is None:
        return record
    scores = score(prompt.family, record.text, prompt.reference)
    return dataclasses.replace(record, scores=scores)


class Told(NamedTuple):
    """Means over an answer's tokens, see `SampleRecord`."""

    nll: float
    agreement: float
    entropy: float


def what_the_target_says(target: Model, prompt: Sequence[int], tokens: Sequence[int]) -> Told:
    """What the target says of an answer, teacher-forced.

    One sequence is free in the cache, as an answer that is reported has left it.
    """
    nll = entropy = agreed = 0.0
    session = target.open()
    try:
        fed, rest = list(prompt), list(tokens)
        while rest:
            now, rest = rest[:LIKELIHOOD_ROWS], rest[LIKELIHOOD_ROWS:]
            ids = [*fed, *now[:-1]]
            call = session.call(ids, want="logits", read=range(len(fed) - 1, len(ids)))
            law = target.forward([call]).log_softmax(-1)
            at = torch.tensor(now, device=law.device)
            nll -= float(law.gather(-1, at[:, None]).sum())
            agreed += int((law.argmax(-1) == at).sum())
            entropy -= float(torch.xlogy(law.exp(), law.exp()).sum())
            fed = now[-1:]
    finally:
        target.close(session)
    num = len(tokens)
    return Told(nll / num, agreed / num, entropy / num)


def baseline_answers(bench: Workbench, prompts: Sequence[Prompt]) -> list[str | None]:
    """The baseline's answers, batched and untimed: the histories that later turns are given.

    None for a prompt whose answer failed: there is nothing its later turns could follow.
    """
    decoder = bench.arms[BASELINE].decoder
    models = Models(target=bench.models.target)
    scheduler = Scheduler(decoder, models, bench.sampling, batch_size(bench))
    outcomes = scheduler.run([prompt.ids for prompt in prompts])
    return [bench.text(o.tokens) if isinstance(o, Generation) else None for o in outcomes]

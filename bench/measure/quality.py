"""Make the quality pass: answer held-out prompts, untimed and batched, and score the answers.

The pass tells "how good", never "how fast". Where a batch would round differently from the timed
calls, answers come one at a time. Each answer is written at once, as one line with the score by the
reference and the target's scores of its tokens. The target reads equal answers of decoders only
once. A resumed run answers missing prompts only. The baseline's second arm takes no part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from contextlib import closing, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from bench.measure.timing import make_record
from bench.plan.make import quality_batch_size
from bench.plan.setup import Setup
from bench.progress import Progress
from bench.records.prompts import Prompt
from bench.records.samples import Sink
from decoders.core.engine.forms import apply_law
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import Model
from decoders.core.types import Outcome, Sampling
from specbench_tasks.scorers import score

ADVICE = "lower --max-new-tokens, or leave it out: --quality-limit 0"
"""Advice to a user if this pass does not fit into memory."""
UNCHANGED = Sampling()
_LIKELIHOOD_ROWS = 64
"""Rows of logits that are read at a time."""


def score_quality(
    setup: Setup,
    prompts: Sequence[Prompt],
    writer: Sink,
    progress: Progress,
    *,
    attempt: int,
    done: Collection[tuple[str, str]] = (),
) -> None:
    """Answer and score held-out prompts with every arm.

    Args:
        setup: the setup of the run, all arms of which answer.
        prompts: the prompts of the pass.
        writer: receives each answer's record as soon as its scores are known.
        progress: counts the answers.
        attempt: number of the attempt, for the records.
        done: (cell, prompt) pairs of earlier attempts, which are left out.
    """
    if not prompts:
        return
    progress.start("quality", len(prompts) * len(setup.arms), len(done))
    target = setup.models.target
    read = cache(partial(target_scores, target, sampling=setup.sampling))
    num_rows = quality_batch_size(setup)
    where: dict[str, Any] = {"kind": "quality", "block": -1, "order": 0, "repeat": 0}
    where |= {"attempt": attempt, "seed": setup.sampling.seed, "batch_size": num_rows}

    def write(cell: str, batch: Sequence[Prompt], index: int, outcome: Outcome) -> None:
        prompt = batch[index]
        record = make_record(setup, prompt, outcome, decoder=cell, **where)
        of_target = None
        if record.tokens and not target.masked:  # a masked model gives no likelihoods
            of_target = read(prompt.ids, record.tokens)
        if of_target is not None and of_target.nll != of_target.nll:
            error = "FloatingPointError: the target's logits for this answer are NaN"
            record = dataclasses.replace(
                record, tokens=None, text=None, stop=None, steps=None, error=error
            )
        elif of_target is not None:
            record = dataclasses.replace(record, **of_target._asdict())
        if record.text is not None and prompt.reference is not None:
            scores = score(prompt.family, record.text, prompt.reference)
            record = dataclasses.replace(record, scores=scores)
        writer.record(record, outcome)
        progress.step(cell)

    for cell, arm in setup.arms.items():
        left = [prompt for prompt in prompts if (cell, prompt.name) not in done]
        if left:
            past = setup.past.memory(cell, arm.decoder)
            options = arm.decoder, arm.models, setup.sampling, num_rows, arm.deadline
            scheduler = Scheduler(*options, memory=past)
            # large batches would compile extra graphs
            eager = arm.models.uncompiled() if num_rows > 1 else nullcontext()
            rounds = [left]
            if past is not None:  # later turns quote answers, so they wait for earlier turns
                turns = sorted({prompt.turn for prompt in left})
                rounds = [[each for each in left if each.turn == turn] for turn in turns]
            with arm.deadline.ticking(), eager:
                for batch in rounds:
                    ids = [prompt.ids for prompt in batch]
                    scheduler.run(ids, on_finish=partial(write, cell, batch))
        writer.sync()


class TargetScores(NamedTuple):
    """Hold means over an answer's tokens (see `SampleRecord`)."""

    nll: float
    agreement: float
    entropy: float


def target_scores(
    target: Model, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling = UNCHANGED
) -> TargetScores:
    """Score an answer by the teacher-forced target.

    Args:
        target: a causal model, whose cache must have a free sequence.
        prompt: ids of the prompt, one or more.
        tokens: ids of the answer, one or more.
        sampling: only its law matters: the scores are at temperature 1 without truncation.
    """
    nll = entropy = agreed = 0.0
    with closing(target.open()) as session:
        fed, rest = list(prompt), list(tokens)
        while rest:
            now, rest = rest[:_LIKELIHOOD_ROWS], rest[_LIKELIHOOD_ROWS:]
            ids = [*fed, *now[:-1]]
            call = session.call(ids, output="logits", read=range(len(fed) - 1, len(ids)))
            start = len(tokens) - len(rest) - len(now)
            before = (tokens[: start + row] for row in range(len(now)))
            distribution = apply_law(target.forward([call]), before, sampling).log_softmax(-1)
            at = torch.tensor(now, device=distribution.device)
            nll -= float(distribution.gather(-1, at[:, None]).sum())
            agreed += int((distribution.argmax(-1) == at).sum())
            entropy -= float(torch.xlogy(distribution.exp(), distribution.exp()).sum())
            fed = now[-1:]
    num = len(tokens)
    return TargetScores(nll / num, agreed / num, entropy / num)

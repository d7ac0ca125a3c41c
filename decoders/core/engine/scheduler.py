"""Drives decoders: one sequence at a time (latency) or many (throughput).

A decoder is a coroutine of one sequence that yields `Call`s. The scheduler holds B of them, merges
pending calls of the same model and width bucket into one forward pass, warps, picks and verifies
all merged rows at once, and sends the results back. Alone, a call runs at once. The cut at EOS and
budget, the clipping of `accepted` and all counting happen here, once, for every decoder.

Letters: B sequences, N rows of a call, R rows read, K drafts, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from decoders.core.decoder import Answer, Decoder, Request, SelfDriven, Steps
from decoders.core.engine.deadline import Deadline
from decoders.core.engine.forward import forward
from decoders.core.engine.models import Models, check_models
from decoders.core.engine.readout import Readout, joined, read_out, readouts
from decoders.core.engine.self_driven import answer_group
from decoders.core.engine.sequence import RunningSequence
from decoders.core.model import Session
from decoders.core.types import Call, CallResult, Generation, Outcome, Sampling

Forward = Callable[[Sequence[Call]], Tensor]
_ReadOut = Callable[[Tensor, Sequence[Readout], Sampling], Sequence[CallResult]]


class Scheduler:
    """Runs one decoder over prompts, at most `batch_size` at a time.

    A sequence's tokens do not depend on what it is batched with: uniforms are positional, and every
    distribution is a function of the sequence alone (up to float rounding of differently shaped
    kernels).
    """

    def __init__(
        self,
        decoder: Decoder,
        models: Models,
        sampling: Sampling,
        batch_size: int = 1,
        deadline: Deadline | None = None,
        *,
        steps: Callable[[Request], Steps] | None = None,
        forward: Forward = forward,
        read_out: _ReadOut = read_out,
        answer: Callable[[Sequence[Answer]], None] | None = None,
    ) -> None:
        """Of one decoder; no session is opened before `run`.

        Args:
            decoder: what answers.
            models: what it runs on.
            sampling: how all answers are drawn.
            batch_size: B at most.
            deadline: limits the time of an answer; None: nothing does.
            steps: runs in the place of the decoder's own, as `forward` and `read_out` run in the
                place of the engine's, so that an instrument may stand around each.
            forward: logits of merged calls.
            read_out: from logits to what each sequence asked for.
            answer: in the place of `SelfDriven.answer`, likewise.

        Raises:
            ValueError: the decoder needs a model or an adapter that is missing or unfit.
        """
        self._adapters = check_models(decoder, models, decoder.name)
        self._models, self._sampling, self._batch_size = models, sampling, batch_size
        self._draft = models.drafting(decoder)
        self._deadline = Deadline() if deadline is None else deadline
        self._steps = decoder.steps if steps is None else steps
        self._forward, self._read_out = forward, read_out
        self._kept: tuple[Session, Session | None] | None = None
        self._answer, self._batches = None, False
        if isinstance(decoder, SelfDriven):
            self._answer = decoder.answer if answer is None else answer
            self._batches = decoder.batches

    def prefill_prefix(self, prompt: Sequence[int], num_tokens: int) -> None:
        """Fill caches with a prompt's first tokens, as the turn before it left them there.

        The next `run`, of that prompt alone, does not run them again where the decoder's first call
        begins with them. It is the same for every decoder, and no part of what is timed.
        """
        if self._answer is not None or not num_tokens:
            return
        self._models.ensure(1, self._capacity([prompt]))
        tokens = tuple(prompt[:num_tokens])
        opened = []
        for model in (self._models.target, self._draft):
            session = None if model is None else model.open()
            opened.append(session)
            if session is not None:
                forward([session.call(tokens, read=())])  # no instrument looks: it is not timed
                session.keep_text(tokens)
        target, draft = opened
        assert target is not None
        self._kept = target, draft

    def _capacity(self, prompts: Sequence[Sequence[int]]) -> int:
        """Cache entries of the longest prompt and its answer."""
        longest = max((len(prompt) for prompt in prompts), default=0)
        return min(longest + self._sampling.max_new_tokens, self._models.target.max_length)

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int] | None = None,
        on_emit: Callable[[int, int], None] | None = None,
        on_finish: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """Generate an answer to every prompt; outcomes in the prompts' order.

        Args:
            prompts: token ids, at least one each.
            seeds: a seed for each prompt; None: the sampling's for all.
            on_emit: called with a prompt's index and the step's number (from 0) at every `Emit`.
            on_finish: called with a prompt's index and outcome when it ended.

        Returns:
            A `Generation` per prompt, or the exception its decoder (or its call) raised: whatever
            one sequence does, the others are answered.
        """
        if self._kept is None:
            num_rows = min(self._batch_size, max(len(prompts), 1))
            self._models.ensure(num_rows, self._capacity(prompts))
        outcomes: dict[int, Outcome] = {}

        def finish(index: int, outcome: Outcome) -> None:
            outcomes[index] = outcome
            if on_finish is not None:
                on_finish(index, outcome)

        samplings = [self._sampling] * len(prompts)
        if seeds is not None:
            samplings = [dataclasses.replace(self._sampling, seed=seed) for seed in seeds]
        waiting = deque(enumerate(zip(prompts, samplings, strict=True)))
        active: list[RunningSequence] = []
        try:
            self._loop(waiting, active, on_emit, finish)
        finally:  # also when interrupted: no session outlives a run
            for job in active:
                self._close(job)
            self._drop_kept()
        return [outcomes[index] for index in range(len(prompts))]

    def _loop(
        self,
        waiting: deque[tuple[int, tuple[Sequence[int], Sampling]]],
        active: list[RunningSequence],
        on_emit: Callable[[int, int], None] | None,
        finish: Callable[[int, Outcome], None],
    ) -> None:
        deadline = self._deadline
        while waiting or active:
            for job in [job for job in active if job.outcome is not None]:
                active.remove(job)
                self._close(job)
                assert job.outcome is not None
                finish(job.index, job.outcome)
            while waiting and len(active) < self._batch_size:
                index, (prompt, sampling) = waiting.popleft()
                refused = self._refusal(prompt)
                if refused is not None:
                    finish(index, refused)
                    continue
                job = self._begin(index, prompt, sampling, on_emit)
                active.append(job)
                if self._answer is None:
                    deadline.guard(job, job.advance, None)
            if self._answer is not None and active:
                for group in [active] if self._batches else [[job] for job in active]:
                    answer_group(self._answer, group, deadline)
            elif deadline.due:
                deadline.stop_the_latest(active)
            runnable = [job for job in active if job.pending is not None]
            if runnable:
                group = runnable if len(runnable) == 1 else _next_group(runnable)
                self._execute(group)

    def _begin(
        self,
        index: int,
        prompt: Sequence[int],
        sampling: Sampling,
        on_emit: Callable[[int, int], None] | None,
    ) -> RunningSequence:
        kept, self._kept = self._kept, None
        return RunningSequence(
            index,
            prompt,
            self._steps,
            sampling,
            target=self._models.target,
            draft=self._draft,
            adapters=self._adapters,
            on_emit=on_emit,
            sessions=kept,
        )

    def _drop_kept(self) -> None:
        """Close sessions of a prompt that was not begun."""
        kept, self._kept = self._kept, None
        for session in kept or ():
            if session is not None:
                session.model.close(session)

    def _close(self, job: RunningSequence) -> None:
        """End a sequence and give its cache rows back, whatever happens on the way."""
        try:
            self._deadline.guard(job, job.end)
        finally:
            job.release()
            self._deadline.ended(job)

    def _execute(self, group: Sequence[RunningSequence]) -> None:
        """Run the pending calls of a group as one forward pass and send the results.

        Where a merged pass fails its calls run again one by one: those whose fault it was not go
        on.
        """
        calls = [job.pending for job in group if job.pending is not None]
        before = [_state(call.session) for call in calls] if len(calls) > 1 else []
        try:
            parts = [
                part
                for call, job in zip(calls, group, strict=True)
                for part in readouts(call, job.uniforms, job.prompt_length)
            ]
            results = _results(calls, self._read_out(self._forward(calls), parts, self._sampling))
        except Exception as error:
            if len(group) == 1:
                group[0].fail(error)
                return
            for job, call, state in zip(group, calls, before, strict=True):
                session = call.session
                session.length, session.base, session.calls, session.rows = state
                self._execute([job])
            return
        for job, result in zip(group, results, strict=True):
            self._deadline.guard(job, job.take, result)

    def _refusal(self, prompt: Sequence[int]) -> Exception | None:
        """Why a prompt is not begun, if so."""
        allowed = self._models.target.max_length - self._sampling.max_new_tokens
        if 1 <= len(prompt) <= allowed:
            return self._deadline.refuses()
        return ValueError(
            f"prompt of {len(prompt)} tokens; with {self._sampling.max_new_tokens} new tokens "
            f"the context of {self._models.target.max_length} holds 1 to {allowed}: "
            "shorten the prompt or lower max_new_tokens"
        )


def generate(
    decoder: Decoder, prompt_ids: Sequence[int], sampling: Sampling, models: Models
) -> Generation:
    """Generate one answer, alone; exceptions of the decoder are raised."""
    (outcome,) = Scheduler(decoder, models, sampling).run([prompt_ids])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def width_bucket(num_rows: int) -> int:
    """Bucket of a call's width; calls merge within one: 1, 2-4, 5-8, 9-16, 17-32 and so on."""
    return 0 if num_rows == 1 else max(2, (num_rows - 1).bit_length())


def _next_group(active: Sequence[RunningSequence]) -> list[RunningSequence]:
    """Which pending calls run next: prompts first, then the fullest group, aged against starvation.

    Waiting for the fullest group lets sequences in different phases fall into step.
    """
    groups: dict[tuple[bool, int, int], list[RunningSequence]] = {}
    for job in active:
        call = job.pending
        assert call is not None
        is_prefill = call.session.length == 0
        key = (is_prefill, id(call.session.model), width_bucket(call.num_rows))
        groups.setdefault(key, []).append(job)
    best = max(
        groups,
        key=lambda key: (key[0], len(groups[key]) + max(j.turns_waited for j in groups[key])),
    )
    for key, jobs in groups.items():
        for job in jobs:
            job.turns_waited = 0 if key == best else job.turns_waited + 1
    return groups[best]


def _state(session: Session) -> tuple[int, int, int, int]:
    return session.length, session.base, session.calls, session.rows


def _results(calls: Sequence[Call], parts: Sequence[CallResult]) -> Sequence[CallResult]:
    """One result a call from the results of its read tokens and its read slots."""
    if len(parts) != len(calls):
        left = iter(parts)
        parts = [
            next(left) if call.slots is None else joined(next(left), next(left)) for call in calls
        ]
    return [
        dataclasses.replace(part, hidden=call.session.hidden) if call.hidden else part
        for call, part in zip(calls, parts, strict=True)
    ]

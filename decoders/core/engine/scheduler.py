"""Drive decoders, one sequence at a time (latency) or many (throughput).

Pending calls of the same model and width bucket are merged into one forward pass; all merged rows
are warped, picked and verified together, and the results sent back. A single call runs at once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from decoders.core.decoder import Decoder, Memory, Request, SelfDriven, Steps
from decoders.core.engine.deadline import Deadline
from decoders.core.engine.forward import draft, forward
from decoders.core.engine.models import Models, check_models
from decoders.core.engine.readout import joined, read_out
from decoders.core.engine.reads import Readout, readouts, token_reads
from decoders.core.engine.sequence import RunningSequence
from decoders.core.model import MERGED_ROWS, DraftCall, Session
from decoders.core.types import CallResult, Generation, Outcome, Sampling

Forward = Callable[..., Tensor]
Draft = Callable[[Sequence[DraftCall]], Sequence[CallResult]]
_ReadOut = Callable[[Tensor, Sequence[Readout], Sampling], Sequence[CallResult]]


class Scheduler:
    """Run one decoder over prompts, at most `batch_size` at a time.

    A sequence's tokens do not depend on the rest of its batch, up to the rounding of differently
    shaped kernels: uniforms are positional, and distributions depend on the sequence only.
    """

    def __init__(
        self,
        decoder: Decoder,
        models: Models,
        sampling: Sampling,
        batch_size: int = 1,
        deadline: Deadline | None = None,
        *,
        memory: Memory | None = None,
        unremembered: Collection[int] = (),
        steps: Callable[[Request], Steps] | None = None,
        forward: Forward = forward,
        draft: Draft = draft,
        read_out: _ReadOut = read_out,
    ) -> None:
        """Check that the models fit the decoder.

        No session is opened before `run`. All answers share the `memory`, except that answers to
        the prompts of indices `unremembered` are not added; without it, each memory is empty.
        `steps`, `forward`, `draft` and `read_out` replace the decoder's or the engine's own
        functions, so that instruments can wrap them.
        `ValueError` for a missing or unfit model or adapter.
        """
        self._adapters = check_models(decoder, models, decoder.name)
        self._models, self._sampling = models.for_decoder(decoder), sampling
        self._warping = dataclasses.replace(
            sampling, max_new_tokens=1, stop_ids=frozenset(), seed=0
        )
        self._batch_size, self._sequences = batch_size, decoder.sequences
        self._deadline = Deadline() if deadline is None else deadline
        self._steps = decoder.steps if steps is None else steps
        self._memory = decoder.memory if memory is None else lambda: memory
        self._unremembered = unremembered
        self._forward, self._draft_pass, self._read_out = forward, draft, read_out
        self._kept: Mapping[str, Session] | None = None
        self._answer, self._batches = None, False
        if isinstance(decoder, SelfDriven):
            self._answer, self._batches = decoder.answer, decoder.batches

    def prefill_prefix(self, prompt: Sequence[int], num_tokens: int) -> None:
        """Fill caches, untimed, with a prompt's first tokens, as the previous turn left them.

        The next `run`, with only that prompt, skips these tokens if the decoder's first call
        begins with them.
        """
        if not num_tokens:
            return
        self._models.ensure(self._sequences, self._capacity([prompt]))
        tokens = tuple(prompt[:num_tokens])
        self._kept = self._open()
        for session in self._kept.values():
            forward([session.call(tokens, read=())])  # not timed: no instrument
            session.keep_text(tokens)

    def _open(self) -> Mapping[str, Session]:
        sessions = {role: model.open() for role, model in self._models.roles.items()}
        for session in sessions.values():
            session.max_sequences = self._sequences
        return sessions

    def _capacity(self, prompts: Sequence[Sequence[int]]) -> int:
        num_tokens = max((len(prompt) for prompt in prompts), default=0)
        return min(num_tokens + self._sampling.max_new_tokens, self._models.target.max_length)

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int] | None = None,
        on_emit: Callable[[int, int], None] | None = None,
        on_finish: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """Answer every prompt and return outcomes in the prompts' order, failed ones included.

        Args:
            prompts: token ids, at least one per prompt.
            seeds: a seed for each prompt; None: the seed of the sampling settings for all.
            on_emit: called with a prompt's index and the step's number (from 0) at every `Emit`.
            on_finish: called with a prompt's index and outcome when its answer ends.
        """
        if self._kept is None:
            num_rows = min(self._batch_size, max(len(prompts), 1))
            self._models.ensure(num_rows * self._sequences, self._capacity(prompts))
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
        finally:  # closed even after an interruption: no session outlives a run
            for job in active:
                self._close(job)
            kept, self._kept = self._kept, None
            for session in (kept or {}).values():
                session.close()
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
                refusal = self._refusal(prompt)
                if refusal is not None:
                    finish(index, refusal)
                    continue
                kept, self._kept = self._kept, None
                job = RunningSequence(
                    index,
                    prompt,
                    self._steps,
                    sampling,
                    self._open() if kept is None else kept,
                    tokenizer=self._models.tokenizer,
                    adapters=self._adapters,
                    memory=self._memory(),
                    on_emit=on_emit,
                )
                active.append(job)
                if self._answer is None:
                    deadline.guard(job, job.advance, None)
            if self._answer is not None and active:
                for group in [active] if self._batches else [[job] for job in active]:
                    deadline.answer(self._answer, group)
            elif deadline.due:
                deadline.fail_overdue(active)
            runnable = [job for job in active if job.pending]
            if runnable:
                group = runnable if len(runnable) == 1 else _next_group(runnable)
                self._execute(group)

    def _close(self, job: RunningSequence) -> None:
        try:
            self._deadline.guard(job, job.end, job.index not in self._unremembered)
        finally:
            job.release()
            self._deadline.ended(job)

    def _execute(self, group: Sequence[RunningSequence]) -> None:
        """Run calls as one pass, or if it fails one by one, so that only the faulty call fails."""
        calls = [call for job in group for call in job.pending]
        before = [(vars(c.session), {**vars(c.session)}) for c in calls if len(group) > 1]
        try:
            results = self._run(group, calls)
        except Exception as error:
            if len(group) == 1:
                group[0].fail(error)
                return
            for session, state in before:
                session.update(state)
            for job in group:
                self._execute([job])
            return
        left = iter(results)
        for job in group:
            self._deadline.guard(job, job.take, [*itertools.islice(left, len(job.pending))])

    def _run(self, group: Sequence[RunningSequence], calls: Sequence[Any]) -> Sequence[CallResult]:
        if isinstance(calls[0], DraftCall):
            return self._draft_pass(calls)
        parts = [
            part
            for job in group
            for call in job.pending
            for part in readouts(call, job.uniforms, job.prompt_length)
        ]
        reads = token_reads(parts, self._warping) if calls[0].session.model.reads_ahead else {}
        logits = self._forward(calls, reads) if reads else self._forward(calls)
        results = self._read_out(logits, parts, self._warping)
        if len(results) != len(calls):
            left = iter(results)
            results = [
                next(left) if call.slots is None else joined(next(left), next(left))
                for call in calls
            ]
        return [
            dataclasses.replace(result, hidden=call.session.hidden) if call.hidden else result
            for call, result in zip(calls, results, strict=True)
        ]

    def _refusal(self, prompt: Sequence[int]) -> Exception | None:
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
    """Generate one answer, unbatched, raising the decoder's exceptions.

    Args:
        decoder: the decoder, whose memory is empty.
        prompt_ids: ids of the prompt, at least one.
        sampling: settings of the answer.
        models: the models that the decoder needs, whose caches are enlarged if they are too small.
    """
    (outcome,) = Scheduler(decoder, models, sampling).run([prompt_ids])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def row_bucket(num_rows: int) -> int:
    """Return the bucket of a call's number of rows: 1, 2-4, 5-8, 9-16, 17-32 and so on."""
    return 0 if num_rows == 1 else max(2, (num_rows - 1).bit_length())


def _next_group(active: Sequence[RunningSequence]) -> list[RunningSequence]:
    """Choose prefills first, then calls that draft, then the largest group (waiting counts).

    Thus sequences wait for each other's drafts, and one call verifies all drafts.
    """
    groups: dict[tuple[bool, bool, Hashable], list[RunningSequence]] = {}
    for job in active:
        call, rows = job.pending[0], [each.num_rows for each in job.pending]
        model, kind = call.session.model, tuple[Hashable, ...]()
        if isinstance(call, DraftCall):
            is_prefill, drafts, kind = False, True, (call.name, call.shape)
        else:
            is_prefill = call.session.length == 0
            if max(rows) > MERGED_ROWS and model.device.type == "cpu":
                kind = (job.index,)
            drafts = call.session.root is not job.request.target or not call.read
        # a few rows of padding cost less than another pass of a small network, or on a GPU
        narrow = 4 if kind or model.device.type != "cpu" else 0
        width = max(narrow, row_bucket(max(rows)))
        if model.merges and not isinstance(call, DraftCall):
            width = 0  # without padding
        groups.setdefault((is_prefill, drafts, (id(model), width, *kind)), []).append(job)
    best = max(
        groups,
        key=lambda key: (*key[:2], len(groups[key]) + max([j.turns_waited for j in groups[key]])),
    )
    for key, jobs in groups.items():
        for job in jobs:
            job.turns_waited = 0 if key == best else job.turns_waited + 1
    return groups[best]

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
from dataclasses import dataclass

from torch import Tensor

from decoders.core import masks
from decoders.core.decoder import Decoder
from decoders.core.job import Job
from decoders.core.model import Model, Session
from decoders.core.patience import Endless, Patience
from decoders.core.readout import Readout, joined, read_out, readouts
from decoders.core.slots import AdapterConfig
from decoders.core.types import Call, CallResult, Generation, Outcome, Sampling

SLACK_ROWS = 128  # cache entries beyond prompt and budget, for rows that are dropped again
PREFILL_CHUNK = 512  # rows a prompt is fed at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The target and, where a decoder asks for one, the draft model."""

    target: Model
    draft: Model | None = None

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Allocate caches for exactly `num_rows` sequences of `num_tokens`."""
        for model in self._loaded():
            model.reserve(num_rows, num_tokens + SLACK_ROWS)

    def ensure(self, num_rows: int, num_tokens: int) -> None:
        """Allocate caches for `num_rows` sequences of `num_tokens` where they are too small."""
        for model in self._loaded():
            if not model.holds(num_rows, num_tokens + SLACK_ROWS):
                model.reserve(num_rows, num_tokens + SLACK_ROWS)

    def _loaded(self) -> tuple[Model, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)


class Scheduler:
    """Runs one decoder over prompts, at most `batch_size` at a time.

    A sequence's tokens do not depend on what it is batched with: uniforms are positional, and every
    law is a function of the sequence alone (up to float rounding of differently shaped kernels).
    """

    def __init__(
        self,
        decoder: Decoder,
        models: Models,
        sampling: Sampling,
        batch_size: int = 1,
        patience: Patience | None = None,
    ) -> None:
        """`ValueError` where the decoder needs a model or an adapter that is missing or unfit.

        `patience` limits the time of an answer; None: nothing does.
        """
        if "draft" in decoder.needs:
            check_draft(decoder.name, models)
        self._adapter = find_adapter(decoder, models)
        self._decoder, self._models = decoder, models
        self._sampling, self._batch_size = sampling, batch_size
        self._patience: Patience = Endless() if patience is None else patience

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int] | None = None,
        on_first: Callable[[int], None] | None = None,
        on_finish: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """Generate an answer to every prompt; outcomes in the prompts' order.

        Args:
            prompts: token ids, at least one each.
            seeds: a seed for each prompt; None: the sampling's for all.
            on_first: called with a prompt's index when its first `Emit` arrived.
            on_finish: called with a prompt's index and outcome when it ended.

        Returns:
            A `Generation` per prompt, or the exception its decoder (or its call) raised: whatever
            one sequence does, the others are answered.
        """
        longest = max((len(prompt) for prompt in prompts), default=0)
        num_tokens = min(longest + self._sampling.max_new_tokens, self._models.target.max_length)
        self._models.ensure(min(self._batch_size, max(len(prompts), 1)), num_tokens)
        outcomes: dict[int, Outcome] = {}

        def finish(index: int, outcome: Outcome) -> None:
            outcomes[index] = outcome
            self._patience.ended(outcome)
            if on_finish is not None:
                on_finish(index, outcome)

        samplings = [self._sampling] * len(prompts)
        if seeds is not None:
            samplings = [dataclasses.replace(self._sampling, seed=seed) for seed in seeds]
        waiting = deque(enumerate(zip(prompts, samplings, strict=True)))
        active: list[Job] = []
        try:
            self._loop(waiting, active, on_first, finish)
        finally:  # also when interrupted: no session outlives a run
            for job in active:
                job.close()
        return [outcomes[index] for index in range(len(prompts))]

    def _loop(
        self,
        waiting: deque[tuple[int, tuple[Sequence[int], Sampling]]],
        active: list[Job],
        on_first: Callable[[int], None] | None,
        finish: Callable[[int, Outcome], None],
    ) -> None:
        patience = self._patience
        while waiting or active:
            for job in [job for job in active if job.outcome is not None]:
                active.remove(job)
                job.close()
                assert job.outcome is not None
                finish(job.index, job.outcome)
                if isinstance(job.outcome, TimeoutError):  # it may be why others wait
                    for other in active:
                        other.begin_anew()
            while waiting and len(active) < self._batch_size:
                index, (prompt, sampling) = waiting.popleft()
                refused = self._refusal(prompt)
                if refused is not None:
                    finish(index, refused)
                    continue
                job = self._begin(index, prompt, sampling, on_first)
                active.append(job)
                job.advance(None)
            if patience.due:
                patience.due = False
                _stop_the_latest(active)
            runnable = [job for job in active if job.pending is not None]
            if runnable:
                group = runnable if len(runnable) == 1 else _next_group(runnable)
                self._execute(group)

    def _begin(
        self,
        index: int,
        prompt: Sequence[int],
        sampling: Sampling,
        on_first: Callable[[int], None] | None,
    ) -> Job:
        needs_draft = "draft" in self._decoder.needs
        return Job(
            index,
            prompt,
            self._decoder,
            sampling,
            target=self._models.target,
            draft=self._models.draft if needs_draft else None,
            adapter=self._adapter,
            on_first=on_first,
            patience=self._patience,
        )

    def _execute(self, group: Sequence[Job]) -> None:
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
            results = _results(calls, self._read_out(self._forward(calls), parts))
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
            job.take(result)

    # Two steps of their own, so that a scheduler that measures may stand around them.

    def _forward(self, calls: Sequence[Call]) -> Tensor:
        return _forward(calls)

    def _read_out(self, logits: Tensor, parts: Sequence[Readout]) -> Sequence[CallResult]:
        return read_out(logits, parts, self._sampling)

    def _refusal(self, prompt: Sequence[int]) -> Exception | None:
        """Why a prompt is not begun, if so."""
        allowed = self._models.target.max_length - self._sampling.max_new_tokens
        if 1 <= len(prompt) <= allowed:
            return self._patience.refuses()
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


def check_draft(name: str, models: Models) -> None:
    """`ValueError` unless there is a draft model of the target's vocabulary."""
    if models.draft is None:
        raise ValueError(f"decoder {name!r} needs a draft model and none was given; pass --draft")
    if models.draft.vocab_size != models.target.vocab_size:
        raise ValueError(
            f"the draft's vocabulary has {models.draft.vocab_size} tokens, the target's "
            f"{models.target.vocab_size}; decoder {name!r} needs a draft of the same vocabulary"
        )


def find_adapter(decoder: Decoder, models: Models) -> AdapterConfig | None:
    """The adapter a decoder asks for; `ValueError` where its model has none of that name."""
    name = decoder.adapter_name
    if name is None:
        return None
    model = models.target if decoder.adapter_of == "target" else models.draft
    attached = {} if model is None else model.adapters
    if name not in attached:
        known = ", ".join(sorted(attached)) or "none"
        raise ValueError(
            f"decoder {decoder.name!r} needs an adapter named {name!r} of the "
            f"{decoder.adapter_of}, which has {known}; pass --adapter {name}=PATH"
        )
    variant, allowed = attached[name].variant, decoder.variants
    if allowed and variant not in allowed:
        raise ValueError(
            f"adapter {name!r} is of variant {variant}; decoder {decoder.name!r} needs "
            f"{' or '.join(allowed)}"
        )
    return attached[name]


def _stop_the_latest(active: Sequence[Job]) -> None:
    """End one answer that is out of time, if any is: the one with most calls since its last token.

    The others may only have waited for it: their time starts anew.
    """
    late = [job for job in active if job.is_late]
    if late:
        worst = max(late, key=lambda job: job.idle_calls)
        worst.fail(worst.late())


def width_bucket(num_rows: int) -> int:
    """Bucket of a call's width; calls merge within one: 1, 2-4, 5-8, 9-16, 17-32 and so on."""
    return 0 if num_rows == 1 else max(2, (num_rows - 1).bit_length())


def _next_group(active: Sequence[Job]) -> list[Job]:
    """Which pending calls run next: prompts first, then the fullest group, aged against starvation.

    Waiting for the fullest group lets sequences in different phases fall into step.
    """
    groups: dict[tuple[bool, int, int], list[Job]] = {}
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
    if len(parts) == len(calls):
        return parts
    left = iter(parts)
    return [next(left) if call.slots is None else joined(next(left), next(left)) for call in calls]


def _forward(calls: Sequence[Call]) -> Tensor:
    """Logits ``[sum R, V]``; long prompts run in chunks that count as the one call they are."""
    model: Model = calls[0].session.model
    widest = max(len(call.tokens) for call in calls)
    if widest <= PREFILL_CHUNK:
        return model.forward(calls)
    bases = [(call.session, call.session.length, call.session.calls) for call in calls]
    tails = [_feed_head(call) for call in calls]
    logits = model.forward(tails)
    for session, base, num_calls in bases:
        session.base, session.calls = base, num_calls + 1
    return logits


def _feed_head(call: Call) -> Call:
    """Feed all but the last chunk of a long call; the rest of it, read as the call asks.

    A mask must be causal in the rows that are fed, and hide none of them from later rows.
    """
    tokens, positions, session, mask = call.tokens, call.positions, call.session, call.mask
    first_read = min(call.read, default=len(tokens) - 1)
    fed = 0
    while len(tokens) - fed > PREFILL_CHUNK and first_read - fed >= PREFILL_CHUNK:
        chunk = slice(fed, fed + PREFILL_CHUNK)
        head = dataclasses.replace(
            call,
            tokens=tokens[chunk],
            positions=None if positions is None else positions[chunk],
            read=(),
            slots=None,
            mask=None,
        )
        session.model.forward([head])
        fed += PREFILL_CHUNK
    if mask is not None:
        causal = masks.causal(call.num_rows)
        assert bool((mask[:fed] == causal[:fed]).all() and mask[fed:, :fed].all()), "unfit mask"
        mask = mask[fed:, fed:]
    return dataclasses.replace(
        call,
        tokens=tokens[fed:],
        mask=mask,
        positions=None if positions is None else positions[fed:],
        read=tuple(row - fed for row in call.read),
    )

"""One sequence in progress: its coroutine, its pending call, and its counted emits.

For a `SelfDriven` decoder it is the `Answer` and has no coroutine. Whatever a decoder yields or
raises can end only its own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import GeneratorType, TracebackType
from typing import Any, SupportsIndex

from decoders.core.adapter_config import AdapterConfig
from decoders.core.decoder import Request, Role, Steps
from decoders.core.engine.readout import not_a_number
from decoders.core.memory import Memory
from decoders.core.model import Call, DraftCall, Session
from decoders.core.sampling import Uniforms
from decoders.core.types import (
    CallResult,
    Emit,
    Generation,
    Outcome,
    Sampling,
    StepEvent,
    StopReason,
)

_MAX_EMPTY_EMITS = 1000
_MAX_IDLE_CALLS = 100_000  # calls without a token; correct decoders stay far below


class RunningSequence:
    """One running sequence: its coroutine, its pending call, and its emits so far."""

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        steps: Callable[[Request], Steps],
        sampling: Sampling,
        sessions: tuple[Session, Session | None],
        *,
        adapters: Mapping[str, AdapterConfig],
        memory: Memory | None,
        on_emit: Callable[[int, int], None] | None,
    ) -> None:
        """Begin with an empty session of every model.

        `steps` starts the decoder's coroutine; `index` is the prompt's index.
        """
        self.index = index
        self.uniforms = Uniforms(sampling.seed, prompt)
        self.prompt_length = len(prompt)
        self.outcome: Outcome | None = None
        self.pending: Call | DraftCall | None = None
        self.turns_waited = 0
        self._on_emit, self._sampling = on_emit, sampling
        self._target, self._draft = sessions
        self._vocab_size = self._target.model.vocab_size
        self._begin = steps
        self.request = Request(
            prompt_ids=tuple(prompt),
            sampling=sampling,
            target=self._target,
            uniforms=self.uniforms,
            draft=self._draft,
            adapter=next(iter(adapters.values()), None),
            adapters=adapters,
            memory=memory,
        )
        self._steps: Steps | None = None
        self.restart()

    def restart(self) -> None:
        """Forget emits and counts before any session is fed."""
        self._tokens: list[int] = []
        self._events: list[StepEvent] = []
        self._step_start = (0, 0, 0, 0)
        self._ran = [0, 0, 0, 0]
        self._empty_emits = self.idle_calls = 0

    @property
    def ended(self) -> bool:
        """True once there is an outcome."""
        return self.outcome is not None

    def ran(self, role: Role, num_rows: int) -> None:
        """Count a pass (see `Answer.ran`), unless the answer has ended."""
        if self.outcome is None:
            index = 0 if role == "target" else 2
            self._ran[index] += 1
            self._ran[index + 1] += num_rows

    def passed(self) -> None:
        """Do nothing (see `Answer.passed`), so that instruments can wrap it."""

    def emit(self, emit: Emit) -> None:
        """See `Answer.emit`."""
        if self.outcome is None:
            self._record(emit)

    def advance(self, result: CallResult | None) -> None:
        """Send a result and run the coroutine to its next call or its end."""
        self.pending = None
        try:
            if self._steps is None:
                self._steps = _started(self._begin, self.request)
            item = next(self._steps) if result is None else self._steps.send(result)
            while isinstance(item, Emit):
                self._record(item)
                if self.outcome is not None:
                    return
                item = next(self._steps)
            self._check_call(item)
            self.pending = item
        except StopIteration:
            self.outcome = RuntimeError("decoder returned before EOS or budget; yield until cut")
        except (Exception, SystemExit) as error:
            self.fail(as_exception(error))

    def take(self, result: CallResult) -> None:
        """Continue with the pending call's result, or fail if its logits were NaN or infinite."""
        if isinstance(self.pending, Call) and not_a_number(result, self._vocab_size):
            role = "target" if self.pending.session is self._target else "draft"
            self.fail(
                FloatingPointError(
                    f"the {role}'s logits are NaN or infinite after {len(self._tokens)} tokens; "
                    "check its weights, its adapter and the dtype"
                )
            )
        else:
            self.advance(result)

    def fail(self, error: Exception) -> None:
        """End the answer with an error, whose traceback starts at the decoder's current line."""
        self.pending, self.outcome = None, _standing(self._steps, error)

    def end(self) -> None:
        """Close the coroutine and remember the answer, which fails if either raises an error."""
        try:
            if self._steps is not None:
                self._steps.close()
            if self.request.memory is not None and isinstance(self.outcome, Generation):
                self.request.memory.add(self.request.prompt_ids, self.outcome.tokens)
        except (Exception, SystemExit) as error:
            if self.outcome is None or isinstance(self.outcome, Generation):
                self.fail(as_exception(error))

    def release(self) -> None:
        """Release the cache rows."""
        self._target.model.close(self._target)
        if self._draft is not None:
            self._draft.model.close(self._draft)

    def _check_call(self, item: object) -> None:
        if not isinstance(item, Call | DraftCall):
            raise TypeError(f"decoder yielded {item!r:.60}; yield a Call or an Emit")
        if item.session is not self._target and item.session is not self._draft:
            raise ValueError("decoder yielded a call of a session other than its own")
        fed = (*item.tokens, *(item.drafts if isinstance(item, Call) else ()))
        if fed and not (
            {*map(type, fed)} == {int} and 0 <= min(fed) <= max(fed) < self._vocab_size
        ):
            for token in fed:  # the prompt's ids are not the decoder's fault
                fits = isinstance(token, SupportsIndex) and 0 <= token < self._vocab_size
                if not fits and token not in self.request.prompt_ids:
                    raise ValueError(_no_id("fed", token, self._vocab_size))
        self.idle_calls += 1
        if self.idle_calls > _MAX_IDLE_CALLS:
            raise RuntimeError(f"decoder emitted no token in {_MAX_IDLE_CALLS} calls in a row")

    def _record(self, emit: Emit) -> None:
        tokens, stop = self._cut(emit.tokens)
        counts = self._counts()
        work = [now - then for now, then in zip(counts, self._step_start, strict=True)]
        self._step_start = counts
        self._tokens += tokens
        num_leading, accepted = min(emit.num_leading, len(tokens)), emit.accepted
        if stop is not None and 0 < accepted <= emit.drafted:
            # accepted tokens after the cut are not emitted, so they do not count
            accepted = min(emit.accepted, len(tokens) - num_leading)
        tested, overlap, alpha = _compared(emit, len(tokens), accepted)
        self._events.append(
            StepEvent(
                tokens=tokens,
                drafted=emit.drafted,
                accepted=accepted,
                target_calls=work[0],
                target_rows=work[1],
                draft_calls=work[2],
                draft_rows=work[3],
                num_leading=num_leading,
                passes=emit.passes,
                tested=tested,
                overlap=overlap,
                alpha=alpha,
                rejected=emit.rejected if len(tokens) == len(emit.tokens) else (),
                decided=emit.decided[: len(tokens)],
                depth=emit.depth,
                sources=emit.sources[:accepted],
                confidences=emit.confidences,
            )
        )
        if self._on_emit is not None:
            self._on_emit(self.index, len(self._events) - 1)
        self._empty_emits = 0 if tokens else self._empty_emits + 1
        self.idle_calls = 0 if tokens else self.idle_calls
        if self._empty_emits > _MAX_EMPTY_EMITS:
            raise RuntimeError(f"decoder emitted nothing for {_MAX_EMPTY_EMITS} steps in a row")
        if stop is not None:
            _check_emitted(self._tokens, self._events, self._vocab_size)
            self.outcome = Generation(
                tokens=tuple(self._tokens), steps=tuple(self._events), stop=stop
            )

    def _cut(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], StopReason | None]:
        left = self._sampling.max_new_tokens - len(self._tokens)
        for index, token in enumerate(tokens[:left]):
            if token in self._sampling.stop_ids:
                return tokens[: index + 1], "eos"
        return tokens[:left], "length" if len(tokens) >= left else None

    def _counts(self) -> tuple[int, int, int, int]:
        target, draft, ran = self._target, self._draft, self._ran
        calls, rows = target.calls + ran[0], target.rows + ran[1]
        # calls of a network on the target's states, or of another library's loop
        draft_calls, draft_rows = target.draft_calls + ran[2], target.draft_rows + ran[3]
        if draft is None:
            return calls, rows, draft_calls, draft_rows
        return calls, rows, draft.calls + draft_calls, draft.rows + draft_rows


def _started(begin: Callable[[Request], Steps], request: Request) -> Steps:
    steps = begin(request)
    if not isinstance(steps, Generator):
        method: Any = begin
        code = method.__code__
        place = f"{method.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        raise TypeError(f"{place} returned {steps!r:.40}; it must `yield` its Calls and Emits")
    return steps


def _check_emitted(tokens: Sequence[int], events: Sequence[StepEvent], vocab_size: int) -> None:
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ValueError(_no_id("emitted", token, vocab_size))
    for event in events:
        drafts = (event.drafted, event.max_accepted, event.accepted)
        counts = (*drafts, event.num_leading, event.passes)
        for count in (*counts, *event.decided):
            if type(count) is not int:
                raise ValueError(f"decoder counted {count!r:.40}; counts are integers")
        for sure, _ in event.confidences:
            if not 0 <= sure <= 1.001:  # rounding may exceed 1
                raise ValueError(f"decoder gave a draft confidence {sure!r:.40}; allowed: 0 to 1")
        for token in event.rejected:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise ValueError(_no_id("rejected", token, vocab_size))


def _no_id(did: str, token: object, vocab_size: int) -> str:
    """Say that a token is no id (the vocabulary's size marks a row without any draw)."""
    line = f"decoder {did} {token!r:.40}; ids are integers below {vocab_size}"
    if type(token) is int and token == vocab_size:
        line += (
            f", and {token} marks a row without any probability: a mask of the decoder's own "
            "barred every token, or its logits are NaN"
        )
    return line


def as_exception(error: BaseException) -> Exception:
    """Turn a decoder's error into an outcome, so that `sys.exit` ends the answer, not the run."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"decoder raised {error!r}").with_traceback(error.__traceback__)


def _standing(steps: object, error: Exception) -> Exception:
    """Prepend to an error's traceback the lines at which a suspended coroutine waits."""
    frames = []
    while isinstance(steps, GeneratorType) and steps.gi_frame is not None:
        frames.append(steps.gi_frame)
        steps = steps.gi_yieldfrom
    trace = error.__traceback__
    for frame in reversed(frames):
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
    return error.with_traceback(trace)


def _compared(
    emit: Emit, num_tokens: int, accepted: int
) -> tuple[int, float, float] | tuple[None, None, None]:
    acceptance = emit.acceptance
    if acceptance is None:
        return None, None, None
    tested = min(emit.drafted, emit.accepted + 1)
    alpha = sum(acceptance.ratios[:accepted]) + num_tokens - accepted
    return tested, sum(acceptance.overlaps[:tested]), alpha

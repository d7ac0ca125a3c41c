"""Run one sequence: its coroutine, its pending call, and its counted emits.

For a `SelfDriven` decoder the sequence is the `Answer` and has no coroutine. Whatever a decoder
yields or raises can end only the decoder's own answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import GeneratorType, TracebackType
from typing import Any

from decoders.core.adapter_config import AdapterConfig
from decoders.core.decoder import Memory, Request, Role, Steps
from decoders.core.engine import faults
from decoders.core.engine.forms import follow
from decoders.core.engine.models import model_names
from decoders.core.engine.readout import has_nan
from decoders.core.model import Call, Session
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
    """Hold one running sequence: its coroutine, its pending call, and its emits up to now."""

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        steps: Callable[[Request], Steps],
        sampling: Sampling,
        sessions: Mapping[str, Session],
        *,
        tokenizer: Any = None,
        adapters: Mapping[str, AdapterConfig],
        memory: Memory | None,
        on_emit: Callable[[int, int], None] | None,
    ) -> None:
        """Begin with an empty session of every model, by its role (`Models.roles`).

        `steps` starts the decoder's coroutine; `index` is the prompt's index.
        """
        self.index = index
        self.uniforms = Uniforms(sampling.seed, prompt)
        self.prompt_length = len(prompt)
        self.outcome: Outcome | None = None
        self.pending: Sequence[Any] = ()  # calls, or draft calls
        self._together, self._chained = False, list[CallResult]()
        self.turns_waited = 0
        self._on_emit, self._sampling = on_emit, sampling
        self._sessions, self._target = sessions, sessions["target"]
        self._helpers = [sessions[role] for role in sessions if role != "target"]
        self._vocab_size = self._target.model.vocab_size
        self._begin = steps
        self.request = Request(
            prompt_ids=tuple(prompt),
            sampling=sampling,
            target=self._target,
            uniforms=self.uniforms,
            draft=sessions.get("draft"),
            adapter=next(iter(adapters.values()), None),
            adapters=adapters,
            memory=memory,
            models={name: sessions[f"model:{name}"] for name in model_names(sessions)},
            tokenizer=tokenizer,
        )
        self._steps: Steps | None = None
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

    def emit(self, emit: Emit) -> None:
        """End a step (see `Answer.emit`)."""
        if self.outcome is None:
            self._record(emit)

    def advance(self, result: Any) -> None:
        """Send one result or several, and run the coroutine to its next calls or its end."""
        self.pending = ()
        try:
            if self._steps is None:
                self._steps = faults.started(self._begin, self.request)
            item = next(self._steps) if result is None else self._steps.send(result)
            while isinstance(item, Emit):
                self._record(item)
                if self.outcome is not None:
                    return
                item = next(self._steps)
            self._together = isinstance(item, list | tuple)
            calls = tuple(item) if isinstance(item, list | tuple) else (item,)
            self.idle_calls += 1
            if self.idle_calls > _MAX_IDLE_CALLS:
                raise RuntimeError(f"decoder emitted no token in {_MAX_IDLE_CALLS} calls in a row")
            faults.check_calls(calls, self._sessions, self.request.prompt_ids, self._vocab_size)
            self.pending = calls
        except StopIteration:
            self.fail(RuntimeError("decoder returned before EOS or budget; yield until cut"))
        except (Exception, SystemExit) as error:
            self.fail(faults.as_exception(error))

    def take(self, results: Sequence[CallResult]) -> None:
        """Continue with the results of pending calls, or fail if logits were NaN or infinite."""
        call = self.pending[0]
        if isinstance(call, Call) and has_nan(results, self._vocab_size):
            role = next(name for name, root in self._sessions.items() if root is call.session.root)
            self.fail(
                FloatingPointError(
                    f"the {role}'s logits are NaN or infinite after {len(self._tokens)} tokens; "
                    "check its weights, its adapter and the dtype"
                )
            )
            return
        if isinstance(call, Call) and call.chain is not None:
            self.pending, results = follow(call, results[0], self._chained)
            if self.pending:
                return
        self.advance(results if self._together else results[0])

    def fail(self, error: Exception) -> None:
        """End the answer with an error at the decoder's current line, and wipe its cache rows."""
        frames, trace = [], error.__traceback__
        suspended: object = self._steps
        while isinstance(suspended, GeneratorType) and suspended.gi_frame is not None:
            frames.append(suspended.gi_frame)
            suspended = suspended.gi_yieldfrom
        for frame in reversed(frames):
            trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        self.pending, self.outcome = (), error.with_traceback(trace)
        for session in self._open_sessions():
            session.model.wipe(session.row)

    def end(self, remember: bool) -> None:
        """Close the coroutine and `remember` the answer, which fails if either raises an error."""
        try:
            if self._steps is not None:
                self._steps.close()
            memory = self.request.memory if remember else None
            if memory is not None and isinstance(self.outcome, Generation):
                memory.add(self.request.prompt_ids, self.outcome.tokens)
        except (Exception, SystemExit) as error:
            if self.outcome is None or isinstance(self.outcome, Generation):
                self.fail(faults.as_exception(error))

    def release(self) -> None:
        """Release the cache rows, of forks too."""
        for session in self._open_sessions():
            session.close()

    def _open_sessions(self) -> list[Session]:
        return [s for root in self._sessions.values() for s in (*root.forks, root) if s.row >= 0]

    def _record(self, emit: Emit) -> None:
        tokens, stop = self._cut(emit.tokens)
        dead_ends, start = self._target.dead_ends, len(self._tokens)
        for num in range(len(tokens)) if dead_ends else ():  # AR's answer fails here as well
            if (*self._tokens, *tokens[:num]) in dead_ends:
                raise ValueError(f"the law forbids every token after {start + num} tokens")
        counts = self._counts()
        work = [*map(operator.sub, counts, self._step_start)]
        self._step_start = counts
        self._tokens += tokens
        num_leading, accepted = min(emit.num_leading, len(tokens)), emit.accepted
        if stop is not None and 0 < accepted <= emit.drafted:  # else a bug to report
            # accepted tokens after the cut are not emitted, so they do not count
            accepted = min(emit.accepted, len(tokens) - num_leading)
        tested, overlap, alpha = None, None, None
        if (acceptance := emit.acceptance) is not None:
            tested = min(emit.drafted, emit.accepted + 1)
            overlap = sum(acceptance.overlaps[:tested])
            alpha = sum(acceptance.ratios[:accepted]) + len(tokens) - accepted
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
        if self._empty_emits > _MAX_EMPTY_EMITS + self._sampling.max_new_tokens:
            raise RuntimeError(f"decoder emitted nothing for {self._empty_emits} steps in a row")
        if stop is not None:
            answer = Generation(tokens=tuple(self._tokens), steps=tuple(self._events), stop=stop)
            faults.check_emitted(answer, self._target.model)
            self.outcome = answer

    def _cut(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], StopReason | None]:
        left = self._sampling.max_new_tokens - len(self._tokens)
        for index, token in enumerate(tokens[:left]):
            if token in self._sampling.stop_ids:
                return tokens[: index + 1], "eos"
        return tokens[:left], "length" if len(tokens) >= left else None

    def _counts(self) -> tuple[int, int, int, int]:
        calls, rows, draft_calls, draft_rows = self._ran
        for session in (self._target, *self._target.forks):
            calls += session.calls
            rows += session.rows
            draft_calls += session.draft_calls  # of a network on the target's states
            draft_rows += session.draft_rows
        for root in self._helpers:
            for session in (root, *root.forks):
                draft_calls += session.calls
                draft_rows += session.rows
        return calls, rows, draft_calls, draft_rows

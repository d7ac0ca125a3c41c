"""Decoders that run their models themselves are cut, counted and isolated like all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from decoders.core.decoder import Answer, SelfDriven
from decoders.core.engine.deadline import Deadline, OutOfTime
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Emit, Generation, Outcome, Sampling

STOP = 6
SAMPLING = Sampling(max_new_tokens=5, stop_ids=frozenset({STOP}))


@dataclass(frozen=True, kw_only=True)
class Counting(SelfDriven):
    """Says 0, 0, 1, 1 … two tokens a pass; may refuse a prompt that begins with `bad`."""

    at_once: bool = True
    bad: int = -1
    stops_after: int = 99

    @property
    def batches(self) -> bool:
        return self.at_once

    def answer(self, answers: Sequence[Answer]) -> None:
        for number in range(self.stops_after):
            for answer in answers:
                if answer.request.prompt_ids[0] == self.bad and number == 1:
                    raise ArithmeticError("not this one")
                answer.ran("target", 3)
                answer.ran("draft", 2)
                answer.emit(Emit(tokens=(number, number), drafted=1, accepted=1))
            if all(answer.ended for answer in answers):
                return


def models() -> Models:
    return Models(target=TableModel(7))


def run(decoder: SelfDriven, prompts: Sequence[Sequence[int]], batch_size: int) -> list[Outcome]:
    return Scheduler(decoder, models(), SAMPLING, batch_size).run(prompts)


def test_a_self_driven_answer_is_cut_at_the_budget_and_its_passes_count_up_to_the_cut() -> None:
    answer = generate(Counting(), [3], SAMPLING, models())
    assert answer.tokens == (0, 0, 1, 1, 2)
    assert answer.stop == "length"
    assert [step.accepted for step in answer.steps] == [1, 1, 1]
    assert [(s.target_calls, s.target_rows) for s in answer.steps] == [(1, 3)] * 3
    assert [(s.draft_calls, s.draft_rows) for s in answer.steps] == [(1, 2)] * 3


def test_passes_after_the_end_of_a_sequence_in_a_batch_are_not_counted() -> None:
    class Uneven(Counting):
        def answer(self, answers: Sequence[Answer]) -> None:
            for token in (STOP, 1, 1, 1, 1):
                for place, answer in enumerate(answers):
                    answer.ran("target", 1)
                    answer.emit(Emit(tokens=(token if place == 0 else 1,)))

    first, second = run(Uneven(), [[3], [4]], 2)
    assert isinstance(first, Generation)
    assert isinstance(second, Generation)
    assert (first.tokens, first.stop) == ((STOP,), "eos")
    assert sum(step.target_calls for step in first.steps) == 1
    assert sum(step.target_calls for step in second.steps) == 5


@pytest.mark.parametrize(("at_once", "sizes"), [(True, [2, 2, 1]), (False, [1] * 5)])
def test_a_self_driven_decoder_gets_several_sequences_at_once_only_if_it_batches(
    at_once: bool, sizes: list[int]
) -> None:
    asked: list[int] = []

    class Watched(Counting):
        def answer(self, answers: Sequence[Answer]) -> None:
            asked.append(len(answers))
            super().answer(answers)

    outcomes = run(Watched(at_once=at_once), [[n] for n in range(5)], 2)
    assert asked == sizes
    assert all(isinstance(outcome, Generation) for outcome in outcomes)


def test_a_failing_sequence_fails_its_whole_batch_and_no_other_batch() -> None:
    *failed, after = run(Counting(bad=4), [[3], [4], [5]], 2)
    assert [type(outcome) for outcome in failed] == [ArithmeticError] * 2
    assert after == generate(Counting(), [5], SAMPLING, models())


def test_a_decoder_that_returns_before_the_answer_ends_fails() -> None:
    (outcome,) = run(Counting(stops_after=2), [[3]], 1)
    assert isinstance(outcome, RuntimeError)
    assert "returned before EOS or budget" in str(outcome)


def test_a_decoder_that_raises_an_error_after_the_answer_ended_fails() -> None:
    class Late(Counting):
        def answer(self, answers: Sequence[Answer]) -> None:
            super().answer(answers)
            raise ArithmeticError("late")

    (outcome,) = run(Late(), [[3]], 1)
    assert isinstance(outcome, ArithmeticError)


def test_steps_are_reported_while_the_loop_runs() -> None:
    seen: list[tuple[int, int]] = []
    told: list[int] = []

    class Watched(Counting):
        def answer(self, answers: Sequence[Answer]) -> None:
            for _ in range(3):
                answers[0].ran("target", 1)
                answers[0].emit(Emit(tokens=(1, 2)))
                told.append(len(seen))

    Scheduler(Watched(), models(), SAMPLING).run([[3]], on_emit=lambda *step: seen.append(step))
    assert seen == [(0, 0), (0, 1), (0, 2)]
    assert told == [1, 2, 3]


def test_a_batch_that_is_out_of_time_fails_as_a_whole_and_the_next_batch_still_runs() -> None:
    class Endless(Counting):
        def answer(self, answers: Sequence[Answer]) -> None:
            if answers[0].request.prompt_ids == (3,):
                raise OutOfTime  # as a timer's signal does
            super().answer(answers)

    limited = Scheduler(Endless(), models(), SAMPLING, 2, Deadline(1.0))
    first, second, third = limited.run([[3], [4], [5]])
    assert isinstance(first, TimeoutError)
    assert isinstance(second, TimeoutError)
    assert isinstance(third, Generation)

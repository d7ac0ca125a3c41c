"""State that survives an answer is proved by counters of repeated answers, and by nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pytest

from bench.records.environment import Environment
from bench.records.plan import Cell, Plan
from bench.records.record import SampleRecord
from bench.records.samples import PhasedAnswer
from bench.stats import answers as judged
from tests.answer_records import run_of

Make = Callable[..., SampleRecord]
EXACT = {"memo": True, "ar": True}
SLOW, FAST = (1, 1, 2), (1, 3)
"""Steps of a first answer, and of one whose drafts all fit: the same four tokens."""


def pairs(record: Make, second: tuple[int, ...] = FAST, **fields: Any) -> list[SampleRecord]:
    """Two repeats of `ar` and of `memo`, whose second answer has other steps."""
    return [
        record("ar", emitted=(1, 1, 1, 1)),
        record("ar", emitted=(1, 1, 1, 1), repeat=1, block=1),
        record("memo", emitted=SLOW),
        record("memo", emitted=second, repeat=1, block=1, **fields),
    ]


def again(steps: int, emitted: int = 4, decoder: str = "memo") -> PhasedAnswer:
    """The second pass's answer to the prompt of the first repeat."""
    counts = {"emitted": emitted, "later_emitted": emitted - 1, "later_steps": steps}
    return PhasedAnswer(
        decoder=decoder,
        prompts=("c0#1",),
        repeat=0,
        seconds={},
        rows=0,
        padded_rows=0,
        **counts,
    )


def state_leaks(
    records: Iterable[SampleRecord],
    phased: Iterable[PhasedAnswer],
    *,
    greedy: bool,
    exact: Mapping[str, bool],
    remembering: Collection[str] = (),
) -> tuple[str, ...]:
    """The lines on a run in half precision, of which `exact` cells are row-invariant."""
    cells = tuple(
        Cell(
            cell=name,
            lossless=True,
            options={"numerics": "invariant"} if exact.get(name) else {},
            remembers="answers" if name in remembering else None,
        )
        for name in {*exact, *remembering}
    )
    config, env = {"temperature": 0.0 if greedy else 0.7}, Environment(dtype="bfloat16")
    return judged.state_leaks(run_of(records, Plan(cells=cells), config=config, env=env), phased)


def test_repeats_with_different_counters_prove_a_state_leak(record: Make) -> None:
    (line,) = state_leaks(pairs(record), (), greedy=True, exact=EXACT)
    assert line.startswith("memo: state survives an answer")
    assert "random numbers of its own?" in line
    assert "1 of 1 repeated answer, e.g. c0#1: 3 target calls, then 2" in line


@pytest.mark.parametrize(
    "column",
    ["emitted", "drafted", "accepted", "target_calls", "target_rows", "draft_calls", "draft_rows"],
)
def test_a_difference_in_any_single_counter_proves_a_state_leak(record: Make, column: str) -> None:
    *rest, last = pairs(record, SLOW)
    assert last.steps is not None
    more = tuple(number + 1 for number in getattr(last.steps, column))
    changed = dataclasses.replace(last, steps=dataclasses.replace(last.steps, **{column: more}))
    assert len(state_leaks([*rest, changed], (), greedy=True, exact=EXACT)) == 1


def test_failed_answers_are_left_out_of_the_baselines_answers(record: Make) -> None:
    records = [record(tokens=(1, 2)), record("ar@aa", error="late")]
    assert judged.baseline_answers(records, by_repeat=False) == [{(1, 2)}]
    records.append(record(tokens=(1, 3), repeat=1))
    assert judged.baseline_answers(records, by_repeat=True) == [{(1, 2)}, {(1, 3)}]
    assert judged.baseline_answers(records, by_repeat=False) == [{(1, 2), (1, 3)}]


def test_equal_repeats_prove_no_state_leak(record: Make) -> None:
    """Answers of the quality pass and those that failed are no repeats."""
    others = [record("memo", emitted=FAST, kind="quality"), record("memo", error="late")]
    assert state_leaks([*pairs(record, SLOW), *others], (), greedy=True, exact=EXACT) == ()


def test_a_batch_with_an_untimed_prompt_proves_no_state_leak(record: Make) -> None:
    both = dataclasses.replace(again(steps=4, emitted=8), prompts=("c0#1", "c1#1"))
    timed = [record("ar", emitted=SLOW), record("memo", emitted=SLOW)]
    assert state_leaks(timed, [both], greedy=False, exact=EXACT) == ()
    timed.append(record("memo", emitted=SLOW, conversation="c1"))
    assert state_leaks(timed, [both], greedy=False, exact=EXACT) == ()  # equal
    (line,) = state_leaks(
        timed, [dataclasses.replace(both, later_steps=3)], greedy=False, exact=EXACT
    )
    assert "4 steps timed, then 3" in line


def test_repeats_with_other_seeds_prove_no_state_leak(record: Make) -> None:
    assert state_leaks(pairs(record), (), greedy=False, exact=EXACT) == ()


def test_in_half_precision_counters_are_compared_only_if_the_tokens_are_equal(record: Make) -> None:
    other = pairs(record, tokens=(9, 9, 9, 9))
    assert state_leaks(other, (), greedy=True, exact={}) == ()
    (line,) = state_leaks(other, (), greedy=True, exact=EXACT)
    assert line.endswith("c0#1: other tokens")
    assert len(state_leaks(pairs(record), (), greedy=True, exact={})) == 1


@pytest.mark.parametrize("apart", [{"worker": "b"}, {"machine": "b"}, {"attempt": 1}])
def test_answers_of_another_process_prove_no_state_leak(
    record: Make, apart: dict[str, Any]
) -> None:
    assert state_leaks(pairs(record, **apart), (), greedy=True, exact=EXACT) == ()


def test_no_state_leak_is_proved_if_the_two_baselines_disagree(record: Make) -> None:
    unsteady = [*pairs(record), record("ar@aa", emitted=(1, 1, 1, 1), tokens=(9, 9, 9, 9))]
    assert state_leaks(unsteady, [again(1)], greedy=True, exact=EXACT) == ()


def test_no_state_leak_is_proved_if_a_greedy_baseline_differs_between_repeats(record: Make) -> None:
    """A greedy baseline has the same tokens in all repeats."""
    first, _, *memo = pairs(record)
    other = record("ar", emitted=(1, 1, 1, 1), tokens=(9, 9, 9, 9), repeat=1, block=1)
    assert state_leaks([first, other, *memo], (), greedy=True, exact=EXACT) == ()
    assert len(state_leaks([first, other, memo[0]], [again(1)], greedy=False, exact=EXACT)) == 1


def test_the_second_pass_is_a_repeat_with_the_same_seed(record: Make) -> None:
    once = pairs(record)[:3]
    assert state_leaks(once, [again(2)], greedy=False, exact=EXACT) == ()
    (line,) = state_leaks(once, [again(1)], greedy=False, exact=EXACT)
    assert line.endswith("e.g. c0#1: 2 steps timed, then 1")
    assert len(state_leaks(once, [again(2, emitted=5)], greedy=False, exact=EXACT)) == 1
    assert state_leaks(once, [again(1)], greedy=False, exact={}) == ()
    assert state_leaks(once, [again(1, decoder="other")], greedy=False, exact={"other": True}) == ()


def test_in_half_precision_answers_after_different_earlier_answers_prove_no_state_leak(
    record: Make,
) -> None:
    def answers(first: tuple[int, ...]) -> list[SampleRecord]:
        other = {"conversation": "c1", "emitted": (1, 1)}
        base = [record("ar", repeat=n, block=2 * n + 1) for n in (0, 1)]
        return [
            *base,
            record("memo", tokens=(1, 2), **other),
            record("memo", emitted=(1, 2), block=1),
            record("memo", tokens=first, repeat=1, block=2, **other),
            record("memo", emitted=(2, 1), repeat=1, block=3),
        ]

    def lines(first: tuple[int, ...], **exact: bool) -> tuple[str, ...]:
        return state_leaks(answers(first), (), greedy=True, exact=exact, remembering={"memo"})

    assert len(lines((1, 2))) == 1
    assert lines((1, 3)) == ()  # half precision: the past was another
    assert len(lines((1, 3), memo=True)) == 1

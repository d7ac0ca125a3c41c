"""Calls that begin before the token that they feed is read give what they give alone.

Graphs have the shapes of CUDA graphs and run on the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core import products
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf import runner
from decoders.core.hf.model import HFModel
from decoders.core.model import Session
from decoders.core.outputs import Chain
from decoders.core.sampling import Uniforms
from decoders.core.types import CallResult, Generation, Outcome, Sampling
from tests.core.hf.test_chains import (
    DRAWN,
    GREEDY,
    SAMPLINGS,
    answers,
    assert_alike,
    opened,
    passes,
)
from tests.core.hf.test_slots import ids
from tests.tiny_models import fresh

__all__ = ["passes"]
PROMPTS = ids(1, 9), ids(2, 4), ids(3, 12)


def steps(
    sessions: Sequence[Session], sampling: Sampling, ahead: bool, num: int = 4
) -> list[list[CallResult]]:
    """Feed each session's picks for some steps, all of which but the last announce another."""
    new, found = [[3 + row] for row in range(len(sessions))], list[list[CallResult]]()
    for step in range(num):
        found.append(answers(sessions, new, sampling, ahead=ahead and step < num - 1))
        new = [[*each.picks] for each in found[-1]]
    return found


@SAMPLINGS
@pytest.mark.parametrize("min_rows", [1, 4])
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "gpt2", "qwen2-window", "gemma3-window"])
def test_calls_that_begin_early_give_the_same_results_as_calls_that_do_not(
    name: str, min_rows: int, sampling: Sampling, passes: list[int]
) -> None:
    found, lengths = [], []
    for ahead in (False, True):
        model, sessions = opened(name, *PROMPTS)
        model.min_rows = min_rows
        passes.clear()
        results = steps(sessions, sampling, ahead)
        results.append(answers(sessions, [[5]] * 3, sampling))
        found.append([each for step in results for each in step])
        lengths.append([(each.length, each.calls) for each in sessions])
        assert passes == [4] * 5, "no pass but those of the calls"
    assert_alike(*found)
    assert lengths[0] == lengths[1]


def test_sessions_in_any_order_of_cache_rows_feed_their_picks() -> None:
    found = []
    for ahead in (False, True):
        _, sessions = opened("llama-gqa", *PROMPTS)
        results = steps([sessions[2], sessions[0], sessions[1]], GREEDY, ahead)
        found.append([each for step in results for each in step])
    assert_alike(*found)


def test_a_pass_of_another_model_does_not_affect_the_queued_call() -> None:
    found = []
    for between in (False, True):
        _, sessions = opened("llama-gqa", *PROMPTS)
        _, others = opened("qwen2", *PROMPTS)
        new, results = [[3]] * 3, list[list[CallResult]]()
        for _ in range(3):
            results.append(answers(sessions, new, GREEDY, ahead=True))
            new = [[*each.picks] for each in results[-1]]
            if between:
                answers(others, [[4]] * 3, GREEDY)
        found.append([each for step in results for each in step])
    assert_alike(*found)


def test_the_next_call_is_queued_before_the_picks_are_read(passes: list[int]) -> None:
    _, sessions = opened("llama-gqa", *PROMPTS)
    passes.clear()
    answers(sessions, [[3]] * 3, GREEDY, ahead=True)
    assert len(passes) == 2
    answers(sessions, [[4]] * 3, GREEDY)
    assert len(passes) == 3


def other_token(model: HFModel, sessions: list[Session], picks: list[int]) -> tuple[Any, ...]:
    return sessions, [[(pick + 1) % model.vocab_size] for pick in picks]


def after_a_truncation(_: HFModel, sessions: list[Session], picks: list[int]) -> tuple[Any, ...]:
    for each in sessions:
        each.truncate(each.length - 1)
    return sessions, [[pick] for pick in picks]


def in_another_row(model: HFModel, sessions: list[Session], picks: list[int]) -> tuple[Any, ...]:
    model.close(sessions[0])
    return sessions[1:], [[pick] for pick in picks[1:]]


def of_a_fork(_: HFModel, sessions: list[Session], picks: list[int]) -> tuple[Any, ...]:
    sessions[0].max_sequences = 2
    return [sessions[0].fork()], [[picks[0]]]


@pytest.mark.parametrize("change", [other_token, after_a_truncation, in_another_row, of_a_fork])
def test_calls_that_differ_from_the_queued_call_run_afresh(change: Any, passes: list[int]) -> None:
    found, unused = [], []
    for ahead in (False, True):
        model, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4))
        padded = model.num_padded_rows
        first = answers(sessions, [[3], [4]], GREEDY, ahead=ahead)
        used, tokens = change(model, sessions, [each.picks[0] for each in first])
        passes.clear()
        results = answers(used, tokens, GREEDY)
        found.append([*results, *answers(used, [each.picks for each in results], GREEDY)])
        assert len(passes) == 2
        unused.append(model.num_padded_rows - padded)
    assert unused[1] - unused[0] == 2
    assert_alike(*found)


def test_a_queued_call_is_dropped_when_its_cache_row_moves() -> None:
    found = []
    for ahead in (False, True):
        model, (first, second) = opened("llama-gqa", ids(1, 9), ids(2, 4))
        results = answers([second], [[4]], GREEDY, ahead=ahead)
        model.close(first)
        for _ in range(8):
            results += answers([second], [results[-1].picks], GREEDY)
        found.append(results)
    assert_alike(*found)


def test_a_queued_call_that_never_comes_counts_as_padding_of_its_answer() -> None:
    model, sessions = opened("llama-gqa", ids(1, 9))
    token, before, padded = 3, model.num_padded_rows, []
    for ahead in (True, True, False):
        (result,) = answers(sessions, [[token]], GREEDY, ahead=ahead)
        (token,) = result.picks
        padded.append(model.num_padded_rows - before)
    assert padded == [1, 1, 0]


@pytest.mark.parametrize("how", [{"positions": [9]}, {"hidden": True}])
def test_calls_that_need_more_than_the_queued_token_run_again(how: Any, passes: list[int]) -> None:
    found = []
    for ahead in (False, True):
        _, sessions = opened("llama-gqa", ids(1, 9))
        (first,) = answers(sessions, [[3]], GREEDY, ahead=ahead)
        passes.clear()
        found.append(answers(sessions, [first.picks], GREEDY, **how))
        assert len(passes) == 1
        assert (sessions[0].hidden is None) == ("hidden" not in how)
    assert_alike(*found)


def test_a_chain_runs_correctly_after_a_single_call_was_queued(passes: list[int]) -> None:
    found = []
    for ahead in (False, True):
        _, sessions = opened("llama-gqa", ids(1, 9))
        (first,) = answers(sessions, [[3]], GREEDY, ahead=ahead)
        found.append(answers(sessions, [first.picks], GREEDY, chains=[Chain(2, 2)]))
        assert len(found[-1][0].picks) == 3
    assert_alike(*found)


def test_a_queued_call_is_not_reused_with_different_uniforms(passes: list[int]) -> None:
    found = []
    for ahead in (False, True):
        _, sessions = opened("llama-gqa", ids(1, 9))
        (first,) = answers(sessions, [[3]], DRAWN, ahead=ahead)
        passes.clear()
        new: Any = {"uniforms": Uniforms(8, [1])}
        found.append(answers(sessions, [first.picks], DRAWN, **new))
        assert len(passes) == 1
    assert_alike(*found)


@pytest.mark.parametrize("output", ["draws", "probs", ("picks", "entropy")])
def test_no_further_call_is_queued_if_a_result_needs_logits(output: Any, passes: list[int]) -> None:
    _, sessions = opened("llama-gqa", ids(1, 9))
    passes.clear()
    answers(sessions, [[3]], GREEDY, output=output, ahead=True)
    assert len(passes) == 1


def test_no_call_is_queued_beyond_the_capacity_of_the_cache(passes: list[int]) -> None:
    _, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4), capacity=10)
    passes.clear()
    answers(sessions, [[3], [4]], GREEDY, ahead=True)
    assert len(passes) == 1


def run(compiled: bool, sampling: Sampling, prompts: Sequence[Sequence[int]]) -> list[Outcome]:
    model = HFModel(fresh("llama-gqa"), compile=compiled, backend="eager")
    return Scheduler(Autoregressive(), Models(target=model), sampling, 3).run(prompts)


def tokens_of(outcomes: Sequence[Outcome]) -> list[Any]:
    return [each.tokens if isinstance(each, Generation) else each for each in outcomes]


@SAMPLINGS
def test_answers_that_end_early_or_cross_a_bucket_are_the_same_without_graphs(
    sampling: Sampling, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decoders.core.hf.layout._LENGTH_BUCKET", 16)
    prompts = [ids(seed, length) for seed, length in ((1, 9), (2, 30), (3, 12), (4, 62), (5, 3))]
    usual = tokens_of(run(False, sampling, prompts))
    assert tokens_of(run(True, sampling, prompts)) == usual
    num_waves = 2  # five prompts, three at a time
    assert len(passes) <= num_waves * sampling.max_new_tokens + len(prompts)
    ends = frozenset({usual[0][4], usual[1][7], usual[3][2]})
    early: Any = Sampling(
        max_new_tokens=24,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        stop_ids=ends,
    )
    expected = tokens_of(run(False, early, prompts))
    assert len({len(each) for each in expected}) > 2
    assert tokens_of(run(True, early, prompts)) == expected


def test_nan_logits_end_the_answer_and_feed_no_invalid_index() -> None:
    model = HFModel(fresh("llama-gqa"), compile=True, backend="eager")
    with torch.no_grad():
        model.module.get_output_embeddings().weight.fill_(float("nan"))
    (outcome,) = Scheduler(Autoregressive(), Models(target=model), GREEDY).run([ids(1, 5)])
    assert isinstance(outcome, FloatingPointError)


def test_another_seed_length_or_stop_token_needs_no_further_graph() -> None:
    model, counts = HFModel(fresh("llama-gqa"), compile=True, backend="eager"), list[int]()
    other = dataclasses.replace(DRAWN, seed=9, max_new_tokens=23, stop_ids=frozenset({5}))
    for sampling in (DRAWN, other):
        Scheduler(Autoregressive(), Models(target=model), sampling).run([ids(1, 9)])
        counts.append(model.num_graphs)
    assert counts[0] == counts[1] > 0


def test_the_head_receives_the_number_of_sequences_of_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that on a CPU a row has the same bits in a batch as alone."""
    seen, product = list[tuple[int, int]](), products.product

    def noted(rows: Any, weight: Any, bias: Any, sequences: int = 1) -> Any:
        seen.append((rows.shape[0], sequences))
        return product(rows, weight, bias, sequences)

    model, sessions = opened("llama-gqa", *PROMPTS)
    monkeypatch.setattr(runner, "product", noted)
    model.forward([session.call([3, 4, 5], read=range(3)) for session in sessions])
    assert seen == [(4 * 4, 4)], "of four sequences with the empty one"

"""Calls that a decoder announces run in the graph of the first one, and give what they give alone.

Graphs have the shapes of CUDA graphs and run on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from decoders.core.engine.forward import forward
from decoders.core.engine.models import Models
from decoders.core.engine.readout import read_out
from decoders.core.engine.reads import readouts, token_reads
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf import chains
from decoders.core.hf.compiled import Graphs
from decoders.core.hf.model import HFModel
from decoders.core.model import Session
from decoders.core.registry import build, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.types import CallResult, Generation, Sampling
from tests.core.hf.test_slots import ids
from tests.tiny_models import fresh

GREEDY = Sampling(max_new_tokens=24)
DRAWN = Sampling(max_new_tokens=24, temperature=0.8, top_k=20, seed=3)
NUCLEUS = Sampling(max_new_tokens=24, temperature=0.8, top_p=0.9, seed=3)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, DRAWN, NUCLEUS], ids=["0", "k", "p"])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sequences of each graph that runs."""
    counted, run = list[int](), Graphs.__call__

    def counting(self: Graphs, name: Any, *rest: Any, **options: Any) -> Any:
        counted.append(name.frame.size[0])
        return run(self, name, *rest, **options)

    monkeypatch.setattr(Graphs, "__call__", counting)
    return counted


def opened(name: str, *prompts: Sequence[int], capacity: int = 60) -> tuple[HFModel, list[Session]]:
    model = HFModel(fresh(name), compile=True, backend="eager")
    model.reserve(len(prompts) + 1, capacity)
    sessions = [model.open() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        model.forward([session.call(prompt, read=())])
    return model, sessions


def answers(
    sessions: Sequence[Session], tokens: Sequence[Sequence[int]], sampling: Sampling, **how: Any
) -> list[CallResult]:
    """Run one call of each session, as the engine does."""
    calls = [each.call(new, **how) for each, new in zip(sessions, tokens, strict=True)]
    parts = [part for call in calls for part in readouts(call, Uniforms(7, [1]), 0)]
    logits = forward(calls, token_reads(parts, sampling))
    return list(read_out(logits, parts, sampling))


def drafts(
    sessions: Sequence[Session], sampling: Sampling, output: str, chain: int, steps: int = 4
) -> list[list[CallResult]]:
    """Feed each session's picks for some steps, of which the first call announces a number."""
    new, found = [[3 + row] for row in range(len(sessions))], list[list[CallResult]]()
    for step in range(steps):
        found.append(answers(sessions, new, sampling, output=output, chain=0 if step else chain))
        new = [[*each.picks] for each in found[-1]]
    return found


def assert_alike(found: Sequence[CallResult], expected: Sequence[CallResult]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.picks == other.picks
        assert one.confidences == pytest.approx(other.confidences, abs=1e-6)
        assert (one.probs is None) == (other.probs is None)
        if one.probs is not None and other.probs is not None:
            torch.testing.assert_close(one.probs, other.probs)


@SAMPLINGS
@pytest.mark.parametrize("output", ["picks", "draws", "argmax", "probs"])
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "gpt2"])
def test_announced_calls_give_what_they_give_alone(
    name: str, output: str, sampling: Sampling, passes: list[int]
) -> None:
    prompts = [ids(1, 9), ids(2, 4), ids(3, 12)]
    _, sessions = opened(name, *prompts)
    alone = drafts(sessions, sampling, output, chain=0)
    _, sessions = opened(name, *prompts)
    passes.clear()
    for found, expected in zip(drafts(sessions, sampling, output, chain=3), alone, strict=True):
        assert_alike(found, expected)
    assert passes == [4], "one graph, of four sequences with the empty one"
    assert [each.length for each in sessions] == [len(prompt) + 4 for prompt in prompts]
    assert [each.calls for each in sessions] == [5] * 3
    after = answers(sessions, [[5]] * 3, sampling)
    _, sessions = opened(name, *prompts)
    drafts(sessions, sampling, output, chain=0)
    assert_alike(after, answers(sessions, [[5]] * 3, sampling))


@SAMPLINGS
def test_some_sequences_may_stop_earlier(sampling: Sampling, passes: list[int]) -> None:
    _, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4))
    first = answers(sessions, [[3], [4]], sampling, output="probs")
    alone = answers(sessions[1:], [first[1].picks], sampling, output="probs")
    model, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4))
    padded = model.num_padded_rows
    passes.clear()
    answers(sessions, [[3], [4]], sampling, output="probs", chain=3)
    assert_alike(answers(sessions[1:], [first[1].picks], sampling, output="probs"), alone)
    assert len(passes) == 1
    answers(sessions[:1], [[9]], sampling)  # what was announced does not come
    assert len(passes) == 2
    assert model.num_padded_rows - padded == 5, "three rows of one sequence and two of the other"


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
def test_calls_that_are_not_what_was_announced_run_afresh(change: Any, passes: list[int]) -> None:
    found = []
    for chain in (0, 3):
        model, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4))
        first = answers(sessions, [[3], [4]], GREEDY, output="probs", chain=chain)
        used, tokens = change(model, sessions, [each.picks[0] for each in first])
        passes.clear()
        results = answers(used, tokens, GREEDY, output="probs")
        again = answers(used, [each.picks for each in results], GREEDY, output="probs")
        found.append([*results, *again])
        assert len(passes) == 2
    assert_alike(*found)


def test_other_uniforms_are_not_what_was_announced(passes: list[int]) -> None:
    found = []
    for chain in (0, 3):
        _, sessions = opened("llama-gqa", ids(1, 9))
        (first,) = answers(sessions, [[3]], DRAWN, output="probs", chain=chain)
        passes.clear()
        new: Any = {"uniforms": Uniforms(8, [1])}
        found.append(answers(sessions, [first.picks], DRAWN, output="probs", **new))
        assert len(passes) == 1
    assert_alike(*found)


def test_a_chain_beyond_the_cache_leaves_its_entries_alone(passes: list[int]) -> None:
    found = []
    for chain in (0, 7):
        _, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4), capacity=11)
        found.append(drafts(sessions, GREEDY, "probs", chain, steps=2))
    assert_alike(*[[result for step in each for result in step] for each in found])


def test_a_window_and_large_chains_are_not_run_ahead(
    passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sessions = opened("qwen2-window", ids(1, 9))
    passes.clear()
    drafts(sessions, GREEDY, "picks", chain=3)
    assert len(passes) == 4
    monkeypatch.setattr(chains, "_MAX_VALUES", 100)
    _, sessions = opened("llama-gqa", ids(1, 9))
    passes.clear()
    drafts(sessions, GREEDY, "picks", chain=3)
    assert len(passes) == 4


@SAMPLINGS
@pytest.mark.parametrize("spec", ["spec:k=4", "spec:k=3:stop=0.3", "spec:k=3:verify=coupled"])
def test_decoders_with_a_draft_model_decode_as_without_graphs(
    spec: str, sampling: Sampling, passes: list[int]
) -> None:
    prompts, found = [ids(1, 9), ids(2, 4), ids(3, 12)], list[list[Any]]()
    for compiled in (False, True):
        draft, target = (
            HFModel(fresh(name), compile=compiled, backend="eager")
            for name in ("llama", "llama-gqa")
        )
        models = Models(target=target, draft=draft)
        outcomes = Scheduler(build(parse_spec(spec)), models, sampling, 3).run(prompts)
        assert all(isinstance(each, Generation) for each in outcomes), outcomes
        found.append([(each.tokens, counts(each)) for each in outcomes])  # type: ignore[union-attr]
    assert found[0] == found[1]


def counts(answer: Any) -> list[tuple[int, ...]]:
    names = ("drafted", "accepted", "draft_calls", "draft_rows")
    return [tuple(getattr(step, name) for name in names) for step in answer.steps]

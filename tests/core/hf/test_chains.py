"""The calls of a chain run in the graph of the first one, and give what they give alone.

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
from decoders.core.hf import ahead, runner
from decoders.core.hf.compiled import Graphs
from decoders.core.hf.model import HFModel
from decoders.core.model import Session
from decoders.core.outputs import Chain
from decoders.core.registry import build, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.types import CallResult, Generation, Sampling
from tests.core.hf.test_slots import ids
from tests.tiny_models import VOCAB, fresh

GREEDY = Sampling(max_new_tokens=24)
DRAWN = Sampling(max_new_tokens=24, temperature=0.8, top_k=20, seed=3)
NUCLEUS = Sampling(max_new_tokens=24, temperature=0.8, top_p=0.9, seed=3)
OPEN = Sampling(max_new_tokens=24, temperature=0.8, top_p=0.95, seed=3)
"""Where 64 tokens hold less than top-p in some rows, which a graph then leaves open."""
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, DRAWN, NUCLEUS], ids=["0", "k", "p"])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sequences of each graph that runs."""
    counted, run = list[int](), Graphs.__call__

    def counting(self: Graphs, name: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(name, runner.GraphName) and name.frame:  # else no calls
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
    """Run one call of each session, with an entry of `chains` for each, as the engine does."""
    parts, calls = list[Any](), list[Any]()
    for number, (session, new) in enumerate(zip(sessions, tokens, strict=True)):
        each = {**how, "chain": how["chains"][number]} if "chains" in how else {**how}
        each.pop("chains", None)
        calls.append(session.call(new, **each))
        parts += readouts(calls[-1], Uniforms(7, [1]), 0)
    logits = forward(calls, token_reads(parts, sampling))
    return list(read_out(logits, parts, sampling))


def alone(
    sessions: Sequence[Session], sampling: Sampling, output: str, num: int = 4, **how: Any
) -> list[CallResult]:
    """Feed each session's picks in calls without a chain, and join the results of each session."""
    new, found = [[3 + row] for row in range(len(sessions))], list[list[CallResult]]()
    for _ in range(num):
        found.append(answers(sessions, new, sampling, output=output, **how))
        new = [[*each.picks] for each in found[-1]]
    return [joined(each) for each in zip(*found, strict=True)]


def joined(results: Sequence[CallResult]) -> CallResult:
    probs = [each.probs for each in results if each.probs is not None]
    return CallResult(
        picks=tuple(pick for each in results for pick in each.picks),
        confidences=tuple(sure for each in results for sure in each.confidences),
        probs=torch.cat(probs) if probs else None,
    )


def chained(
    sessions: Sequence[Session], sampling: Sampling, output: str, *chains: Chain, **how: Any
) -> list[CallResult]:
    new = [[3 + row] for row in range(len(sessions))]
    return answers(sessions, new, sampling, output=output, chains=chains, **how)


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
def test_the_calls_of_a_chain_give_the_same_results_as_separate_calls(
    name: str, output: str, sampling: Sampling, passes: list[int]
) -> None:
    prompts = [ids(1, 9), ids(2, 4), ids(3, 12)]
    _, sessions = opened(name, *prompts)
    expected = alone(sessions, sampling, output)
    after = answers(sessions, [[5]] * 3, sampling)
    _, sessions = opened(name, *prompts)
    passes.clear()
    found = chained(sessions, sampling, output, *[Chain(3, 3)] * 3)
    assert_alike(found, expected)
    assert passes == [4], "one graph, of four sequences with the empty one"
    for session, prompt, result in zip(sessions, prompts, found, strict=True):
        assert session.length == len(prompt) + 4
        assert session.text[-3:] == [*result.picks[:-1]]
        assert (session.calls, session.rows) == (5, len(prompt) + 4)
    assert_alike(answers(sessions, [[5]] * 3, sampling), after)


def test_a_sequence_gets_its_results_in_any_order_of_calls() -> None:
    found = list[list[CallResult]]()
    for run, how in ((alone, ()), (chained, [Chain(3, 3)] * 3)):
        _, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4), ids(3, 12))
        turned: Any = [sessions[2], sessions[0], sessions[1]]
        found.append(run(turned, DRAWN, "probs", *how))  # type: ignore[operator]
    assert_alike(*found)
    assert len({each.picks for each in found[0]}) == 3


@SAMPLINGS
def test_chained_sequences_may_stop_at_different_lengths(
    sampling: Sampling, passes: list[int]
) -> None:
    _, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4))
    expected = alone(sessions, sampling, "probs")
    model, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4))
    padded = model.num_padded_rows
    stop = 1.01  # above every confidence
    found = chained(sessions, sampling, "probs", Chain(1, 3), Chain(3, 3, stop))
    cut = [
        CallResult(
            picks=each.picks[:num],
            confidences=each.confidences[:num],
            probs=None if each.probs is None else each.probs[:num],
        )
        for each, num in zip(expected, (2, 1), strict=True)
    ]
    assert_alike(found, cut)
    assert passes[-1:] == [2]
    assert [each.length for each in sessions] == [11, 5]
    assert model.num_padded_rows - padded == 5, "two rows of one sequence and three of the other"


def test_a_chain_stops_behind_the_first_pick_that_is_not_sure() -> None:
    _, sessions = opened("llama-gqa", ids(1, 9))
    (whole,) = alone(sessions, DRAWN, "draws", 6)
    least = min(whole.confidences[:-1])
    num = whole.confidences.index(least) + 1
    _, sessions = opened("llama-gqa", ids(1, 9))
    (found,) = chained(sessions, DRAWN, "draws", Chain(5, 5, least + 1e-6))
    first = next(i for i, sure in enumerate(whole.confidences) if sure < least + 1e-6)
    assert num == first + 1
    assert found.picks == whole.picks[:num]


def test_a_chain_draws_by_the_uniforms_of_its_call(passes: list[int]) -> None:
    other: Any = {"uniforms": Uniforms(8, [1])}
    _, sessions = opened("llama-gqa", ids(1, 9))
    usual = alone(sessions, DRAWN, "probs")
    _, sessions = opened("llama-gqa", ids(1, 9))
    expected = alone(sessions, DRAWN, "probs", **other)
    _, sessions = opened("llama-gqa", ids(1, 9))
    passes.clear()
    assert_alike(chained(sessions, DRAWN, "probs", Chain(3, 3), **other), expected)
    assert len(passes) == 1
    assert expected[0].picks != usual[0].picks


def test_a_chain_longer_than_the_cache_overwrites_no_entries(passes: list[int]) -> None:
    _, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4), capacity=11)
    expected = alone(sessions, GREEDY, "probs", 2)
    _, sessions = opened("llama-gqa", ids(1, 9), ids(2, 4), capacity=11)
    assert_alike(chained(sessions, GREEDY, "probs", *[Chain(1, 7)] * 2), expected)


def test_a_chain_past_the_last_learned_position_does_not_change_its_first_calls() -> None:
    prompts = ids(1, 125), ids(2, 4)  # of 128 positions
    _, sessions = opened("gpt2", *prompts, capacity=140)
    expected = alone(sessions, GREEDY, "probs", 2)
    _, sessions = opened("gpt2", *prompts, capacity=140)
    assert_alike(chained(sessions, GREEDY, "probs", *[Chain(1, 7)] * 2), expected)


@pytest.mark.parametrize("length", range(11, 17))
def test_a_chain_may_end_in_the_next_bucket_of_lengths(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph of the first call's bucket would hide the chain's own entries from its last calls."""
    monkeypatch.setattr("decoders.core.hf.layout._LENGTH_BUCKET", 16)
    _, sessions = opened("llama-gqa", ids(1, length))
    expected = alone(sessions, GREEDY, "probs")
    _, sessions = opened("llama-gqa", ids(1, length))
    assert_alike(chained(sessions, GREEDY, "probs", Chain(3, 3)), expected)


def test_windowed_attention_and_large_chains_are_not_run_ahead(
    passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sessions = opened("qwen2-window", ids(1, 9))
    (found,) = chained(sessions, GREEDY, "probs", Chain(3, 3))
    assert len(found.picks) == 1
    monkeypatch.setattr(ahead, "_MAX_VALUES", 100)
    for output, num in (("probs", 1), ("draws", 4)):
        _, sessions = opened("llama-gqa", ids(1, 9))
        (found,) = chained(sessions, GREEDY, output, Chain(3, 3))
        assert len(found.picks) == num


def test_chains_that_one_graph_cannot_run_are_not_run_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def num_picks(
        num_tokens: int, *chains: Chain, outputs: Sequence[str] = ("draws", "draws")
    ) -> list[int]:
        _, sessions = opened("llama-gqa", *[ids(seed, 9) for seed in range(len(chains))])
        calls = [
            each.call(ids(5, num_tokens), output=output, chain=chain)
            for each, output, chain in zip(sessions, outputs, chains, strict=False)
        ]
        parts = [part for call in calls for part in readouts(call, Uniforms(7, [1]), 0)]
        found = read_out(forward(calls, token_reads(parts, GREEDY)), parts, GREEDY)
        return [len(each.picks) for each in found]

    assert num_picks(4, Chain(3, 3), Chain(3, 3)) == [4, 4]
    assert num_picks(5, Chain(3, 3)) == [1], "a prompt"
    assert num_picks(1, Chain(1, 2), Chain(3, 3)) == [1, 1], "of other lengths"
    assert num_picks(1, Chain(3, 3), Chain(3, 3), outputs=("draws", "probs")) == [1, 1]
    monkeypatch.setattr(ahead, "_MAX_VALUES", 4 * VOCAB)
    both = "probs", "probs"
    assert num_picks(1, Chain(3, 3), outputs=both) == [4]
    assert num_picks(1, Chain(3, 3), Chain(3, 3), outputs=both) == [1, 1], "too many numbers"


@pytest.mark.parametrize("spec", ["spec:k=4", "spec:k=4:verify=coupled"])
def test_a_chain_ends_before_a_row_with_an_open_top_p_nucleus(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused, results = list[int](), ahead.chain_results

    def recording(calls: Any, *args: Any) -> list[CallResult]:
        made = results(calls, *args)
        pairs = zip(calls, made, strict=False)
        unused.extend([call.chain.num + 1 - len(each.picks) for call, each in pairs] or [4])
        return made

    monkeypatch.setattr(runner, "chain_results", recording)
    found, expected = (outcomes(spec, OPEN, compiled) for compiled in (True, False))
    assert {*unused} == {0, 1, 2, 3, 4}, "all, some and none of a chain is of use"
    assert found == expected


@SAMPLINGS
@pytest.mark.parametrize("spec", ["spec:k=4", "spec:k=3:stop=0.3", "spec:k=3:verify=coupled"])
def test_decoders_with_a_draft_model_decode_as_without_graphs(
    spec: str, sampling: Sampling, passes: list[int]
) -> None:
    assert outcomes(spec, sampling, compiled=True) == outcomes(spec, sampling, compiled=False)


def outcomes(spec: str, sampling: Sampling, compiled: bool) -> list[tuple[Any, ...]]:
    """Tokens of three answers, and the counters of their steps."""
    draft, target = (
        HFModel(fresh(name), compile=compiled, backend="eager") for name in ("llama", "llama-gqa")
    )
    models, prompts = Models(target=target, draft=draft), [ids(1, 9), ids(2, 4), ids(3, 12)]
    found = Scheduler(build(parse_spec(spec)), models, sampling, 3).run(prompts)
    assert all(isinstance(each, Generation) for each in found), found
    return [(each.tokens, counts(each)) for each in found]  # type: ignore[union-attr]


def counts(answer: Any) -> list[tuple[int, ...]]:
    names = ("drafted", "accepted", "draft_calls", "draft_rows")
    return [tuple(getattr(step, name) for name in names) for step in answer.steps]


@SAMPLINGS
def test_drafting_after_a_cached_prompt_prefix_is_the_same_with_and_without_graphs(
    sampling: Sampling,
) -> None:
    """The rest is a call of few rows, whose uniforms are those of a long one."""
    prompt, found = ids(1, 12), list[Any]()
    for compiled in (False, True):
        draft, target = (
            HFModel(fresh(name), compile=compiled, backend="eager")
            for name in ("llama", "llama-gqa")
        )
        models = Models(target=target, draft=draft)
        scheduler = Scheduler(build(parse_spec("spec:k=4")), models, sampling)
        scheduler.prefill_prefix(prompt, 10)
        (answer,) = scheduler.run([prompt])
        assert isinstance(answer, Generation), answer
        found.append((answer.tokens, counts(answer)))
    assert found[0] == found[1]

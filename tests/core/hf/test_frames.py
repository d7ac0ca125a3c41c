"""Calls whose numbers reach a GPU in one copy: its graph takes them apart, and reads the tokens.

A pretended GPU counts what the host issues. Answers are compared with those of plain calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from decoders.core.device import switches
from decoders.core.engine import readout
from decoders.core.engine.forward import forward
from decoders.core.engine.models import Models
from decoders.core.engine.readout import read_out
from decoders.core.engine.reads import readouts, token_reads
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.model import Call
from decoders.core.registry import build, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.types import CallResult, Generation, Sampling
from tests.core.hf.test_drafting import layers_of
from tests.core.hf.test_slots import ids, slots_of
from tests.pretended_cuda import PretendedCuda, place_module
from tests.tiny_models import VOCAB, fresh, slot_adapter, tiny

PROMPTS = [ids(1, 9), ids(2, 4), ids(3, 12)]
SAMPLINGS = (
    Sampling(max_new_tokens=12),
    Sampling(max_new_tokens=12, temperature=0.8, top_k=20, seed=3),
    Sampling(max_new_tokens=12, temperature=0.8, top_p=0.9, seed=3),
)
MODELS = ("llama-gqa", "qwen2-window", "gpt2", "gemma2-window")


def answers(model: HFModel, spec: str, sampling: Sampling) -> list[Any]:
    """Tokens and counters of answers to three prompts at a time."""
    decoder = build(parse_spec(spec))
    found = Scheduler(decoder, Models(target=model), sampling, 3).run(PROMPTS)
    assert all(isinstance(each, Generation) for each in found), found
    return [(each.tokens, [counts(step) for step in each.steps]) for each in found]  # type: ignore[union-attr]


def counts(step: Any) -> tuple[int, ...]:
    work = (step.target_calls, step.target_rows, step.draft_calls, step.draft_rows)
    return (len(step.tokens), step.drafted, step.accepted, *work)


@pytest.fixture
def graphs() -> Iterator[HFModel]:
    with PretendedCuda() as device:
        model = HFModel(place_module(fresh("llama-gqa")), compile=True)
        model.attach("ptp", slot_adapter(tiny("llama-gqa")))
    with device.captures():
        model.reserve(3, 60)
        yield model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "top-k", "top-p"])
def test_captured_calls_give_the_same_answers_as_plain_calls(name: str, sampling: Sampling) -> None:
    expected = {spec: answers(HFModel(fresh(name)), spec, sampling) for spec in ("ar", "lookup")}
    with PretendedCuda() as device:
        model = HFModel(place_module(fresh(name)), compile=True)
    with device.captures():
        assert {spec: answers(model, spec, sampling) for spec in ("ar", "lookup")} == expected
    assert model.num_graphs > 2


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "drawn"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_is_a_copy_a_replay_and_a_read(
    sampling: Sampling, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switches, "ahead", False)
    with PretendedCuda() as device:
        model = HFModel(place_module(fresh("llama-gqa")), compile=True)
    decoder, issued = build(parse_spec("ar")), list[tuple[int, int, int]]()

    def on_emit(_index: int, _number: int) -> None:
        counters = device.uploads, device.launches, device.waits
        issued.append((counters[0].total(), counters[1].total(), counters[2].total()))
        device.clear()

    with device.captures():
        for _ in range(2):  # the second time all graphs are there
            issued.clear()
            device.clear()
            scheduler = Scheduler(decoder, Models(target=model), sampling, batch)
            scheduler.run([prompt[:4] for prompt in PROMPTS[:batch]], on_emit=on_emit)
    assert {each for each in issued if any(each)} == {(1, 1, 1)}
    assert len([each for each in issued if any(each)]) == sampling.max_new_tokens


def calls_of(model: HFModel, form: str) -> list[Call]:
    """Calls of three sequences that read tokens, and slots in another form and confidence."""
    if not model._open:
        sessions = [model.open() for _ in PROMPTS]
        model.forward([s.call(prompt) for s, prompt in zip(sessions, PROMPTS, strict=True)])
    calls = []
    for number, (session, prompt) in enumerate(zip(model._open, PROMPTS, strict=True)):
        session.truncate(len(prompt))
        slots = slots_of(number, (3,), (5,), read=(0, 2))
        slots = dataclasses.replace(slots, output=form, confidence="margin")
        tokens, read = ids(number, 2 + number), range(number, 2 + number)
        calls.append(session.call(tokens, read=read, slots=slots))
    return calls


def results(calls: Sequence[Call], sampling: Sampling, *, ahead: bool) -> Sequence[CallResult]:
    places = zip(calls, PROMPTS, strict=True)
    parts = [
        part for call, prompt in places for part in readouts(call, Uniforms(3, prompt), len(prompt))
    ]
    reads = token_reads(parts, sampling)
    assert reads
    return read_out(forward(calls, reads) if ahead else forward(calls), parts, sampling)


@pytest.mark.parametrize("form", ["picks", "draws", "argmax", "probs"])
@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "drawn"])
def test_results_read_inside_a_graph_equal_results_read_from_its_logits(
    form: str, sampling: Sampling, graphs: HFModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = results(calls_of(graphs, form), sampling, ahead=False)
    calls = calls_of(graphs, form)
    monkeypatch.setattr(readout, "TokenRead", None)  # nothing is left to read after the pass
    found = results(calls, sampling, ahead=True)
    for one, other in zip(found, expected, strict=True):
        assert one.picks == other.picks
        assert one.confidences == pytest.approx(other.confidences)
        assert (one.probs is None) == (other.probs is None)
        if one.probs is not None and other.probs is not None:
            torch.testing.assert_close(one.probs, other.probs)
    if (kept := found[1].probs) is not None:  # a copy: the next run writes to the same memory
        before = kept.clone()
        results(calls_of(graphs, form), SAMPLINGS[0], ahead=True)
        assert torch.equal(kept, before)


def test_graphs_run_the_adapter_that_replaced_another_of_its_name(graphs: HFModel) -> None:
    found = [results(calls_of(graphs, "argmax"), SAMPLINGS[0], ahead=True)]
    plain, num_graphs = HFModel(fresh("llama-gqa")), graphs.num_graphs
    for model in (graphs, plain):
        model.attach("ptp", slot_adapter(tiny("llama-gqa"), alpha=40.0))
    plain.reserve(3, 60)
    found.append(results(calls_of(graphs, "argmax"), SAMPLINGS[0], ahead=True))
    expected = results(calls_of(plain, "argmax"), SAMPLINGS[0], ahead=False)
    tokens = [[each.slot_picks or each.picks for each in part] for part in (*found, expected)]
    assert tokens[0] != tokens[1] == tokens[2]
    assert graphs.num_graphs == num_graphs + 1, "a graph holds the tensors of its adapter"


@pytest.mark.parametrize("sampling", SAMPLINGS[1:], ids=["drawn", "top-p"])
def test_slots_of_a_call_that_verifies_drafts_are_read_in_its_graph(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test is a graph of its own, which overwrites what the call's graph only lent."""
    read, plain, others = list[list[str]](), HFModel(fresh("llama-gqa")), ("ar", "isd:stride=3")
    model = HFModel(fresh("llama-gqa"), compile=True, backend="eager")
    for each in (plain, model):
        each.attach("isd", slot_adapter(tiny("llama-gqa"), variant="isd", code="constant"))
    forward_reading = model.forward_reading

    def reading(calls: Sequence[Call], reads: Any) -> Any:
        read.append([each.form for each in reads])
        return forward_reading(calls, reads)

    monkeypatch.setattr(model, "forward_reading", reading)
    for spec in others:
        assert answers(model, spec, sampling) == answers(plain, spec, sampling)
    assert ["probs"] in read


def test_graphs_do_not_read_calls_with_laws_barred_ids_other_outputs_or_no_rows(
    graphs: HFModel,
) -> None:
    session = graphs.open()
    plain, laws = session.call([3, 4]), (None, None, None, None, len)
    slots = dataclasses.replace(slots_of(1, (2,), (4,)), barred=frozenset({5}))
    calls = (
        dataclasses.replace(plain, barred=frozenset({5})),
        session.call([3, 4], slots=slots),
        session.call([3, 4], output="entropy"),
        session.call([3, 4], read=()),
        plain,
    )
    for call, law in zip(calls, laws, strict=True):
        parts = readouts(call, Uniforms(3, [3, 4]), 2)
        assert not token_reads(parts, Sampling(law=law, temperature=0.7))  # type: ignore[arg-type]
    assert token_reads(readouts(plain, Uniforms(3, [3, 4]), 2), Sampling(temperature=0.7))


def test_logits_of_an_earlier_pass_do_not_get_results_of_the_last_pass(graphs: HFModel) -> None:
    calls, sampling = calls_of(graphs, "draws"), SAMPLINGS[0]
    before = forward(calls)
    results(calls_of(graphs, "draws"), sampling, ahead=True)
    assert not graphs.ahead(before)


def test_graphs_of_other_work_are_separate_for_each_dtype() -> None:
    half, lent = torch.tensor([1.0, 1e-9], dtype=torch.float64), list[torch.Tensor]()
    with PretendedCuda() as device:
        model = HFModel(place_module(fresh("llama")), compile=True)
        with device.captures():
            for dtype in (torch.float32, torch.float64):
                inputs = {"rows": half.to("cuda", dtype)}
                found = model.as_graph(_added, inputs)
                assert found.dtype == dtype
                assert found.item() == half.to(dtype).sum().item()
                lent.append(found)
            assert lent[0].isnan(), "it was good until the next run"


def _added(inputs: Any) -> torch.Tensor:
    return inputs["rows"].sum()


@pytest.mark.parametrize("spec", ["ar", "eagle"])
@pytest.mark.parametrize("batch", [1, 2])
def test_an_answer_with_nan_does_not_affect_later_answers_in_its_cache_row(
    spec: str, batch: int
) -> None:
    """Graphs read entries beyond a text, whose weight is zero: zero times NaN is NaN."""
    found = []
    for token in (3, VOCAB - 1):  # without, and with NaN
        module = fresh("llama")
        with torch.no_grad():
            module.get_input_embeddings().weight[-1] = torch.nan
        model = HFModel(module, compile=True, backend="eager")
        if spec == "eagle":
            model.attach("eagle", layers_of("eagle"))
        prompts = [[*ids(1, 40), token]] * 2 + [ids(2, 6), ids(3, 5)]
        scheduler = Scheduler(
            build(parse_spec(spec)), Models(target=model), Sampling(max_new_tokens=8), batch
        )
        found.append(scheduler.run(prompts))
    assert [isinstance(each, FloatingPointError) for each in found[1]] == [True] * 2 + [False] * 2
    assert found[1][2:] == found[0][2:]

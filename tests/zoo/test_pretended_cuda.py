"""Decoders on a pretended GPU: no tensor on the wrong device, few waits of the host, same answers.

The tables of tests/gpu_only.md are budgets, which may only be lowered: waits in a step of one
sequence, greedy, at temperature 0.8, and there with a nucleus; and all that the host issues in a
step of 1, 4 and 16 sequences whose calls are graphs, greedy and at temperature 0.7.
"""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from bench.plan.numerics import prepare_process
from bench.plan.sources import load_adapter
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.core.types import Generation, Sampling
from tests.pretended_cuda import CUDA, PretendedCuda, place, place_module
from tests.zoo.answers import held_out
from tests.zoo.conftest import ROOT


def budgets(heading: str) -> dict[str, tuple[float, ...]]:
    """What the table below a heading allows each decoder now."""
    page = (ROOT / "tests" / "gpu_only.md").read_text(encoding="utf-8")
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    return {
        spec: tuple(float(cell.split("→")[1]) for cell in cells.split("|"))
        for names, cells in re.findall(r"^\| (`.+`) \|(.+→.+)\|$", section, re.MULTILINE)
        for spec in re.findall("`(.+?)`", names)
    }


WAITS = budgets("How often the host waits")
ISSUES = budgets("What the host issues in a step")
BATCHES, TEMPERATURES = (1, 4, 16), (0.0, 0.7)
DRAFTS = {"spec": 4, "eagle": 1, "shallow": 1}
"""Draft calls of a step, one after another; the host reads each before the next is made."""
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9},
)


def adapter_of(spec: str) -> str | None:
    decoder = build(parse_spec(spec))
    return decoder.adapter_name if "adapter" in decoder.needs else None


@functools.cache
def read(name: str) -> nn.Module:
    module = AutoModelForCausalLM.from_pretrained(ROOT / "zoo" / name, dtype=torch.float32)
    return module.eval()  # type: ignore[no-any-return]


def loaded(name: str) -> nn.Module:
    return copy.deepcopy(read(name))


def models(spec: str, *, on_cuda: bool, tile: int | None = None, compile: bool = False) -> Models:
    target, draft = loaded("target"), loaded("draft")
    if on_cuda:
        target, draft = place_module(target), place_module(draft)
    made, small = HFModel(target, compile=compile), HFModel(draft, compile=compile)
    if tile is not None:
        made, small = made.in_tiles(tile), small.in_tiles(tile)
    if name := adapter_of(spec):
        made.attach(name, load_adapter(name, ROOT / "zoo" / name))
    return Models(target=made, draft=small)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "place"),
    [
        pytest.param(spec, place, marks=() if fast else pytest.mark.slow)
        for spec in WAITS
        for place in range(len(SAMPLINGS))
        for fast in [place == 2 or (place == 0 and spec in ("ar", "spec", "ptp"))]
    ],
)
def test_a_decoder_answers_as_on_the_cpu_within_its_budget_of_waits(
    spec: str, place: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    decoder, prompts = build(parse_spec(spec)), held_out(tokenizer, 1)[:3]
    host = models(spec, on_cuda=False)
    with PretendedCuda() as device:
        pretended = models(spec, on_cuda=True)
        assert pretended.target.device == CUDA
    budget = WAITS[spec][place]
    for batch, num_tokens in ((3, 8), (1, 24)):  # what is uploaded once is there by then
        sampling = Sampling(max_new_tokens=num_tokens, seed=1, **SAMPLINGS[place])
        expected = Scheduler(decoder, host, sampling, batch).run(prompts[:batch])
        device.waits.clear()
        with device:
            found = Scheduler(decoder, pretended, sampling, batch).run(prompts[:batch])
        assert [tokens_of(each) for each in found] == [tokens_of(each) for each in expected]
        if batch == 1:
            assert isinstance(found[0], Generation)
            per_step = sum(device.waits.values()) / len(found[0].steps)
            assert budget - 0.5 < per_step < budget + 0.05, device.waits.most_common(8)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "launches"), [("eagle", 550), ("shallow", 290), ("medusa", 170)])
def test_a_batch_shares_calls_and_waits_only_as_often_as_its_longest_answer(
    spec: str, launches: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = [prompt[-24:] for prompt in held_out(tokenizer, 3)]  # one call feeds all
    decoder, sampling = build(parse_spec(spec)), Sampling(max_new_tokens=64)
    with PretendedCuda() as device:
        pretended = models(spec, on_cuda=True)
    for batch in (1, 4, 16):
        with device:
            Scheduler(decoder, pretended, sampling, batch).run(prompts[:batch])
            device.waits.clear()
            with Launches() as operations:
                found = Scheduler(decoder, pretended, sampling, batch).run(prompts[:batch])
        steps = max(len(each.steps) for each in found if isinstance(each, Generation))
        assert sum(device.waits.values()) <= 2 * steps + 4, (batch, steps, device.waits)
        assert operations.count / steps < launches * (1 if batch == 1 else 1.4), batch


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        pytest.param(spec, place, marks=() if (spec, place) == ("ptp", 3) else pytest.mark.slow)
        for spec in ISSUES
        for place in range(len(BATCHES) * len(TEMPERATURES))
    ],
)
def test_a_step_with_graphs_keeps_its_budget_of_host_operations_and_decodes_as_on_the_cpu(
    spec: str, place: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    batch, temperature = BATCHES[place % 3], TEMPERATURES[place // 3]
    prompts = [prompt[-24:] for prompt in held_out(tokenizer, 3)][:batch]
    decoder = build(parse_spec(spec))
    sampling = Sampling(max_new_tokens=48, seed=1, temperature=temperature)
    expected = Scheduler(decoder, models(spec, on_cuda=False), sampling, batch).run(prompts)
    with PretendedCuda() as device:
        pretended = models(spec, on_cuda=True, compile=True)
    prefills = 0

    def on_emit(_index: int, number: int) -> None:
        nonlocal prefills
        prefills += number == 0
        if number == 0 and prefills % batch == 0:
            device.clear()

    with device.captures():
        graphs = -1
        while graphs != pretended.num_graphs:  # until all graphs are there
            graphs = pretended.num_graphs
            scheduler = Scheduler(decoder, pretended, sampling, batch)
            found = scheduler.run(prompts, on_emit=on_emit)
    assert [work(each) for each in found] == [work(each) for each in expected]
    steps = max(len(each.steps) for each in found if isinstance(each, Generation)) - 1
    most, per_step = ISSUES[spec][place], device.num_issued / steps
    assert most - 1 < per_step <= most, device.launches.most_common(8)


def test_graphs_are_captured_again_after_all_graphs_were_dropped(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    prompt = held_out(tokenizer, 3)[0]
    sampling = Sampling(max_new_tokens=4)
    with PretendedCuda() as device:
        pretended = models("ar", on_cuda=True, compile=True)
    with device.captures():
        for num_tokens in (20, 60):  # a larger cache drops the graphs of the smaller one
            scheduler = Scheduler(build(parse_spec("ar")), pretended, sampling)
            (found,) = scheduler.run([prompt[-num_tokens:]])
            assert isinstance(found, Generation), found


def work(outcome: object) -> tuple[Any, ...]:
    """Tokens of an answer, and the counters of its steps (on a CPU a tree may stop early)."""
    assert isinstance(outcome, Generation), outcome
    names = ("drafted", "accepted", "target_calls", "target_rows")
    return outcome.tokens, [[getattr(step, name) for name in names] for step in outcome.steps]


class Launches(TorchDispatchMode):
    """Counts operations, each of which is a kernel or more on a GPU without graphs."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_the_budget_holds_every_decoder_to_a_wait_for_each_call() -> None:
    assert WAITS.keys() >= {"ar", "spec", "lookup", "jacobi", "lookahead", "medusa", "eagle"}
    assert WAITS.keys() >= {"ptp", "ptp:mode=pqd", "isd", "idlm", "nar"}
    assert max(WAITS["ar"]) == 1
    assert max(WAITS["ptp"]) <= 2
    assert max(WAITS["ptp:mode=pqd"]) <= 1
    for spec, drafts in DRAFTS.items():
        assert max(WAITS[spec]) <= drafts + 1
    assert ISSUES.keys() >= {"ar", "spec", "lookup", "ptp", "eagle"}
    assert ISSUES["lookup"][0] == 3, "one sequence: an upload, a replay, a read"
    assert ISSUES["ar"][0] == 8, "and five operations that feed a call before its token is read"


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        *("spec", "ptp:mode=pqd", "eagle"),
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("ar", "lookahead", "isd", "shallow")),
    ],
)
def test_row_invariant_numerics_compute_on_the_device_alone(
    spec: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    decoder, prompts = build(parse_spec(spec)), held_out(tokenizer, 1)[:3]
    sampling = Sampling(max_new_tokens=12, seed=1, temperature=0.8)
    expected = Scheduler(decoder, models(spec, on_cuda=False, tile=16), sampling, 3).run(prompts)
    with PretendedCuda():
        pretended = models(spec, on_cuda=True, tile=16)
        found = Scheduler(decoder, pretended, sampling, 3).run(prompts)
    assert [tokens_of(each) for each in found] == [tokens_of(each) for each in expected]


def tokens_of(outcome: object) -> tuple[int, ...]:
    assert isinstance(outcome, Generation), outcome
    return outcome.tokens


def test_only_preparing_a_process_for_a_gpu_disables_cudnn_attention() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        prepare_process(torch.device("cpu"))
        with PretendedCuda():
            HFModel(place_module(loaded("draft")))
        assert torch.backends.cuda.cudnn_sdp_enabled()
        prepare_process(torch.device("cuda"))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_an_operation_on_tensors_of_two_devices_is_an_error() -> None:
    with PretendedCuda(), pytest.raises(RuntimeError, match="add of tensors on cuda:0 and cpu"):
        torch.add(place(torch.ones(2)), torch.ones(2))
    with PretendedCuda():
        assert torch.add(place(torch.ones(2)), torch.tensor(1.0)).device == CUDA


def test_reads_of_the_device_are_counted_and_asynchronous_uploads_are_not() -> None:
    with PretendedCuda() as device:
        tensor = torch.arange(4, device="cuda")
        assert not device.waits
        assert tensor.tolist() == [0, 1, 2, 3]
        assert int(tensor[1]) == 1
        assert tensor[tensor > 2].shape == (1,)
        assert sum(device.waits.values()) == 3
        device.waits.clear()
        pinned = torch.tensor([1, 2], pin_memory=True).to("cuda", non_blocking=True)
        assert pinned.device == CUDA
        assert (sum(device.waits.values()), sum(device.uploads.values())) == (0, 1)
        torch.tensor([1, 2]).to("cuda", non_blocking=True)
        torch.tensor([1, 2], device="cuda")
        assert sum(device.waits.values()) == 2

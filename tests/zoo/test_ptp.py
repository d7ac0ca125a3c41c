"""On trained weights PTP emits AR's tokens: both modes, any temperature, alone and batched."""

import itertools
from typing import Literal

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from decoders.ar import Autoregressive
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.types import Generation, Sampling
from decoders.ptp import ParallelTokenPrediction
from tests.zoo.answers import edge_distance, held_out, sampling_for, tokens_of
from tests.zoo.conftest import ROOT

WARPS = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
]
MODES = [ParallelTokenPrediction(mode="sequential"), ParallelTokenPrediction(mode="pqd")]
NEAR_TIE = 3e-6


@pytest.fixture(scope="session")
def parallel() -> Models:
    """The zoo's target with its PTP adapter."""
    target = HFModel.load(ROOT / "zoo" / "target", dtype=torch.float32, device="cpu")
    target.attach("ptp", SlotAdapter.load(ROOT / "zoo" / "ptp"))
    return Models(target=target)


def check_equal(
    models: Models, prompts: list[list[int]], sampling: Sampling, batch_size: int
) -> int:
    """Both modes give AR's tokens, or part from them at a tie; how many tokens AR gave."""
    expected = tokens_of(Autoregressive(), models, prompts, sampling, batch_size)
    for decoder in MODES:
        found = tokens_of(decoder, models, prompts, sampling, batch_size)
        for prompt, ours, ars in zip(prompts, found, expected, strict=True):
            if ours != ars:
                assert edge_distance(models, prompt, ars, ours, sampling) < NEAR_TIE
    return sum(map(len, expected))


@pytest.mark.parametrize(
    ("number", "warp"),
    [
        pytest.param(number, warp, marks=pytest.mark.slow if 0 < number < len(WARPS) - 1 else ())
        for number, warp in enumerate(WARPS)
    ],
    ids=str,
)
def test_ptp_emits_ars_tokens(
    parallel: Models, tokenizer: PreTrainedTokenizerBase, number: int, warp: dict[str, float]
) -> None:
    prompts = held_out(tokenizer, 1)[number % 2 :: 2]
    check_equal(parallel, prompts, sampling_for(parallel, tokenizer, seed=5, **warp), 1)


@pytest.mark.slow
def test_ptp_emits_ars_tokens_over_ten_thousand_tokens(
    parallel: Models, tokenizer: PreTrainedTokenizerBase
) -> None:
    num_tokens = 0
    prompts = held_out(tokenizer, 8)
    for warp, batch_size in itertools.product(WARPS, (1, 8)):
        sampling = sampling_for(parallel, tokenizer, seed=6, **warp)
        num_tokens += check_equal(parallel, prompts, sampling, batch_size)
    assert num_tokens > 10_000


@pytest.mark.slow
def test_the_shipped_adapter_proposes_accepted_tokens(
    parallel: Models, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = held_out(tokenizer, 1)
    modes: tuple[Literal["sequential", "pqd"], ...] = ("sequential", "pqd")
    for temperature, mode in itertools.product((0.0, 0.7), modes):
        sampling = sampling_for(parallel, tokenizer, temperature=temperature, top_p=0.95)
        decoder = ParallelTokenPrediction(mode=mode)
        answers = Scheduler(decoder, parallel, sampling).run(prompts)
        steps = [s for a in answers if isinstance(a, Generation) for s in a.steps[1:]]
        assert sum(len(step.tokens) for step in steps) > 3 * len(steps)


@pytest.mark.slow
def test_ptp_emits_ars_tokens_on_a_third_party_model(stories: HFModel) -> None:
    config = AdapterConfig(
        layers=layer_shapes(stories.module), width=64, rank=8, alpha=8, num_slots=8, greedy=True
    )
    adapter = SlotAdapter(config)
    for high in adapter.lora_b.values():
        high.data.normal_(0, 0.02, generator=torch.Generator().manual_seed(1))
    model = HFModel(stories.module)
    model.attach("ptp", adapter)
    models = Models(target=model)
    start = [int(stories.module.config.bos_token_id)]
    first = Sampling(temperature=1.0, max_new_tokens=40)
    prompts = [[*start, 300 + number] for number in range(16)]
    longer = tokens_of(Autoregressive(), models, prompts, first, 8)
    prompts = [[*prompt, *text] for prompt, text in zip(prompts, longer, strict=True)]
    num_tokens = 0
    for warp, batch_size in itertools.product(WARPS, (1, 8)):
        sampling = Sampling(max_new_tokens=80, seed=7, **warp)  # type: ignore[arg-type]
        num_tokens += check_equal(models, prompts, sampling, batch_size)
    assert num_tokens > 10_000

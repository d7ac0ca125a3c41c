"""On trained weights strided and Jacobi decoding emit AR's tokens, whatever their masks say.

A random adapter's proposals are mostly wrong, and must not matter; the shipped ones' mostly stand.
"""

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.types import Generation, Sampling
from decoders.idlm import Refinement
from decoders.isd import StridedDecoding
from decoders.jacobi import Jacobi
from tests.zoo.answers import edge_distance, held_out, sampling_for, tokens_of, tokens_of_ar
from tests.zoo.conftest import ROOT

NEAR_TIE = 1e-6


@pytest.fixture(scope="session")
def masked() -> Models:
    """The zoo's target with an adapter for masks that has learnt nothing."""
    target = HFModel.load(ROOT / "zoo" / "target", dtype=torch.float32, device="cpu")
    width = target.module.get_input_embeddings().weight.shape[1]
    config = AdapterConfig(
        variant="isd",
        code="constant",
        num_slots=7,
        layers=layer_shapes(target.module),
        width=width,
        rank=4,
    )
    adapter = SlotAdapter(config)
    generator = torch.Generator().manual_seed(1)
    for high in adapter.lora_b.values():
        high.data = 0.02 * torch.randn(high.shape, generator=generator)
    target.attach("isd", adapter)
    return Models(target=target)


@pytest.fixture(scope="session")
def shipped() -> Models:
    """The zoo's target with the zoo's two adapters for masks."""
    target = HFModel.load(ROOT / "zoo" / "target", dtype=torch.float32, device="cpu")
    for name in ("isd", "refine"):
        target.attach(name, SlotAdapter.load(ROOT / "zoo" / name))
    return Models(target=target)


def check(
    models: Models,
    prompts: list[list[int]],
    sampling: Sampling,
    decoder: Decoder,
    batch_size: int,
) -> None:
    """The decoder's tokens are AR's, or part from them at a tie."""
    expected = tokens_of_ar(models, prompts, sampling, batch_size)
    found = tokens_of(decoder, models, prompts, sampling, batch_size)
    for prompt, ours, ars in zip(prompts, found, expected, strict=True):
        if ours != ars:
            assert edge_distance(models, prompt, ars, ours, sampling) < NEAR_TIE


@pytest.mark.slow
@pytest.mark.parametrize("stride", [2, 3, 4, 8])
def test_greedy_strided_decoding_with_a_random_adapter_emits_ars_tokens(
    masked: Models, tokenizer: PreTrainedTokenizerBase, stride: int
) -> None:
    prompts, sampling = held_out(tokenizer, 1), sampling_for(masked, tokenizer)
    check(masked, prompts, sampling, StridedDecoding(stride=stride), 6)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [2, 3, 4, 8])
def test_greedy_strided_decoding_emits_ars_tokens_on_every_held_out_prompt(
    shipped: Models, tokenizer: PreTrainedTokenizerBase, stride: int
) -> None:
    prompts = held_out(tokenizer, None)
    sampling = sampling_for(shipped, tokenizer)
    check(shipped, prompts, sampling, StridedDecoding(stride=stride), 24)


@pytest.mark.slow
@pytest.mark.parametrize(("stride", "least"), [(4, 2.5), (8, 3.2)])
def test_the_shipped_isd_adapter_reaches_its_minimum_of_tokens_per_call(
    shipped: Models, tokenizer: PreTrainedTokenizerBase, stride: int, least: float
) -> None:
    sampling = sampling_for(shipped, tokenizer, temperature=0.7, seed=1)
    decoder = StridedDecoding(stride=stride)
    answers = Scheduler(decoder, shipped, sampling, 6).run(held_out(tokenizer, 4))
    steps = [s for a in answers if isinstance(a, Generation) for s in a.steps[1:]]
    assert sum(len(s.tokens) for s in steps) > least * sum(s.target_calls for s in steps)


@pytest.mark.slow
def test_answers_of_the_shipped_refine_adapter_match_ars_more_often_with_more_passes(
    shipped: Models, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts, sampling = held_out(tokenizer, 4), sampling_for(shipped, tokenizer)
    expected = tokens_of_ar(shipped, prompts, sampling, 12)
    decoders = [
        *(Refinement(commit="quota", tail="fill", max_passes=t) for t in (1, 2, 5)),
        Refinement(),
    ]
    same = []
    for decoder in decoders:
        found = tokens_of(decoder, shipped, prompts, sampling, 12)
        same.append(sum(ours == ars for ours, ars in zip(found, expected, strict=True)))
    assert same[0] < same[1] < same[2] < same[3], same
    assert same[3] > 0.7 * len(prompts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "decoder", [StridedDecoding(verify="coupled"), Jacobi()], ids=["isd", "jacobi"]
)
def test_coupled_decoding_emits_ars_tokens_when_sampling(
    masked: Models, tokenizer: PreTrainedTokenizerBase, decoder: Decoder
) -> None:
    sampling = sampling_for(masked, tokenizer, seed=5, temperature=0.7, top_p=0.95)
    check(masked, held_out(tokenizer, 1), sampling, decoder, 6)

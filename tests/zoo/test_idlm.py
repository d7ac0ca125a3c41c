"""On trained weights strided and Jacobi decoding emit AR's tokens, whatever their masks say.

The adapter here is a random one: what it proposes is mostly wrong, and must not matter.
"""

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from decoders.ar import Autoregressive
from decoders.core.gating import layer_shapes
from decoders.core.hf import HFModel
from decoders.core.scheduler import Models
from decoders.core.slots import AdapterConfig, SlotAdapter
from decoders.idlm import IterativeDiffusion
from tests.zoo.answers import edge_distance, held_out, sampling_for, tokens_of
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


def check(
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    decoder: IterativeDiffusion,
    temperature: float,
    batch_size: int,
) -> None:
    prompts = held_out(tokenizer, 1)
    sampling = sampling_for(models, tokenizer, seed=5, temperature=temperature, top_p=0.95)
    expected = tokens_of(Autoregressive(), models, prompts, sampling, batch_size)
    found = tokens_of(decoder, models, prompts, sampling, batch_size)
    for prompt, ours, ars in zip(prompts, found, expected, strict=True):
        if ours != ars:
            assert edge_distance(models, prompt, ars, ours, sampling) < NEAR_TIE


@pytest.mark.parametrize("stride", [2, 3, 4, 8])
def test_greedy_strides_are_ars_tokens(
    masked: Models, tokenizer: PreTrainedTokenizerBase, stride: int
) -> None:
    check(masked, tokenizer, IterativeDiffusion(mode="isd", stride=stride), 0.0, 6)


@pytest.mark.parametrize("options", [{"mode": "isd", "verify": "coupled"}, {"mode": "jacobi"}])
def test_coupled_decoding_is_ars_tokens_in_sampling_too(
    masked: Models, tokenizer: PreTrainedTokenizerBase, options: dict[str, str]
) -> None:
    check(masked, tokenizer, IterativeDiffusion(**options), 0.7, 6)  # type: ignore[arg-type]

"""On trained weights: AR is transformers' own generation, and lossless decoders are AR."""

import dataclasses

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.types import Generation, Sampling
from decoders.lookup import PromptLookup
from decoders.spec import Speculative
from tests.zoo.answers import edge_distance, held_out, sampling_for, tokens_of, tokens_of_ar


@pytest.mark.slow
def test_ar_emits_the_same_tokens_as_transformers(
    zoo: Models, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = held_out(tokenizer, 1)
    sampling = sampling_for(zoo, tokenizer)
    ours = tokens_of(Autoregressive(), zoo, prompts, sampling)
    assert isinstance(zoo.target, HFModel)
    for prompt, tokens in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        theirs = zoo.target.module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=160,
            eos_token_id=sorted(sampling.stop_ids),
            pad_token_id=0,
        )
        assert tokens == tuple(theirs[0, len(prompt) :].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_a_batch_of_8_emits_the_same_tokens_as_each_alone(
    zoo: Models, tokenizer: PreTrainedTokenizerBase, temperature: float
) -> None:
    prompts = held_out(tokenizer, 2)[:10]  # two take the places of others
    sampling = sampling_for(zoo, tokenizer, temperature=temperature, seed=1)
    sampling = dataclasses.replace(sampling, max_new_tokens=32)
    for decoder in (Autoregressive(), Speculative(), PromptLookup()):
        alone = tokens_of(decoder, zoo, prompts, sampling)
        assert tokens_of(decoder, zoo, prompts, sampling, batch_size=8) == alone


@pytest.mark.parametrize(
    "decoder", [Speculative(), Speculative(k=6, verify="coupled"), PromptLookup()]
)
def test_greedy_decoding_with_drafts_emits_ars_tokens(
    zoo: Models, tokenizer: PreTrainedTokenizerBase, decoder: Decoder
) -> None:
    prompts, sampling = held_out(tokenizer, 3), sampling_for(zoo, tokenizer)
    expected = tokens_of_ar(zoo, prompts, sampling, 8)
    assert tokens_of(decoder, zoo, prompts, sampling, 8) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("top_k", "top_p"), [pytest.param(0, 1.0, marks=pytest.mark.slow), (20, 0.9)]
)
def test_coupled_decoding_with_drafts_emits_ars_tokens_for_the_same_seed(
    zoo: Models, tokenizer: PreTrainedTokenizerBase, top_k: int, top_p: float
) -> None:
    prompts = held_out(tokenizer, 3)
    sampling = sampling_for(zoo, tokenizer, temperature=0.8, top_k=top_k, top_p=top_p, seed=7)
    expected = tokens_of(Autoregressive(), zoo, prompts, sampling, 8)
    for decoder in (Speculative(verify="coupled"), PromptLookup()):
        assert tokens_of(decoder, zoo, prompts, sampling, 8) == expected


@pytest.mark.slow
def test_greedy_spec_emits_ars_tokens_on_every_held_out_prompt(
    zoo: Models, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts, sampling = held_out(tokenizer, None), sampling_for(zoo, tokenizer)
    assert len(prompts) == 720
    expected = tokens_of(Autoregressive(), zoo, prompts, sampling, 16)
    assert tokens_of(Speculative(), zoo, prompts, sampling, 16) == expected


@pytest.mark.slow
def test_coupled_spec_differs_from_ar_only_where_a_uniform_meets_a_cdf_edge(
    zoo: Models, tokenizer: PreTrainedTokenizerBase
) -> None:
    # Kernels of another shape round a distribution by about 1e-7; over 34,000 tokens some u falls
    # that close to the border between two tokens. Anything farther off is a wrong decoder.
    prompts = held_out(tokenizer, None)
    sampling = sampling_for(zoo, tokenizer, temperature=0.8, seed=3)
    expected = tokens_of(Autoregressive(), zoo, prompts, sampling, 16)
    found = tokens_of(Speculative(verify="coupled"), zoo, prompts, sampling, 16)
    unequal = [i for i in range(len(prompts)) if found[i] != expected[i]]
    assert len(unequal) <= 3
    for index in unequal:
        assert edge_distance(zoo, prompts[index], expected[index], found[index], sampling) < 3e-6


@pytest.mark.slow
def test_stories260k_emits_the_same_tokens_as_transformers_from_the_empty_prompt(
    stories: HFModel,
) -> None:
    prompt = [int(stories.module.config.bos_token_id)]
    sampling = Sampling(max_new_tokens=200)
    (ours,) = tokens_of(Autoregressive(), Models(target=stories), [prompt], sampling)
    ids = torch.tensor([prompt])
    theirs = stories.module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=200,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert ours == tuple(theirs[0, 1:].tolist())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_coupled_self_speculation_on_stories260k_accepts_everything(
    stories: HFModel, temperature: float
) -> None:
    draft = HFModel(stories.module)
    models = Models(target=stories, draft=draft)
    sampling = Sampling(temperature=temperature, max_new_tokens=120, seed=2)
    prompt = [int(stories.module.config.bos_token_id)]
    (outcome,) = Scheduler(Speculative(k=4, verify="coupled"), models, sampling).run([prompt])
    assert isinstance(outcome, Generation)
    assert sum(s.accepted for s in outcome.steps) >= 0.98 * sum(s.drafted for s in outcome.steps)

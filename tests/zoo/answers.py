"""Held-out prompts of the zoo, answers to them, and how near a tie two answers part."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from decoders.core.decoder import Decoder
from decoders.core.hf import HFModel, stop_ids
from decoders.core.sampling import Uniforms, warp
from decoders.core.scheduler import Models, Scheduler
from decoders.core.types import Generation, Sampling
from specbench_tasks.generators import zoo_conversations
from specbench_tasks.task import FAMILIES


def held_out(tokenizer: PreTrainedTokenizerBase, per_family: int | None) -> list[list[int]]:
    """Ids of the first turns of the zoo's held-out conversations."""
    conversations = [c for family in FAMILIES for c in zoo_conversations(family, per_family)]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": conversation.turns[0]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for conversation in conversations
    ]


def tokens_of(
    decoder: Decoder,
    models: Models,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    batch_size: int = 1,
) -> list[tuple[int, ...]]:
    outcomes = Scheduler(decoder, models, sampling, batch_size).run(prompts)
    for outcome in outcomes:
        assert isinstance(outcome, Generation), outcome
    return [outcome.tokens for outcome in outcomes if isinstance(outcome, Generation)]


def sampling_for(zoo: Models, tokenizer: PreTrainedTokenizerBase, **options: float) -> Sampling:
    assert isinstance(zoo.target, HFModel)
    stops = stop_ids(zoo.target, tokenizer)
    return Sampling(max_new_tokens=160, stop_ids=stops, **options)  # type: ignore[arg-type]


@torch.no_grad()
def edge_distance(
    zoo: Models,
    prompt: Sequence[int],
    expected: Sequence[int],
    found: Sequence[int],
    sampling: Sampling,
) -> float:
    """How far u is from a border of the exact, warped CDF where two answers first differ."""
    place = next(i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
    assert isinstance(zoo.target, HFModel)
    module = zoo.target.module
    exact = type(module)(module.config).eval().double()  # a copy of wrapped layers would not do
    exact.load_state_dict(module.state_dict())
    logits = exact(torch.tensor([[*prompt, *expected[:place]]])).logits[0, -1]
    cdf = warp(logits[None], sampling)[0].cumsum(-1)
    u = Uniforms(sampling.seed, prompt).at("draw", place)
    return float((cdf - u).abs().min())

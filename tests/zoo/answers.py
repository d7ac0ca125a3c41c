"""Held-out prompts of the zoo, answers to them, and how near a tie two answers part."""

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from bench.verify.divergence import examine
from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel, stop_ids
from decoders.core.types import Generation, Sampling
from specbench_tasks.generators import zoo_conversations
from specbench_tasks.task import FAMILIES


def held_out(tokenizer: PreTrainedTokenizerBase, per_family: int | None) -> list[list[int]]:
    """Ids of the first turns of the zoo's held-out conversations."""
    conversations = [c for family in FAMILIES for c in zoo_conversations(family)[:per_family]]
    return [
        cast(
            "list[int]",
            tokenizer.apply_chat_template(
                [{"role": "user", "content": conversation.turns[0]}],
                add_generation_prompt=True,
                return_dict=False,
            ),
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


_KNOWN: dict[tuple[object, ...], tuple[Models, list[tuple[int, ...]]]] = {}


def tokens_of_ar(
    models: Models, prompts: Sequence[Sequence[int]], sampling: Sampling, batch_size: int = 1
) -> list[tuple[int, ...]]:
    """Answers of AR, made once for all decoders that are held against them."""
    key = (id(models), tuple(map(tuple, prompts)), sampling, batch_size)
    if key not in _KNOWN:
        answers = tokens_of(Autoregressive(), models, prompts, sampling, batch_size)
        _KNOWN[key] = (models, answers)
    return _KNOWN[key][1]


def sampling_for(zoo: Models, tokenizer: PreTrainedTokenizerBase, **options: float) -> Sampling:
    assert isinstance(zoo.target, HFModel)
    stops = stop_ids(zoo.target, tokenizer)
    return Sampling(max_new_tokens=160, stop_ids=stops, **options)  # type: ignore[arg-type]


def edge_distance(
    zoo: Models,
    prompt: Sequence[int],
    expected: Sequence[int],
    found: Sequence[int],
    sampling: Sampling,
) -> float:
    """How far the warped CDF would have to move where two answers first differ."""
    parted = examine(zoo.target, prompt, found, expected, sampling, "float32")
    assert parted is not None
    return parted.distance

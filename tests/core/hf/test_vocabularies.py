"""A draft model of another size than its target, with the same tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel
from decoders.core.hf.self_check import check_graphs
from decoders.core.registry import build, parse_spec
from decoders.core.types import Sampling, Slots
from tests.tiny_models import slot_adapter

SIZES = (24, 40)


def model_of(size: int, seed: int = 0, compiled: bool = False) -> HFModel:
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = LlamaConfig(
        vocab_size=size, num_attention_heads=2, initializer_range=0.4, pad_token_id=None, **shape
    )
    return HFModel(LlamaForCausalLM(config), compile=compiled, backend="eager")


def logits_of(model: HFModel, tokens: list[int]) -> torch.Tensor:
    Models(target=model).ensure(1, 32)
    session = model.open()
    try:
        return model.forward([session.call(tokens, output="logits")])
    finally:
        model.close(session)


def test_a_larger_model_drops_the_ids_that_the_target_lacks() -> None:
    model = model_of(40)
    whole = logits_of(model, [1, 2, 3])
    model.share_vocabulary(24)
    assert model.vocab_size == 24
    torch.testing.assert_close(logits_of(model, [1, 2, 3]), whole[:, :24])


def test_a_smaller_vocabulary_never_drafts_missing_ids_and_reads_its_last_id_for_them() -> None:
    model = model_of(24)
    whole = logits_of(model, [1, 23, 3])
    model.share_vocabulary(40)
    shared = logits_of(model, [1, 31, 3])  # an id that only the target has
    torch.testing.assert_close(shared[:, :24], whole)
    assert shared[:, 24:].eq(float("-inf")).all()


@pytest.mark.parametrize("size", SIZES)
def test_graphs_of_a_model_that_shares_a_vocabulary_are_found_right(size: int) -> None:
    model = model_of(32, compiled=True)
    model.share_vocabulary(size)
    check_graphs(model, [1, 2])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sizes", [SIZES, SIZES[::-1]])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_model_with_another_vocabulary_size_does_not_change_the_tokens(
    sizes: tuple[int, int], temperature: float, compiled: bool
) -> None:
    target, draft = (model_of(size, seed, compiled) for seed, size in enumerate(sizes))
    draft.share_vocabulary(target.vocab_size)
    sampling = Sampling(temperature=temperature, max_new_tokens=24, seed=2)
    models = Models(target=target, draft=draft)
    truth = generate(Autoregressive(), [1, 2], sampling, Models(target=target)).tokens
    answer = generate(build(parse_spec("spec:verify=coupled")), [1, 2], sampling, models)
    assert answer.tokens == truth
    for rule in ("rejection", "coupled"):
        answer = generate(build(parse_spec(f"spec:verify={rule}")), [1, 2], sampling, models)
        assert sum(step.drafted for step in answer.steps) > 20
        assert all(step.overlap is None or step.overlap >= 0 for step in answer.steps)


def test_slots_behind_an_id_that_a_smaller_model_lacks_begin_from_its_last_id() -> None:
    def logits_after(token: int) -> torch.Tensor:
        slots = Slots(adapter="ptp", uniforms=(0.2, 0.7), sizes=(2,), anchors=(token,), read=(0, 1))
        session = model.open()
        try:
            return model.forward([session.call([1, token], output="logits", slots=slots)])
        finally:
            model.close(session)

    model = model_of(24)
    model.attach("ptp", slot_adapter(model.module, width=16, anchored=True))
    model.share_vocabulary(40)
    model.reserve(1, 32)
    torch.testing.assert_close(logits_after(31), logits_after(23))

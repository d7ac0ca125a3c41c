"""Our decoders as custom loops of transformers: its ids are ours, and ours are its."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    set_seed,
)

from decoders import transformers_generate
from decoders.ar import Autoregressive
from decoders.core.adapter.gating import cache_argument
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter_config import AdapterConfig
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.core.types import Sampling
from tests.tiny_models import WIDTH, fresh, slot_adapter

PROMPTS = [[3, 4, 5, 3, 4], [7], [9, 8, 7, 6, 5, 4, 3]]
STOP = 11
OTHER = LogitsProcessorList([TemperatureLogitsWarper(0.5)])


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    slot_adapter(fresh("llama"), variant="o-ptp", code="dyadic").save(tmp_path / "adapter")
    return tmp_path / "adapter"


def padded(prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def generated(model: Any, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> Any:
    usual = {"max_new_tokens": 24, "eos_token_id": STOP, "pad_token_id": 0, "do_sample": False}
    return model.generate(**padded(prompts), **{**usual, **options})


def ours(spec: str, adapter: Path, seed: int | None = None) -> Any:
    decoder = build(parse_spec(spec))
    return transformers_generate(
        spec,
        draft=fresh("llama") if "draft" in decoder.needs else None,
        adapters={"ptp": adapter} if decoder.adapter_name else None,
        seed=seed,
    )


SPECS = ["ar", "spec:k=3", "lookup", "ptp", "jacobi:block=4"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["batch", "alone"])
def test_greedy_ids_equal_those_of_transformers_generate(
    spec: str, prompts: list[list[int]], adapter: Path
) -> None:
    model = fresh("llama")
    expected = generated(model, prompts)
    given = generated(model, prompts, custom_generate=ours(spec, adapter))
    assert torch.equal(given, expected)


def test_a_decoder_with_draft_heads_gives_the_ids_of_generate(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"width": WIDTH, "rank": 8, "num_slots": 3, "layers": {}}
    DraftHeads(AdapterConfig(variant="medusa", code="constant", **sizes)).save(tmp_path / "heads")
    loop = transformers_generate("medusa", adapters={"medusa": tmp_path / "heads"})
    model = fresh("llama")
    expected = generated(model)
    assert torch.equal(generated(model, custom_generate=loop), expected)


@pytest.mark.parametrize("spec", ["ar", "spec:verify=coupled", "ptp"])
def test_sampled_ids_equal_ars_tokens_for_the_same_seed(spec: str, adapter: Path) -> None:
    model = fresh("llama")
    sampling = Sampling(
        temperature=0.8, top_k=20, top_p=0.9, max_new_tokens=24, stop_ids=frozenset({STOP}), seed=4
    )
    drawn: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9}
    given = generated(model, custom_generate=ours(spec, adapter, seed=4), **drawn)
    width, models = max(map(len, PROMPTS)), Models(target=HFModel(fresh("llama")))
    for row, prompt in zip(given.tolist(), PROMPTS, strict=True):
        expected = generate(Autoregressive(), prompt, sampling, models).tokens
        assert row[width:][: len(expected)] == list(expected)
        assert set(row[width + len(expected) :]) <= {0}


def test_without_a_seed_the_global_seed_decides_and_equal_prompts_get_different_answers(
    adapter: Path,
) -> None:
    model, loop = fresh("llama"), ours("ar", adapter)
    drawn: dict[str, Any] = {"do_sample": True, "top_k": 0, "custom_generate": loop}

    def after(seed: int) -> Tensor:
        set_seed(seed)
        given: Tensor = generated(model, [PROMPTS[0]], num_return_sequences=2, **drawn)
        return given

    once = after(1)
    assert torch.equal(once, after(1))
    assert not torch.equal(once[:, :12], after(2)[:, :12])
    assert once[0].tolist() != once[1].tolist()


def test_return_dict_in_generate_returns_an_object_with_the_sequences(adapter: Path) -> None:
    model = fresh("llama")
    given = generated(model, return_dict_in_generate=True, custom_generate=ours("ar", adapter))
    assert torch.equal(given.sequences, generated(model))


class After(StoppingCriteria):
    """Stops once a text holds so many tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


def test_a_stopping_criterion_is_checked_after_every_step(adapter: Path) -> None:
    model, stop = fresh("llama"), StoppingCriteriaList([After(13)])
    prompts = PROMPTS[:1]
    given = generated(model, prompts, stopping_criteria=stop, custom_generate=ours("ar", adapter))
    assert torch.equal(given, generated(model, prompts)[:, :13])


def test_the_first_satisfied_stopping_criterion_ends_an_answer(adapter: Path) -> None:
    model, stop = fresh("llama"), StoppingCriteriaList([After(99), After(13), After(50)])
    prompts = PROMPTS[:1]
    given = generated(model, prompts, stopping_criteria=stop, custom_generate=ours("ar", adapter))
    assert given.shape[1] == 13


def test_the_users_module_is_left_unchanged(adapter: Path) -> None:
    model = fresh("llama").train()
    model.requires_grad_(True)
    ids = torch.tensor([PROMPTS[0]])
    before, names = model(ids).logits, list(model.state_dict())
    generated(model, custom_generate=ours("ptp", adapter))
    assert torch.equal(model(ids).logits, before)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert list(model.state_dict()) == names


def test_one_loop_serves_several_modules(adapter: Path) -> None:
    loop = ours("ar", adapter)
    one, other = fresh("llama"), fresh("llama-gqa")
    for model in (one, other, one):
        assert torch.equal(generated(model, custom_generate=loop), generated(model))


def test_a_draft_may_be_a_folder(tmp_path: Path) -> None:
    fresh("llama").save_pretrained(tmp_path / "draft")
    model, loop = fresh("llama"), transformers_generate("spec", draft=tmp_path / "draft")
    assert torch.equal(generated(model, custom_generate=loop), generated(model))


def test_a_decoder_run_as_a_custom_loop_of_hf_equals_the_decoder_itself(tmp_path: Path) -> None:
    fresh("llama").save_pretrained(tmp_path / "draft")
    file = tmp_path / "loop.py"
    text = "from decoders import transformers_generate\n"
    text += f"generate = transformers_generate('spec:k=3', draft={str(tmp_path / 'draft')!r})\n"
    file.write_text(text, encoding="utf-8")
    models = Models(target=HFModel(fresh("llama")), draft=HFModel(fresh("llama")))
    again, sampling = build(parse_spec(f"hf:custom={file}")), Sampling(max_new_tokens=24)
    generate(again, PROMPTS[0], sampling, models)  # the first answer also counts its preparation
    for prompt in PROMPTS:
        first = generate(build(parse_spec("spec:k=3")), prompt, sampling, models)
        second = generate(again, prompt, sampling, models)
        assert second.tokens == first.tokens
        assert [s.tokens for s in second.steps] == [s.tokens for s in first.steps]
        assert [s.target_rows for s in second.steps] == [s.target_rows for s in first.steps]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"repetition_penalty": 1.3}, "cannot have RepetitionPenaltyLogitsProcessor: leave out"),
        ({"min_p": 0.1, "do_sample": True}, "cannot have MinPLogitsWarper"),
        ({"logits_processor": OTHER}, "cannot have TemperatureLogitsWarper"),
        ({"logits_processor": OTHER, "do_sample": True}, "cannot have TemperatureLogitsWarper"),
        ({"num_beams": 2}, "cannot have num_beams=2"),
        ({"prompt_lookup_num_tokens": 3}, "cannot have prompt_lookup_num_tokens=3"),
        ({"output_scores": True, "return_dict_in_generate": True}, "cannot have output_scores"),
    ],
)
def test_generate_options_that_a_decoder_cannot_honour_are_refused(
    options: dict, line: str, adapter: Path
) -> None:
    with pytest.raises(ValueError, match=line):
        generated(fresh("llama"), custom_generate=ours("ar", adapter), **options)


def test_a_cache_that_holds_tokens_is_refused(adapter: Path) -> None:
    model = fresh("llama")
    name = cache_argument(model)
    cache = getattr(model(torch.tensor([PROMPTS[0][:3]])), name)
    with pytest.raises(ValueError, match="ar begins with an empty cache of its own"):
        generated(model, PROMPTS[:1], custom_generate=ours("ar", adapter), **{name: cache})


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("spec", r"'spec' needs a draft model: pass draft=MODEL-OR-FOLDER"),
        ("ptp", r"'ptp' needs an adapter named 'ptp': pass adapters=\{'ptp': FOLDER\}"),
        ("spce", r"unknown decoder 'spce'"),
        ("hf:kind=lookup", r"is already a loop of transformers"),
    ],
)
def test_a_spec_that_cannot_become_a_generate_loop_is_refused(spec: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        transformers_generate(spec)


def test_an_unknown_attribute_of_the_package_is_an_error() -> None:
    import decoders

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = decoders.nothing

"""Adapters on disk and in memory: what is kept, what is refused, what a fresh one does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from decoders.core.adapter.gating import GatedModule, layer_deltas, layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import CODES, AdapterConfig, Code

WIDTH = 16
LLAMA: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
LAYERS = {"one.proj": (16, 24), "two.proj": (24, 16)}


def llama(**changes: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**{**LLAMA, "num_hidden_layers": 2, **changes}))


def config_of(**changes: Any) -> AdapterConfig:
    return AdapterConfig(**{"layers": LAYERS, "width": WIDTH, "rank": 3, **changes})


def filled(config: AdapterConfig) -> SlotAdapter:
    """An adapter without a zero in it."""
    adapter = SlotAdapter(config, seed=5)
    generator = torch.Generator().manual_seed(6)
    for parameter in adapter.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return adapter


# On disk.


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("rank", [3, 0])
def test_an_adapter_comes_back_as_it_was_saved(tmp_path: Path, code: Code, rank: int) -> None:
    config = config_of(
        rank=rank,
        alpha=5.0,
        code=code,
        variant="c-ptp",
        num_slots=7,
        embedding_hidden=8 if code == "dyadic" else 0,
        conditioned=code == "dyadic",
        temperatures=(0.5, 1.0),
        top_ps=(0.9, 1.0),
        top_k=40,
        greedy=True,
        base={"architecture": "LlamaForCausalLM", "weights": "ab12"},
        measured={"accuracy": [0.9, 0.8]},
    )
    adapter = filled(config)
    adapter.save(tmp_path / "new" / "adapter")
    loaded = SlotAdapter.load(str(tmp_path / "new" / "adapter"))
    assert loaded.config == config
    assert not loaded.training
    state = loaded.state_dict()
    assert set(state) == set(adapter.state_dict())
    for name, value in adapter.state_dict().items():
        assert torch.equal(state[name], value)
        assert not state[name].requires_grad
    assert not any(p.requires_grad for p in loaded.parameters())


def test_bfloat16_storage_rounds_once_and_loads_in_float32(tmp_path: Path) -> None:
    adapter = filled(config_of())
    adapter.save(tmp_path, torch.bfloat16)
    assert {value.dtype for value in load_file(tmp_path / "adapter.safetensors").values()} == {
        torch.bfloat16
    }
    loaded = SlotAdapter.load(tmp_path).state_dict()
    for name, value in adapter.state_dict().items():
        assert loaded[name].dtype == torch.float32
        assert torch.equal(loaded[name], value.bfloat16().float())
    assert next(adapter.parameters()).dtype == torch.float32  # the one that was saved is untouched


Edit = Callable[[dict[str, Any]], Any]
BAD_CONFIGS: dict[str, tuple[Edit, str]] = {
    "unknown field": (lambda c: c.update(ranks=3), "unknown field 'ranks'; known are .*rank"),
    "other format": (lambda c: c.update(format=2), "not an adapter configuration of format 1"),
    "no format": (lambda c: c.pop("format"), "not an adapter configuration of format 1"),
    "no layers": (lambda c: c.pop("layers"), "field 'layers' is missing"),
    "no width": (lambda c: c.pop("width"), "field 'width' is missing"),
    "layers as list": (lambda c: c.update(layers=[1]), "'layers'"),
    "variant": (lambda c: c.update(variant="x"), "'variant' is 'x'; it must be o-ptp, c-ptp"),
    "code": (lambda c: c.update(code="x"), "'code' is 'x'; it must be dyadic"),
    "order": (lambda c: c.update(order="rank"), "'order' is 'rank'; it must be vocabulary"),
    "no slots": (lambda c: c.update(num_slots=0), "'num_slots' is 0; it must be 1 or above"),
    "rank": (lambda c: c.update(rank=-1), "'rank' is -1; it must be 1 or above, or 0 for full"),
    "wrong type": (lambda c: c.update(rank="3"), "not supported"),
    "shape": (lambda c: c["layers"].update({"one.proj": [16, 99]}), "size mismatch"),
    "lacks a layer": (lambda c: c["layers"].pop("one.proj"), "Unexpected key"),
    "has more layers": (lambda c: c["layers"].update(three=[4, 4]), "Missing key"),
}


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError, match="adapter") as caught:
        SlotAdapter.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert repr(str(folder)) in message
    return message


@pytest.mark.parametrize("edit", BAD_CONFIGS)
def test_a_wrong_configuration_is_refused_in_one_line(tmp_path: Path, edit: str) -> None:
    change, message = BAD_CONFIGS[edit]
    filled(config_of()).save(tmp_path)
    values = json.loads((tmp_path / "adapter.json").read_text())
    change(values)
    (tmp_path / "adapter.json").write_text(json.dumps(values))
    assert re.search(message, refusal(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"'])
def test_an_invalid_configuration_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    filled(config_of()).save(tmp_path)
    (tmp_path / "adapter.json").write_text(text)
    assert "cannot be loaded: " in refusal(tmp_path)


@pytest.mark.parametrize("name", ["adapter.json", "adapter.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    filled(config_of()).save(tmp_path)
    (tmp_path / name).unlink()
    message = refusal(tmp_path)
    assert name in message
    assert "give a folder written by" in message


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "No such file or directory" in refusal(tmp_path / "nowhere")


def test_broken_and_incomplete_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    filled(config_of()).save(tmp_path)
    weights = tmp_path / "adapter.safetensors"
    state = load_file(weights)
    del state["embedding.blank"]
    save_file(state, weights)
    assert "embedding.blank" in refusal(tmp_path)
    weights.write_bytes(b"not safetensors")
    assert "cannot be loaded: " in refusal(tmp_path)


def test_a_configuration_survives_json_and_is_frozen() -> None:
    config = config_of(temperatures=(0.7, 0.7), rank=0)
    text = config.to_json()
    assert AdapterConfig.from_json(text) == config
    assert json.loads(text)["format"] == 1
    with pytest.raises(AttributeError):
        config.rank = 3  # type: ignore[misc]
    minimal = '{"format": 1, "width": 16, "layers": {"one.proj": [16, 24]}}'
    assert AdapterConfig.from_json(minimal) == AdapterConfig(
        layers={"one.proj": (16, 24)}, width=16
    )


# In memory.


def test_factors_are_scaled_by_alpha_over_rank_and_cast() -> None:
    adapter = filled(config_of(alpha=6.0))
    for name, delta in adapter.deltas(torch.bfloat16).items():
        low, high = delta.low, delta.high
        key = name.replace(".", "/")
        assert low is not None
        assert torch.equal(low, adapter.lora_a[key].bfloat16())
        assert torch.equal(high, (adapter.lora_b[key] * 2).bfloat16())
        n_in, n_out = LAYERS[name]
        assert (low.shape, high.shape) == ((3, n_in), (n_out, 3))
    full = filled(config_of(rank=0, alpha=6.0)).deltas(torch.float32)
    for name, delta in full.items():
        assert delta.low is None
        assert delta.high.shape == LAYERS[name][::-1]
    assert config_of(rank=0, alpha=6.0).scale == 1


def test_sizes_count_every_weight() -> None:
    adapter = SlotAdapter(config_of(code="constant"))
    assert adapter.num_parameters == 2 * 3 * (16 + 24) + WIDTH


@pytest.mark.parametrize("rank", [3, 32, 0])
@torch.no_grad()
def test_a_fresh_adapter_leaves_every_output_unchanged(rank: int) -> None:
    module = llama()
    ids = torch.arange(10)[None]
    expected = module(ids).logits
    adapter = SlotAdapter(AdapterConfig(layers=layer_shapes(module), width=WIDTH, rank=rank))
    gated = GatedModule(module)
    factors = adapter.deltas(torch.float32)
    with gated.gated(layer_deltas(gated.layers, factors), torch.ones(1, 10, 1)):
        assert torch.equal(module(ids).logits, expected)


def states(adapter: SlotAdapter) -> dict[str, Tensor]:
    return dict(adapter.state_dict())


def test_a_seed_decides_the_weights_and_leaves_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one = states(SlotAdapter(config_of(), seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)  # the generator's state has no say either
        same = states(SlotAdapter(config_of(), seed=1))
    other = states(SlotAdapter(config_of(), seed=2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = [name for name in one if not name.startswith("lora_b")]
    assert not any(torch.equal(one[name], other[name]) for name in drawn)
    assert not any(one[name].any() for name in one if name.startswith("lora_b"))
    a = one["lora_a.one/proj"]
    assert a.abs().max() <= 16**-0.5
    assert a.std().item() == pytest.approx(2 * 16**-0.5 / 12**0.5, rel=0.2)


def test_an_adapter_fits_only_the_model_it_was_made_for() -> None:
    adapter = SlotAdapter(AdapterConfig(layers=layer_shapes(llama()), width=WIDTH, rank=3))
    adapter.check_fits(llama())
    with pytest.raises(ValueError, match=r"layer \S*gate_proj is \(16, 24\), the model's \(16, 32"):
        adapter.check_fits(llama(intermediate_size=32))
    with pytest.raises(ValueError, match=r"layer model\.layers\.1\.\S+ is .* the model's missing"):
        adapter.check_fits(llama(num_hidden_layers=1))
    with pytest.raises(ValueError, match=r"layer model\.layers\.2\.\S+ is missing"):
        adapter.check_fits(llama(num_hidden_layers=3))
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=WIDTH, n_layer=2, n_head=2))
    with pytest.raises(ValueError, match="made for another model"):
        adapter.check_fits(gpt2)
    narrow = SlotAdapter(AdapterConfig(layers=layer_shapes(llama()), width=8, rank=3))
    with pytest.raises(ValueError, match="8 wide, not 16"):
        narrow.check_fits(llama())

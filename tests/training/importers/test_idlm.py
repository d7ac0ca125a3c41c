"""Importing I-DLM: a tiny stand-in of the published keys gives its own numbers, gated or whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from typer.testing import CliRunner

import cli
from decoders.ar import Autoregressive
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel
from decoders.core.types import NO_UNIFORM, Sampling, Slots
from decoders.isd import StridedDecoding
from tests.training.adapter.test_student import gated_by_hooks
from training.importers.idlm import import_idlm

VOCAB, WIDTH, RANK, MASK = 40, 16, 4, 37
TEXT = [5, 11, 3, 30, 7]
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def made(seed: int) -> Any:
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as I-DLM-8B's: two shards of Qwen3's names, another name and remote code."""
    folder = tmp_path_factory.mktemp("hub") / "I-DLM-tiny"
    folder.mkdir()
    state = {name: value.contiguous() for name, value in made(0).state_dict().items()}
    names = sorted(state)
    parts = {SHARDS[0]: names[: len(names) // 2], SHARDS[1]: names[len(names) // 2 :]}
    for file, kept in parts.items():
        save_file({name: state[name] for name in kept}, folder / file)
    index = {name: file for file, kept in parts.items() for name in kept}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    config = {
        "architectures": ["SDARForCausalLM"], "model_type": "sdar", "block_size": 4,
        "auto_map": {"AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM"},
        "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 24, "head_dim": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "rope_theta": 5e5, "rope_scaling": None,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
        "eos_token_id": 2, "pad_token_id": 1, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_sdar.py").write_text("raise SystemExit('remote code ran')\n")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of all layers of attention, as PEFT saves it."""
    folder = tmp_path_factory.mktemp("hub") / "I-DLM-tiny-lora"
    folder.mkdir()
    generator, state = torch.Generator().manual_seed(5), {}
    for name, (num_in, num_out) in layer_shapes(made(1)).items():
        if "self_attn" in name:
            path = f"base_model.model.{name}"
            state[f"{path}.lora_A.weight"] = torch.randn(RANK, num_in, generator=generator)
            state[f"{path}.lora_B.weight"] = torch.randn(num_out, RANK, generator=generator)
    save_file(state, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": 6}))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "base"
    made(1).save_pretrained(folder)
    return folder


@torch.no_grad()
def by_hand(module: Any, adapter: SlotAdapter, count: int) -> Tensor:
    """Logits of the masks that follow `TEXT`, from the model's own mask row, `count` of them."""
    ids = torch.tensor([[*TEXT, *[MASK] * count]])
    with gated_by_hooks(module, adapter, len(TEXT)):
        found: Tensor = module(ids).logits[0, len(TEXT) :]
    return found


def by_decoder(folder: Path, adapter: SlotAdapter, count: int) -> Tensor:
    """The same by a call with slots."""
    model = HFModel.load(folder, dtype=torch.float32, device="cpu")
    model.attach("isd", adapter)
    model.reserve(1, 32)
    session = model.open()
    slots = Slots(
        adapter="isd", uniforms=(NO_UNIFORM,) * count, sizes=(count,), anchors=(TEXT[-1],),
        read=tuple(range(count)),
    )  # fmt: skip
    call = session.call(TEXT, slots=slots, positions=range(len(TEXT) + count))
    return model.forward([call])[len(call.read) :]


def test_a_full_checkpoint_is_imported_as_a_qwen3_model_with_a_mask_adapter(
    published: Path, tmp_path: Path
) -> None:
    told = import_idlm(published, tmp_path / "out", mask_id=MASK)
    assert told.startswith("imported I-DLM-tiny: isd, rank 1, 14 layers, strides up to 4 for ")
    model = tmp_path / "out" / "model"
    loaded = Qwen3ForCausalLM.from_pretrained(model)
    assert all(torch.equal(v, made(0).state_dict()[n]) for n, v in loaded.state_dict().items())
    rope = loaded.config.rope_parameters
    assert rope is not None
    assert rope["rope_theta"] == 5e5
    assert not (model / "modeling_sdar.py").exists()
    assert "auto_map" not in json.loads((model / "config.json").read_text())
    assert (model / "tokenizer_config.json").is_file()
    adapter = SlotAdapter.load(tmp_path / "out")
    assert (adapter.config.variant, adapter.config.num_slots) == ("isd", 3)
    got = by_decoder(model, adapter, 3)
    torch.testing.assert_close(got, by_hand(loaded, adapter, 3), rtol=1e-2, atol=2e-2)
    assert (got[1:] - got[:-1]).abs().max() > 0.5


def test_a_lora_is_imported_as_a_gated_adapter_of_its_base_model(
    lora: Path, base: Path, tmp_path: Path
) -> None:
    told = import_idlm(lora, tmp_path / "out", base=base, stride=5, mask_id=MASK)
    assert f"isd, rank {RANK}, 14 layers, strides up to 5 -> " in told
    adapter = SlotAdapter.load(tmp_path / "out")
    assert (adapter.config.alpha, adapter.config.num_slots) == (6.0, 4)
    state = load_file(lora / "adapter_model.safetensors")
    name = "model.layers.1.self_attn.v_proj"
    low = state[f"base_model.model.{name}.lora_A.weight"]
    key = name.replace(".", "/")
    torch.testing.assert_close(adapter.lora_a[key], low.bfloat16().float())
    assert not adapter.lora_b["model/layers/0/mlp/up_proj"].any()
    got = by_decoder(base, adapter, 4)
    torch.testing.assert_close(got, by_hand(made(1), adapter, 4), rtol=2e-2, atol=5e-2)
    plain = made(1)(torch.tensor([[*TEXT, *[MASK] * 4]])).logits[0, len(TEXT) :]
    assert (got - plain).abs().max() > 0.5  # the delta matters


def test_an_imported_checkpoint_decodes_to_the_tokens_of_its_base_model(
    published: Path, lora: Path, base: Path, tmp_path: Path
) -> None:
    import_idlm(published, tmp_path / "whole", mask_id=MASK)
    import_idlm(lora, tmp_path / "gated", base=base, mask_id=MASK)
    for folder, model in (("whole", tmp_path / "whole" / "model"), ("gated", base)):
        target = HFModel.load(model, dtype=torch.float32, device="cpu")
        target.attach("isd", SlotAdapter.load(tmp_path / folder))
        models, sampling = Models(target=target), Sampling(max_new_tokens=16)
        expected = generate(Autoregressive(), TEXT, sampling, models).tokens
        found = generate(StridedDecoding(stride=4), TEXT, sampling, models)
        assert found.tokens == expected


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_checkpoint_that_cannot_be_imported_faithfully_is_refused_with_one_line(
    published: Path, lora: Path, base: Path, tmp_path: Path
) -> None:
    def refused(match: str, checkpoint: Path, **options: Any) -> None:
        with pytest.raises(ValueError, match=match) as caught:
            import_idlm(checkpoint, tmp_path / "none", **{"mask_id": MASK, **options})
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "none").exists()

    refused("is a LoRA; give its base", lora)
    refused("holds neither config.json nor adapter_config.json", tmp_path)
    refused("adapter field 'num_slots' is 0; it must be 1 or above", lora, base=base, stride=1)
    refused("the mask's id is 99, and .* has 40 rows", published, mask_id=99)
    refused("the mask's id is 99", lora, base=base, mask_id=99)
    other = copied(published, tmp_path / "other")
    rewrite(other / "config.json", model_type="llada")
    refused("model_type is 'llada'", other)
    rewrite(other / "config.json", model_type="sdar", intermediate_size=25)
    refused("is not of Qwen3's layout: model.layers.0.mlp.down_proj.weight is", other)
    rewrite(other / "config.json", intermediate_size=24)
    (other / SHARDS[1]).unlink()
    refused("is not of Qwen3's layout: .* is missing", other)
    odd = copied(lora, tmp_path / "odd")
    rewrite(odd / "adapter_config.json", use_dora=True)
    refused("sets use_dora", odd, base=base)
    rewrite(odd / "adapter_config.json", use_dora=False, r=8)
    refused("rank 8 does not fit its base model: size mismatch for lora_a", odd, base=base)
    (odd / "adapter_config.json").write_text("{}")
    refused("gives no r or no lora_alpha", odd, base=base)
    rewrite(odd / "adapter_config.json", r=RANK, lora_alpha=6)
    (odd / "adapter_model.safetensors").unlink()
    refused(r"holds no \*.safetensors", odd, base=base)
    wide = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(RANK, 5)}
    wide |= {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(3, RANK)}
    save_file(wide, odd / "adapter_model.safetensors")
    refused("does not fit its base model: size mismatch for lora_a.model", odd, base=base)
    wide.pop(next(iter(wide)))
    save_file(wide, odd / "adapter_model.safetensors")
    refused("lacks one of lora_A and lora_B of model/layers/0/self_attn/q_proj", odd, base=base)
    save_file({"base_model.model.norm.weight": torch.ones(3)}, odd / "adapter_model.safetensors")
    refused("unknown weight", odd, base=base)


def test_an_output_folder_in_use_is_refused(published: Path, tmp_path: Path) -> None:
    import_idlm(published, tmp_path / "out", mask_id=MASK)
    with pytest.raises(ValueError, match="is in use"):
        import_idlm(published, tmp_path / "out", mask_id=MASK)


def test_the_command_imports_and_refuses_with_code_2(
    lora: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    options = ["--base", str(base), "--mask-id", str(MASK)]
    given = ["import", "idlm", str(lora), str(tmp_path / "out"), *options]
    ended = CliRunner().invoke(cli.app, given)
    assert ended.exit_code == 0
    assert ended.stdout.count("\n") == 1
    assert (tmp_path / "out" / "adapter.json").is_file()
    monkeypatch.setattr("sys.argv", ["bench", *given])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "is in use" in capsys.readouterr().err

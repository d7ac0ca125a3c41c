"""A masked model is known by its configuration, and its calls see what their masks say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoders.core.hf.checkpoint import is_masked, masked_form
from decoders.core.hf.loading import max_context
from decoders.core.hf.model import HFModel
from decoders.core.hf.self_check import self_check
from decoders.core.types import MaskedForm
from tests.tiny_checkpoint import save_checkpoint
from tests.tiny_models import fresh


def changed(folder: Path, **values: Any) -> Path:
    """Change a checkpoint's configuration."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ({"model_type": "llama"}, None),
        ({"model_type": "llama", "is_causal": True}, None),
        ({"is_causal": False}, MaskedForm()),
        ({"mask_token_id": 9}, MaskedForm(mask_id=9)),
        ({"mask_token_id": 9, "block_size": 8}, MaskedForm(mask_id=9, block=8)),
        ({"mask_token_id": 9, "shifted_logits": True}, MaskedForm(mask_id=9, shifted=True)),
        ({"model_type": "Dream", "mask_token_id": 9}, MaskedForm(mask_id=9, shifted=True)),
        ({"model_type": "Dream", "shifted_logits": False}, MaskedForm()),
        ({"model_type": "sdar", "mask_token_id": 9}, MaskedForm(mask_id=9, block=4)),
        ({"model_type": "Fast_dLLM_Qwen", "bd_size": 16}, MaskedForm(shifted=True, block=16)),
        ({"model_type": "a2d-qwen3", "mask_token_id": 9}, MaskedForm(mask_id=9)),
    ],
)
def test_the_masked_form_is_read_from_the_configuration(
    config: dict[str, Any], form: MaskedForm | None
) -> None:
    assert masked_form(config) == form


@pytest.mark.parametrize(("published", "base"), [("sdar", "qwen3"), ("Fast_dLLM_Qwen", "qwen2")])
def test_a_published_type_runs_as_the_architecture_it_was_trained_from(
    published: str, base: str, tmp_path: Path
) -> None:
    module = fresh(base, "sdpa")
    module.save_pretrained(tmp_path)
    assert not is_masked(str(tmp_path))
    changed(tmp_path, model_type=published, auto_map={"AutoModel": "x.y"}, mask_token_id=7)
    assert is_masked(str(tmp_path))
    assert max_context(tmp_path) == module.config.max_position_embeddings
    model = HFModel.load(tmp_path, dtype=torch.float32)
    assert model.masked == masked_form({"model_type": published, "mask_token_id": 7})
    assert type(model.module) is type(module)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    mask = torch.zeros(1, 1, 5, 5)  # the causal class, seeing everything
    with torch.inference_mode():
        expected, found = (
            each(ids, attention_mask=mask, use_cache=False).logits
            for each in (module, model.module)
        )
    assert torch.equal(expected, found)


def test_the_tokenizer_names_the_mask_token_if_the_configuration_does_not(tmp_path: Path) -> None:
    folder = changed(save_checkpoint(tmp_path / "masked"), is_causal=False)
    model = HFModel.load(folder, dtype=torch.float32)
    assert model.masked == MaskedForm()
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mask_token": "<unk>"}))
    assert HFModel.load(folder, dtype=torch.float32).masked == MaskedForm(mask_id=2)


def test_a_masked_model_attends_by_the_mask_of_a_call_and_never_predicts_the_mask_token() -> None:
    module = fresh("llama", "sdpa")
    module.config.update({"is_causal": False, "mask_token_id": 7})
    model = HFModel(module)
    self_check(model)  # calls without a mask are causal, as transformers' are with such a mask
    model.reserve(1, 16)
    session = model.open()
    ids, visible = [3, 1, 4, 1, 5], torch.ones(5, 5, dtype=torch.bool)
    logits = model.forward([session.call(ids, read=range(5), mask=visible)])
    with torch.inference_mode():
        mask = torch.zeros(1, 1, 5, 5)
        expected = module(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]
    others = [i for i in range(expected.shape[-1]) if i != 7]
    torch.testing.assert_close(logits[:, others], expected[:, others], rtol=1e-4, atol=1e-4)
    assert (logits[:, 7] == -torch.inf).all()


def test_a_masked_model_on_several_devices_is_causal_in_calls_without_a_mask(
    tmp_path: Path,
) -> None:
    pytest.importorskip("accelerate", reason="the extra [gguf] is not installed")
    folder = changed(save_checkpoint(tmp_path), is_causal=False)
    assert self_check(HFModel.load(folder, dtype=torch.float32, device_map="auto")) == []


def test_a_module_that_ignores_its_mask_is_refused() -> None:
    module = fresh("llama", "sdpa")
    module.config.update({"is_causal": False, "mask_token_id": 7})
    layer = module.model.layers[0]
    inner = layer.forward

    def ahead(hidden: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        return inner(hidden + 0.5 * hidden.flip(1), *arguments, **named)

    layer.forward = ahead
    with pytest.raises(ValueError, match="is not causal"):
        self_check(HFModel(module))


def test_a_folder_without_a_model_does_not_count_as_masked(tmp_path: Path) -> None:
    assert not is_masked(str(tmp_path))
    assert not is_masked("owner/name-of-nothing")
    (tmp_path / "config.json").write_text("[]")
    assert not is_masked(str(tmp_path))


def test_a_renamed_checkpoint_still_opens_in_transformers(tmp_path: Path) -> None:
    folder = changed(save_checkpoint(tmp_path / "masked"), is_causal=False, mask_token_id=2)
    assert AutoModelForCausalLM.from_pretrained(folder).config.is_causal is False

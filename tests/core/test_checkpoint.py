"""Missing checkpoints are one clear line; weights have a stable hash."""

import hashlib

import pytest
import torch

from decoders.core.checkpoint import weights_sha256
from decoders.core.hf import HFModel, load_tokenizer


def load(path):
    return HFModel.load(path, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/place", "a/b/c"])
def test_a_missing_folder_is_named_with_what_to_do(path):
    with pytest.raises(
        ValueError, match=f"model '{path}': there is no such folder; give"
    ) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=f"tokenizer '{path}': there is no such folder"):
        load_tokenizer(path)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"that folder has no config\.json"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"has no tokenizer_config\.json or tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_folder_with_broken_files_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ValueError, match="cannot be loaded: ") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    with pytest.raises(ValueError, match=r"cannot be loaded: .*no file named") as caught:
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(ValueError, match="cannot be loaded: ") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_name_that_the_hub_does_not_give_is_one_line(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="neither a local folder nor available") as caught:
        load("nobody-at-all/no-such-model")
    assert "\n" not in str(caught.value)


def test_the_hash_covers_every_weight_file_in_order(tmp_path):
    (tmp_path / "b.safetensors").write_bytes(b"two")
    (tmp_path / "a.safetensors").write_bytes(b"one")
    assert weights_sha256(tmp_path) == hashlib.sha256(b"onetwo").hexdigest()
    assert weights_sha256(tmp_path, limit_bytes=5) is None
    assert weights_sha256(tmp_path / "nothing") is None

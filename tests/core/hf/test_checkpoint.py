"""Missing checkpoints are one clear line; weights have a stable hash."""

import hashlib

import pytest
import torch

from decoders.core.hf.checkpoint import SAMPLED, unavailable, weights_sha256
from decoders.core.hf.model import HFModel, load_tokenizer


def load(path):
    return HFModel.load(path, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/place", "a/b/c"])
def test_a_missing_folder_is_refused_in_one_line_that_names_it_and_the_remedy(path):
    with pytest.raises(
        ValueError, match=f"model '{path}': there is no such folder; give"
    ) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=f"tokenizer '{path}': there is no such folder"):
        load_tokenizer(path)


def test_the_error_for_a_folder_without_a_model_names_the_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"that folder has no config\.json"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"has no tokenizer_config\.json or tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_folder_with_broken_files_is_refused_in_one_line(tmp_path):
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


def test_pickled_weights_are_refused_with_instructions_to_convert_them(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"")
    line = r"a pickle \(pytorch_model-00001-of-00002\.bin\), .*save_pretrained\(OTHER\)"
    with pytest.raises(ValueError, match=line):
        load(tmp_path)
    missing = OSError("owner/name does not appear to have a file named model.safetensors")
    assert "save_pretrained(OTHER)" in str(unavailable("owner/name", "model", missing))
    (tmp_path / "model.safetensors").write_bytes(b"")  # beside it a pickle does no harm
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(tmp_path)


def test_a_folder_with_only_an_adapter_is_refused_with_advice_to_merge_it(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has an adapter of PEFT; merge it .* or move adapter"):
        load(tmp_path)


def test_a_model_name_that_is_not_available_is_refused_in_one_line(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="neither a local folder nor available") as caught:
        load("nobody-at-all/no-such-model")
    assert "\n" not in str(caught.value)


def test_the_hash_covers_every_weight_file_in_order(tmp_path):
    (tmp_path / "b.safetensors").write_bytes(b"two")
    (tmp_path / "a.safetensors").write_bytes(b"one")
    assert weights_sha256(tmp_path) == hashlib.sha256(b"onetwo").hexdigest()
    assert weights_sha256(tmp_path / "nothing") is None


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"format": 1, "sha256": null}'])
def test_a_file_of_another_origin_named_like_that_of_a_conversion_is_no_hash(tmp_path, text):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    (tmp_path / "source.json").write_text(text)
    assert weights_sha256(tmp_path) == hashlib.sha256(b"one").hexdigest()


def large_checkpoint(folder, names=("model-1.safetensors", "model-2.safetensors")):
    """Two files of 9 MB that look like safetensors: a header, then the tensors' bytes."""
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        header = b'{"weight": {}}'
        data = bytes([number]) * 9_000_000
        (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder


def test_weights_above_the_size_limit_are_hashed_by_sample_and_marked_as_sampled(tmp_path):
    one, same = large_checkpoint(tmp_path / "one"), large_checkpoint(tmp_path / "same")
    found = weights_sha256(one, limit_bytes=2**20)
    assert found == weights_sha256(same, limit_bytes=2**20)
    assert found is not None
    assert found.startswith(SAMPLED)
    assert len(found) == len(SAMPLED) + 64
    whole = weights_sha256(one)
    assert whole is not None
    assert not whole.startswith(SAMPLED)
    other = large_checkpoint(tmp_path / "other", ("model-1.safetensors", "model-3.safetensors"))
    assert weights_sha256(other, limit_bytes=2**20) != found


@pytest.mark.parametrize("place", [10, 9_000_000 // 2, 9_000_000 - 1])
def test_a_tensor_changed_anywhere_changes_the_sampled_hash(tmp_path, place):
    one, other = large_checkpoint(tmp_path / "one"), large_checkpoint(tmp_path / "other")
    with (other / "model-2.safetensors").open("r+b") as stream:
        stream.seek(place)
        stream.write(b"x" * 300_000 if 100 < place < 8_000_000 else b"x")  # a tensor, or one byte
    assert weights_sha256(one, 2**20) != weights_sha256(other, 2**20)


def test_a_longer_file_has_another_sampled_hash(tmp_path):
    one, other = large_checkpoint(tmp_path / "one"), large_checkpoint(tmp_path / "other")
    with (other / "model-2.safetensors").open("ab") as stream:
        stream.write(b"\x01")
    assert weights_sha256(one, 2**20) != weights_sha256(other, 2**20)


def test_a_hub_model_is_hashed_where_it_was_downloaded(tmp_path, monkeypatch):
    cache = tmp_path / "models--owner--name"
    snapshot = cache / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0123abc")
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"one")
    (snapshot / "consolidated.safetensors").write_bytes(b"the same in another layout")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert weights_sha256("owner/name") == hashlib.sha256(b"one").hexdigest()
    assert weights_sha256("owner/other") is None

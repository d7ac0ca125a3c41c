"""GGUF files: what becomes of weights, ids and text, and one line for whatever cannot be read."""

import errno
import json
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoders.core.hf import gguf
from decoders.core.hf.checkpoint import SOURCE, count_weights, weights_sha256
from decoders.core.hf.model import HFModel, load_tokenizer, stop_ids
from tests.tiny_gguf import WIDTH, write_gguf

pytest.importorskip("gguf", reason="the extra [gguf] is not installed")
pytest.importorskip("accelerate", reason="the extra [gguf] is not installed")


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def converted(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    file = write_gguf(place / "tiny.gguf", request.param)
    return file, gguf.convert(file, place / "folder", gguf.hash_file(file))


def test_a_converted_model_runs_trains_and_is_saved_like_any_other(converted, tmp_path):
    _, folder = converted
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert module.config.hidden_size == WIDTH
    assert not getattr(module, "is_quantized", False)
    module.save_pretrained(tmp_path / "again")
    module(torch.tensor([[5, 6]])).logits.sum().backward()
    assert module.get_input_embeddings().weight.grad is not None


def test_a_converted_folder_has_the_hash_of_its_source_file_in_any_location(converted, tmp_path):
    file, folder = converted
    assert json.loads((folder / SOURCE).read_text())["sha256"] == gguf.hash_file(file)
    again = gguf.convert(file, tmp_path / "again", gguf.hash_file(file))
    assert weights_sha256(again) == weights_sha256(folder) == f"gguf:{gguf.hash_file(file)}"


def test_weights_are_counted_without_reading_them(converted):
    _, folder = converted
    model = HFModel.load(folder, dtype=torch.float32, device="cpu")
    assert count_weights(folder) == model.num_parameters


def test_converted_weights_equal_those_of_the_file(converted):
    from gguf import GGUFReader

    file, folder = converted
    stored = {t.name: torch.tensor(t.data.copy()) for t in GGUFReader(file).tensors}
    module = HFModel.load(folder, dtype=torch.float32, device="cpu").module
    embedded = module.get_input_embeddings().weight
    assert torch.equal(embedded, stored["token_embd.weight"].reshape(embedded.shape))
    down = module.model.layers[1].mlp.down_proj.weight
    assert torch.allclose(down, stored["blk.1.ffn_down.weight"].reshape(down.shape))


def test_special_ids_come_from_the_file(converted):
    _, folder = converted
    model, tokenizer = (
        HFModel.load(folder, dtype=torch.float32, device="cpu"),
        load_tokenizer(folder),
    )
    assert stop_ids(model, tokenizer) == {2}
    for config in (model.module.config, model.module.generation_config):
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "he"}], tokenize=False, add_generation_prompt=True
    )
    assert said == "<|im_start|>user\nhe<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("ids", [(2, 0, 1), (0, 1, 2)])
def test_special_ids_that_no_architecture_has_by_default_are_the_files_too(ids, tmp_path):
    folder = gguf.convert(write_gguf(tmp_path / "m.gguf", ids=ids), tmp_path / "f", "0")
    model, tokenizer = (
        HFModel.load(folder, dtype=torch.float32, device="cpu"),
        load_tokenizer(folder),
    )
    for one in (model.module.config, model.module.generation_config, tokenizer):
        assert (one.bos_token_id, one.eos_token_id, one.pad_token_id) == ids
    assert stop_ids(model, tokenizer) == {ids[1]}


@pytest.mark.parametrize(("pre", "joined"), [("smollm", False), ("gpt-2", True)])
def test_digits_become_single_tokens_if_the_pre_tokenizer_of_the_file_splits_them(
    pre, joined, tmp_path
):
    folder = gguf.convert(write_gguf(tmp_path / "m.gguf", pre=pre), tmp_path / "f", "0")
    tokenizer = load_tokenizer(folder)
    merged = tokenizer.convert_tokens_to_ids("12")
    assert (merged in tokenizer.encode("a12", add_special_tokens=False)) is joined
    assert tokenizer.decode(tokenizer.encode("he 12  12\n\n12")) == "he 12  12\n\n12"


DAMAGE = {
    "not a GGUF": lambda data: b"PK" + data[2:],
    "damaged or cut off": lambda data: data[: len(data) // 2],
}


@pytest.mark.parametrize("said", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line_and_leaves_no_files(said, tmp_path):
    file = write_gguf(tmp_path / "m.gguf")
    file.write_bytes(DAMAGE[said](file.read_bytes()))
    with pytest.raises(ValueError, match=said) as caught:
        gguf.convert(file, tmp_path / "cache" / "f", "0")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_an_unknown_quantisation_is_refused(tmp_path):
    file = write_gguf(tmp_path / "m.gguf")
    data = bytearray(file.read_bytes())
    place = data.index(b"blk.1.ffn_down.weight") + len(b"blk.1.ffn_down.weight")
    place += 4 + 2 * 8  # number of dimensions, two sizes
    data[place : place + 4] = (99).to_bytes(4, "little")
    file.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="99"):
        gguf.convert(file, tmp_path / "f", "0")


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_package_is_refused_with_the_command_that_installs_it(
    package, tmp_path, monkeypatch
):
    file = write_gguf(tmp_path / "m.gguf")

    def all_but_it(name):
        return None if name == package else find_spec(name)

    monkeypatch.setattr(gguf, "find_spec", all_but_it)
    with pytest.raises(ValueError, match=rf"needs the package '{package}': pip install"):
        gguf.convert(file, tmp_path / "f", "0")


def test_a_full_disk_is_reported_in_one_line_and_leaves_no_partial_files(tmp_path, monkeypatch):
    file = write_gguf(tmp_path / "m.gguf")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf, "_write", full)
    with pytest.raises(ValueError, match=r"no room for the converted m\.gguf"):
        gguf.convert(file, tmp_path / "cache" / "f", "0")
    assert not list((tmp_path / "cache").iterdir())

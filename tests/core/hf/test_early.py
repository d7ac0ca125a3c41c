"""A model that leaves after its first layers: its logits, what it shares, its cache, its files."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core.adapter.config import AdapterConfig
from decoders.core.adapter.heads import ExitBlock, read_adapter
from decoders.core.hf.model import HFModel
from decoders.core.types import NO_UNIFORM, Slots
from tests.tiny_models import WIDTH, exit_block, fresh, slot_adapter

NAMES = ["llama", "llama-gqa", "qwen2-window", "mistral-window", "gpt2", "gpt-neox"]


@torch.inference_mode()
def expected(module: Any, block: ExitBlock, tokens: list[int]) -> Tensor:
    """Logits ``[N, V]`` of the first layer, the block, the last norm and the head, by hooks."""
    seen: list[Any] = []
    first = next(
        part for part in module.base_model.modules() if isinstance(part, torch.nn.ModuleList)
    )
    last = first[-1]

    def skipping(_layer: Any, _args: Any, out: Any) -> Any:
        state = block(seen[0])
        return (state, *out[1:]) if isinstance(out, tuple) else state

    hooks = [
        first[0].register_forward_hook(
            lambda _layer, _args, out: seen.append(out[0] if isinstance(out, tuple) else out)
        ),
        last.register_forward_hook(skipping),
    ]
    try:
        logits: Tensor = module(torch.tensor([tokens]), use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    return logits


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_its_logits_are_the_heads_of_the_state_after_the_first_layer(
    name: str, grouped: bool
) -> None:
    block, tokens = exit_block(), [5, 6, 7, 8, 9, 10, 11, 12, 13]
    truth = expected(fresh(name), block, tokens)
    model = HFModel(fresh(name), grouped=grouped)
    model.attach("exit", block)
    model.reserve(2, 30)
    early = model.early("exit")
    session = early.open()
    got = [early.forward([session.call(tokens[:4], read=range(4))])]
    got += [early.forward([session.call([token])]) for token in tokens[4:]]
    torch.testing.assert_close(torch.cat(got), truth, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(truth, fresh(name)(torch.tensor([tokens])).logits[0], atol=1e-2)


def test_weights_are_shared_and_caches_are_not() -> None:
    model = HFModel(fresh("llama"))
    before = model.weight_bytes
    model.attach("exit", exit_block())
    model.reserve(1, 20)
    early = model.early("exit")
    own = {parameter.data_ptr() for parameter in model.module.parameters()}
    shared = [
        p.data_ptr() in own for name, p in early.module.named_parameters() if ".block." not in name
    ]
    assert all(shared)
    assert shared
    assert model.weight_bytes == before
    assert early.facts["layers"] == 1
    assert model.module.config.num_hidden_layers == 2
    assert model.adapter_bytes("exit") == exit_block().weight_bytes + early.cache_bytes()
    assert early.cache_bytes() * 2 == model.cache_bytes()
    tokens = [5, 6, 7]
    plain = model.forward([model.open().call(tokens)])
    early.forward([early.open().call([8, 9, 10, 11])])
    torch.testing.assert_close(model.forward([_again(model).call(tokens)]), plain)


def _again(model: HFModel) -> Any:
    model.close(model._open[0])
    return model.open()


def test_late_slots_of_a_call_are_gone_when_the_first_layers_draft() -> None:
    module = fresh("llama")
    model = HFModel(module)
    model.attach("late", slot_adapter(module, enter=1, variant="isd", code="constant"))
    model.attach("exit", exit_block())
    model.reserve(1, 30)
    early, tokens = model.early("exit"), [5, 6, 7, 8]
    plain = early.forward([early.open().call(tokens, read=range(4))])
    early.close(early._open[0])
    slots = Slots(
        adapter="late", sizes=(2,), anchors=(6,), uniforms=(NO_UNIFORM, NO_UNIFORM), read=(0, 1)
    )
    model.forward([model.open().call([5, 6], slots=slots)])
    again = early.forward([early.open().call(tokens, read=range(4))])
    torch.testing.assert_close(again, plain)


def test_a_call_without_compiling_is_of_both_models() -> None:
    model = HFModel(fresh("llama"), compile=True, backend="eager")
    model.attach("exit", exit_block())
    early = model.early("exit")
    with contextlib.suppress(RuntimeError), model.uncompiled():
        assert not early._runner.compiling
        raise RuntimeError
    assert early._runner.compiling
    assert model._runner.compiling
    model.reserve(1, 20)
    early.forward([early.open().call([5])])
    assert model.num_graphs == 1


def test_an_adapter_of_a_name_that_is_taken_replaces_the_one_before_of_whatever_kind() -> None:
    module = fresh("llama")
    model = HFModel(module)
    slots = slot_adapter(module)
    model.attach("one", slots)
    model.attach("one", exit_block())
    assert model.adapters["one"].variant == "exit"
    assert model.early("one").module is not module
    model.attach("one", slots)
    assert dict(model.adapters) == {"one": slots.config}
    other = HFModel(fresh("llama"))
    other.attach("one", slots)
    assert model.adapter_bytes("one") == other.adapter_bytes("one")
    with pytest.raises(KeyError):
        model.early("one")


@pytest.mark.parametrize("after", [2, 3])
def test_it_leaves_before_the_last_layer(after: int) -> None:
    with pytest.raises(ValueError, match=f"exit after layer {after} of a model with 2 layers;"):
        HFModel(fresh("llama")).attach("exit", exit_block(exit_layer=after))


def test_an_exit_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=f"exit was made for a model 40 wide, not {WIDTH}"):
        HFModel(fresh("llama")).attach("exit", exit_block(width=40))


def test_files_keep_all(tmp_path: Path) -> None:
    block = exit_block(base={"weights_sha256": "ab"})
    block.save(tmp_path)
    loaded = read_adapter(tmp_path)
    assert isinstance(loaded, ExitBlock)
    assert loaded.config == block.config
    assert loaded.config.exit_layer == 1
    for name, value in block.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


@pytest.mark.parametrize(("variant", "after"), [("exit", 0), ("medusa", 1)])
def test_an_exit_says_where_and_nothing_else_does(variant: Any, after: int) -> None:
    with pytest.raises(ValueError, match="'exit_layer'"):
        AdapterConfig(
            variant=variant, code="constant", layers={}, width=8, rank=2, exit_layer=after
        )

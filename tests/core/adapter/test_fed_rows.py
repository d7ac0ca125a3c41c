"""Layers that see other rows than a call's own are found, and no others."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from decoders.core.adapter.gating import fed_other_rows, layer_shapes
from tests.architectures.catalogue import save
from tests.tiny_models import GQA, MODELS, SIZES, fresh, slot_adapter


@pytest.mark.parametrize("name", MODELS)
def test_layers_of_plain_models_see_a_calls_rows(name: str) -> None:
    module = fresh(name)
    assert fed_other_rows(module, list(layer_shapes(module))) is None


def test_a_window_of_one_entry_is_no_error() -> None:
    module = MistralForCausalLM(MistralConfig(**SIZES, **GQA, sliding_window=1)).eval()
    assert fed_other_rows(module, list(layer_shapes(module))) is None


@pytest.mark.parametrize("name", ["deepseek_v2", "minicpm3"])
def test_a_layer_that_expands_the_cache_is_found(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    module = AutoModelForCausalLM.from_pretrained(tmp_path)
    layer = "model.layers.0.self_attn.kv_b_proj"
    assert fed_other_rows(module, list(layer_shapes(module))) == layer
    with pytest.raises(ValueError, match=rf"its layer {layer} rows other than the call's"):
        slot_adapter(module).check_fits(module)

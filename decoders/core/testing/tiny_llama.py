"""Make tiny random Llamas: real calls, caches and hidden states for the contract's checks.

Results of these models are inference tensors, hidden states are as wide as a model's, and a
decoder finds the modules it may read (`HFModel.module`). A vocabulary of few words keeps answers
enumerable. Adapters have random weights; the draft model is the target with disturbed weights, and
its first layer is the target's MTP layer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import SLOT_VARIANTS, AdapterConfig, Variant, is_masked
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.hf.model import HFModel
from decoders.core.hf.shapes import random_model, shape_config
from decoders.core.plugins import network

_WIDTH, _RANK, _HEADS, _LAYERS = 32, 4, 2, 2
_NUM_SLOTS = 6
_SPREAD, _DISTURBED = 0.3, 0.1
_MTP_NORMS = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"


def tiny_models(
    vocab_size: int, max_length: int, names: Sequence[str] = (), *, same: bool = False
) -> Models:
    """Return a random Llama of two layers, and draft and named models that often agree with it.

    The first layer is an early exit for transformers.

    Args:
        vocab_size: V.
        max_length: longest sequence, prompt and answer.
        names: names of named models.
        same: the other models have the target's weights, and always agree.
    """
    sizes = {
        "hidden_size": _WIDTH,
        "intermediate_size": _WIDTH,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 1,
        "head_dim": _WIDTH // _HEADS,
        "vocab_size": vocab_size,
        "max_position_embeddings": max_length,
        "tie_word_embeddings": False,  # tied random weights repeat their input
        "exit_layer": 1,
    }
    config = shape_config("llama-1b", **sizes)
    target = random_model(config, dtype=torch.float32, device="cpu", spread=_SPREAD)
    models, noise = [], 0.0 if same else _DISTURBED
    for seed in range(1, 2 + len(names)):
        module, generator = copy.deepcopy(target.library_module), torch.Generator()
        generator.manual_seed(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += noise * torch.randn(parameter.shape, generator=generator)
        models.append(HFModel(module))
    draft, *named = models
    layer, norm = draft.module.model.layers[0].state_dict(), draft.module.model.norm.weight
    target.tensors = {f"mtp.layers.0.{name}": tensor for name, tensor in layer.items()}
    target.tensors |= {f"mtp.{name}.weight": norm for name in _MTP_NORMS}
    joins = torch.randn(_WIDTH, 2 * _WIDTH, generator=torch.Generator().manual_seed(0))
    target.tensors["mtp.fc.weight"] = joins / _WIDTH
    return Models(target=target, draft=draft, named=dict(zip(names, named, strict=True)))


def attach_random(model: HFModel, part: Decoder) -> None:
    """Attach the adapter of a decoder's part, with random weights that change its predictions."""
    assert part.adapter_name is not None
    variant: Variant = (*part.variants, "o-ptp")[0]
    sizes: dict[str, Any] = {"width": _WIDTH, "rank": _RANK, "num_slots": _NUM_SLOTS}
    sizes |= {"code": "constant" if is_masked(variant) else "dyadic", "layers": {}}
    if variant in SLOT_VARIANTS:
        kind, sizes["layers"] = SlotAdapter, layer_shapes(model.module)
    else:
        kind = network(variant)
        sizes |= {**kind.example}
        if "num_words" in sizes:
            sizes["num_words"] = model.vocab_size
    config = AdapterConfig(variant=variant, greedy=True, **sizes)
    adapter = kind(config, seed=2).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for parameter in adapter.parameters():
        if not parameter.any():  # a new adapter's weights would change nothing
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.attach(part.adapter_name, adapter)

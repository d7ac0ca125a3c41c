"""Fused norms: transformers' numbers, and left alone where a norm computes something else."""

import pytest
import torch

from decoders.core.hf.copies import library_copy
from decoders.core.hf.norms import fuse_norms
from tests.tiny_models import fresh

IDS = torch.arange(3, 12)[None]


def fused_norms(module):
    return [part for part in module.modules() if "forward" in vars(part)]


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 2e-5), (torch.bfloat16, 0.1)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2"])
def test_fused_norms_give_transformers_logits(name, dtype, most):
    module = fresh(name).to(dtype)
    for part in module.modules():
        if type(part).__name__.endswith("RMSNorm"):
            torch.nn.init.normal_(part.weight, 1.0, 0.2)
    with torch.inference_mode():
        expected = module(IDS).logits
        fuse_norms(module)
        assert len(fused_norms(module)) == 2 * module.config.num_hidden_layers + 1
        assert (module(IDS).logits - expected).abs().max() < most
        assert torch.equal(library_copy(module)(IDS).logits, expected)


def test_norms_that_compute_more_are_left_alone():
    module = fresh("gemma2-window")  # multiplies by 1 + weight
    fuse_norms(module)
    assert not fused_norms(module)

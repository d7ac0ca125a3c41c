"""Root-mean-square norms that run one kernel each, not seven as in transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@torch.no_grad()
def fuse_norms(module: Any) -> None:
    """Let each norm of a causal LM run torch's kernel, if both agree up to rounding."""
    for norm in module.modules():
        is_plain = not hasattr(norm, "_hf_hook")  # else accelerate moves weights or inputs
        if is_plain and type(norm).__name__.endswith("RMSNorm") and isinstance(norm.weight, Tensor):
            fused = partial(_normed, norm)
            probe = torch.linspace(-1, 2, norm.weight.numel()).to(norm.weight)[None]
            close = _CLOSE.get(probe.dtype, 0.0)
            if torch.allclose(norm(probe), fused(probe), rtol=close, atol=close):
                norm.forward = fused


def _normed(norm: nn.Module, rows: Tensor) -> Tensor:
    weight: Any = norm.weight
    epsilon: Any = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return F.rms_norm(rows, weight.shape, weight, epsilon)

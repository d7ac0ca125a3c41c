"""Parts of decoder layers as kernels of torch's compiler, between the attentions of a pass.

A captured call launches each of its operations, some 28 a layer in Llama's family. A compiled part
launches its products with weights and a few kernels that join all else. Weights are arguments, so
three parts serve all layers. They are switched on in `device.switches`, and not measured on a GPU.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from decoders.core.device import switches

_LIMIT = 64
"""Most compilations of a part, for models, adapters, and one or several rows and sequences."""


def compiled(*parts: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return parts of a pass: compiled if that is switched on, unless a graph is traced."""
    if not switches.regions or torch.compiler.is_exporting() or torch.is_grad_enabled():
        return parts
    return tuple(map(_compiled, parts))


@functools.cache
def _compiled(part: Callable[..., Any]) -> Callable[..., Any]:
    run = torch.compile(part, fullgraph=True)

    def limited(*arguments: Any) -> Any:
        quiet = warnings.catch_warnings(action="ignore")  # warnings of compilers
        with quiet, torch._dynamo.config.patch(recompile_limit=_LIMIT):
            return run(*arguments)

    return limited

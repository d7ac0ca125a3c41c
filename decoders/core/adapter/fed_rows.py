"""Which linear layers of a model are fed something else than the rows of a call.

A gate opens by rows. A layer that expands latents of the whole cache, or that belongs to one
expert, sees other rows: no gate can tell which of them are slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_PREFIX, _ROWS = 3, 5


@torch.no_grad()
def fed_other_rows(module: Any, names: Sequence[str]) -> str | None:
    """Run a call behind a prefix, and look at what linear layers are fed.

    Args:
        module: a causal LM of transformers.
        names: of linear layers in it.

    Returns:
        The first of them whose input ``[…, in]`` has not a row for each token, if there is one.
    """
    strange: list[str] = []

    def noting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if args[0].numel() // args[0].shape[-1] != _ROWS:
                strange.append(name)

        return hook

    ids = torch.arange(_PREFIX + _ROWS, device=module.device)[None]
    cache = module(ids[:, :_PREFIX], use_cache=True).past_key_values
    hooks = [module.get_submodule(name).register_forward_pre_hook(noting(name)) for name in names]
    try:
        module(ids[:, _PREFIX:], past_key_values=cache, use_cache=True)
    finally:
        for hook in hooks:
            hook.remove()
    return strange[0] if strange else None

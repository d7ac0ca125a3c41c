"""Whether slots, as a student runs them, are rows of the model itself.

A student brings masks, positions and an attention of its own. Where an architecture does more
(sinks, biases, caps, masks by index), it would be trained on states that no decoder meets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decoders.core.hf.checkpoint import is_of_memory

_NUM_TOKENS, _NUM_CONTEXT = 9, 5


@torch.no_grad()
def made_up_text(module: Any, longest: int) -> tuple[str, Tensor, Tensor]:
    """The name of a causal LM, a text ``[1, S]`` and the module's own states of it ``[1, S, D]``.

    `longest` is how many tokens S may be at most.
    """
    ids = torch.arange(3, 3 + min(_NUM_TOKENS, longest), device=module.device)[None]
    states: Tensor = module.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return type(module).__name__, ids, states


def check_states(
    name: str, ids: Tensor, expected: Tensor, stood_in: Callable[[Tensor, int], Tensor]
) -> None:
    """Hold a student's states of a text against the module's own.

    Args:
        name: of the architecture.
        ids: the text ``[1, S]``.
        expected: the module's own states ``[1, S, D]``.
        stood_in: see `Student._stood_in`.

    Raises:
        ValueError: they differ by more than rounding, or there are none.
    """
    line = f"{name} trains no adapter of slots: its attention is not plain"
    rest = expected[:, _NUM_CONTEXT:]
    try:
        gap = stood_in(ids, _NUM_CONTEXT) - torch.cat([expected, rest], 1)
    except Exception as error:
        if is_of_memory(error):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{line} ({reason}); train medusa, eagle or exit") from error
    relative = (gap.float().norm() / expected.float().norm()).item()
    if not relative < (1e-3 if expected.dtype == torch.float32 else 0.1):
        raise ValueError(
            f"{line} (its states differ by {relative:.1%}); train medusa, eagle or exit"
        )

"""Beginning from another adapter: ptp from isd, a longer run from a shorter one."""

from __future__ import annotations

import torch
from torch import nn

from decoders.core.adapter.module import SlotAdapter

UNIFORM_SCALE = 0.1
"""How large the embedding of u begins, in the new adapter's own scale, beside a mask's vector."""


@torch.no_grad()
def begin_from(adapter: SlotAdapter, initial: SlotAdapter) -> None:
    """Copies what both have: deltas, mask or blank vector, slot numbers and scales.

    An adapter that embeds u begins with the vector of the initial one's masks for every u, plus a
    small part that depends on it.

    Raises:
        ValueError: the initial adapter has other layers or another rank.
    """
    mine, given = adapter.config, initial.config
    for name in ("layers", "rank", "width", "enter"):
        if getattr(mine, name) != getattr(given, name):
            told = (
                "" if name == "layers" else f": {getattr(given, name)}, not {getattr(mine, name)}"
            )
            raise ValueError(f"adapter.initial has another {name}{told}; it must be the same")
    own = adapter.state_dict()
    for name, value in initial.state_dict().items():
        if name.startswith("lora_b"):
            value = value * (given.scale / mine.scale)
        if name in own and own[name].shape == value.shape:
            own[name].copy_(value)
        elif name in ("numbers", "carried") and name in own:  # further slots begin as the last one
            count = len(own[name])
            own[name].copy_(value[[min(slot, len(value) - 1) for slot in range(count)]])
    net = adapter.embedding.net
    last = net[-1] if isinstance(net, nn.Sequential) else net
    if given.code == "constant" and isinstance(last, nn.Linear):
        last.weight.mul_(UNIFORM_SCALE)
        last.bias.copy_(initial.embedding.blank)

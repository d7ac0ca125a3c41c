"""Embed a uniform u in [0, 1) as a slot's input (PTP, arXiv 2512.21323, appendix).

`dyadic` feeds fixed-point bits, each -1 or 1, and cosines of multiples of pi * u to a small
network. `constant` ignores u, as a control. Without u (greedy) a slot is *blank*: a learned vector.

Letters: K slots, F features, D hidden width.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from decoders.core.adapter_config import Code
from decoders.core.types import NO_UNIFORM

NUM_LEVELS = 4096
"""Number of levels that u is rounded to in decoding."""
NUM_BITS = 16
NUM_COSINES = 32


@functools.lru_cache(4096)
def level_index(u: float) -> int:
    """Return the index of u's level (for `NO_UNIFORM`, the index after the last level)."""
    return NUM_LEVELS if u == NO_UNIFORM else int(u * NUM_LEVELS)


def all_levels() -> Tensor:
    """Return the midpoints of the `NUM_LEVELS` levels of u, then `NO_UNIFORM`, as float64."""
    u = (torch.arange(NUM_LEVELS, dtype=torch.float64) + 0.5) / NUM_LEVELS
    return torch.cat([u, u.new_tensor([NO_UNIFORM])])


class UniformEmbedding(nn.Module):
    """Embeds uniforms (and, if `conditioned`, temperature and top-p) as ``[K, D]``."""

    def __init__(self, code: Code, width: int, hidden: int = 0, conditioned: bool = False) -> None:
        """Draw fresh weights of a network with `hidden` hidden features (0: one linear layer)."""
        super().__init__()
        self.conditioned = conditioned
        self.blank = nn.Parameter(torch.randn(width) * width**-0.5)
        self.net: nn.Module | None = None
        if code == "dyadic":
            num_features = NUM_BITS + NUM_COSINES + 2 * conditioned
            self.net = nn.Linear(num_features, hidden or width)
            if hidden:
                self.net = nn.Sequential(self.net, nn.SiLU(), nn.Linear(hidden, width))

    def match(self, tokens: Tensor) -> None:
        """Scale the output to the root mean square of token embeddings ``[V, D]``."""
        target = tokens.detach().float().square().mean().sqrt().to(self.blank.device)
        with torch.no_grad():
            # multiples of the golden ratio: spread evenly, with all their bits in use
            u = torch.arange(1024, dtype=torch.float64) * 0.6180339887498949 % 1
            scale = self(u, torch.ones(len(u), 2)).square().mean().sqrt()
            self.blank.mul_(target / self.blank.square().mean().sqrt())
            last = self.net[-1] if isinstance(self.net, nn.Sequential) else self.net
            if isinstance(last, nn.Linear):
                last.weight.mul_(target / scale)
                last.bias.mul_(target / scale)

    def forward(self, u: Tensor, warp: Tensor) -> Tensor:
        """Embed float64 `u` ``[K]`` (or `NO_UNIFORM`), `warp` ``[K, 2]``: temperature and top-p."""
        if self.net is None:
            return self.blank.expand(len(u), -1)
        valid = u.clamp(min=0)  # a blank slot's result is thrown away below
        shifts = torch.arange(NUM_BITS - 1, -1, -1, device=u.device)
        level = (valid * 2**NUM_BITS).long()
        bits = ((level[:, None] >> shifts) & 1).float() * 2 - 1
        waves = torch.arange(1, NUM_COSINES + 1, device=u.device) * math.pi
        features = [bits, torch.cos(valid[:, None].float() * waves)]
        if self.conditioned:
            features.append(warp)
        embedded: Tensor = self.net(torch.cat(features, -1).to(self.blank.dtype))
        return torch.where((u < 0)[:, None], self.blank, embedded)

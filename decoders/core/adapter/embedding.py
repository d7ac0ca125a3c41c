"""How a uniform u in [0, 1) becomes a slot's input embedding (PTP, arXiv 2512.21323, appendix).

`dyadic` writes u as fixed-point bits, each -1 or 1, beside cosines of multiples of pi * u; bits and
cosines go through a small network. `float-bits` (the bit pattern of the float32) and
`interpolation` (three anchors) are the codes of the authors' checkpoints. `constant` ignores u: the
control, an independent predictor. Greedy decoding has no u: a slot is then *blank*, a learned
vector of its own.

Letters: K slots, F features, D hidden width.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Code = Literal["dyadic", "float-bits", "interpolation", "constant"]
CODES: tuple[Code, ...] = get_args(Code)

NUM_BITS = 16
NUM_COSINES = 32
NUM_ANCHORS = 3


class UniformEmbedding(nn.Module):
    """Embeds uniforms, and the warp where `conditioned`, as vectors of the hidden width.

    Args:
        code: one of `CODES`.
        width: D.
        hidden: width of the network's middle layer (0: one linear layer); `dyadic` only.
        conditioned: temperature and top-p are features too, so that one adapter serves many warps;
            `dyadic` only.
    """

    def __init__(self, code: Code, width: int, *, hidden: int = 0, conditioned: bool = False):
        """Fresh weights from torch's generator; `match` scales them to the model."""
        super().__init__()
        self.code, self.conditioned = code, conditioned
        self.blank = nn.Parameter(torch.randn(width) * width**-0.5)
        self.net: nn.Module | None = None
        if code == "dyadic":
            num_features = NUM_BITS + NUM_COSINES + 2 * conditioned
            self.net = _network(num_features, hidden, width)
        elif code == "float-bits":
            self.net = nn.Linear(32, width)
        elif code == "interpolation":
            self.anchors = nn.Parameter(torch.randn(NUM_ANCHORS, width) * width**-0.5)

    def match(self, tokens: Tensor) -> None:
        """Scale the output to the root mean square of token embeddings ``[V, D]``."""
        target = tokens.detach().float().square().mean().sqrt()
        with torch.no_grad():
            # multiples of the golden ratio: spread evenly, with all their bits in use
            u = torch.arange(1024, dtype=torch.float64) * 0.6180339887498949 % 1
            scale = self(u, torch.ones(len(u), 2)).square().mean().sqrt()
            self.blank.mul_(target / self.blank.square().mean().sqrt())
            if self.code == "interpolation":
                self.anchors.mul_(target / scale)
            last = self.net[-1] if isinstance(self.net, nn.Sequential) else self.net
            if isinstance(last, nn.Linear):
                last.weight.mul_(target / scale)
                last.bias.mul_(target / scale)

    def forward(self, u: Tensor, warp: Tensor) -> Tensor:
        """Embed slots.

        Args:
            u: ``[K]`` float64 in [0, 1), or `NO_UNIFORM` (-1).
            warp: ``[K, 2]`` float32, temperature and top-p of the distribution u belongs to.

        Returns:
            ``[K, D]`` in the dtype of the weights.
        """
        if self.code == "constant":
            return self.blank.expand(len(u), -1)
        known = u.clamp(min=0)  # a blank slot's result is thrown away below
        if self.code == "interpolation":
            embedded = self._interpolate(known)
        else:
            assert self.net is not None
            embedded = self.net(self._features(known, warp).to(self.blank.dtype))
        return torch.where((u < 0)[:, None], self.blank, embedded)

    def _features(self, u: Tensor, warp: Tensor) -> Tensor:
        if self.code == "float-bits":
            places = torch.arange(31, -1, -1, device=u.device, dtype=torch.int32)
            pattern = u.float().view(torch.int32)
            return ((pattern[:, None] >> places) & 1).float()
        places = torch.arange(NUM_BITS - 1, -1, -1, device=u.device)
        level = (u * 2**NUM_BITS).long()
        bits = ((level[:, None] >> places) & 1).float() * 2 - 1
        waves = torch.arange(1, NUM_COSINES + 1, device=u.device) * math.pi
        parts = [bits, torch.cos(u[:, None].float() * waves)]
        if self.conditioned:
            parts.append(warp)
        return torch.cat(parts, -1)

    def _interpolate(self, u: Tensor) -> Tensor:
        """Piecewise linear between the anchors, which stand at 0, 1/2 and 1."""
        place = u * (NUM_ANCHORS - 1)
        low = place.long().clamp(max=NUM_ANCHORS - 2)
        share = (place - low).to(self.anchors.dtype)[:, None]
        return self.anchors[low] * (1 - share) + self.anchors[low + 1] * share


def _network(num_features: int, hidden: int, width: int) -> nn.Module:
    if not hidden:
        return nn.Linear(num_features, width)
    return nn.Sequential(nn.Linear(num_features, hidden), nn.SiLU(), nn.Linear(hidden, width))

"""Packs linear layers into int8 or int4 weights, which torch's own CPU kernels run.

* ``int8``: one scale per output, symmetric: ``w = q s``, q in -127 to 127.
* ``int4``: a scale and a zero per output and `GROUP` inputs: ``w = (q - 8) s + z``, q in 0 to 15.
  A layer whose sizes the kernel does not take (such as an odd vocabulary) is int8 instead.

Wide calls (prompts) unpack int8; torch cannot unpack int4 fast. Letters: K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.core.adapter.gating import linear_layers, other_linear

Width = Literal["int8", "int4"]
GROUP = 32
"""Inputs that share a scale and a zero in int4."""
PACKED_ROWS = 64
"""Most rows of a call on packed int8 weights; wider calls unpack the weights (docs/log.md)."""
_WHOLE = 16
"""The int4 kernel needs a multiple of this many outputs, the int8 kernel of this many inputs: in
bfloat16 it reads beyond a row of another number of inputs."""


class QuantizedLinear(nn.Linear):
    """A linear layer with packed weights.

    Its `weight` has only a shape. `scales` are ``[N]``, or scales and zeros ``[K / GROUP, N, 2]``.
    """

    packed: Tensor
    scales: Tensor
    packs_linear = True  # see `gating.linear_layers`

    def __init__(self, weight: Tensor, bias: Tensor | None, width: Width) -> None:
        """Pack a weight ``[N, K]``."""
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        fits_int4 = weight.shape[0] % _WHOLE == 0 and weight.shape[1] % GROUP == 0
        self.width = width if fits_int4 else "int8"
        packed, scales = (_int8 if self.width == "int8" else _int4)(weight)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales.to(weight.dtype))
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, False))
        self.weight = weight.new_zeros(1).expand(weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., K]`` to ``[..., N]``."""
        rows = x.reshape(-1, x.shape[-1])
        if self.width == "int8":
            if rows.shape[0] > PACKED_ROWS or self.in_features % _WHOLE:
                unpacked = self.packed.to(self.scales.dtype) * self.scales[:, None]
                return F.linear(x, unpacked, self.bias)
            y = torch._weight_int8pack_mm(rows.contiguous(), self.packed, self.scales)
        else:
            y = torch._weight_int4pack_mm_for_cpu(
                rows.contiguous(), self.packed, GROUP, self.scales
            )
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def unpacked(self, outputs: Tensor) -> Tensor:
        """Return the weight ``[W, K]`` of some `outputs` ``[W]``."""
        inputs = torch.eye(self.in_features, dtype=self.scales.dtype)
        parts = torch.split(inputs, PACKED_ROWS)
        columns = torch.cat([self(part)[:, outputs] for part in parts]).T
        return columns if self.bias is None else columns - self.bias[outputs, None]


def _int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = (weight.float().abs().amax(1) / 127).clamp(min=1e-12)
    # quantise with the rounded scales that are stored, so that their rounding adds no error
    scales = scales.to(weight.dtype).float()
    q = (weight.float() / scales[:, None]).round().clamp(-127, 127)
    return q.to(torch.int8).contiguous(), scales


def _int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    groups = weight.float().view(weight.shape[0], -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 15).clamp(min=1e-12).to(weight.dtype).float()
    zeros = (low + 8 * scales).to(weight.dtype).float()
    q = ((groups - zeros[..., None]) / scales[..., None] + 8).round().clamp(0, 15)
    packed = torch._convert_weight_to_int4pack_for_cpu(
        q.view(weight.shape).to(torch.int32),
        2,  # inner tiles, which the CPU kernel ignores
    )
    return packed, torch.stack((scales, zeros), -1).transpose(0, 1).contiguous()


@torch.no_grad()
def quantize(module: Any, width: Width) -> None:
    """Pack a causal LM's linear layers and head, but no tied embedding (else `ValueError`)."""
    if module.device.type != "cpu":
        raise ValueError(
            f"--quantize {width} runs only on a CPU (torch's packed kernels); leave it out, or "
            "use --device cpu"
        )
    other = other_linear(module)
    for name, layer in linear_layers(module).items():
        if other or type(layer) is not nn.Linear:
            raise ValueError(
                f"{type(module).__name__} has layers of {other or type(layer).__name__}, which "
                "--quantize does not know; it packs torch's nn.Linear"
            )
        module.set_submodule(name, QuantizedLinear(layer.weight, layer.bias, width))
    head = module.get_output_embeddings()
    module.set_output_embeddings(QuantizedLinear(head.weight, head.bias, width))


def packed_layers(module: Any) -> list[QuantizedLinear]:
    """Return the packed layers of a module."""
    return [part for part in module.modules() if isinstance(part, QuantizedLinear)]


def packed_bytes(module: Any) -> int:
    """Return the bytes of all packed weights of a module, with their scales."""
    return sum(part.nbytes for layer in packed_layers(module) for part in layer.buffers())


def weights_read(module: Any) -> list[Tensor]:
    """Return each weight that a call reads, once, without packed ones.

    An embedding table is looked up, not read, unless it is also the head's weight.
    """
    table, head = module.get_input_embeddings().weight, module.get_output_embeddings().weight
    tied = head.data_ptr() == table.data_ptr()
    looked_up = [part.weight for part in module.modules() if isinstance(part, nn.Embedding)]
    tables = {weight.data_ptr() for weight in looked_up} - ({table.data_ptr()} if tied else set())
    read = {weight.data_ptr(): weight for weight in module.parameters()}
    return [weight for place, weight in read.items() if place not in tables]


def read_bytes(module: Any) -> int:
    """Return the bytes of all weights that a call reads."""
    return sum(weight.nbytes for weight in weights_read(module)) + packed_bytes(module)

"""Find and wrap the linear layers of a model, so that an active adapter can replace them.

An adapter adds a low-rank delta to a layer, or to layers that share an input: ``y = W x + g (alpha
/ r) B A x``, where the gate g is 0 for token rows and 1 for slots (gated LoRA: PTP, arXiv
2512.21323). If the weights exceed a CPU's cache, reading them dominates a call's cost; factors are
small. While a pass runs in tiles (`decoders.core.hf.tiles`), a layer sees only one shape.
Letters: R ranks, summed over the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from decoders.core import products

Forward = Callable[[int, Tensor], Tensor]
Run = Callable[[Tensor], Tensor]
_PREFIX, _ROWS = 3, 5
tile_rows: int | None = None
"""Rows of a tile while a pass runs in tiles (`hf.tiles.running`)."""


def cache_argument(module: nn.Module) -> str:
    """Return the name that a module of transformers has for its cache, among inputs and outputs."""
    # renamed in transformers 5.24
    return "cache" if "cache" in signature(module.forward).parameters else "past_key_values"


def text_model(module: Any) -> Any:
    """Return the part of a causal LM that computes hidden states of text.

    OPT has it inside the base model; models with an image tower have it next to the tower.
    """
    decoder = module.get_decoder()
    return module.base_model if decoder is module else decoder


def linear_layers(module: Any) -> dict[str, nn.Module]:
    """Return the plain linear layers of a text model (GPT-2's `Conv1D` too), without the head.

    Subclasses of `nn.Linear` compute something else and are left out, except packed layers.
    """
    return {name: layer for name, layer in _text_layers(module) if _is_plain(layer)}


def other_linear(module: Any) -> str | None:
    """Return the class name of a linear layer that is not plain, or None if all are plain."""
    linear = (layer for _, layer in _text_layers(module) if isinstance(layer, nn.Linear))
    return next((type(layer).__name__ for layer in linear if not _is_plain(layer)), None)


def _text_layers(module: Any) -> Iterator[tuple[str, nn.Module]]:
    text = {id(part) for part in text_model(module).modules()}
    head = module.get_output_embeddings()
    for name, part in module.named_modules():
        if id(part) in text and part is not head:
            yield name, part


def _is_plain(layer: nn.Module) -> bool:
    packed = getattr(layer, "packs_linear", False)
    return packed or type(layer) is nn.Linear or type(layer).__name__ in ("Conv1D", "FalconLinear")


def layer_shapes(module: Any, enter: int = 0) -> dict[str, tuple[int, int]]:
    """Return (in, out) of the plain linear layers in decoder layers from `enter` on.

    `ValueError` if there is no layer `enter`, or a linear layer is not plain.
    """
    count = len(decoder_layers(module)) if enter else 1
    if enter >= count:
        raise ValueError(f"enter is {enter}; the model has {count} layers, use 0 to {count - 1}")
    if other := other_linear(module):
        raise ValueError(
            f"{type(module).__name__} has layers of {other}, which compute more than torch's "
            "nn.Linear: they cannot be gated; use medusa, eagle or no adapter"
        )
    shapes: dict[str, tuple[int, int]] = {}
    for name, layer in linear_layers(module).items():
        number = next((int(part) for part in name.split(".") if part.isdigit()), 0)
        if number >= enter:
            shapes[name] = (*layer_weight(layer).shape,)
    return shapes


def decoder_layers(module: Any) -> nn.ModuleList:
    """Return the decoder layers of a causal LM in order, or raise `ValueError` without any."""
    count = module.config.get_text_config().num_hidden_layers
    for part in text_model(module).modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return part
    raise ValueError(f"the {count} decoder layers of {type(module).__name__} are not found")


def layer_weight(layer: nn.Module) -> Tensor:
    """Return a view ``[in, out]`` of a linear layer's weight."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.t() if isinstance(layer, nn.Linear) else weight


class GatedModule:
    """A module with wrapped linear layers, of which `active` changes what they compute.

    `layers` are all linear layers except the head, by name.
    """

    def __init__(self, module: Any) -> None:
        """Wrap a causal LM in place."""
        self.layers = linear_layers(module)
        self._plain = [partial(by_tiles, layer.forward) for layer in self.layers.values()]
        self._active: Forward | None = None
        for index, layer in enumerate(self.layers.values()):
            layer.forward = self._wrapped(index, self._plain[index])

    def _wrapped(self, index: int, plain: Run) -> Run:
        def forward(x: Tensor) -> Tensor:
            return plain(x) if self._active is None else self._active(index, x)

        return forward

    @contextmanager
    def active(self, forward: Forward) -> Iterator[None]:
        """Let layer `index` of `layers` compute ``forward(index, x)`` inside."""
        assert self._active is None, "an adapter is active already"
        self._active = forward
        try:
            yield
        finally:
            self._active = None

    @contextmanager
    def gated(self, deltas: Sequence[Any], gate: Tensor) -> Iterator[None]:
        """Add deltas of `layers` (`Delta` or None) where the gate ``[B, N, 1]`` is 1."""

        def forward(index: int, x: Tensor) -> Tensor:
            out, delta = self._plain[index](x), deltas[index]
            if delta is None:
                return out
            open_rows = gate.to(out.dtype).view(*out.shape[:-1], 1)
            return out + by_tiles(delta.rows, x) * open_rows

        with self.active(forward):
            yield


def laid_out(weight: Tensor) -> Tensor:
    """Store ``[out, in]`` by columns in float32, else by rows, which is faster on a CPU."""
    return weight.t().contiguous().t() if weight.dtype == torch.float32 else weight.contiguous()


@torch.no_grad()
def join(layers: Sequence[nn.Linear]) -> Tensor:
    """Store weights of layers that share an input side by side, and return them ``[out, in]``.

    The layers' weights become views of the result.
    """
    joined = laid_out(torch.cat([layer.weight for layer in layers]))
    sizes = [layer.out_features for layer in layers]
    for layer, part in zip(layers, torch.split(joined, sizes), strict=True):
        layer.weight.data = part
    return joined


@torch.no_grad()
def fed_other_rows(module: Any, names: Sequence[str]) -> str | None:
    """Return the first layer whose input ``[…, in]`` has other rows than a call's tokens.

    Such rows are latents of the whole cache or one expert's rows; a gate cannot find slots in them.
    """
    layer_names = {module.get_submodule(name): name for name in names}
    strange: list[str] = []

    def watch(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        if layer in layer_names and args[0].numel() // args[0].shape[-1] != _ROWS:
            strange.append(layer_names[layer])

    num_words = module.config.get_text_config().vocab_size
    ids = torch.arange(_PREFIX + _ROWS, device=module.device)[None] % num_words
    # a cache without the config: the one for a window of 1 does not fit its masks
    name = cache_argument(module)
    fed = {name: type(getattr(module(ids[:, :1], use_cache=True), name))(), "use_cache": True}
    module(ids[:, :_PREFIX], **fed)
    with nn.modules.module.register_module_forward_pre_hook(watch):
        module(ids[:, _PREFIX:], **fed)
    return strange[0] if strange else None


def by_tiles(run: Run, x: Tensor) -> Tensor:
    """Return ``run(x)`` for rows ``[R, D]`` or ``[1, R, …]``, tile by tile if there are tiles."""
    dim = 0 if x.dim() == 2 else 1
    if tile_rows is None or x.shape[dim] <= tile_rows:
        return run(x)
    parts = x.split(tile_rows, dim)  # type: ignore[no-untyped-call]
    if dim == 1:  # with strides of a lone tile: else matmul copies its weights
        parts = [part.flatten(0, 1).unsqueeze(0) for part in parts]
    return torch.cat([run(part) for part in parts], dim)


_WHOLE = 32
"""Ranks of joined layers are padded to a multiple of this, which makes products faster."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The factors A ``[R, in]`` and B ``[out, R]``, or without A the whole delta ``[out, in]``."""

    low: Tensor | None
    high: Tensor

    @property
    def whole(self) -> Tensor:
        """The delta ``B A`` ``[out, in]``."""
        return self.high if self.low is None else self.high @ self.low

    def rows(self, x: Tensor) -> Tensor:
        """Return ``B A x`` ``[…, out]`` of rows ``[…, in]``."""
        return products.product(x if self.low is None else products.product(x, self.low), self.high)


Change = Delta | Tensor | None
"""What an adapter changes of a product: a low-rank delta, or the whole weight ``[out, in]``."""


def join_deltas(
    deltas: Sequence[Delta | None], sizes: Sequence[int], weight: Tensor, *, switches: bool
) -> Change:
    """Join the factors of layers that share an input, or multiply them if that costs less.

    Args:
        deltas: one for each layer; None: the layer is not changed.
        sizes: each layer's number of outputs.
        weight: that of all layers, ``[sum out, in]``.
        switches: return a whole delta as ``W + B A``, added in the factors' precision.
    """
    present = [delta for delta in deltas if delta is not None]
    lows = [delta.low for delta in present if delta.low is not None]
    if not present:
        return None
    if len(lows) < len(present) or weight.numel() <= sum(map(len, lows)) * sum(weight.shape):
        parts = [
            weight.new_zeros(size, weight.shape[1]) if delta is None else delta.whole
            for delta, size in zip(deltas, sizes, strict=True)
        ]
        whole = torch.cat(parts)
        if switches:
            return laid_out((weight.to(whole.dtype) + whole).to(weight))
        return Delta(None, laid_out(whole.to(weight)))
    blocks = [
        weight.new_zeros(size, 0) if delta is None else delta.high
        for delta, size in zip(deltas, sizes, strict=True)
    ]
    if missing := -sum(map(len, lows)) % _WHOLE:
        lows.append(weight.new_zeros(missing, weight.shape[1]))
        blocks.append(weight.new_zeros(0, missing))
    high = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return Delta(laid_out(torch.cat(lows).to(weight)), laid_out(high.to(weight)))


def layer_deltas(layers: Mapping[str, nn.Module], deltas: Mapping[str, Delta]) -> list[Change]:
    """Return the delta of each of a module's layers, or None, laid out like its weight."""
    pairs = [(deltas.get(name), layer_weight(layer).t()) for name, layer in layers.items()]
    return [join_deltas([delta], [len(w)], w, switches=False) for delta, w in pairs]

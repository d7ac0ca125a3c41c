"""Trained adapters and their folders.

`SlotAdapter` makes a causal LM its own parallel predictor. Slots run through base weights + a gated
low-rank delta, token rows only through the base weights. Thus target and parallel student are one
model with one KV cache. Source: PTP (arXiv 2512.21323), gated LoRA; Hu et al. 2021 (LoRA). Letters:
K slots, D hidden width, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoders.core.adapter.embedding import UniformEmbedding
from decoders.core.adapter.gating import Delta, fed_other_rows, layer_shapes, text_model
from decoders.core.adapter_config import (
    CONFIG_FILE,
    SLOT_VARIANTS,
    WEIGHTS_FILE,
    AdapterConfig,
    SizeRule,
    Variant,
)
from decoders.core.plugins import NETWORKS, network


class StoredAdapter(nn.Module):
    """Trained weights in a folder: ``adapter.json`` and ``adapter.safetensors``."""

    config: AdapterConfig

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Keep the configuration (subclasses draw fresh weights from `seed`)."""
        super().__init__()
        self.config = config

    @property
    def num_parameters(self) -> int:
        """Number of trained weights."""
        return sum(parameter.numel() for parameter in self.parameters())

    def check_width(self, width: int) -> None:
        """Raise `ValueError` unless a model's hidden states have the width of training."""
        if width != self.config.width:
            trained = self.config.width
            raise ValueError(f"the adapter was made for a model {trained} wide, not {width}")

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the configuration, and the weights cast to `dtype`, except for ids."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(self.config.to_json(), encoding="utf-8")
        state = {
            name: value.to(dtype if value.is_floating_point() else value.dtype).contiguous()
            for name, value in self.state_dict().items()
        }
        save_file(state, folder / WEIGHTS_FILE)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a folder in float32 on the CPU, or raise a `ValueError` of one line."""
        folder = Path(folder).expanduser()
        try:
            config = AdapterConfig.from_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            state = load_file(folder / WEIGHTS_FILE)
            state = {name: value.float() for name, value in state.items()}
            with torch.device("meta"):  # other sizes are refused before memory is allocated
                cls(config).load_state_dict(state, assign=True)
            adapter = cls(config)
            adapter.load_state_dict(state)
        except Exception as error:  # a network of another package may raise anything
            line = " ".join(" ".join(str(error).splitlines()[:2]).split())
            raise ValueError(
                f"adapter {str(folder)!r} cannot be loaded: {line}; give a folder written by "
                "`bench train` or `bench import`"
            ) from error
        return adapter.eval().requires_grad_(False)


class SlotAdapter(StoredAdapter):
    """The slot embedding, and A, B (or a full-rank delta) of every layer."""

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Make fresh weights that leave the base model's output unchanged (B = 0)."""
        if config.variant not in SLOT_VARIANTS:
            raise ValueError(f"it has heads ({config.variant}), but slots are needed here")
        super().__init__(config)
        generator = torch.Generator().manual_seed(seed)
        low, high = nn.ParameterDict(), nn.ParameterDict()
        for name, (num_in, num_out) in config.layers.items():
            if config.rank:
                low[_key(name)] = spread(generator, config.rank, num_in)
            high[_key(name)] = nn.Parameter(torch.zeros(num_out, config.rank or num_in))
        self.lora_a, self.lora_b = low, high
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # noqa: TID251 - nn.Linear draws from it; forked
            self.embedding = UniformEmbedding(
                config.code, config.width, config.embedding_hidden, config.conditioned
            )
        self.numbers: nn.Parameter | None = None
        if config.numbered:
            self.numbers = nn.Parameter(torch.zeros(config.num_slots, config.width))
        self.carried: nn.Parameter | None = None
        if config.enter:
            self.carried = nn.Parameter(torch.ones(config.num_slots))

    def entering(self, embedded: Tensor, number: Tensor, before: Tensor) -> Tensor:
        """Return entry states ``[K, D]`` of slots from the states `before` their branches."""
        assert self.carried is not None, "the slots of this adapter enter with the tokens"
        scale = self.carried[number.clamp(max=len(self.carried) - 1)]
        return before * scale[:, None].to(before.dtype) + embedded

    def deltas(self, dtype: torch.dtype) -> dict[str, Delta]:
        """Return the delta of each layer, with B scaled by alpha / r, cast."""
        deltas = dict[str, Delta]()
        for name in self.config.layers:
            key = _key(name)
            high = (self.lora_b[key] * self.config.scale).to(dtype)
            deltas[name] = Delta(self.lora_a[key].to(dtype) if self.config.rank else None, high)
        return deltas

    def check_fits(self, module: Any) -> None:
        """Raise `ValueError` unless a module has exactly these layers, fed with a call's rows."""
        layers, shapes = self.config.layers, layer_shapes(module, self.config.enter)
        for name in (*layers, *shapes):
            shape, expected = layers.get(name, "missing"), shapes.get(name, "missing")
            if tuple(shape) != tuple(expected):
                raise ValueError(
                    f"the adapter was made for another model: its layer {name} is {shape}, the "
                    f"model's {expected}"
                )
        self.check_width(module.get_input_embeddings().weight.shape[1])
        if (strange := fed_other_rows(module, list(shapes))) is not None:
            raise ValueError(
                f"{type(module).__name__} feeds its layer {strange} rows other than the call's, "
                "which no gate can tell apart; use medusa, eagle or no adapter"
            )


@dataclass(frozen=True, slots=True)
class TargetParts:
    """The parts of a target, which a network may share and must not change.

    Attributes:
        config: configuration of the text model.
        body: the text model without its head; its `layers` are the decoder layers.
        embedding: the token embedding.
        norm: the norm after the last layer (an identity if there is none).
        head: the output layer, from states after this norm ``[…, D]`` to logits ``[…, V]``.
        planes: heads and width (H, E) of the cached keys of each layer, and of its values, in turn.
        files: the file of each tensor of the checkpoint by name (in tests: the tensor).
    """

    config: Any
    body: Any
    embedding: Any
    norm: nn.Module
    head: Any
    planes: Sequence[tuple[int, int]]
    files: Mapping[str, Path | Tensor]

    @classmethod
    def of(cls, module: Any, planes: Sequence[tuple[int, int]], files: Mapping[str, Any]) -> Self:
        """Take a module of transformers apart, with its `planes` and `files`."""
        config, body = module.config.get_text_config(), text_model(module)
        norms = [part for part in body.children() if "norm" in type(part).__name__.lower()]
        norm = norms[-1] if norms else nn.Identity()
        embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
        return cls(config, body, embedding, norm, head, planes, files)

    def read(self, prefix: str) -> dict[str, Tensor]:
        """Read the tensors whose names begin with `prefix`, by the rest (`ValueError`: none)."""
        tensors = dict[str, Tensor]()
        for name, file in self.files.items():
            if name.startswith(prefix) and isinstance(file, Tensor):
                tensors[name.removeprefix(prefix)] = file
            elif name.startswith(prefix):
                with safe_open(file, framework="pt") as reader:
                    tensors[name.removeprefix(prefix)] = reader.get_tensor(name)
        if not tensors:
            raise ValueError(f"the model's files have no tensor {prefix}*")
        return tensors


class HiddenAdapter(StoredAdapter):
    """A network on hidden states. A subclass that names its `variant` registers its kind.

    Attributes:
        variant: name of the kind, and of the decoder that runs it.
        work: the `DraftPass` that runs it with a model's embedding and head.
        uses: sizes of `AdapterConfig` that the kind has, checked by `rules`; all others are 0.
        masked: drafts depend on no uniform.
        example: fields of `AdapterConfig` for test models, whose width 4 divides.
        student: drafts of test models: by ``heads`` that know the text, by a ``layer`` that also
            knows the drafts before, or by ``slots`` with uniforms.
        drafts: its picks are drafts (those of a confidence head are not).
    """

    variant: ClassVar[Variant]
    work: ClassVar[Any]
    uses: ClassVar[tuple[str, ...]] = ()
    masked: ClassVar[bool] = True
    example: ClassVar[Mapping[str, Any]] = {}
    student: ClassVar[Literal["heads", "layer", "slots"]] = "layer"
    drafts: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the kind."""
        super().__init_subclass__(**options)
        if "variant" in vars(cls):
            NETWORKS[cls.variant] = cls

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        """Keep the configuration, or raise `ValueError` for another variant."""
        if config.variant != self.variant:
            line = f"it is of variant {config.variant}, but {self.variant} is needed here"
            raise ValueError(line)
        super().__init__(config)

    @classmethod
    def rules(cls, config: AdapterConfig) -> Sequence[SizeRule]:
        """Return the rules of the sizes in `uses`."""
        return ()

    @property
    def plane_shapes(self) -> Sequence[tuple[int, int]]:
        """Heads and width (H, E) of each plane: keys of layer 0, its values, and so on."""
        num_heads = self.config.num_heads
        return [(num_heads, self.config.width // num_heads)] * 2 * max(1, self.config.num_layers)

    @classmethod
    def check_tensors(cls, names: Collection[str]) -> None:
        """Raise `ValueError` if a checkpoint's tensors, by name, lack the network's weights."""

    @classmethod
    def build(cls, target: TargetParts) -> Self:
        """Make the network of a decoder that needs one, without a folder (`ValueError`)."""
        sizes = {"code": "constant" if cls.masked else "dyadic", "layers": {}, **cls.example}
        config = AdapterConfig(variant=cls.variant, width=target.config.hidden_size, **sizes)
        return cls(config).to(target.embedding.weight)


def read_adapter(folder: str | Path) -> SlotAdapter | HiddenAdapter:
    """Load an adapter of any kind from its folder, or raise `ValueError` if it cannot be loaded."""
    file = Path(folder).expanduser() / CONFIG_FILE
    try:
        variant = AdapterConfig.from_json(file.read_text(encoding="utf-8")).variant
    except (ValueError, TypeError, OSError):
        return SlotAdapter.load(folder)  # raises an error that says what is wrong
    kind: type[SlotAdapter] = SlotAdapter if variant in SLOT_VARIANTS else network(variant)
    return kind.load(folder)


def spread(generator: torch.Generator, *shape: int) -> nn.Parameter:
    """Draw weights ``[…, in]`` uniformly from -1 / sqrt(in) to 1 / sqrt(in)."""
    bound = 1 / math.sqrt(shape[-1])
    return nn.Parameter(torch.rand(*shape, generator=generator) * 2 * bound - bound)


def _key(name: str) -> str:
    return name.replace(".", "/")

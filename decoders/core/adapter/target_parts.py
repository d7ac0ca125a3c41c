"""`TargetParts`: the parts of a target that a network of a decoder may be built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from decoders.core.adapter.gating import decoder_layers, text_model


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts:
    """The parts of a causal LM of transformers, which a network may share (never change).

    Attributes:
        config: configuration of the text model.
        embedding: token embedding.
        head: output layer, from states after the last norm ``[…, D]`` to logits ``[…, V]``.
        body: text model without its head, which makes these states.
        layers: its decoder layers.
        norm: norm after the last layer (an identity without one).
        planes: heads and width (H, E) of the cached keys of each layer, and of its values, in turn.
        tensors: tensors of the model's files by name, also those that transformers leaves out.
    """

    config: Any
    embedding: Any
    head: Any
    body: Any
    layers: nn.ModuleList
    norm: nn.Module
    planes: Sequence[tuple[int, int]]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, module: Any, planes: Sequence[tuple[int, int]], tensors: Mapping[str, Tensor]
    ) -> Self:
        """Take a module apart."""
        body = text_model(module)
        norms = [part for part in body.children() if "norm" in type(part).__name__.lower()]
        return cls(
            config=module.config.get_text_config(),
            embedding=module.get_input_embeddings(),
            head=module.get_output_embeddings(),
            body=body,
            layers=decoder_layers(module),
            norm=norms[-1] if norms else nn.Identity(),
            planes=planes,
            tensors=tensors,
        )

    @property
    def width(self) -> int:
        """D, the width of hidden states."""
        return int(self.head.weight.shape[1])

    def read(self, prefix: str) -> dict[str, Tensor]:
        """Read the tensors whose names begin with `prefix`, by the rest of their names.

        `ValueError` if there are none.
        """
        names = [name for name in self.tensors if name.startswith(prefix)]
        if not names:
            raise ValueError(
                f"no tensor in the model's files has a name that begins with {prefix!r}"
            )
        return {name.removeprefix(prefix): self.tensors[name] for name in names}

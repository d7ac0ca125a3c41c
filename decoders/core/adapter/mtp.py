"""`MtpLayer`: a model's own layer for multi-token prediction (MTP), read from its checkpoint.

An input row joins the hidden state at a position with the embedding of the token picked there. A
decoder layer of the target's own class and a norm turn it into the next state: the target's head
predicts a token from it, and the layer continues from it. Source: DeepSeek-V3 (arXiv 2412.19437,
section 2.2); tensors, their order, and the norm before the layer continues as in SGLang.
Letters: B sequences, N rows, D hidden width.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from decoders.core.adapter.draft_layer import LayerPass
from decoders.core.adapter.draft_pass import Inputs, write
from decoders.core.adapter.module import HiddenAdapter
from decoders.core.adapter.target_parts import TargetParts

_LAYOUTS: Mapping[str, Mapping[str, str]] = {
    r"(.*layers\.\d+\.)enorm\.weight": {
        "embed_tokens.": "",
        "shared_head.head.": "",
        "shared_head.norm.": "norm.",
        "enorm.": "token_norm.",
        "hnorm.": "state_norm.",
        "eh_proj.": "join.",
        "": "layer.",
    },
    r"(mtp\.)fc\.weight": {
        "pre_fc_norm_embedding.": "token_norm.",
        "pre_fc_norm_hidden.": "state_norm.",
        "fc.": "join.",
        "layers.0.": "layer.",
        "norm.": "norm.",
        "": "",
    },
}
"""Parts of a layer by the beginnings of their names, for the tensor that marks a layout.

The layouts are DeepSeek-V3's and Qwen3-Next's. An empty part is not read: copies of the target's
embedding and head, and further layers.
"""
_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")


def find_layer(names: Collection[str]) -> tuple[str, Mapping[str, str]] | None:
    """Return prefix and parts of the first MTP layer among a checkpoint's names, or None."""
    for mark, parts in _LAYOUTS.items():
        matches = (re.fullmatch(mark, name) for name in names)
        if prefixes := [match[1] for match in matches if match]:
            return min(prefixes, key=lambda prefix: (len(prefix), prefix)), parts
    return None


class MtpLayer(HiddenAdapter):
    """The layer: two norms and a join, a decoder layer, and a norm."""

    variant, work, noun = "mtp", LayerPass, "MTP layer was"
    token_norm: Any
    state_norm: Any
    join: nn.Linear
    layer: Any
    norm: Any
    turn: Any
    plane_shapes: Sequence[tuple[int, int]] = ()

    @classmethod
    def check_tensors(cls, names: Collection[str]) -> None:
        """See `HiddenAdapter.check_tensors`."""
        if find_layer(names) is None:
            raise ValueError(
                "the model's files have no MTP layer (model.layers.N.enorm.weight as DeepSeek-V3 "
                "has it, or mtp.fc.weight as Qwen3-Next); leave out the decoder mtp"
            )

    @classmethod
    def build(cls, target: TargetParts) -> Self:
        """Read the layer, or raise `ValueError` if it is unlike all layers of the target."""
        cls.check_tensors(target.tensors.keys())
        prefix, parts = find_layer(target.tensors.keys()) or ("", {})
        tensors = dict[str, Tensor]()
        for name, tensor in target.read(prefix).items():
            start = next(start for start in parts if name.startswith(start))
            if parts[start] and "rotary_emb" not in name:
                tensors[parts[start] + name.removeprefix(start)] = tensor
        tensors, first = _stacked(tensors), ""
        for index in reversed(range(len(target.layers))):
            network = super().build(target)
            network._make(target, index)
            wrong = _differences(network.state_dict(), tensors)
            if not wrong:
                break
            first = first or wrong[0]
        else:
            raise ValueError(
                f"its layer {prefix}* is none of the target's kind, which {first} shows first; "
                "quantised weights are not read"
            )
        old, like = target.layers[index].state_dict(), target.embedding.weight
        dtypes = {f"layer.{name}": tensor.dtype for name, tensor in old.items()}
        state = {
            name: tensor.to(like.device, dtypes.get(name, like.dtype))
            for name, tensor in tensors.items()
        }
        network.load_state_dict(state, assign=True)
        network.turn = target.body.rotary_emb
        network.plane_shapes = target.planes[2 * index : 2 * index + 2]
        network._try(like)
        return network.eval()

    def _make(self, target: TargetParts, index: int) -> None:
        """Make the modules without weights, with a layer like the target's at `index`."""
        width, config = target.width, target.config
        with torch.device("meta"):
            self.token_norm, self.state_norm, self.norm = (
                type(target.norm)(width, config.rms_norm_eps) for _ in range(3)
            )
            self.join = nn.Linear(2 * width, width, bias=False)
            self.layer = type(target.layers[index])(config, index)

    @torch.no_grad()
    def _try(self, like: Tensor) -> None:
        """Run two rows, so that a layer that takes other arguments is refused at once."""
        two = torch.arange(2, device=like.device)[None]
        inputs = {"positions": two, "entries": two, "states": like[None, :2]}
        inputs["mask.draft"] = (two <= two.mT)[None, None]
        planes = [like.new_zeros(1, heads, 2, width) for heads, width in self.plane_shapes]
        self(like[None, :2], inputs, planes)

    def forward(self, embedded: Tensor, inputs: Inputs, planes: Sequence[Tensor]) -> Tensor:
        """Return states ``[B, N, D]`` of rows with embedded tokens ``[B, N, D]``."""
        joined = torch.cat([self.token_norm(embedded), self.state_norm(inputs["states"])], -1)
        rows, sees = self.join(joined), inputs["mask.draft"]
        added = rows.new_zeros(sees.shape).masked_fill(~sees, torch.finfo(rows.dtype).min)
        out = self.layer(
            rows,
            attention_mask=added,
            position_ids=inputs["positions"],
            position_embeddings=self.turn(rows, inputs["positions"]),
            past_key_values=_Entries(planes, inputs["entries"], sees.shape[-1]),
            use_cache=True,
        )
        states: Tensor = self.norm(out)
        return states


class _Entries:
    """All that a layer's attention asks of a cache: it writes `entries` and reads the first T."""

    def __init__(self, planes: Sequence[Tensor], entries: Tensor, seen: int) -> None:
        self._planes, self._entries, self._seen = planes, entries, seen

    def update(self, *new: Any, **_: Any) -> list[Tensor]:
        write(self._planes, self._entries, new[:2])
        return [plane[:, :, : self._seen] for plane in self._planes]


def _differences(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    shapes, new = ({name: each.shape for name, each in part.items()} for part in (state, tensors))
    return sorted(name for name in shapes | new if shapes.get(name) != new.get(name))


def _stacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join the weights of experts as transformers' layers have them."""
    rest, experts = dict[str, Tensor](), defaultdict[str, dict[int, dict[str, Tensor]]](dict)
    for name, tensor in tensors.items():
        if match := _EXPERT.fullmatch(name):
            experts[match[1]].setdefault(int(match[2]), {})[match[3]] = tensor
        else:
            rest[name] = tensor
    for place, by_number in experts.items():
        weights = [by_number[number] for number in sorted(by_number)]
        gates = [torch.cat([each["gate"], each["up"]]) for each in weights]
        rest[f"{place}gate_up_proj"] = torch.stack(gates)
        rest[f"{place}down_proj"] = torch.stack([each["down"] for each in weights])
    return rest

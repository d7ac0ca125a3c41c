"""MTP: a model's own layer for multi-token prediction drafts (DeepSeek-V3, arXiv 2412.19437).

The layer was trained with the model and lies in its checkpoint. An input row joins the target's
hidden state at a position with the embedding of the token picked there. A decoder layer of the
target's own class and a norm turn it into the next state: the target's head predicts a token from
it, and the layer continues from it. All drafts of a step are one call; each run of the layer
counts. Sources: DeepSeek-V3, section 2.2; tensors, their order, and the norm before the layer
continues as in SGLang.

Letters: B sequences, N rows, D hidden width.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor, nn

from decoders.core.adapter.draft_layer import LayerPass
from decoders.core.adapter.draft_pass import Inputs, write
from decoders.core.adapter.gating import cache_argument
from decoders.core.adapter.module import HiddenAdapter, TargetParts
from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.length import Length
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.states import TreeDrafter
from decoders.core.drafting.verification import ExactChain
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS, DraftShape

_MARK = re.compile(r"(.*\blayers\.\d+\.)enorm\.weight|(mtp\.)fc\.weight")
"""A tensor that only MTP layers have, after their prefix: DeepSeek-V3's, and Qwen3-Next's."""
_NAMES = (
    "enorm.=token_norm. hnorm.=state_norm. eh_proj.=join. shared_head.norm.=norm. "
    "shared_head.head.= embed_tokens.= pre_fc_norm_embedding.=token_norm. "
    "pre_fc_norm_hidden.=state_norm. fc.=join. norm.=norm. layers.0.=layer. layers.= =layer."
)
"""Beginnings of names in checkpoints, and here. What has none here is not read: copies of the
target's embedding and head, and further layers."""
_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")


class MtpLayer(HiddenAdapter):
    """The layer: two norms and a join, a decoder layer, and a norm."""

    variant, work = "mtp", LayerPass
    plane_shapes: Sequence[tuple[int, int]] = ()
    token_norm: Any
    state_norm: Any
    join: nn.Linear
    layer: Any
    norm: Any
    turn: Any
    cache_argument: str

    @classmethod
    def check_tensors(cls, names: Collection[str]) -> None:
        """See `HiddenAdapter.check_tensors`."""
        _find_prefix(names)

    @classmethod
    def build(cls, target: TargetParts) -> Self:
        """Read the layer, or raise `ValueError` if it is unlike all layers of the target."""
        prefix, tensors = _find_prefix(target.files), dict[str, Tensor]()
        pairs = [pair.split("=") for pair in _NAMES.split()]
        for name, tensor in target.read(prefix).items():
            old, new = next(pair for pair in pairs if name.startswith(pair[0]))
            if new:
                tensors[new + name.removeprefix(old)] = tensor
        tensors, network = _stacked(tensors), super().build(target)
        shapes = {(name, each.shape) for name, each in tensors.items() if name[:6] == "layer."}
        olds = [layer.state_dict() for layer in target.body.layers]
        differences = [shapes ^ {(f"layer.{n}", e.shape) for n, e in old.items()} for old in olds]
        index, wrong = min(enumerate(differences), key=lambda pair: (len(pair[1]), -pair[0]))
        if wrong:
            raise ValueError(
                f"the MTP layer {prefix}* is like no layer of the model, see {min(wrong)[0]}; "
                "quantised weights, and those that --quantize packs, are not read"
            )
        width, embedding = target.config.hidden_size, target.embedding.weight
        with torch.device("meta"):
            norms = [type(target.norm)(width, target.config.rms_norm_eps) for _ in range(3)]
            network.token_norm, network.state_norm, network.norm = norms
            network.join = nn.Linear(2 * width, width, bias=False)
            network.layer = type(target.body.layers[index])(target.config, index)
        for name, tensor in tensors.items():
            like = olds[index].get(name.removeprefix("layer."), embedding)
            tensors[name] = tensor.to(embedding.device, like.dtype)
        network.load_state_dict(tensors, assign=True)
        network.turn = target.body.rotary_emb
        network.cache_argument = cache_argument(network.layer)
        network.plane_shapes = target.planes[2 * index : 2 * index + 2]
        row, first = embedding[None, :1], torch.zeros(1, 1, dtype=torch.int64).to(embedding.device)
        inputs = {"states": row, "positions": first, "entries": first}
        inputs["mask.draft"] = first[None, None] == 0
        planes = [row.new_zeros(1, heads, 1, size) for heads, size in network.plane_shapes]
        network(row, inputs, planes)  # a layer that needs more raises an error here
        return network

    def forward(self, embedded: Tensor, inputs: Inputs, planes: Sequence[Tensor]) -> Tensor:
        """Return states ``[B, N, D]`` of rows with embedded tokens ``[B, N, D]``."""
        joined = torch.cat([self.token_norm(embedded), self.state_norm(inputs["states"])], -1)
        rows, sees = self.join(joined), inputs["mask.draft"]

        def update(*new: Any, **_: Any) -> list[Tensor]:  # all that attention asks of a cache
            write(planes, inputs["entries"], new[:2])
            return [plane[:, :, : sees.shape[-1]] for plane in planes]

        out = self.layer(
            rows,
            attention_mask=rows.new_zeros(()).where(sees, torch.finfo(rows.dtype).min),
            position_ids=inputs["positions"],
            position_embeddings=self.turn(rows, inputs["positions"]),
            use_cache=True,
            **{self.cache_argument: SimpleNamespace(update=update)},
        )
        states: Tensor = self.norm(out)
        return states


def _find_prefix(names: Collection[str]) -> str:
    """Return the prefix of the first MTP layer among the names of tensors (`ValueError`: none)."""
    prefixes = [match[1] or match[2] for match in map(_MARK.fullmatch, names) if match]
    if not prefixes:
        raise ValueError(
            "the model's files have no MTP layer (no model.layers.N.enorm.weight as in DeepSeek-V3,"
            " no mtp.fc.weight as in Qwen3-Next); leave out the decoder mtp"
        )
    return min(prefixes, key=lambda prefix: (len(prefix), prefix))


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


@register("mtp")
@dataclass(frozen=True, kw_only=True)
class MultiTokenPrediction(DraftAndVerify):
    """Draft by the multi-token prediction layer of the checkpoint and verify. Lossless.

    Args:
        k: maximum drafts per step; each is one run of the layer, which was trained for the first.
        verify: `coupled` (the target's own picks, exactly AR's tokens) or `rejection` (drafts are
            drawn, then accepted or rejected: AR's distribution; the same at temperature 0);
            `block` tests drawn drafts jointly.
    """

    k: int = 1
    verify: ExactChain = "coupled"

    needs = ("network",)
    variants = ("mtp",)
    by_default = False

    def __post_init__(self) -> None:
        self.demand(1 <= self.k <= MAX_DRAFTS, "k", f"1 to {MAX_DRAFTS}")

    def drafter(self, request: Request) -> Drafter:
        """Draft from the target's hidden states of the text."""
        draws = self.verification.draws(request.sampling)
        shape = DraftShape(depth=self.k, draws=draws)
        return TreeDrafter(request, "mtp", shape, Length(self.k), branches=False)

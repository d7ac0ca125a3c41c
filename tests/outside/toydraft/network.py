"""A network of our own: a bigram head, which sees the last hidden state and the token before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoders.core.adapter.draft_pass import DraftPass, Inputs, Run, Texts
from decoders.core.adapter.module import HiddenAdapter
from decoders.core.adapter_config import AdapterConfig, SizeRule
from decoders.core.device import upload
from decoders.core.types import CallResult


class BigramPass(DraftPass):
    """Picks the likeliest tokens one after another."""

    def __call__(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Sequence[Tensor]:
        states, ids, drafted = inputs["states"][0], inputs["ids"][0], []
        for _ in range(self.layers.config.sizes["steps"]):
            logits = self.head(self.layers(states, self.embed(ids))).float()
            chance, ids = logits.softmax(-1).max(-1)
            drafted.append(torch.stack([ids.double(), chance.double()]))
        return (torch.stack(drafted, -1),)

    def draft(self, texts: Texts, run: Run, size: int) -> Sequence[CallResult]:
        calls = [call for call in texts.calls if call is not None]
        states = texts.last_states()
        ids = upload([[call.tokens[-1] for call in calls]], states.device)
        (drafted,) = run(None, {"states": states, "ids": ids}, ())
        return [
            CallResult(picks=tuple(map(int, tokens)), confidences=tuple(chances))
            for tokens, chances in zip(*drafted.tolist(), strict=True)
        ]


class Bigram(HiddenAdapter):
    """A matrix that mixes a state with the embedding of a token."""

    variant, work, plane_shapes = "bigram", BigramPass, ()
    uses, example = ("steps",), {"sizes": {"steps": 3}}

    def __init__(self, config: AdapterConfig, seed: int = 0) -> None:
        super().__init__(config)
        generator = torch.Generator().manual_seed(seed)
        shape = (config.width, 2 * config.width)
        self.mix = nn.Parameter(0.1 * torch.randn(shape, generator=generator))

    @classmethod
    def rules(cls, config: AdapterConfig) -> Sequence[SizeRule]:
        return [(config.sizes["steps"] in range(1, 9), "sizes", "1 to 8 steps")]

    def forward(self, states: Tensor, embedded: Tensor) -> Tensor:
        return states + torch.cat([states, embedded], -1) @ self.mix.T

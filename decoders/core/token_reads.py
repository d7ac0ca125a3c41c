"""Read tokens and their confidences from logits, in the graph of a pass or after it.

Letters: R rows read, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decoders.core.sampling import highest, in_parts, likeliest, pick, warp
from decoders.core.types import Confidence, Sampling

FORMS = frozenset({"picks", "draws", "argmax", "probs"})
"""Forms of `CallResult` that this module reads."""


class TokenRead(NamedTuple):
    """Read tokens in a form, with a measure of confidence, from logits warped by `warping`."""

    form: str
    confidence: Confidence
    sampling: Sampling

    @property
    def draws(self) -> bool:
        """True if uniforms decide."""
        return self.form != "argmax" and not self.sampling.greedy

    def __call__(
        self, logits: Tensor, uniforms: Tensor | None, *, sync: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return numbers of rows, and for `probs` their distributions ``[R, V]``.

        Args:
            logits: ``[R, V]``.
            uniforms: float64 ``[R]`` if the read `draws`.
            sync: see `warp`.

        Returns:
            Tokens ``[R]`` for `picks`, else tokens and confidences, float64 ``[2, R]``.
        """
        form, sampling, confidences = self.form, self.sampling, None
        if form == "picks":
            if uniforms is None:
                return likeliest(logits), None

            def draw(rows: Tensor, u: Tensor) -> Tensor:
                return pick(warp(rows, sampling, sync=sync), u)

            return in_parts(draw, logits, uniforms), None  # as no distribution is kept
        if form == "probs" or uniforms is not None:
            probs = warp(logits, sampling, sync=sync)
            tokens = likeliest(logits) if uniforms is None else pick(probs, uniforms)
        else:
            probs = torch.softmax(logits, -1)
            confidences, tokens = highest(probs)
        if confidences is None or self.confidence != "prob":
            indices = tokens.clamp(max=probs.shape[-1] - 1)  # V marks NaN and cannot be an index
            confidences = _rate_confidence(probs, indices, self.confidence)
        numbers = torch.stack((tokens.double(), confidences.double()))
        return numbers, probs if form == "probs" else None


TokenReads = Mapping[TokenRead, tuple[Sequence[int], Sequence[float]]]
"""Reads of a pass, with their rows among all its read rows, and their uniforms."""
Ahead = Mapping[str, tuple[Tensor, Tensor | None]]
"""Results of reads by form, computed with the logits."""


def _rate_confidence(distribution: Tensor, tokens: Tensor, kind: Confidence) -> Tensor:
    """Return the confidences of tokens ``[R]`` in distributions ``[R, V]`` (`Slots.confidence`)."""
    if kind == "neg_entropy":
        return torch.exp(torch.xlogy(distribution, distribution).sum(-1))
    prob = distribution.gather(-1, tokens[:, None]).squeeze(-1)
    if kind == "prob":
        return prob
    return prob - distribution.scatter(-1, tokens[:, None], 0.0).amax(-1)

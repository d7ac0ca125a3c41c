"""Read tokens and their confidences from logits, in the graph of a pass or after it.

Letters: R rows read, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decoders.core.device import power_of_two
from decoders.core.sampling import highest, in_parts, likeliest, pick, warp
from decoders.core.types import Confidence, Sampling

FORMS = frozenset({"picks", "draws", "argmax", "probs"})
"""Forms of `CallResult` that are read here."""


class TokenRead(NamedTuple):
    """A form, a measure of confidence, and what warps the logits."""

    form: str
    confidence: Confidence
    sampling: Sampling

    @classmethod
    def of(cls, form: str, confidence: Confidence, sampling: Sampling) -> TokenRead:
        """Leave out of `sampling` all that does not warp, so that seeds share a graph."""
        return cls(form, confidence, _warping(sampling.temperature, sampling.top_k, sampling.top_p))

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
        form, sampling, sure = self.form, self.sampling, None
        if form == "picks":
            if uniforms is None:
                return likeliest(logits), None
            # in parts, because no distribution is kept
            some = in_parts(
                lambda rows, u: pick(warp(rows, sampling, sync=sync), u), logits, uniforms
            )
            return some, None
        if form == "probs" or uniforms is not None:
            probs = warp(logits, sampling, sync=sync)
            tokens = likeliest(logits) if uniforms is None else pick(probs, uniforms)
        else:
            probs = torch.softmax(logits, -1)
            sure, tokens = highest(probs)
        if sure is None or self.confidence != "prob":
            indices = tokens.clamp(max=probs.shape[-1] - 1)  # V marks NaN and is no index
            sure = rate_confidence(probs, indices, self.confidence)
        numbers = torch.stack((tokens.double(), sure.double()))
        return numbers, probs if form == "probs" else None


TokenReads = Mapping[TokenRead, tuple[Sequence[int], Sequence[float]]]
"""Reads of a pass, with their rows among all that it reads, and their uniforms."""
Ahead = Mapping[str, tuple[Tensor, Tensor | None]]
"""Results of reads by form, computed with the logits."""


def pack_reads(reads: TokenReads) -> dict[str, list[int]]:
    """Return the rows (of several reads) and uniforms, padded to a power of two, by name."""
    numbers = dict[str, list[int]]()
    for read, (rows, uniforms) in reads.items():
        missing = [0] * (power_of_two(len(rows)) - len(rows))
        if len(reads) > 1:
            numbers[f"{read.form}.rows"] = [*rows, *missing]
        if read.draws:
            padded = torch.tensor([*uniforms, *missing], dtype=torch.float64)
            numbers[f"{read.form}.uniforms"] = padded.view(torch.int64).tolist()
    return numbers


def run_reads(
    reads: Sequence[TokenRead], logits: Tensor, numbers: Mapping[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Do reads by numbers of `pack_reads`, for the numbers of each and the distributions of some.

    None waits for the device, so that a graph can hold them.
    """
    results, laws = list[Tensor](), list[Tensor]()
    for read in reads:
        places, bits = (numbers.get(f"{read.form}.{part}") for part in ("rows", "uniforms"))
        rows = logits if places is None else logits.index_select(0, places)
        uniforms = None if bits is None else bits.view(torch.float64)
        each, probs = read(rows, uniforms, sync=False)
        results.append(each)
        laws += [] if probs is None else [probs]
    return results, laws


@functools.lru_cache(maxsize=16)
def _warping(temperature: float, top_k: int, top_p: float) -> Sampling:
    return Sampling(temperature=temperature, top_k=top_k, top_p=top_p)


def rate_confidence(distribution: Tensor, tokens: Tensor, kind: Confidence) -> Tensor:
    """Return the confidences of tokens ``[R]`` in distributions ``[R, V]`` (`Slots.confidence`)."""
    if kind == "neg_entropy":
        return torch.exp(torch.xlogy(distribution, distribution).sum(-1))
    prob = distribution.gather(-1, tokens[:, None]).squeeze(-1)
    if kind == "prob":
        return prob
    return prob - distribution.scatter(-1, tokens[:, None], 0.0).amax(-1)

"""Targets that predict masked tokens, as diffusion language models do, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedForm:
    """The form of a masked target.

    Attributes:
        mask_id: id of the mask token (None: unknown).
        shifted: the row of token i predicts token i + 1, as in the causal parent; else token i.
        block: tokens of a block, which see one another and all blocks before (0: all tokens see
            all others).
    """

    mask_id: int | None = None
    shifted: bool = False
    block: int = 0

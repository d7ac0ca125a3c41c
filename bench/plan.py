"""The plan of a run: which cells answer which prompts, in which blocks, in which order.

A *cell* is a decoder with its options; the baseline has a second arm, ``ar@aa``, which runs the
same decoder and shows the noise floor. A *block* is what is measured together: one prompt under one
repeat, or at batch size B a fixed group of 4B prompts. Repeats follow each other; within a repeat
blocks, and within a block cells, come in seeded random order, so that drift hits all cells alike.
The plan is written to ``manifest.json`` before the first measurement. No torch here.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.prompts import Skipped
from bench.records import SCHEMA

BASELINE = "ar"
SECOND_BASELINE = "ar@aa"
SAME_TOKENS, SAME_DISTRIBUTION, NO_GUARANTEE = "same tokens", "same distribution", "none"
"""What a cell may guarantee of its answers, held against ar's."""
WRONG = "WRONG"
"""Stands in their place where a cell claims to be lossless and was found not to be."""
_GUARANTEES = (SAME_TOKENS, SAME_DISTRIBUTION, NO_GUARANTEE, WRONG)
GROUPS_PER_BATCH = 4
"""Prompts of a block at batch size B, in units of B: the scheduler refills while it drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of every table: a decoder with all of its options resolved."""

    cell: str
    name: str
    label: str | None
    options: Mapping[str, Any]
    lossless: bool
    comparable_to_ar: bool


def guarantee(cell: Mapping[str, Any]) -> str | None:
    """What a planned cell (as in the manifest) claims of its answers; None where it is not said.

    Its class facts and options decide whether it is `lossless`, the temperature besides whether
    lossless means ar's very tokens (greedy, or coupled) or tokens of the same distribution.
    """
    if "lossless" not in cell:
        return None
    if not cell["lossless"]:
        return NO_GUARANTEE
    return SAME_TOKENS if cell.get("comparable_to_ar") else SAME_DISTRIBUTION


def guarantees(manifest: Mapping[str, Any], wrong: Collection[str] = ()) -> dict[str, str | None]:
    """The guarantee of every planned cell, `WRONG` for those in `wrong`."""
    cells = {str(cell["cell"]): guarantee(cell) for cell in manifest.get("cells", ())}
    return cells | dict.fromkeys(wrong, WRONG)


def place_of(promise: object) -> int:
    """The place of a guarantee's group in tables: the strongest first, an unknown one last."""
    return _GUARANTEES.index(promise) if promise in _GUARANTEES else len(_GUARANTEES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPrompt:
    """One turn of one conversation, and the passes it takes part in (``timing``, ``quality``).

    `reference` is what its answers are scored against, as JSON data (None: they are not scored).
    """

    prompt: str
    conversation: str
    turn: int
    family: str
    hash: str
    num_tokens: int
    passes: tuple[str, ...]
    reference: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Prompts (by name) measured together under one repeat, and the order of the cells."""

    block: int
    repeat: int
    prompts: tuple[str, ...]
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of manifest.json. `identity` holds hashes of what a resumed run must find unchanged."""

    name: str
    created_utc: str
    cells: tuple[Cell, ...]
    order_seed: int
    prompts: tuple[PlannedPrompt, ...]
    blocks: tuple[Block, ...]
    skipped: tuple[Skipped, ...]
    identity: Mapping[str, str | None]

    def to_manifest(self) -> dict[str, Any]:
        """The plan as JSON data."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_manifest(cls, data: Mapping[str, Any]) -> Plan:
        """The plan back from JSON data."""
        values = {key: value for key, value in data.items() if key != "schema"}
        return cls(
            **{
                **values,
                "cells": tuple(Cell(**cell) for cell in data["cells"]),
                "prompts": tuple(
                    PlannedPrompt(**{**prompt, "passes": tuple(prompt["passes"])})
                    for prompt in data["prompts"]
                ),
                "blocks": tuple(
                    Block(
                        block=block["block"],
                        repeat=block["repeat"],
                        prompts=tuple(block["prompts"]),
                        order=tuple(block["order"]),
                    )
                    for block in data["blocks"]
                ),
                "skipped": tuple(Skipped(**skipped) for skipped in data["skipped"]),
            }
        )

    @property
    def num_answers(self) -> int:
        """Timed answers the plan asks for, the second baseline's included."""
        return sum(len(block.prompts) * len(block.order) for block in self.blocks)

    def in_pass(self, name: str) -> tuple[PlannedPrompt, ...]:
        """Prompts of the ``timing`` or the ``quality`` pass."""
        return tuple(prompt for prompt in self.prompts if name in prompt.passes)


def order_blocks(
    prompts: Sequence[str], cells: Sequence[str], *, repeats: int, batch_size: int, seed: int
) -> tuple[Block, ...]:
    """Blocks in the order they are measured; the same arguments give the same order.

    `cells` are the cells without the baseline's second arm, which is added to every block.
    """
    shuffler = random.Random(seed)
    groups = _groups(prompts, batch_size, shuffler)
    arms = [*cells, SECOND_BASELINE]
    blocks: list[Block] = []
    for repeat in range(repeats):
        for group in shuffler.sample(groups, len(groups)):
            order = tuple(shuffler.sample(arms, len(arms)))
            blocks.append(Block(block=len(blocks), repeat=repeat, prompts=group, order=order))
    return tuple(blocks)


def _groups(
    prompts: Sequence[str], batch_size: int, shuffler: random.Random
) -> list[tuple[str, ...]]:
    """Single prompts, or fixed groups of 4B of them drawn over all families."""
    if batch_size == 1:
        return [(prompt,) for prompt in prompts]
    mixed = shuffler.sample(list(prompts), len(prompts))
    size = GROUPS_PER_BATCH * batch_size
    return [tuple(mixed[i : i + size]) for i in range(0, len(mixed), size)]

"""The plan of a run: the cells, the prompts, the blocks, and their order.

A *cell* is a decoder with its options. The baseline has a second arm, ``ar@aa``, which runs the
same decoder and shows the noise floor. A *block* is measured together: one prompt under one repeat,
or at batch size B a fixed group of 4B prompts. Repeats run one after another. Blocks within a
repeat, and cells within a block, are in seeded random order, so that drift affects all cells
equally. The plan is written to ``manifest.json`` before the first measurement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.errors import InvalidRunError
from bench.records.files import write_json
from bench.records.json_file import SCHEMA, parse, read_json
from bench.records.prompts import SkippedTurn
from bench.settings.bounds import Moment, Num, RecordSeed

MANIFEST = "manifest.json"
BASELINE = "ar"
SECOND_BASELINE = "ar@aa"
SAME_TOKENS, SAME_DISTRIBUTION, NO_GUARANTEE = "same tokens", "same distribution", "none"
"""Guarantees of a cell's answers, relative to the baseline's."""
NOT_VERIFIED = "not verified"
"""Replaces the guarantee of a cell whose tokens differ, if rounding is not shown to explain it."""
WRONG = "WRONG"
"""Replaces the guarantee of a cell that claims to be lossless and was found not to be."""
VERIFIED, CLAIMED, REFUTED = "verified", "claimed", "wrong"
"""Outcomes of the checks of a lossless cell: passed, not possible, failed."""
_GUARANTEES = (SAME_TOKENS, SAME_DISTRIBUTION, NOT_VERIFIED, NO_GUARANTEE, WRONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of every table: a decoder with all options resolved.

    The decoder's class and options determine `lossless`, whether it `drafts`, and what it
    `remembers` (``answers``, or None). With the temperature, they determine `comparable_to_ar`:
    lossless then means exactly ar's tokens (greedy, or coupled). `code` is the SHA-256 of the
    decoder's own source files (`bench.plan.code`). `checked` is the outcome of the contract's
    checks when the run was planned (`VERIFIED`, `CLAIMED` or `REFUTED`; None: not a lossless cell,
    or not known); `check_note` says what they found.
    """

    cell: str
    name: str | None = None
    label: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    lossless: bool
    comparable_to_ar: bool | None = None
    code: str | None = None
    drafts: bool | None = None
    remembers: str | None = None
    checked: str | None = None
    check_note: str | None = None

    @property
    def guarantee(self) -> str:
        """Guarantee that the cell claims for its answers."""
        if not self.lossless:
            return NO_GUARANTEE
        return SAME_TOKENS if self.comparable_to_ar else SAME_DISTRIBUTION


def guarantee_rank(guarantee: object) -> int:
    """Return a guarantee's position in tables: strongest first, unknown ones last."""
    return _GUARANTEES.index(guarantee) if guarantee in _GUARANTEES else len(_GUARANTEES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPrompt:
    """One turn of one conversation, and the passes that use it (``timing``, ``quality``).

    `reference` is the gold answer for scoring, as JSON data (None: answers are not scored).
    """

    prompt: str
    conversation: str
    turn: Num
    family: str
    hash: str
    num_tokens: Num
    passes: tuple[str, ...]
    reference: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Prompts (by name) measured together under one repeat, and the order of the cells."""

    block: Num
    repeat: Num
    prompts: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def num_answers(self) -> int:
        """Number of answers in a complete block, the second baseline's included."""
        return len(self.prompts) * len(self.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The content of manifest.json, with hashes (`identity`) that a resume must find unchanged.

    In a part of a plan (``bench run --part 2/4``), `parts` names the part and `whole` is the digest
    of the whole plan. A merged run lists several parts, or none if it is complete.
    """

    name: str | None = None
    created_utc: Moment | None = None
    cells: tuple[Cell, ...] = ()
    order_seed: RecordSeed | None = None
    prompts: tuple[PlannedPrompt, ...] = ()
    blocks: tuple[Block, ...] = ()
    skipped: tuple[SkippedTurn, ...] = ()
    identity: Mapping[str, str | None] | None = None
    parts: tuple[str, ...] = ()
    whole: str | None = None

    @property
    def digest(self) -> str:
        """Hash of the whole plan's prompts, cells and order: sixteen hexadecimal digits."""
        if self.whole is not None:
            return self.whole
        prompts = [(p.prompt, p.hash, p.passes) for p in self.prompts]
        blocks = [asdict(block) for block in self.blocks]
        cells = [(c.cell, c.name, dict(c.options)) for c in self.cells]
        text = json.dumps([prompts, blocks, cells], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_manifest(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return {"schema": SCHEMA, **asdict(self)}

    def guarantees(self, revised: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Return the guarantee of every planned cell, with those that are `revised` replaced."""
        return {cell.cell: cell.guarantee for cell in self.cells} | dict(revised)

    @property
    def num_answers(self) -> int:
        """Number of planned timed answers."""
        return sum(block.num_answers for block in self.blocks)

    def in_pass(self, name: str) -> tuple[PlannedPrompt, ...]:
        """Return the prompts of the ``timing`` or ``quality`` pass."""
        return tuple(prompt for prompt in self.prompts if name in prompt.passes)


def read_plan(run_dir: Path) -> Plan | None:
    """Read manifest.json, if it exists (raises as `read_json` and `parse`)."""
    file = run_dir / MANIFEST
    data = read_json(file)
    if data is not None and "blocks" not in data:
        raise InvalidRunError(f"{file} is damaged: its blocks are missing")
    return None if data is None else parse(Plan, data, file)


def write_plan(run_dir: Path, plan: Plan) -> None:
    """Replace manifest.json (`BenchError` if writing fails)."""
    write_json(run_dir / MANIFEST, plan.to_manifest())

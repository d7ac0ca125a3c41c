"""Read and write the plan of a run (``manifest.json``) and its status (``run.json``).

A *cell* is a decoder with its options. The baseline, to which speed-ups refer, is ``ar`` unless the
run says otherwise. It has a second arm, e.g. ``ar@aa``, which runs the same decoder and shows the
noise floor. A *block* is measured together: one prompt under one repeat,
or at batch size B a fixed group of 4B prompts. Repeats run one after another. Blocks within a
repeat, and cells within a block, are in seeded random order, so that drift affects all cells
equally. The plan is written before the first measurement.

``run.json`` has the status of a run, its counts, and its verdict. It is written when the folder is
created (``opening``), before the first measurement (``started``), and with the verdict at the end.
Values not yet known are None and not written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.errors import InvalidRunError, UsageError
from bench.records.files import SCHEMA, parse, read_json, write_json
from bench.records.prompts import SkippedTurn
from bench.settings.bounds import Gap, Moment, Num, Real, RecordSeed, Time

MANIFEST = "manifest.json"
BASELINE = "ar"
"""The usual baseline. In every run that has it, `ar` is the reference of tokens and likelihoods."""
SECOND = "@aa"
"""Suffix of the name of a baseline's second arm."""
SAME_TOKENS, SAME_DISTRIBUTION, NO_GUARANTEE = "same tokens", "same distribution", "none"
"""Guarantees of a cell's answers, relative to the baseline's."""
NOT_VERIFIED = "not verified"
"""Replaces the guarantee of a cell whose tokens differ, unless rounding is shown to explain it."""
WRONG = "WRONG"
"""Replaces the guarantee of a cell that claims to be lossless and was found not to be."""
VERIFIED, CLAIMED, REFUTED = "verified", "claimed", "wrong"
"""Outcomes of the checks of a lossless cell: passed, not possible, failed."""
_GUARANTEES = (SAME_TOKENS, SAME_DISTRIBUTION, NOT_VERIFIED, NO_GUARANTEE, WRONG)
STATUS = "run.json"
COMPLETE = "complete"


def baseline_arms(arms: Iterable[str]) -> tuple[str, str]:
    """Return the arm among `arms` that has a second arm (by default ar), and that second arm."""
    baseline = next((arm.removesuffix(SECOND) for arm in arms if arm.endswith(SECOND)), BASELINE)
    return baseline, baseline + SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of every table: a decoder with all options resolved.

    The decoder's class and options determine `lossless`, whether it `drafts`, and what it
    `remembers` (``answers``, or None). With the temperature, they determine `comparable_to_ar`:
    lossless then means exactly ar's tokens (greedy, or coupled). `code` is the SHA-256 of the
    decoder's own source files (`bench.plan.code`), `package` the name and version of the installed
    package that has them (None: of none). `checked` is the outcome of the contract's checks when
    the run was planned (`VERIFIED`, `CLAIMED` or `REFUTED`; None: not a lossless cell, or not
    known); `check_note` has their findings.
    """

    cell: str
    name: str | None = None
    label: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    lossless: bool
    comparable_to_ar: bool | None = None
    code: str | None = None
    package: str | None = None
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
    """The content of manifest.json, with hashes (`identity`) that must not change in a resume.

    In a part of a plan (``bench run --part 2/4``), `parts` names the part and `whole` is the digest
    of the whole plan. A merged run lists several parts, or none if it is complete.
    """

    name: str | None = None
    cells: tuple[Cell, ...] = ()
    order_seed: RecordSeed | None = None
    prompts: tuple[PlannedPrompt, ...] = ()
    blocks: tuple[Block, ...] = ()
    skipped: tuple[SkippedTurn, ...] = ()
    identity: Mapping[str, str | None] | None = None
    parts: tuple[str, ...] = ()
    whole: str | None = None

    @property
    def baseline(self) -> str:
        """The cell to which speed-ups refer."""
        return baseline_arms(self.blocks[0].order if self.blocks else ())[0]

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

    @property
    def num_answers(self) -> int:
        """Number of planned timed answers."""
        return sum(block.num_answers for block in self.blocks)

    def in_pass(self, name: str) -> tuple[PlannedPrompt, ...]:
        """Return the prompts of the ``timing`` or ``quality`` pass."""
        return tuple(prompt for prompt in self.prompts if name in prompt.passes)


def parse_part(text: str) -> tuple[int, int]:
    """Parse ``I/N`` of ``--part`` into two numbers, I from 1 to N (`UsageError`)."""
    number, _, total = text.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise UsageError(f"--part {text!r} is not I/N with I from 1 to N, e.g. 2/4")
    return int(number), int(total)


def select_part(plan: Plan, text: str) -> Plan:
    """Return part ``I/N`` of a plan: every N-th block, and every N-th prompt of the quality pass.

    So each part has blocks of every repeat and family. The part keeps the whole plan's block
    numbers and prompts (`UsageError` if no block is left to time).
    """
    number, total = parse_part(text)
    scored = {planned.prompt for planned in plan.in_pass("quality")[number - 1 :: total]}
    prompts = tuple(
        each
        if each.prompt in scored
        else replace(each, passes=tuple(name for name in each.passes if name != "quality"))
        for each in plan.prompts
    )
    blocks = plan.blocks[number - 1 :: total]
    if not blocks:
        raise UsageError(f"--part {text} is empty: the plan has {len(plan.blocks)} blocks")
    parts = (f"{number}/{total}",)
    return replace(plan, blocks=blocks, prompts=prompts, parts=parts, whole=plan.digest)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A cell that claims to be lossless but gave other tokens than the baseline.

    `num_answers` of `num_compared` answers differ, e.g. for the prompt `example`; `num_wrong` of
    them differ by more than rounding explains (None: not verified). Of the baseline's `num_tokens`
    tokens, `num_equal` come before a first difference. `places` counts the tokens before each first
    difference. `gaps` are the examined differences' distances from a tie (repeats counted once):
    between two logits, or above temperature 0 from u to the other token's share of the CDF.
    `places_off` is the largest distance of logits, in units of the dtype's last place: of these,
    and in half precision of all tokens of greedy answers from the target's likeliest ones.
    `check` is the first check of the contract that the cell fails, if any.
    """

    cell: str
    num_answers: Num | None = None
    num_compared: Num | None = None
    num_wrong: Num | None = None
    example: str | None = None
    num_tokens: Num | None = None
    num_equal: Num | None = None
    places: tuple[Num, ...] = ()
    gaps: tuple[Gap, ...] = ()
    places_off: Gap | None = None
    check: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Effect of rounding on the logits of the baseline's own answers, see `bench.verify.floor`.

    The target read `num_tokens` tokens of `num_answers` answers again. In calls of `rows` rows it
    picked the same tokens in `num_same` answers. It picked another token than the baseline
    `num_flips` times, in calls of `rows` rows or of many (the larger number). `moved` is the
    largest change of the gap of the two likeliest logits between calls of all shapes, in units of
    the last place of the dtype.
    """

    rows: Num
    num_answers: Num
    num_same: Num
    num_tokens: Num
    num_flips: Num
    moved: Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The content of run.json.

    `status` is ``opening``, ``started``, ``complete``, ``interrupted`` or ``error``. Runs with the
    same `ab` were measured interleaved by `bench ab`, which checked out `revision`. `reported` is
    False for a complete run until its report is written. `part` is the part of the plan to measure
    (``I/N``), kept only until there is a plan.
    """

    status: str | None = None
    started_utc: Moment | None = None
    attempts: Num | None = None
    verdict: str | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    differences: tuple[Difference, ...] | None = None
    floor: Floor | None = None
    num_records: Num | None = None
    num_errors: Num | None = None
    drift: Real | None = None
    num_graphs: Num | None = None
    compile_s: Time | None = None
    finished_utc: Moment | None = None
    reported: bool | None = None
    ab: str | None = None
    revision: str | None = None
    part: str | None = None

    @property
    def complete(self) -> bool:
        """Return whether the whole plan was measured."""
        return self.status == COMPLETE

    @property
    def compared(self) -> bool:
        """Return whether the answers were compared with the baseline's."""
        return self.differences is not None and self.num_records is not None

    @property
    def wrong(self) -> list[str]:
        """Cells that claim to be lossless but gave wrong tokens or fail the contract's checks."""
        return [each.cell for each in self.differences or () if each.num_wrong or each.check]

    @property
    def guarantees(self) -> dict[str, str]:
        """Guarantees by cell that replace claims which the answers refute or leave open."""
        return {
            each.cell: WRONG if each.num_wrong or each.check else NOT_VERIFIED
            for each in self.differences or ()
            if each.num_wrong != 0 or each.check
        }

    def to_json(self) -> dict[str, Any]:
        """Return the known values as JSON data."""
        data = {"schema": SCHEMA, **asdict(self)}
        for difference in data["differences"] or ():
            values = {key: value for key, value in difference.items() if value not in (None, ())}
            difference.clear()
            difference |= values
        return {key: value for key, value in data.items() if value is not None}


def checked_status(status: RunStatus, plan: Plan) -> RunStatus:
    """Add the checks that a plan's cells failed to the status, also if the run did not end."""
    by_cell = {each.cell: each for each in status.differences or ()}
    failed = {each.cell: str(each.check_note) for each in plan.cells if each.checked == REFUTED}
    for cell, check in failed.items():
        by_cell[cell] = replace(by_cell.get(cell, Difference(cell=cell)), check=check)
    return replace(status, differences=tuple(by_cell.values())) if failed else status


def read_status(run_dir: Path) -> RunStatus:
    """Read run.json, or return unknown fields if it is missing (raises as `parse`)."""
    file = run_dir / STATUS
    return parse(RunStatus, read_json(file) or {}, file)


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace run.json (`BenchError` if writing fails)."""
    write_json(run_dir / STATUS, status.to_json())

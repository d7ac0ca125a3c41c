"""``run.json``: how a run ended, its counts, and its verdict.

The file is written when the folder is created (``opening``), before the first measurement
(``started``), and with the verdict at the end. Values not yet known are None and not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from bench.records.files import write_json
from bench.records.json_file import SCHEMA, parse, read_json
from bench.records.plan import NOT_VERIFIED, WRONG
from bench.settings.bounds import Gap, Moment, Num, Real, Time

STATUS = "run.json"
COMPLETE = "complete"


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
    `check` is the check of the contract that the cell fails, if it fails one.
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
    """How rounding moves the logits of the baseline's own answers, see `bench.verify.floor`.

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

    @classmethod
    def pool(cls, floors: Sequence[Self]) -> Self | None:
        """Pool the floors of a run's parts, if there are any, with the rows of the first."""
        if not floors:
            return None
        counts = ("num_answers", "num_same", "num_tokens", "num_flips")
        sums = {name: sum(getattr(floor, name) for floor in floors) for name in counts}
        return cls(rows=floors[0].rows, moved=max(floor.moved for floor in floors), **sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The content of run.json.

    `status` is ``opening``, ``started``, ``complete``, ``interrupted`` or ``error``. Runs with the
    same `ab` were measured interleaved by `bench ab`, which checked out `revision`. `reported` is
    False for a complete run until its report is written; `split` is as configured.
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
    num_blocks: Num | None = None
    num_loaded_blocks: Num | None = None
    max_other_cores: Real | None = None
    drift: Real | None = None
    num_graphs: Num | None = None
    compile_s: Time | None = None
    finished_utc: Moment | None = None
    reported: bool | None = None
    split: str | None = None
    ab: str | None = None
    revision: str | None = None

    @property
    def complete(self) -> bool:
        """Return whether the whole plan was measured."""
        return self.status == COMPLETE

    @property
    def wrong(self) -> list[str]:
        """Cells that claim to be lossless but gave wrong tokens or fail the contract's checks."""
        return [each.cell for each in self.differences or () if each.num_wrong or each.check]

    @property
    def guarantees(self) -> dict[str, str]:
        """Guarantees by cell in place of claimed ones that the answers refute or leave open."""
        return {
            each.cell: WRONG if each.num_wrong or each.check else NOT_VERIFIED
            for each in self.differences or ()
            if each.num_wrong != 0 or each.check
        }

    @property
    def ends_early(self) -> bool:
        """Return whether the run ends before it begins, as a clock that is set back makes it."""
        if self.started_utc is None or self.finished_utc is None:
            return False
        start, end = map(datetime.fromisoformat, (self.started_utc, self.finished_utc))
        return end < start

    @property
    def ended_utc(self) -> str | None:
        """The end of the run, or its beginning if the end is unknown or cannot be."""
        return self.started_utc if self.ends_early else self.finished_utc or self.started_utc

    def to_json(self) -> dict[str, Any]:
        """Return the known values as JSON data."""
        data = {"schema": SCHEMA, **asdict(self)}
        for difference in data["differences"] or ():
            values = {key: value for key, value in difference.items() if value not in (None, ())}
            difference.clear()
            difference |= values
        return {key: value for key, value in data.items() if value is not None}


def with_checks(differences: Iterable[Difference], failed: Mapping[str, str]) -> list[Difference]:
    """Add the checks that cells failed, by cell, to the differences of a run."""
    by_cell = {each.cell: each for each in differences}
    for cell, check in failed.items():
        by_cell[cell] = replace(by_cell.get(cell, Difference(cell=cell)), check=check)
    return list(by_cell.values())


def read_status(run_dir: Path) -> RunStatus:
    """Read run.json, or return unknown fields if it is missing (raises as `parse`)."""
    file = run_dir / STATUS
    return parse(RunStatus, read_json(file) or {}, file)


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace run.json (`BenchError` if writing fails)."""
    write_json(run_dir / STATUS, status.to_json())

"""``run.json``: how a run ended, its counts, and its verdict.

The file is written when the folder is created (``opening``), before the first measurement
(``started``), and with the verdict at the end. Values not yet known are None and not written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.records.files import write_json
from bench.records.json_file import SCHEMA, parse, read_json

STATUS = "run.json"
COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A cell that claims to be lossless but gave other tokens than the baseline.

    `num_answers` of `num_compared` answers differ, e.g. for the prompt `example`; `num_wrong` of
    them differ by more than a near-tie (None: not judged). Of the baseline's `num_tokens` tokens,
    `num_equal` come before a first difference. `places` counts the tokens before each first
    difference. `gaps` are the examined differences' distances from a tie (repeats counted once):
    between two logits, or above temperature 0 from u to the other token's share of the CDF.
    """

    cell: str
    num_answers: int | None = None
    num_compared: int | None = None
    num_wrong: int | None = None
    example: str | None = None
    num_tokens: int | None = None
    num_equal: int | None = None
    places: tuple[int, ...] = ()
    gaps: tuple[int | float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The content of run.json.

    `status` is ``opening``, ``started``, ``complete``, ``interrupted`` or ``error``. Runs with the
    same `ab` were measured interleaved by `bench ab`, which checked out `revision`. `reported` is
    False for a complete run until its report is written; `split` is as configured.
    """

    status: str | None = None
    started_utc: str | None = None
    attempts: int | None = None
    verdict: str | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    differences: tuple[Difference, ...] | None = None
    num_records: int | None = None
    num_errors: int | None = None
    num_blocks: int | None = None
    num_loaded_blocks: int | None = None
    max_other_cores: float | None = None
    drift: float | None = None
    num_graphs: int | None = None
    compile_s: float | None = None
    finished_utc: str | None = None
    reported: bool | None = None
    split: str | None = None
    ab: str | None = None
    revision: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the whole plan was measured."""
        return self.status == COMPLETE

    @property
    def wrong(self) -> list[str]:
        """Cells that claim to be lossless but gave wrong tokens."""
        return [difference.cell for difference in self.differences or () if difference.num_wrong]

    def to_json(self) -> dict[str, Any]:
        """Return the known values as JSON data."""
        data = {"schema": SCHEMA, **asdict(self)}
        for difference in data["differences"] or ():
            known = {key: value for key, value in difference.items() if value not in (None, ())}
            difference.clear()
            difference |= known
        return {key: value for key, value in data.items() if value is not None}


def read_status(run_dir: Path) -> RunStatus:
    """Read run.json; all fields are unknown if the file is missing (raises as `parse`)."""
    file = run_dir / STATUS
    return parse(RunStatus, read_json(file) or {}, file)


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace run.json (`BenchError` if writing fails)."""
    write_json(run_dir / STATUS, status.to_json())

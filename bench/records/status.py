"""``run.json``: how a run ended, what it counts, and its verdict.

It is written when the folder is made (``opening``), before the first measurement (``started``), and
when the run ended, judged. What a stage does not know yet is None, and not written.
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
    """A cell that claims to be lossless and left the baseline's tokens.

    It did so on `num_answers` of `num_compared` answers, `num_wrong` of which are no near-ties
    (None where that is not judged); `example` is a prompt. Of the baseline's `num_tokens` tokens in
    these answers `num_equal` come before a first difference. `places` are the tokens before each
    first difference, and `gaps` how far from a tie it is: logits apart, or above temperature 0 u
    from the other token's share (as many as were looked at; repeats of one are looked at once).
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
    same `ab` were measured interleaved by `bench ab`, which was asked to check out `revision`. Of a
    complete run whose report was not written yet `reported` is False; `split` is as configured.
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
        """Tell whether the whole plan was measured."""
        return self.status == COMPLETE

    @property
    def wrong(self) -> list[str]:
        """Cells that claim to be lossless and left the baseline's tokens."""
        return [difference.cell for difference in self.differences or () if difference.num_wrong]

    def to_json(self) -> dict[str, Any]:
        """Return as JSON data what is known."""
        data = {"schema": SCHEMA, **asdict(self)}
        for difference in data["differences"] or ():
            known = {key: value for key, value in difference.items() if value not in (None, ())}
            difference.clear()
            difference |= known
        return {key: value for key, value in data.items() if value is not None}


def read_status(run_dir: Path) -> RunStatus:
    """Return run.json, unknown in all fields where there is none (raises as `parse`)."""
    file = run_dir / STATUS
    return parse(RunStatus, read_json(file) or {}, file)


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace run.json (`BenchError` where it cannot be written)."""
    write_json(run_dir / STATUS, status.to_json())

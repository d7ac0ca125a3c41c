"""Write the summary of ``make gpu``: summary.json, small enough to commit.

The module reads the lines and run folders of all steps, passed or failed, and needs only the
standard library.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

_SCHEMA = 2
_COLUMNS = (
    *("decoder", "guarantee", "speedup", "speedup_low", "speedup_high", "tokens_per_call"),
    *("decode_time_per_token_s", "energy_per_token_j", "identical_to_ar", "quality", "errors"),
)
"""Columns of a run's summary."""


class Status(StrEnum):
    """Enumerate the states of a step."""

    PLANNED = "planned"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    OUT_OF_TIME = "out of time"
    INTERRUPTED = "interrupted"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Hold a command (``python -m`` and `words`), its outcome, and figures read from its results.

    The command may take `budget_s` seconds, start and end included. A step created with a `reason`
    is not run.
    """

    name: str
    kind: Literal["tests", "lines", "run"]
    words: tuple[str, ...]
    budget_s: float
    status: Status = Status.PLANNED
    exit_code: int | None = None
    seconds: float = 0.0
    reason: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


def read_figures(step: Step, folder: Path) -> Step:
    """Read an ended step's results from `folder`, and fail a passed step without results."""
    log = (folder / f"{step.name}.log").read_text(encoding="utf-8", errors="replace")
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
    status, reason = step.status, None if step.status is Status.PASSED else last
    figures: dict[str, Any] = {"last_line": last} if step.kind == "tests" else {}
    lines = read_lines(folder / f"{step.name}.jsonl") if step.kind == "lines" else []
    if results := lines[1:]:
        (machine,) = [each for each in lines if "machine" in each][:1]
        figures = {**machine, "lines": results}
    summaries = folder.glob(f"{step.name}/*/summary.csv") if step.kind == "run" else ()
    for path in sorted(summaries)[:1]:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["family"] == "all"]
        run = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        lines = [{name: row.get(name) or None for name in _COLUMNS} for row in rows]
        figures = {"verdict": run.get("verdict"), "reasons": run.get("reasons"), "lines": lines}
    if status is Status.PASSED and not figures:
        status, reason = Status.FAILED, "it left no result in its folder"
    reason = reason and reason.replace(str(folder), "OUT")
    return replace(step, status=status, reason=reason or None, figures=figures)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines. A killed process may leave an incomplete last line."""
    text = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def write_summary(folder: Path, steps: Sequence[Step], *, rehearsal: bool) -> None:
    """Replace summary.json atomically."""
    machines = (each.figures["machine"] for each in steps if "machine" in each.figures)
    machine: Mapping[str, Any] = next(machines, {})
    entries = [
        {
            "name": each.name,
            "command": " ".join(each.words).replace(str(folder), "OUT"),
            "status": each.status,
            "reason": each.reason,
            "exit_code": each.exit_code,
            "seconds": round(each.seconds, 1),
            "budget_s": each.budget_s,
            "figures": each.figures,
        }
        for each in steps
    ]
    data = {"schema": _SCHEMA, "rehearsal": rehearsal, "machine": machine, "steps": entries}
    part = folder / "summary.part"
    part.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / "summary.json")

"""``phases.json``: the time of a few answers by phase (`bench.measure.phases`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.errors import InvalidRunError
from bench.records.files import write_json
from bench.records.json_file import SCHEMA, parse, read_json
from bench.settings.bounds import Num, Time

PHASES_FILE = "phases.json"
PHASES = ("prefill", "draft", "verify", "sampling", "scheduler", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasedAnswer:
    """Seconds by phase and counts of one answer (or one group of B) of the second pass.

    `later_*` exclude the first step, as in `bench.stats.counters.Tally`. `repeat` is the repeat of
    the preceding timed block, whose seed the answer shares. `rows` counts the rows of calls, and
    `padded_rows` the padding that gives merged calls one width.
    """

    decoder: str
    prompts: tuple[str, ...]
    seconds: Mapping[str, Time]
    emitted: Num
    later_emitted: Num
    later_steps: Num
    repeat: Num
    rows: Num
    padded_rows: Num

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())


def write_phases(run_dir: Path, answers: Iterable[PhasedAnswer]) -> None:
    """Replace phases.json (`BenchError` if writing fails)."""
    data = {"phases": PHASES, "answers": [asdict(answer) for answer in answers]}
    write_json(run_dir / PHASES_FILE, {"schema": SCHEMA, **data})


def read_phases(run_dir: Path) -> tuple[PhasedAnswer, ...]:
    """Read the answers of the second pass, if it ran (`InvalidRunError`)."""
    path = run_dir / PHASES_FILE
    if (data := read_json(path)) is None:
        return ()
    if "answers" not in data:
        raise InvalidRunError(f"{path} is damaged: its answers are missing")
    return parse(tuple[PhasedAnswer, ...], data["answers"], path)

"""``phases.json``: seconds of a few answers by phase (`bench.measure.phases`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.errors import InvalidRunError
from bench.records.files import write_json
from bench.records.json_file import SCHEMA, parse, read_json

PHASES_FILE = "phases.json"
PHASES = ("prefill", "draft", "verify", "sampling", "scheduler", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasedAnswer:
    """One answer (or a group of B at a time) of the second pass: its seconds by phase, its counts.

    `later_*` count what came after the first step, as `bench.stats.counters.Tally` does. `repeat`
    is that of the timed block before it, whose seed it shares (None: the pass came after all of
    them, as it did in older runs). Its calls had `rows`; `padded_rows` more filled merged calls up
    to one width (both 0 in older runs).
    """

    decoder: str
    prompts: tuple[str, ...]
    seconds: Mapping[str, float]
    emitted: int
    later_emitted: int
    later_steps: int
    repeat: int | None = None
    rows: int = 0
    padded_rows: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of all phases together."""
        return sum(self.seconds.values())


def write_phases(run_dir: Path, answers: Iterable[PhasedAnswer]) -> None:
    """Replace phases.json (`BenchError` where it cannot be written)."""
    data = {"phases": PHASES, "answers": [asdict(answer) for answer in answers]}
    write_json(run_dir / PHASES_FILE, {"schema": SCHEMA, **data})


def read_phases(run_dir: Path) -> tuple[PhasedAnswer, ...]:
    """Return the answers of a run's second pass, none where it had none (`InvalidRunError`)."""
    path = run_dir / PHASES_FILE
    if (data := read_json(path)) is None:
        return ()
    if "answers" not in data:
        raise InvalidRunError(f"{path} is damaged: its answers are missing")
    return parse(tuple[PhasedAnswer, ...], data["answers"], path)

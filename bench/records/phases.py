"""``phases.json``: where the time of a few answers went, phase by phase (`bench.measure.phases`).

No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.errors import InvalidRunError

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
        """All phases together."""
        return sum(self.seconds.values())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Back from JSON data."""
        return cls(**{**data, "prompts": tuple(data["prompts"])})


def read_phases(run_dir: Path) -> tuple[PhasedAnswer, ...]:
    """What the second pass of a run measured; empty where it had none.

    Raises:
        BenchError: exit 4 on a damaged file.
    """
    path = run_dir / PHASES_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return tuple(PhasedAnswer.from_dict(answer) for answer in data["answers"])
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRunError(f"{path} is damaged: {error}") from error

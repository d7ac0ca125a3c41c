"""``external.jsonl``: another engine's answers to a run's prompts, one per line, append-only.

The file is stored in the run folder, but the plan, the verdict and the speed-ups of the run never
use it. Each `bench external` command is a new `session`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records.files import append_text, intact_lines
from bench.records.json_file import SCHEMA, check_schema, parse
from bench.settings.bounds import Num, RealOrInt, Time, TokenId

EXTERNAL = "external.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAnswer:
    """One answer of another engine, in one of its modes, to one prompt of the run.

    Attributes:
        session: number of the `bench external` command that measured the answer, from 0.
        engine: name of the engine, e.g. ``llamacpp``.
        version: version of the engine's package.
        mode: ``ar``, or one of the engine's speculative modes.
        options: options of the mode.
        model: name of the model's file or folder, without its path.
        prompt: name of the run's prompt.
        prompt_hash: hash of the prompt's ids.
        threads: number of CPU threads, if the engine was given one.
        tokens: ids of the answer, end token included.
        total_s: seconds from the request to the last token.
        calls: forward passes of the model, the prompt's included.
        drafted: number of drafted tokens.
        accepted: number of drafts that were accepted into the answer.
        num_tokens: length of the answer, if its ids are unknown.
        num_steps: number of steps that verified drafts, if the engine counts them.
        error: why the request failed; all measurements are then None.
        schema: schema of this file.
    """

    session: Num
    engine: str
    version: str
    mode: str
    options: dict[str, str | RealOrInt | bool | None]
    model: str
    prompt: str
    prompt_hash: str
    threads: Num | None = None
    tokens: tuple[TokenId, ...] | None = None
    total_s: Time | None = None
    calls: Num | None = None
    drafted: Num | None = None
    accepted: Num | None = None
    num_tokens: Num | None = None
    num_steps: Num | None = None
    error: str | None = None
    schema: Num = SCHEMA

    @property
    def name(self) -> str:
        """Engine and mode, as shown in tables."""
        return f"{self.engine}:{self.mode}"


def read_external(run_dir: Path) -> tuple[ExternalAnswer, ...]:
    """Read answers in measured order (raises as `intact_lines`, `check_schema` and `parse`)."""
    path = run_dir / EXTERNAL
    answers = []
    for line, _ in intact_lines(path):
        check_schema(path, line)
        answers.append(parse(ExternalAnswer, line, path))
    return tuple(answers)


def append_external(run_dir: Path, answer: ExternalAnswer) -> None:
    """Append one answer as one line (`BenchError` if writing fails)."""
    line = json.dumps(dataclasses.asdict(answer), ensure_ascii=False, separators=(",", ":"))
    append_text(run_dir / EXTERNAL, line + "\n")


def next_session(answers: Sequence[ExternalAnswer]) -> int:
    """Return the number of the session that follows these answers."""
    return max((answer.session for answer in answers), default=-1) + 1

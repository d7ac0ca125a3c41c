"""``external.jsonl``: answers of another engine to a run's own prompts, one a line, append-only.

They lie beside a run and are no part of it: no cell of the plan, no verdict, no speed-up rests on
them. Every `bench external` is a `session` of its own.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records.files import append_text, lines_of
from bench.records.json_file import SCHEMA, check_schema, parse

EXTERNAL = "external.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAnswer:
    """One answer of one mode of another engine to one prompt of the run.

    Attributes:
        session: which `bench external` of this run measured it, from 0.
        engine: its name here, e.g. ``llamacpp``.
        version: of the engine's package.
        mode: ``ar``, or one of its own speculative modes.
        options: of that mode.
        model: name of the model's file or folder, without its path.
        prompt: of the run.
        prompt_hash: of its ids.
        threads: of the processor, where the engine was told.
        tokens: ids of the answer, end token included.
        total_s: seconds from the request to its last token.
        calls: forward passes of the model, the prompt's included.
        drafted: tokens that were proposed.
        accepted: those of them that stand in the answer.
        num_tokens: of the answer, where its ids are not known.
        num_steps: that verified drafts, where the engine counts them.
        error: why there is no answer; all that would be measured is then None.
        schema: of this file.
    """

    session: int
    engine: str
    version: str
    mode: str
    options: dict[str, str | int | float | bool | None]
    model: str
    prompt: str
    prompt_hash: str
    threads: int | None = None
    tokens: tuple[int, ...] | None = None
    total_s: float | None = None
    calls: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    num_tokens: int | None = None
    num_steps: int | None = None
    error: str | None = None
    schema: int = SCHEMA

    @property
    def name(self) -> str:
        """Engine and mode, as tables call it."""
        return f"{self.engine}:{self.mode}"


def read_external(run_dir: Path) -> tuple[ExternalAnswer, ...]:
    """Return the answers in the order measured (raises as `lines_of`, `check_schema`, `parse`)."""
    path = run_dir / EXTERNAL
    answers = []
    for line, _ in lines_of(path):
        check_schema(path, line)
        answers.append(parse(ExternalAnswer, line, path))
    return tuple(answers)


def append_external(run_dir: Path, answer: ExternalAnswer) -> None:
    """Append one answer as one line (`BenchError` where it cannot be written)."""
    line = json.dumps(dataclasses.asdict(answer), ensure_ascii=False, separators=(",", ":"))
    append_text(run_dir / EXTERNAL, line + "\n")


def next_session(answers: Sequence[ExternalAnswer]) -> int:
    """Return the number of the session that begins after these."""
    return max((answer.session for answer in answers), default=-1) + 1

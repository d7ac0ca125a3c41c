"""``prompts.jsonl``: the very token ids and references of a run, one prompt a line.

A resumed run asks what the first one asked, frozen histories included, without the tasks' source
and without generating anything again; `bench show` reads the prompts from here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import InvalidRunError, UnavailableError
from bench.records.files import write_text
from bench.records.json_file import parse
from specbench_tasks.task import GoldAnswer

PROMPTS = "prompts.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One turn, tokenised: `turn` counts from 1, `hash` is of the ids, `num_cut` ids were cut.

    The first `num_kept` ids are those of the turn before and its answer, which a cache still has.
    """

    conversation: str
    turn: int
    family: str
    ids: tuple[int, ...]
    hash: str
    reference: GoldAnswer | None
    num_cut: int = 0
    num_kept: int = 0

    @property
    def name(self) -> str:
        """Identity of the prompt: conversation and turn."""
        return f"{self.conversation}#{self.turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedTurn:
    """One turn that is not measured, and why."""

    conversation: str
    turn: int
    family: str
    reason: str

    @property
    def name(self) -> str:
        """Identity of the turn: conversation and turn."""
        return f"{self.conversation}#{self.turn}"


def ids_hash(ids: Sequence[int]) -> str:
    """Return 16 hexadecimal digits of a prompt's ids: two runs prove that they asked the same."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def write_prompts(run_dir: Path, prompts: Sequence[Prompt]) -> None:
    """Write all prompts of a run (`BenchError` where that fails)."""
    lines = [json.dumps(dataclasses.asdict(prompt), ensure_ascii=False) for prompt in prompts]
    write_text(run_dir / PROMPTS, "".join(line + "\n" for line in lines))


def read_prompts(run_dir: Path) -> dict[str, Prompt]:
    """Return the prompts of a run by name (`UnavailableError`: missing, damaged, another hash)."""
    path = run_dir / PROMPTS
    try:
        text = path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.split("\n") if line]
        prompts = parse(tuple[Prompt, ...], lines, path)
    except (OSError, ValueError, RecursionError, InvalidRunError) as error:
        raise UnavailableError(f"cannot read {path}: {error}") from error
    for prompt in prompts:
        if ids_hash(prompt.ids) != prompt.hash:
            raise UnavailableError(f"{path} was changed: {prompt.name} does not match its hash")
    return {prompt.name: prompt for prompt in prompts}

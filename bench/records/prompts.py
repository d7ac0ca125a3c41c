"""``prompts.jsonl``: the very token ids and references of a run, one prompt a line.

A resumed run asks what the first one asked, frozen histories included, without the tasks' source
and without generating anything again; `bench show` reads the prompts from here. No torch here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError
from bench.records.files import write_text
from specbench_tasks.task import Constraint, GoldAnswer

PROMPTS = "prompts.jsonl"


def write_prompts(run_dir: Path, prompts: Sequence[Prompt]) -> None:
    """Write all prompts of a run.

    Raises:
        BenchError: exit 1.
    """
    lines = [json.dumps(dataclasses.asdict(prompt), ensure_ascii=False) for prompt in prompts]
    write_text(run_dir / PROMPTS, "".join(line + "\n" for line in lines))


def read_prompts(run_dir: Path) -> dict[str, Prompt]:
    """The prompts of a run by name.

    Raises:
        BenchError: exit 5 where the file is missing, or ids do not match their hash.
    """
    try:
        text = (run_dir / PROMPTS).read_text(encoding="utf-8")
        prompts = [_prompt(json.loads(line)) for line in text.split("\n") if line]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnavailableError(f"cannot read {run_dir / PROMPTS}: {error}") from error
    changed = [prompt.name for prompt in prompts if ids_hash(prompt.ids) != prompt.hash]
    if changed:
        line = f"{run_dir / PROMPTS} was changed: {changed[0]} does not match its hash"
        raise UnavailableError(line)
    return {prompt.name: prompt for prompt in prompts}


def _prompt(data: dict[str, Any]) -> Prompt:
    given = data["reference"]
    reference = given and GoldAnswer(
        answers=tuple(given["answers"]),
        constraints=tuple(Constraint(**constraint) for constraint in given["constraints"]),
    )
    return Prompt(**{**data, "ids": tuple(data["ids"]), "reference": reference})


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
    """16 hexadecimal digits that name a prompt's ids: two runs prove that they asked the same."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]

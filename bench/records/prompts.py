"""``prompts.jsonl``: the exact token ids and references of a run, one prompt per line.

A resumed run reads its prompts here, frozen histories included. It needs neither the tasks' source
nor any new generation. `bench show` reads the prompts here as well.
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
from bench.settings.bounds import Num, TokenId
from specbench_tasks.task import GoldAnswer

PROMPTS = "prompts.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One tokenised turn: `turn` counts from 1, `hash` covers the ids, `num_cut` ids were cut.

    The first `num_kept` ids repeat the previous turn and its answer, which a KV cache may hold.
    """

    conversation: str
    turn: Num
    family: str
    ids: tuple[TokenId, ...]
    hash: str
    reference: GoldAnswer | None
    num_cut: Num = 0
    num_kept: Num = 0

    @property
    def name(self) -> str:
        """Name of the prompt: conversation and turn."""
        return f"{self.conversation}#{self.turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedTurn:
    """One turn that is not measured, with the reason."""

    conversation: str
    turn: Num
    family: str
    reason: str

    @property
    def name(self) -> str:
        """Name of the turn: conversation and turn."""
        return f"{self.conversation}#{self.turn}"


def ids_hash(ids: Sequence[int]) -> str:
    """Return 16 hexadecimal digits of a hash of a prompt's ids, to prove that two prompts agree."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def write_prompts(run_dir: Path, prompts: Sequence[Prompt]) -> None:
    """Write all prompts of a run (`BenchError` if writing fails)."""
    lines = [json.dumps(dataclasses.asdict(prompt), ensure_ascii=False) for prompt in prompts]
    write_text(run_dir / PROMPTS, "".join(line + "\n" for line in lines))


def read_prompts(run_dir: Path) -> dict[str, Prompt]:
    """Read the prompts of a run by name (`UnavailableError`: missing, damaged or changed file)."""
    path = run_dir / PROMPTS
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise UnavailableError(f"cannot read {path}: it is no ordinary file")
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

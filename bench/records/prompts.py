"""Store the texts of a run: prompts as ids (``prompts.jsonl``), and pieces (``vocab.json``).

A resumed run reads its prompts from here, with their fixed histories, and needs neither the tasks'
source nor any new generation. `bench show` reads the prompts from here as well.

A piece is the text that an id adds after another token, for reading a run without a model, with
leading spaces, which many tokenizers drop at the start of a text. Bytes of a split character become
the replacement character.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import InvalidRunError, UnavailableError, as_error
from bench.records.files import parse, read_json, write_text
from bench.records.record import SampleRecord
from bench.settings.bounds import Num, TokenId
from bench.text import printable
from specbench_tasks.task import GoldAnswer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPTS = "prompts.jsonl"
VOCABULARY = "vocab.json"


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
    errors = (OSError, ValueError, RecursionError, InvalidRunError)
    with as_error(UnavailableError, errors, f"cannot read {path}: "):
        text = path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.split("\n") if line]
        prompts = parse(tuple[Prompt, ...], lines, path)
    for prompt in prompts:
        if ids_hash(prompt.ids) != prompt.hash:
            raise UnavailableError(f"{path} was changed: {prompt.name} does not match its hash")
    return {prompt.name: prompt for prompt in prompts}


def kept_prompts(run_dir: Path) -> dict[str, Prompt]:
    """Return `read_prompts` of a run, or no prompts if the run keeps none."""
    return read_prompts(run_dir) if (run_dir / PROMPTS).is_file() else {}


def pieces_in(
    tokenizer: PreTrainedTokenizerBase, records: Iterable[SampleRecord], prompts: Iterable[Prompt]
) -> dict[str, str]:
    """Return ``{"id": "piece"}``, as vocab.json has it, for all ids of answers and prompts.

    Ids of rejected drafts are among them.
    """
    ids = answered_ids(records).union(*(prompt.ids for prompt in prompts))
    anchor = tokenizer.encode("a", add_special_tokens=False, verbose=False)[-1:]
    start = len(str(tokenizer.decode(anchor)))
    return {str(token): str(tokenizer.decode([*anchor, token]))[start:] for token in sorted(ids)}


def answered_ids(records: Iterable[SampleRecord]) -> set[int]:
    """Return the ids in answers and in rejected drafts."""
    ids: set[int] = set()
    for record in records:
        ids.update(record.tokens or (), *(record.steps.rejected if record.steps else ()))
    return ids


def read_pieces(run_dir: Path) -> Callable[[int], str]:
    """Return a function from id to printable text, <id> if unknown (`InvalidRunError`)."""
    pieces = read_json(run_dir / VOCABULARY) or {}
    return cache(lambda token: printable(str(pieces.get(str(token), f"<{token}>"))))

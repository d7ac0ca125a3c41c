"""What completions are sampled, and the JSONL file that keeps them: one line each, as they end."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decoders.core.types import Sampling
from training.text.data import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPlan:
    """How many completions are sampled, and how.

    Attributes:
        num_completions: of all prompts and temperatures together.
        max_new_tokens: of a completion, its stop token included.
        temperatures: completions are spread over them evenly; 0 is greedy.
        top_p: mass of the nucleus; 1 is off.
        seed: decides which texts are drawn.
        batch_size: sequences at a time; a matter of speed alone.

    Raises:
        ValueError: on a value out of range.
    """

    num_completions: int = 2000
    max_new_tokens: int = 256
    temperatures: tuple[float, ...] = (1.0,)
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name in ("num_completions", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or above")
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            raise ValueError(
                f"temperatures are {list(self.temperatures)}; give one or more different ones"
            )
        for temperature in self.temperatures:
            self.sampling(temperature, frozenset())

    def sampling(self, temperature: float, stops: frozenset[int]) -> Sampling:
        """What the scheduler is told for the completions of one temperature."""
        return Sampling(
            temperature=temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            stop_ids=stops,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One text: its number in the plan, its prompt, and what the teacher wrote after it."""

    number: int
    temperature: float
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    def row(self) -> Row:
        """The prompt is context, the completion is learnt."""
        learn = [False] * len(self.prompt) + [True] * len(self.tokens)
        return Row([*self.prompt, *self.tokens], learn)

    def line(self) -> str:
        """The completion as a line of the file."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")) + "\n"


def completion_path(
    folder: Path, teacher: str, prompts: Sequence[tuple[int, ...]], plan: CompletionPlan
) -> Path:
    """Where the completions are kept: another file for whatever decides other ones."""
    settings = dataclasses.asdict(plan)
    del settings["batch_size"]
    text = json.dumps([teacher, prompts, settings], sort_keys=True)
    return folder / f"completions-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"


def read_completions(path: Path) -> dict[int, Completion]:
    """The completions of a file by number; a last line torn by a kill is left out."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    made = [
        Completion(
            number=fields["number"],
            temperature=fields["temperature"],
            prompt=tuple(fields["prompt"]),
            tokens=tuple(fields["tokens"]),
        )
        for fields in entries
    ]
    return {completion.number: completion for completion in made}


def write_completions(path: Path, completions: Iterable[Completion]) -> None:
    """Replaces the file by one of these completions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text("".join(c.line() for c in completions), encoding="utf-8")
    scratch.replace(path)

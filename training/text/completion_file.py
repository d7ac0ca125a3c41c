"""Plans of sampled completions, and the JSONL file that stores each completion when it ends."""

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
    """The total number of completions over all prompts and temperatures, and their sampling.

    `max_new_tokens` includes the stop token. Completions are spread evenly over `temperatures`.
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
        """Return the scheduler's settings for completions at one temperature."""
        return Sampling(
            temperature=temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            stop_ids=stops,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One completion: its number in the plan, its prompt, and the teacher's tokens after it."""

    number: int
    temperature: float
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    def row(self, *, tempered: bool) -> Row:
        """Return a row that learns the completion, with its temperature if `tempered`."""
        learn = [False] * len(self.prompt) + [True] * len(self.tokens)
        temperature = self.temperature if tempered else None
        return Row([*self.prompt, *self.tokens], learn, temperature)

    def line(self) -> str:
        """Return the completion as one line of the file."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")) + "\n"


def completion_path(
    folder: Path, teacher: str, prompts: Sequence[tuple[int, ...]], plan: CompletionPlan
) -> Path:
    """Return the file of a plan's completions, named by a hash of all that decides them."""
    settings = dataclasses.asdict(plan)
    del settings["batch_size"]
    text = json.dumps([teacher, prompts, settings], sort_keys=True)
    return folder / f"completions-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"


def read_completions(path: Path) -> dict[int, Completion]:
    """Return the completions of a file by number, without a last line that was cut off."""
    if not path.exists():
        return {}
    completions = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            fields = json.loads(line)
            ids = {name: tuple(fields[name]) for name in ("prompt", "tokens")}
            completions[fields["number"]] = Completion(**{**fields, **ids})
    return completions


def write_completions(path: Path, completions: Iterable[Completion]) -> None:
    """Replace the file with these completions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text("".join(c.line() for c in completions), encoding="utf-8")
    scratch.replace(path)

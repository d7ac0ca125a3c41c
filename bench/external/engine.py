"""The interface of another engine: a few modes, each of which answers one prompt at a time.

An adapter decodes ids greedily, turns off all reuse between prompts, and reads the engine's
counters. It imports the engine's package in functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Options = dict[str, str | int | float | bool | None]
"""Options of a mode, as they are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way an engine decodes: ``ar``, or speculation of its own with options."""

    name: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that all answers of a run have in common.

    `budget` and `longest_prompt` are tokens; `stop_ids` end an answer beside the engine's own end
    token, none does with `fixed_length`; `threads` None is the engine's choice.
    """

    model: str
    budget: int
    stop_ids: frozenset[int]
    fixed_length: bool
    longest_prompt: int
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The ids of an answer, and the engine's counters where it has them."""

    tokens: tuple[int, ...]
    calls: int | None = None
    drafted: int | None = None
    accepted: int | None = None


class Arm(Protocol):
    """An engine that is loaded in one mode."""

    def answer(self, ids: Sequence[int], budget: int) -> Answer:
        """Decode greedily after `ids`, at most `budget` tokens."""

    def close(self) -> None:
        """Give its memory back."""


class Engine(Protocol):
    """An engine of others; modes that can be loaded `together` answer each prompt in turn."""

    name: str
    together: bool

    def version(self) -> str:
        """Return its package's version (exit 5 where it is missing)."""

    def modes(self) -> Sequence[Mode]:
        """Return its modes, ``ar`` first."""

    def open(self, mode: Mode, request: Request) -> Arm:
        """Load the model for a mode."""


def recordable(values: Mapping[str, object]) -> Options:
    """Return options as they are recorded: what is no plain value becomes its text."""
    plain = (str, int, float, bool, type(None))
    return {name: v if isinstance(v, plain) else str(v) for name, v in values.items()}

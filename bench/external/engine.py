"""The interface of another engine: a few modes, each of which answers one prompt at a time.

An adapter decodes ids greedily, turns off all reuse between prompts, and reads the engine's
counters. It imports the engine's package in functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.errors import optional


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


class Engine:
    """An engine of others; modes that can be loaded `together` answer each prompt in turn."""

    name: str
    package: str
    together: bool

    def __init__(self, modes: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Take its modes' options: first ``ar``, of plain decoding, which has none."""
        self.modes = modes

    def module(self, part: str = "") -> Any:
        """Import its package or a part of it (exit 5 where that is missing)."""
        return optional(f"{self.package}{part}", self.name, f"--engine {self.name}")

    def open(self, mode: str, request: Request) -> Arm:
        """Load the model for a mode."""
        raise NotImplementedError

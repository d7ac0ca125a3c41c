"""Define the interface of another engine: modes that each answer one prompt at a time.

An implementation decodes ids greedily, turns off all reuse between prompts, and reads the engine's
counters. It imports the engine's package only inside functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.errors import optional


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Hold the settings that all answers of a run share.

    `budget` and `longest_prompt` count tokens. `stop_ids` and the engine's own end token end an
    answer, but not with `fixed_length`. If `threads` is None, the engine chooses.
    """

    model: str
    budget: int
    stop_ids: frozenset[int]
    fixed_length: bool
    longest_prompt: int
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """Hold the ids of an answer, and the engine's counters if there are any."""

    tokens: tuple[int, ...]
    calls: int | None = None
    drafted: int | None = None
    accepted: int | None = None


class EngineArm(Protocol):
    """Define an engine that is loaded in one mode."""

    def answer(self, ids: Sequence[int], budget: int) -> EngineAnswer:
        """Decode at most `budget` tokens greedily after `ids`."""

    def close(self) -> None:
        """Free the engine's memory."""


class Engine:
    """Define a third-party engine. Modes that load `together` answer each prompt in turn."""

    name: str
    package: str
    together: bool

    def __init__(self, modes: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Set the options of each mode, first of ``ar``, plain decoding without options."""
        self.modes = modes

    def module(self, part: str = "") -> Any:
        """Import the engine's package or a part of it (exit 5 if it is missing)."""
        return optional(f"{self.package}{part}", self.name, f"--engine {self.name}")

    def open(self, mode: str, request: Settings) -> EngineArm:
        """Load the model for a mode."""
        raise NotImplementedError

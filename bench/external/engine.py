"""What an engine of others is here: a few modes, each of which answers one prompt at a time.

An adapter sets the engine to greedy decoding of ids, turns off whatever would carry work from one
prompt to the next, and reads the engine's counters. It imports the engine's package in functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Protocol

from bench.errors import UnavailableError

Options = dict[str, str | int | float | bool | None]
"""Options of a mode, as they are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way an engine decodes: ``ar``, or speculation of its own with options."""

    name: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every answer of a run has in common.

    Attributes:
        model: path or hub id the engine loads.
        budget: most tokens of an answer.
        stop_ids: ids that end an answer, beside the engine's own end token.
        fixed_length: no id ends an answer.
        longest_prompt: tokens of the longest prompt.
        threads: of the processor; None is the engine's choice.
    """

    model: str
    budget: int
    stop_ids: frozenset[int]
    fixed_length: bool
    longest_prompt: int
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine gave: ids, and its counters where it has them."""

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
    """An engine of others.

    `together` says whether its modes can be loaded at once, which lets them answer in turn.
    """

    name: str
    together: bool

    def version(self) -> str:
        """Of its package; the same `BenchError` as `package` where it is missing."""

    def modes(self) -> Sequence[Mode]:
        """What is run, ``ar`` first."""

    def open(self, mode: Mode, request: Request) -> Arm:
        """Load the model for a mode."""


def package(module: str, extra: str) -> ModuleType:
    """The module of an engine.

    Raises:
        BenchError: it is not installed, or does not load here (exit 5).
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # a library of it may be missing
        line = f"--engine {extra} needs the package {module} ({error})"
        advice = f"install it with: pip install 'decoding-bench[{extra}]'"
        raise UnavailableError(f"{line}; {advice}") from error


def recordable(values: Mapping[str, object]) -> Options:
    """Options as they are recorded: what is no plain value becomes its text."""
    plain = (str, int, float, bool, type(None))
    return {name: v if isinstance(v, plain) else str(v) for name, v in values.items()}

"""Define the interface of another engine: modes that each answer one prompt at a time.

An implementation decodes ids greedily, turns off all reuse between prompts, and reads the engine's
counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


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


Mode = Mapping[str, Any] | None
"""Options of a mode; None is plain decoding."""
Answerer = Callable[[Sequence[int], int], EngineAnswer]
"""Decodes greedily after ids, at most a budget of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Describe a third-party engine and its modes, the first of which is ``ar``.

    `open` takes the package's module, a mode and the settings, and holds a loaded model until its
    context ends. Modes that load `together` answer each prompt in turn. A `threaded` engine takes
    the settings' number of CPU threads.
    """

    name: str
    package: str
    together: bool
    threaded: bool = False
    modes: Mapping[str, Mode]
    open: Callable[[Any, Mode, Settings], AbstractContextManager[Answerer]]

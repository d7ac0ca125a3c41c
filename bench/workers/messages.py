"""Messages between a run and its workers, pickled on the way.

A worker answers one request after another: None with `Hello`, `Opening` and `Work` with `Done`, and
any of them with the `BenchError` that it cannot go on for. It writes nothing: its measurements come
back as a whole, so that one that dies leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import BenchError
from bench.records.phases import PhasedAnswer
from bench.records.plan import Block
from bench.records.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The worker's machine: `node` names it (a hash), `cores` are those it may use."""

    node: str
    pid: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The job of a worker: the run to open, and the way to measure.

    `opener` makes the `Setup` of the run stored in `config` (TOML). `cores` are those it is pinned
    to, `gpu` the one it sees (None: as it is). `identity` and `key` are the run's, of code and
    weights and of the machine with its setup: a worker that has others refuses. `blocks` are those
    to come: caches are reserved for their prompts, and warmed up with.
    """

    opener: Callable[[Any], Any]
    config: str
    prompts: Mapping[str, Prompt]
    blocks: tuple[Block, ...]
    identity: Mapping[str, str | None]
    key: str | None
    attempt: int
    worker: str
    cores: tuple[int, ...] = ()
    gpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBlock:
    """Time a block with all its cells; where `phased`, split its time by phase afterwards."""

    block: Block
    phased: bool = False

    def __str__(self) -> str:
        return f"block {self.block.block}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBlock:
    """Split the time of a block that was timed before, without the cells that `failed` there."""

    block: Block
    failed: frozenset[str]

    def __str__(self) -> str:
        return f"the phases of block {self.block.block}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePrompts:
    """Answer prompts of the quality pass with every cell, but for (cell, prompt) in `done`."""

    prompts: tuple[str, ...]
    done: frozenset[tuple[str, str]]

    def __str__(self) -> str:
        return f"the quality pass over {', '.join(self.prompts)}"


Job = TimeBlock | SplitBlock | ScorePrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job for a worker, beside which the processes `peers` of the same run work on its node."""

    job: Job
    peers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Results of a job: lines of samples.jsonl, tracebacks by what failed, seconds by phase."""

    lines: tuple[str, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()
    phases: tuple[PhasedAnswer, ...] = ()


Request = Opening | Work | None
"""None is the first: where are you?"""
Answer = Hello | Done | BenchError

"""Messages between a run and its workers, pickled for transport.

A worker answers one request after another: None with `Hello`, `Opening` and `Work` with `Done`, or
any request with the `BenchError` that stops it. A worker writes no files. It returns a job's
measurements all at once, so a worker that dies leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import BenchError
from bench.records.plan import Block
from bench.records.prompts import Prompt
from bench.records.samples import PhasedAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The worker's machine: `node` is a hash of its name, `cores` are the cores it may use."""

    node: str
    pid: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The task of a worker: the run to open, and the way to measure.

    `opener` makes the `Setup` of the run stored in `config` (TOML). The worker is pinned to `cores`
    and sees only `gpu` (None: all it has). It refuses unless its code and weights have the run's
    `identity` and its machine and setup the run's `key`. It reserves caches for the prompts of the
    coming `blocks`, and warms up with them.
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
    """Time a block with all its cells, and if `phased`, split its time by phase."""

    block: Block
    phased: bool = False

    def __str__(self) -> str:
        return f"block {self.block.block}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBlock:
    """Split the time of an already timed block by phase, without the cells that `failed`."""

    block: Block
    failed: frozenset[str]

    def __str__(self) -> str:
        return f"the phases of block {self.block.block}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePrompts:
    """Answer prompts of the quality pass with every cell, except (cell, prompt) in `done`."""

    prompts: tuple[str, ...]
    done: frozenset[tuple[str, str]]

    def __str__(self) -> str:
        return f"the quality pass over {', '.join(self.prompts)}"


Job = TimeBlock | SplitBlock | ScorePrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job for a worker, whose node also has the run's processes `peers`."""

    job: Job
    peers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Results of a job: lines of samples.jsonl, named tracebacks, and seconds by phase."""

    lines: tuple[str, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()
    phases: tuple[PhasedAnswer, ...] = ()


Request = Opening | Work | None
"""The first request is None: it asks where the worker runs."""
Answer = Hello | Done | BenchError

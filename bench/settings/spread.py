"""How a run is spread over workers: what ``--executor`` and the options beside it say.

It decides where blocks are measured and not what is, so it is no part of `RunConfig`: a run may be
resumed with another. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bench.errors import UsageError


class Kind(StrEnum):
    """What ``--executor`` takes."""

    local = "local"
    ray = "ray"
    submitit = "submitit"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How a run is spread: over `workers` workers that the executor `kind` starts.

    `options` are the executor's own: of Ray ``address`` and what an actor may need, of submitit
    ``folder``, ``cluster`` and what its ``update_parameters`` takes.
    """

    kind: Kind = Kind.local
    workers: int = 1
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Whether the run's own process measures: one worker, and no cluster."""
        return self.kind == Kind.local and self.workers == 1


ALONE = WorkerConfig()


def spread_of(kind: Kind, workers: int, options: Sequence[str] | None) -> WorkerConfig:
    """What the command line says; `options` are ``KEY=VALUE`` texts.

    Raises:
        BenchError: exit 2.
    """
    if workers < 1:
        raise UsageError(f"--workers {workers} is not allowed; use 1 or more")
    table = {}
    for text in options or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"--executor-option {text!r} is not KEY=VALUE")
        table[key] = value
    if kind == Kind.local and table:
        line = f"--executor local has no options, and was given {', '.join(table)}"
        raise UsageError(line)
    return WorkerConfig(kind=kind, workers=workers, options=table)

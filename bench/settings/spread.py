"""``--executor`` and related options: how a run is distributed over workers.

These options decide where blocks are measured, not which blocks. They are not part of `RunConfig`,
so a run may be resumed with another executor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.errors import UsageError

Kind = Literal["local", "ray", "submitit"]
"""Values of ``--executor``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Number of workers, the executor that starts them, and its options.

    Ray takes ``address`` and an actor's options; submitit takes ``folder``, ``cluster`` and the
    options of its ``update_parameters``.
    """

    kind: Kind = "local"
    workers: int = 1
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Return whether the run's own process does all measurements."""
        return self.kind == "local" and self.workers == 1


ALONE = WorkerConfig()


def parse_workers(kind: Kind, workers: int, options: Sequence[str] | None) -> WorkerConfig:
    """Parse the command line's values, with ``KEY=VALUE`` texts as `options` (`UsageError`)."""
    if workers < 1:
        raise UsageError(f"--workers {workers} is not allowed; use 1 or more")
    table = {}
    for text in options or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"--executor-option {text!r} is not KEY=VALUE")
        table[key] = value
    if kind == "local" and table:
        raise UsageError(f"--executor local takes no options, but got {', '.join(table)}")
    return WorkerConfig(kind=kind, workers=workers, options=table)

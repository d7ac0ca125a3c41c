"""The interface of an executor: it starts workers, passes requests on, and tells who is gone.

It knows nothing of blocks: the queue is `bench.workers.crew`'s. No torch here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

from bench.errors import BenchError, UsageError, did_you_mean, optional
from bench.workers.messages import Answer, Request


class Executor(Protocol):
    """Starts workers and carries requests to them; a worker has one request at a time."""

    def threads(self, num_workers: int) -> int:
        """CPU threads for each of so many workers, unless told otherwise.

        Raises:
            BenchError: exit 2 where there is no room for so many.
        """

    def start(self, worker: str) -> None:
        """Begin a process or job called `worker`; it may take as long as it likes to come up."""

    def ask(self, worker: str, request: Request) -> None:
        """Send a request and return at once; to one that is gone it is lost."""

    def wait(self) -> tuple[str, Answer | None]:
        """The next answer of any worker, or None for one that is gone; that is said once."""

    def stop(self) -> None:
        """End all workers, whatever they do."""


def package(name: str) -> ModuleType:
    """Import a package of an executor, which an extra of the same name installs (else exit 5)."""
    return optional(name, name, f"--executor {name}")


def unknown_option(name: str, allowed: list[str]) -> BenchError:
    """The error of an option that an executor does not know (exit 2)."""
    return UsageError(f"unknown executor option {name!r}; {did_you_mean(name, allowed)}")

"""`specbench_tasks.registry.load_tasks` with the errors of a command. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from bench.errors import BenchError, Exit
from specbench_tasks.loaders import DataUnavailable
from specbench_tasks.registry import TaskSet, load_tasks


def tasks_of(
    tasks: str,
    *,
    limit: int | None,
    seed: int,
    quality_limit: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> TaskSet:
    """`load_tasks`, with its errors as `BenchError` (unknown or unreadable 2, unavailable 5)."""
    try:
        return load_tasks(
            tasks, limit=limit, quality_limit=quality_limit, seed=seed, columns=columns
        )
    except DataUnavailable as error:
        raise BenchError(str(error), Exit.UNAVAILABLE) from error
    except ValueError as error:
        raise BenchError(str(error), Exit.USAGE) from error

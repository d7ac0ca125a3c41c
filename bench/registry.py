"""Find extras: features that extend the core from outside, in this package or other packages.

An extra registers objects as entry points of its distribution (``pyproject.toml``), in one of the
groups of `Group`, and is imported when first needed. The core imports no extra by name.
"""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from bench.errors import UsageError

Group = Literal[
    "bench.verbs",
    "bench.trainers",
    "bench.jobs",
    "bench.sections",
    "bench.caveats",
    "bench.conclusions",
]
"""What an extra may add:

* ``bench.verbs``: by the name of a verb, the `typer.Typer` that has it;
* ``bench.trainers``: likewise, a verb of `bench train`, or the `NetworkTable` that it trains;
* ``bench.jobs``: a function that the core calls by the entry point's name;
* ``bench.sections``: a `bench.report.sections.Section`, or a function from findings to tables;
* ``bench.caveats``: a function from findings to lines about what limits a run's numbers;
* ``bench.conclusions``: a function from a run folder to lines that `bench run` prints at its end.
"""
_ROOT = Path(__file__).resolve().parents[1]
_FIX = "install this one again: pip install -e ."


def extras(group: Group) -> dict[str, Any]:
    """Load all extras of a group in order of name, and report failed extras once on stderr."""
    loaded = {}
    points = sorted(entry_points(group=group), key=lambda point: point.name)
    if not points:
        _report(f"no installed package registers {group}: reports and help lack extras; {_FIX}")
    elif missing := _declared(group) - {point.name for point in points}:
        names = ", ".join(sorted(missing))
        _report(f"the installed package lacks {names} ({group}), which the checkout has; {_FIX}")
    for point in points:
        try:
            loaded[point.name] = _load(point)
        except UsageError as error:
            _report(error.message)
    return loaded


@cache
def _declared(group: Group) -> frozenset[str]:
    """Return the names that the checkout, if this is one, declares in a group."""
    try:
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return frozenset(project["entry-points"][group])
    except (OSError, ValueError, KeyError):
        return frozenset()


@cache
def _report(problem: str) -> None:
    sys.stderr.write(f"bench: {problem}\n")


def find(group: Group, name: str) -> Any | None:
    """Load the extra of a name, if an installed package has this extra.

    Raises:
        UsageError: the extra cannot be imported.
    """
    point = next(iter(entry_points(group=group, name=name)), None)
    return None if point is None else _load(point)


def extra(group: Group, name: str) -> Any:
    """Load the extra of a name.

    Raises:
        UsageError: no installed package has the extra, or the import fails.
    """
    if (feature := find(group, name)) is not None:
        return feature
    raise UsageError(f"no installed package registers {name!r} in {group}; {_FIX}")


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # code of other packages may raise anything
        package = point.dist.name if point.dist else "an installed package"
        why = str(error).strip().split("\n")[0]
        raise UsageError(
            f"the extra {point.name!r} of {package} cannot be imported "
            f"({type(error).__name__}: {why}); update or uninstall it"
        ) from error

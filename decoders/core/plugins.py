"""Kinds of networks on hidden states, registered by variant, and imports of installed packages.

A class that names its `variant` registers itself when it is imported (`HiddenAdapter`). A package
names the class in its entry points, which are imported when a variant is first needed.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

NETWORK_GROUP = "bench.networks"
NETWORKS: dict[str, Any] = {}
"""The classes imported so far, by variant."""


def network_names() -> tuple[str, ...]:
    """Return the variants of all imported classes and installed packages."""
    return tuple(sorted({*NETWORKS, *(point.name for point in entry_points(group=NETWORK_GROUP))}))


def network(variant: str) -> Any:
    """Return the class of a variant (a `HiddenAdapter`), importing the package that has it.

    Raises:
        ValueError: no package has it, or it cannot be imported.
    """
    if variant not in NETWORKS:
        for point in entry_points(group=NETWORK_GROUP, name=variant):
            import_plugin(point, "network")
            if variant not in NETWORKS:
                raise ValueError(f"{point.value} is no HiddenAdapter of variant {variant!r}")
    if variant not in NETWORKS:
        names = ", ".join(network_names()) or "none: install this package again"
        raise ValueError(f"no installed package has a network {variant!r}; there are {names}")
    return NETWORKS[variant]


def import_plugin(point: EntryPoint, noun: str) -> ModuleType:
    """Import the module of an entry point, or raise a `ValueError` that names its package."""
    try:
        return importlib.import_module(point.module)
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        package = point.dist.name if point.dist else point.module
        raise ValueError(
            f"{noun} {point.name!r} of the installed package {package!r} cannot be imported: "
            f"{type(error).__name__}: {error}; update or uninstall {package!r}"
        ) from error

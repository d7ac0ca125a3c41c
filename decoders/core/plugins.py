"""Register kinds of networks on hidden states by variant, and import installed packages.

A class that names its `variant` registers itself when it is imported (`HiddenAdapter`). Modules are
imported when a variant is first needed: those of `decoders.core.adapter`, then the entry point of
the variant's name.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

NETWORK_GROUP = "bench.networks"
NETWORKS: dict[str, Any] = {}
"""The classes imported so far, by variant."""


def network_names() -> tuple[str, ...]:
    """Import the shipped classes, and return the variants of all classes and packages."""
    for file in sorted((Path(__file__).parent / "adapter").glob("*.py")):
        importlib.import_module(f"decoders.core.adapter.{file.stem}")
    return tuple(sorted({*NETWORKS, *(point.name for point in entry_points(group=NETWORK_GROUP))}))


def network(variant: str) -> Any:
    """Return a variant's class (a `HiddenAdapter`), importing its module, or raise `ValueError`."""
    if variant not in NETWORKS and variant not in (names := network_names()):
        raise ValueError(f"there is no network {variant!r}; there are {', '.join(names)}")
    for point in () if variant in NETWORKS else entry_points(group=NETWORK_GROUP, name=variant):
        import_plugin(point, "network")
        if variant not in NETWORKS:
            raise ValueError(f"{point.value} is no HiddenAdapter of variant {variant!r}")
    return NETWORKS[variant]


def import_plugin(point: EntryPoint, noun: str) -> ModuleType:
    """Import the module of an entry point, or raise a `ValueError` that names its package."""
    try:
        return importlib.import_module(point.module)
    except (Exception, SystemExit) as error:  # code of other packages may raise anything
        package = point.dist.name if point.dist else point.module
        raise ValueError(
            f"{noun} {point.name!r} of the installed package {package!r} cannot be imported: "
            f"{type(error).__name__}: {error}; update or uninstall {package!r}"
        ) from error

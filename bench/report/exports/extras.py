"""Optional packages of exports: opened when asked for, missing in one line."""

from __future__ import annotations

import importlib
from types import ModuleType

from bench.errors import UnavailableError


def optional(module: str, kind: str, extra: str) -> ModuleType:
    """A module that an export needs and an extra installs.

    Raises:
        BenchError: it is not installed (exit 5).
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        line = f"export --to {kind} needs the package {module} ({error})"
        advice = f"install it with: pip install 'decoding-bench[{extra}]'"
        raise UnavailableError(f"{line}; {advice}") from error

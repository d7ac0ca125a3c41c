"""Published numbers as they are stored: ``references.toml``. Standard library only."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

_FILE = files("bench.settings") / "published.toml"


def published() -> dict[str, dict[str, Any]]:
    """Every reference by name."""
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def reference_names() -> list[str]:
    """Names that ``--reference`` takes."""
    return list(published())

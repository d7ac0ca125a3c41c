"""What a field of the configuration means, and the option of the command line that sets it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from bench.errors import UsageError


def parse_adapters(texts: Sequence[str] | None) -> dict[str, str] | None:
    """Parse ``NAME=PATH`` texts into a table (`UsageError`)."""
    adapters = {}
    for text in texts or ():
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--adapter {text!r} is not NAME=PATH")
        if name in adapters:
            raise UsageError(f"two adapters are called {name!r}; give one a name")
        adapters[name] = path
    return adapters or None


def parse_arguments(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse ``NAME=VALUE`` texts (TOML values, or else text) into a table (`UsageError`)."""
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--template-args {text!r} is not NAME=VALUE")
        if name in found:
            raise UsageError(f"--template-args gives {name!r} twice")
        try:
            found[name] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[name] = value
    return found or None

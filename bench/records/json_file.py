"""The small JSON files of a run folder, read as frozen dataclasses: nothing else sees raw JSON.

A file of an older version may lack fields: they have a default, which is None where it stands for
"unknown". Fields this version does not know are passed over. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from bench.errors import InvalidRunError, UnavailableError
from bench.records.record import SCHEMA
from bench.settings.bounds import allowed

T = TypeVar("T")
_KNOWN_SCHEMAS = (SCHEMA,)
"""Versions of the files that this code reads."""


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file, None where there is no such file.

    Raises:
        BenchError: the file is damaged (exit 4), or of a schema this version does not know (5).
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidRunError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRunError(f"{path} is damaged: it holds no JSON object")
    schema = data.get("schema", SCHEMA)  # not written by the first versions
    if schema not in _KNOWN_SCHEMAS:
        known = ", ".join(map(str, _KNOWN_SCHEMAS))
        line = f"{path} has schema {schema}; this version reads {known}"
        raise UnavailableError(f"{line}: use the version that wrote it")
    return data


def parse(kind: type[T], data: object, source: Path | str) -> T:
    """JSON data as a dataclass; `source` is what to call it in an error.

    Raises:
        BenchError: a field is missing or of another type (exit 4).
    """
    try:
        parsed: T = _adapter(kind).validate_python(data)
    except (ValidationError, RecursionError) as error:
        raise InvalidRunError(f"{source} is damaged: {_told(error)}") from error
    return parsed


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _told(error: ValidationError | RecursionError) -> str:
    """The first thing that is wrong: the field by name, and why."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    first = error.errors(include_url=False, include_input=False)[0]
    field, *below = map(str, first["loc"] or ("content",))
    where = f" (at {'.'.join(below)})" if below else ""
    return f"its {field} cannot be read{where}: {allowed(first)}"

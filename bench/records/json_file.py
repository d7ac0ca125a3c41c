"""JSON files of a run folder, read as frozen dataclasses without converting numbers or texts.

Files of older versions may lack fields; the default None then means unknown. Unknown fields are
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from bench.errors import InvalidRunError, UnavailableError
from bench.settings.bounds import allowed

SCHEMA = 1
"""Version of all files, raised whenever the meaning of a field or metric changes."""
T = TypeVar("T")


def check_schema(path: Path, data: dict[str, Any]) -> None:
    """Raise `UnavailableError` for another schema, except none, as the first versions wrote."""
    if (schema := data.get("schema", SCHEMA)) != SCHEMA:
        line = f"{path} has schema {schema}; this version reads {SCHEMA}"
        raise UnavailableError(f"{line}: use the version that wrote it")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, if it exists (`InvalidRunError`, `UnavailableError`: other schema)."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise InvalidRunError(f"{path} is damaged: it is no ordinary file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidRunError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRunError(f"{path} is damaged: it is not a JSON object")
    check_schema(path, data)
    return data


def parse(kind: type[T], data: object, source: Path | str) -> T:
    """Parse JSON data as `kind`, or name `source` and the first bad field (`InvalidRunError`)."""
    try:
        parsed: T = validator(kind).validate_python(data)
    except RecursionError as error:
        raise InvalidRunError(f"{source} is damaged: it is nested too deeply") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field, *below = map(str, first["loc"] or ("content",))
        where = f" (at {'.'.join(below)})" if below else ""
        line = f"{source} is damaged: its {field} cannot be read{where}: {allowed(first)}"
        raise InvalidRunError(line) from error
    return parsed


def _strict(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(map(_strict, schema))
    if not isinstance(schema, dict):
        return schema
    strict = {"strict": True} if schema.get("type") in ("bool", "float", "int", "str") else {}
    return {key: _strict(value) for key, value in schema.items()} | strict


validator: Callable[[Any], SchemaValidator] = cache(
    lambda kind: SchemaValidator(_strict(TypeAdapter(kind).core_schema))
)
"""Returns the validator of a type. It converts lists to tuples and nothing else."""

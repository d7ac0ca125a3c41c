"""A writer for the TOML that a resolved configuration needs: scalars, lists, one level of tables.

The standard library reads TOML and does not write it. Strings are written as JSON strings, which
TOML's basic strings include; None is left out, since TOML has no null. No torch here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

_Scalar = str | int | float | bool
Table = Mapping[str, object]


def dumps(data: Table) -> str:
    """TOML text of `data`: plain keys first, then its tables (and theirs) under headings.

    Raises:
        TypeError: on a value that is no scalar, list of scalars, table or None.
    """
    return "\n".join(_lines(data, ())).strip() + "\n"


def _lines(table: Table, path: tuple[str, ...]) -> list[str]:
    lines = [f"{_key(k)} = {_value(v)}" for k, v in table.items() if not _nested(v)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = (*path, key)
            lines += ["", f"[{'.'.join(map(_key, inner))}]", *_lines(value, inner)]
    return lines


def _nested(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(_value(item) for item in value)}]"
    raise TypeError(f"TOML cannot hold {value!r}")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Recipes: TOML tables, read, extended, changed, and checked before anything is loaded.

A recipe may name one to extend: ``extends = "ptp.toml"``, a file beside it, whose values hold where
it has none of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

RECIPES = Path(str(files("training"))).resolve() / "recipes"
"""The recipes that come with the package."""
ZOO = RECIPES.parents[1] / "zoo"
"""The embedded models: beside the package, in a checkout and where a wheel was installed alike."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Rate = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, le=10**18)]


class RecipeTable(BaseModel):
    """A recipe's table: nothing but its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Recipe(RecipeTable):
    """A whole recipe: a field for each of its tables."""

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Self:
        """Check tables.

        Raises:
            ValueError: an unknown key, or a value that is missing or not allowed, in one line.
        """
        try:
            return cls.model_validate(tables)
        except ValidationError as error:
            raise ValueError(f"recipe: {cls._told(error.errors()[0])}") from error

    @classmethod
    def _told(cls, error: ErrorDetails) -> str:
        place = ".".join(map(str, error["loc"]))
        match error["type"]:
            case "missing":
                return f"{place} is missing; add it"
            case "extra_forbidden" | "unexpected_keyword_argument":
                *table, _ = error["loc"]
                owner: Any = cls.model_fields[str(table[0])].annotation if table else cls
                return f"unknown key {place}; use {', '.join(owner.__annotations__)}"
            case "value_error":  # of a table's own, which says it all
                return f"{place}: {error['ctx']['error']}"
        return f"{place}: {error['msg'].lower()} (got {error['input']!r})"


def read_recipe(path: Path, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """A recipe's tables, laid over those of the one it extends.

    Args:
        path: of a TOML file.
        above: names of the recipes that extend this one.

    Raises:
        ValueError: no such file, no TOML, or recipes that extend one another in a ring.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {path} cannot be read: {error}") from error
    base = tables.pop("extends", None)
    if base is None:
        return tables
    if not isinstance(base, str):
        raise ValueError(f"recipe {path} extends {base!r}; give the name of a recipe beside it")
    above = (*above, path.name)
    if base in above:
        raise ValueError(f"recipe {path} extends itself ({' > '.join((*above, base))})")
    return _laid_over(read_recipe(path.parent / base, above), tables)


def zoo_output() -> Path:
    """Where the zoo's models are made: in a checkout in place; an installed zoo is left alone."""
    in_checkout = (ZOO.parent / "pyproject.toml").is_file()
    return ZOO if in_checkout else Path("results") / "zoo"


def _laid_over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over`'s values where it has any, `under`'s elsewhere, table by table."""
    merged = dict(under)
    for key, value in over.items():
        old = under.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _laid_over(old, value)
        merged[key] = value
    return merged


def with_settings(tables: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """A recipe with single values replaced.

    Args:
        tables: as read.
        settings: ``TABLE.KEY=VALUE`` each; VALUE is TOML, or a word.

    Raises:
        ValueError: a setting of another form.
    """
    changed = dict(tables)
    for setting in settings:
        name, equals, text = setting.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys) or len(keys) < 2:
            raise ValueError(f"setting {setting!r}: use TABLE.KEY=VALUE, as in adapter.rank=32")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        for key in reversed(keys):
            value = {key: value}
        changed = _laid_over(changed, value)
    return changed


def customised(
    tables: Mapping[str, Any],
    *,
    model: str | None = None,
    data: str | None = None,
    num_steps: int | None = None,
) -> dict[str, Any]:
    """A recipe for another model, other data or another length.

    Args:
        tables: as read.
        model: folder or hub id; None keeps the recipe's.
        data: ``on-policy``, ``text=PATH`` or ``dataset=ID``; None keeps the recipe's.
        num_steps: None keeps the recipe's.

    Raises:
        ValueError: data of no known form.
    """
    changed = {
        name: dict(table) if isinstance(table, dict) else table for name, table in tables.items()
    }
    if model is not None:
        changed.setdefault("model", {})["path"] = model
    if num_steps is not None:
        changed.setdefault("run", {})["num_steps"] = num_steps
    if data is None:
        return changed
    kind, _, path = data.partition("=")
    if kind not in ("on-policy", "text", "dataset") or (kind == "on-policy") == bool(path):
        raise ValueError(f"data {data!r}: use on-policy, text=PATH or dataset=ID")
    old = changed.get("data", {})
    if kind != old.get("kind"):
        changed["data"] = {"kind": kind, "seed": old.get("seed", 0)}
    if path:
        changed["data"]["path"] = path
    return changed

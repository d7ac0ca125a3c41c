"""Read, merge, change and check recipes (TOML tables) before anything is loaded.

A recipe may extend another file in its folder: ``extends = "ptp.toml"``. Values that the recipe
does not set come from that file. A table of another `kind` inherits nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

RECIPES = Path(str(files("training"))).resolve() / "recipes"
ZOO = RECIPES.parents[1] / "zoo"
"""Folder of the embedded models: next to the package, in a checkout and in an installed wheel."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
NotNegative = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
TopP = Annotated[float, Field(gt=0, le=1)]
StorageDType = Literal["float32", "float16", "float8_e4m3fn"]
"""Dtype of the weights on disk."""
Seed = Annotated[int, Field(ge=0, le=10**18)]
FREE = {
    "num_steps",
    "minutes",
    "checkpoint_minutes",
    "workers",
    "stored",
    "choose",
    "final_rows",
    "final_draws",
}
"""Keys of [run] that a resumed run may change, besides all keys that begin with ``eval_``."""


class RecipeTable(BaseModel):
    """Define a table of a recipe, in which unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelTable(RecipeTable):
    """[model]: the target, as in `bench run --model`, and the dtype it runs in."""

    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"


class LoopTable(RecipeTable):
    """[run] of every recipe: length, learning rates, evaluations and checkpoints.

    Learning rates fall linearly over the last share `decay` of the steps. `adamw_lr` is the peak
    rate of all parameters that Muon does not update. With `minutes` above 0, a run ends after that
    time at the latest, and the rates fall with the clock.
    """

    num_steps: Count
    minutes: float = Field(default=0.0, ge=0)
    warmup_steps: NotNegative = 60
    decay: Share = 0.9
    adamw_lr: Rate
    eval_steps: Count = 200
    eval_rows: Count = 60
    checkpoint_minutes: float = Field(default=4.0, ge=0)

    def refuse_unread(self, keys: Iterable[str], reader: str) -> None:
        """Raise `ValueError` if one of the `keys`, which `reader` does not read, has a value."""
        for key in keys:
            if (value := getattr(self, key)) != (usual := type(self).model_fields[key].default):
                raise ValueError(f"run.{key} is {value!r}; {reader} ignores it: unset it ({usual})")

    def share_of_time(self, seconds: float) -> float:
        """Return the share of `minutes` that has passed, or 0 if `minutes` is 0."""
        return seconds / (60 * self.minutes) if self.minutes else 0.0

    def rate_scale(self, step: int, seconds: float = 0.0) -> float:
        """Return the factor on every learning rate at a 0-based step, which falls to 0.02."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        start = self.num_steps * (1 - self.decay)
        reached = max(step, self.num_steps * self.share_of_time(seconds))
        left = (self.num_steps - reached) / max(1.0, self.num_steps - start)
        return warm * max(0.02, min(1.0, left))


class Recipe(RecipeTable):
    """Define a whole recipe, with one field per table."""

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Self:
        """Check tables, or raise a one-line `ValueError` that names the first wrong key."""
        try:
            return cls.model_validate(tables)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            match first["type"]:
                case "missing":
                    text = f"{key} is missing; add it"
                case "extra_forbidden":
                    *table, _ = first["loc"]
                    owner: Any = cls.model_fields[str(table[0])].annotation if table else cls
                    owner = next(iter(get_args(owner)), owner)  # an optional table
                    text = f"unknown key {key}; use {', '.join(owner.model_fields)}"
                case "value_error":  # from one of our validators, with a complete message
                    text = f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
                case _:
                    text = f"{key}: {first['msg'].lower()} (got {first['input']!r})"
            raise ValueError(f"recipe: {text}") from error

    def decisive(self) -> dict[str, Any]:
        """Return the settings that decide a run's steps: not length, reports or stored dtype."""
        tables = self.model_dump(mode="json")
        for name in list(tables["run"]):
            if name in FREE or name.startswith("eval_"):
                del tables["run"][name]
        return tables


def read_recipe(path: Path, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a recipe's tables, merged over those of the recipe it extends.

    `above` are the names of the recipes that extend this one. Raise `ValueError` if a file cannot
    be read or recipes extend one another in a ring.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {path} cannot be read: {error}") from error
    base = tables.pop("extends", None)
    if base is None:
        return tables
    if not isinstance(base, str):
        raise ValueError(f"recipe {path} extends {base!r}; give a recipe in the same folder")
    above = (*above, path.name)
    if base in above:
        raise ValueError(f"recipe {path} extends itself ({' > '.join((*above, base))})")
    return _merged_tables(read_recipe(path.parent / base, above), tables)


def _merged_tables(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge tables recursively. Values of `over` take precedence.

    A table of another `kind` replaces the table under it, because its options differ.
    """
    both = {
        key: _merged_tables(base, value)
        for key, value in over.items()
        if isinstance(value, dict) and isinstance(base := under.get(key), dict)
        if value.get("kind") in (None, base.get("kind"))
    }
    return {**under, **over, **both}


def with_settings(tables: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return tables with settings ``TABLE.KEY=VALUE`` applied (VALUE: TOML or plain text)."""
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
        changed = _merged_tables(changed, value)
    return changed


def with_overrides(
    tables: Mapping[str, Any],
    *,
    model: str | None = None,
    data: str | None = None,
    num_steps: int | None = None,
) -> dict[str, Any]:
    """Return tables with other values, where these are not None.

    Args:
        tables: a recipe's tables, which stay unchanged.
        model: folder, hub id or name of the model to train on.
        data: ``on-policy[=PROMPTS]``, ``text=PATH`` or ``dataset=ID``.
        num_steps: number of training steps.
    """
    changed = dict(tables)
    if model is not None:
        changed = _merged_tables(changed, {"model": {"path": model}})
    if num_steps is not None:
        changed = _merged_tables(changed, {"run": {"num_steps": num_steps}})
    if data is None:
        return changed
    kind, _, path = data.partition("=")
    if kind not in ("on-policy", "text", "dataset") or not (path or data == "on-policy"):
        raise ValueError(f"data {data!r}: use on-policy[=PROMPTS], text=PATH or dataset=ID")
    table = changed.get("data", {})
    table = table if kind == table.get("kind") else {"kind": kind, "seed": table.get("seed", 0)}
    option = "prompts" if kind == "on-policy" else "path"
    return {**changed, "data": {**table, option: path} if path else table}

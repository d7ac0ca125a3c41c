"""Recipes of adapter training: TOML tables, checked before anything is loaded.

A recipe may name one to extend: ``extends = "ptp.toml"``, a file beside it, whose values hold where
it has none of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from decoders.core.slots import Variant
from decoders.core.uniform_embedding import Code
from training.objectives import ObjectiveName

Temperature = Annotated[float, Field(gt=0)]
TopP = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelTable(_Table):
    """[model]: the base, and the dtype of its weights and activations."""

    path: str
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"


class AdapterTable(_Table):
    """[adapter]: see `decoders.core.slots.AdapterConfig`.

    `initial_scale` is the root mean square of embedded us, in those of token embeddings. `gated`
    False runs context rows through the adapter too (an ablation; such an adapter is not written).
    """

    variant: Variant = "o-ptp"
    num_slots: Count = 16
    rank: int = Field(default=64, ge=0)
    alpha: Rate = 64.0
    code: Code = "dyadic"
    embedding_hidden: int = Field(default=0, ge=0)
    conditioned: bool = False
    anchored: bool = False
    standalone: bool = False
    numbered: bool = False
    initial_scale: Rate = 1.0
    gated: bool = True
    seed: int = 0


class LawsTable(_Table):
    """[laws]: see `training.windows.Laws`."""

    temperatures: tuple[Temperature, Temperature] = (1.0, 1.0)
    usual_temperature: Temperature | None = None
    top_ps: tuple[TopP, ...] = Field(default=(1.0,), min_length=1)
    top_k: int = Field(default=0, ge=0)
    greedy: Share = 0.0
    beta: Rate = 1.0


class RunTable(_Table):
    """[run]: objective, length, rates, sizes and evaluation.

    Attributes:
        objective: name of the loss.
        workers: processes on a CPU.
        num_steps: of the whole run.
        warmup_steps: of the learning rates.
        decay: share of the steps over which they fall, linearly, at the end.
        muon_lr: peak for the delta's matrices.
        adamw_lr: peak for everything else.
        slots_per_row: Q.
        max_tokens: padded tokens of one group of rows.
        seed: of windows.
        eval_steps: steps between held-out reports.
        eval_rows: rows of a report.
        eval_temperature: of its sampled windows.
        eval_top_p: of its sampled windows.
        checkpoint_minutes: minutes between checkpoints.
        half: write the adapter in float16.
    """

    objective: ObjectiveName = "one-hot"
    workers: Count = 2
    num_steps: Count
    warmup_steps: int = Field(default=60, ge=0)
    decay: Share = 0.95
    muon_lr: Rate
    adamw_lr: Rate
    slots_per_row: Count = 128
    max_tokens: Count = 2600
    seed: int = 1
    eval_steps: Count = 300
    eval_rows: Count = 60
    eval_temperature: Temperature = 0.7
    eval_top_p: TopP = 0.95
    checkpoint_minutes: float = Field(default=4.0, ge=0)
    half: bool = True


class AdapterRecipe(_Table):
    """A whole recipe; [data] is checked by `training.sources.source_of`."""

    model: ModelTable
    adapter: AdapterTable = AdapterTable()
    laws: LawsTable = LawsTable()
    data: dict[str, Any]
    run: RunTable

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> AdapterRecipe:
        """Check tables.

        Raises:
            ValueError: an unknown key, or a value that is missing or not allowed, in one line.
        """
        try:
            return cls.model_validate(tables)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            got = "" if first["type"] == "missing" else f" (got {first['input']!r})"
            raise ValueError(f"recipe: {place}: {first['msg'].lower()}{got}") from error

    def decisive(self) -> dict[str, Any]:
        """What decides a run's steps: all but its length, its reports and how it is written."""
        free = {"num_steps", "checkpoint_minutes", "workers", "half"}
        free |= {name for name in RunTable.model_fields if name.startswith("eval_")}
        return self.model_dump(mode="json", exclude={"run": free})


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe's tables, laid over those of the one it extends.

    Raises:
        ValueError: no such file, or no TOML.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"recipe {path} cannot be read: {error}") from error
    base = tables.pop("extends", None)
    if base == path.name:
        raise ValueError(f"recipe {path} extends itself; name another file")
    return tables if base is None else _laid_over(read_recipe(path.parent / base), tables)


def _laid_over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over`'s values where it has any, `under`'s elsewhere, table by table."""
    merged = dict(under)
    for key, value in over.items():
        old = under.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _laid_over(old, value)
        merged[key] = value
    return merged


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

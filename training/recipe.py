"""Recipes: TOML tables, checked before anything is loaded; and the tables of adapter training.

A recipe may name one to extend: ``extends = "ptp.toml"``, a file beside it, whose values hold where
it has none of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from decoders.core.slots import Variant
from decoders.core.uniform_embedding import Code
from training.objectives import ObjectiveName

Temperature = Annotated[float, Field(gt=0)]
TopP = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class Table(BaseModel):
    """A recipe's table: nothing but its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Recipe(Table):
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


class ModelTable(Table):
    """[model]: the base, and the dtype of its weights and activations.

    `teacher` is another model of the same vocabulary whose picks the adapter learns, for a small
    model that drafts for it; None is the base itself.
    """

    path: str
    teacher: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"


class AdapterTable(Table):
    """[adapter]: see `decoders.core.slots.AdapterConfig`.

    `initial_scale` is the root mean square of embedded us, in those of token embeddings. `gated`
    False runs context rows through the adapter too (an ablation): the merged model is then written
    as a draft model, beside an adapter of its embedding of us alone.
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


class LawsTable(Table):
    """[laws]: see `training.windows.Laws`."""

    temperatures: tuple[Temperature, Temperature] = (1.0, 1.0)
    usual_temperature: Temperature | None = None
    top_ps: tuple[TopP, ...] = Field(default=(1.0,), min_length=1)
    top_k: int = Field(default=0, ge=0)
    greedy: Share = 0.0
    beta: Rate = 1.0


class BlocksTable(Table):
    """[blocks], of refining adapters: see `training.blocks.BlockRules`."""

    sizes: tuple[Annotated[int, Field(ge=2)], ...] = ()
    hidden: Share = 0.2
    ratios: tuple[Share, Share] = (0.0, 1.0)
    own: Share = 0.0


class RunTable(Table):
    """[run]: objective, length, rates, sizes and evaluation.

    Attributes:
        objective: name of the loss.
        label_share: share of the text's own tokens in it, beside a divergence from the teacher.
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
    label_share: Share = 0.0
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


class AdapterRecipe(Recipe):
    """[data] is checked by `training.sources.source_of`."""

    model: ModelTable
    adapter: AdapterTable = AdapterTable()
    laws: LawsTable = LawsTable()
    blocks: BlocksTable | None = None
    data: dict[str, Any]
    run: RunTable

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Self:
        """Check tables, and that they are about one kind of slots (errors as `Recipe.of`)."""
        recipe = super().of(tables)
        variant, objective = recipe.adapter.variant, recipe.run.objective
        if variant == "refine" and objective != "one-hot":
            raise ValueError(
                f"recipe: run.objective is {objective!r}; blocks learn the text, use one-hot"
            )
        if objective == "overlap" and variant != "isd":
            raise ValueError(f"recipe: run.objective is 'overlap'; it is for isd, not {variant}")
        if recipe.blocks is not None and variant != "refine":
            raise ValueError(f"recipe: [blocks] is for adapter.variant refine, not {variant}")
        return recipe

    def decisive(self) -> dict[str, Any]:
        """What decides a run's steps: all but its length, its reports and how it is written."""
        free = {"num_steps", "checkpoint_minutes", "workers", "half"}
        free |= {name for name in RunTable.model_fields if name.startswith("eval_")}
        # nothing is said of what is not there: checkpoints older than a key go on
        free |= set() if self.run.label_share else {"label_share"}
        absent = {"teacher"} if self.model.teacher is None else set()
        excluded: dict[str, Any] = {"run": free, "model": absent}
        if self.blocks is None:
            excluded["blocks"] = True
        return self.model_dump(mode="json", exclude=excluded)


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
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"recipe {path} cannot be read: {error}") from error
    base = tables.pop("extends", None)
    if base is None:
        return tables
    above = (*above, path.name)
    if base in above:
        raise ValueError(f"recipe {path} extends itself ({' > '.join((*above, base))})")
    return _laid_over(read_recipe(path.parent / base, above), tables)


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

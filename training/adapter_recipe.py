"""The tables of a recipe of adapter training, but for [data] (`training.sources.source_of`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from decoders.core.slots import Variant
from decoders.core.uniform_embedding import Code
from training.objectives import ObjectiveName
from training.recipe import Count, Rate, Recipe, Seed, Share, Table

Temperature = Annotated[float, Field(gt=0)]
TopP = Annotated[float, Field(gt=0, le=1)]
Stride = Annotated[int, Field(ge=2)]


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
    seed: Seed = 0


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

    sizes: tuple[Stride, ...] = ()
    hidden: Share = 0.2
    ratios: tuple[Share, Share] = (0.0, 1.0)
    own: Share = 0.0


class RunTable(Table):
    """[run]: objective, length, rates, sizes and evaluation.

    Attributes:
        objective: name of the loss.
        label_share: share of the text's own tokens in it, beside a divergence from the teacher.
        clean: weight of the next-token loss of token rows, where the adapter is not gated; ``auto``
            gives it as much weight as the slots' loss.
        strides: isd learns one after another, each for an equal share of the steps; none: the
            largest only.
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
    clean: Annotated[float, Field(ge=0)] | Literal["auto"] = 0.0
    strides: tuple[Stride, ...] = ()
    workers: Count = 2
    num_steps: Count
    warmup_steps: int = Field(default=60, ge=0)
    decay: Share = 0.95
    muon_lr: Rate
    adamw_lr: Rate
    slots_per_row: Count = 128
    max_tokens: Count = 2600
    seed: Seed = 1
    eval_steps: Count = 300
    eval_rows: Count = 60
    eval_temperature: Temperature = 0.7
    eval_top_p: TopP = 0.95
    checkpoint_minutes: float = Field(default=4.0, ge=0)
    half: bool = True


class AdapterRecipe(Recipe):
    """A recipe of `training.adapters`."""

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
        if recipe.run.clean and recipe.adapter.gated:
            raise ValueError(
                "recipe: run.clean is for adapters with gated = false: token rows "
                "of a gated one are the base model's own"
            )
        strides = recipe.run.strides
        if strides and (variant != "isd" or max(strides) > recipe.adapter.num_slots + 1):
            raise ValueError(
                f"recipe: run.strides are {list(strides)}; they are for isd, up to num_slots + 1"
            )
        return recipe

    def decisive(self) -> dict[str, Any]:
        """What decides a run's steps: all but its length, its reports and how it is written."""
        free = {"num_steps", "checkpoint_minutes", "workers", "half"}
        free |= {name for name in RunTable.model_fields if name.startswith("eval_")}
        # nothing is said of what is not there: checkpoints older than a key go on
        free |= {
            name for name in ("label_share", "clean", "strides") if not getattr(self.run, name)
        }
        if self.run.strides:
            free.discard("num_steps")  # it says when the next stride's turn is
        absent = {"teacher"} if self.model.teacher is None else set()
        excluded: dict[str, Any] = {"run": free, "model": absent}
        if self.blocks is None:
            excluded["blocks"] = True
        return self.model_dump(mode="json", exclude=excluded)

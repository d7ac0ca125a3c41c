"""The tables of a recipe of adapter training; of [data] see `training.text.sources.source_of`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from decoders.core.adapter.config import SlotVariant
from decoders.core.adapter.embedding import Code
from training.adapter.objectives import ObjectiveName
from training.recipe import Count, Rate, Recipe, RecipeTable, Seed, Share

Temperature = Annotated[float, Field(gt=0)]
TopP = Annotated[float, Field(gt=0, le=1)]
_Stride = Annotated[int, Field(ge=2)]


class _ModelTable(RecipeTable):
    """[model]: the base, and the dtype of its weights and activations.

    `teacher` is another model of the same vocabulary whose picks the adapter learns, for a small
    model that drafts for it; None is the base itself.
    """

    path: str
    teacher: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"


class AdapterTable(RecipeTable):
    """[adapter]: see `decoders.core.adapter.config.AdapterConfig`.

    `initial_scale` is the root mean square of embedded uniforms, in those of token embeddings.
    `gated` False runs context rows through the adapter too (an ablation): the merged model is then
    written as a draft model, beside an adapter of its embedding of uniforms alone. `initial` is the
    folder of an adapter of the same layers and rank to begin from.
    """

    variant: SlotVariant = "o-ptp"
    num_slots: Count = 16
    rank: int = Field(default=64, ge=0)
    alpha: Rate = 64.0
    code: Code = "dyadic"
    embedding_hidden: int = Field(default=0, ge=0)
    conditioned: bool = False
    anchored: bool = False
    standalone: bool = False
    numbered: bool = False
    enter: int = Field(default=0, ge=0)
    initial: str | None = None
    initial_scale: Rate = 1.0
    gated: bool = True
    seed: Seed = 0


class _SamplingTable(RecipeTable):
    """[sampling]: see `training.adapter.windows.WindowSampling`."""

    temperatures: tuple[Temperature, Temperature] = (1.0, 1.0)
    usual_temperature: Temperature | None = None
    top_ps: tuple[TopP, ...] = Field(default=(1.0,), min_length=1)
    top_k: int = Field(default=0, ge=0)
    greedy: Share = 0.0
    beta: Rate = 1.0


class BlocksTable(RecipeTable):
    """[blocks], of refining adapters: see `training.adapter.blocks.BlockRules`."""

    sizes: tuple[_Stride, ...] = ()
    hidden: Share = 0.2
    ratios: tuple[Share, Share] = (0.0, 1.0)
    own: Share = 0.0


class RunTable(RecipeTable):
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
        lean: the lean pass (`training.adapter.lean_student`): for Llama models and stored
        completions.
        teacher_top: of the lean pass: likeliest tokens of the teacher that are learned.
        head_words: of the lean pass: words of the head that are always in the loss; 0: all.
        position_decay: of the lean pass: slot k weighs exp(-k position_decay).
        overlap_share: of the lean pass: share of 1 - overlap in the loss.
        choose: which weights are written: the last, or those of the best held-out report.
    """

    objective: ObjectiveName = "one-hot"
    label_share: Share = 0.0
    clean: Annotated[float, Field(ge=0)] | Literal["auto"] = 0.0
    strides: tuple[_Stride, ...] = ()
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
    lean: bool = False
    teacher_top: Count = 16
    head_words: int = Field(default=0, ge=0)
    position_decay: float = Field(default=0.0, ge=0)
    overlap_share: Share = 0.0
    choose: Literal["last", "best"] = "last"


LEAN = {"lean", "teacher_top", "head_words", "position_decay", "overlap_share"}
"""Keys of [run] that only the lean pass looks at."""


class AdapterRecipe(Recipe):
    """A recipe of `training.adapter.train`."""

    model: _ModelTable
    adapter: AdapterTable = AdapterTable()
    sampling: _SamplingTable = _SamplingTable()
    blocks: BlocksTable | None = None
    data: dict[str, Any]
    run: RunTable

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Self:
        """Check tables, and that they are about one kind of slots (raises as `Recipe.of`)."""
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
        recipe._check_lean()
        strides = recipe.run.strides
        if strides and (variant != "isd" or max(strides) > recipe.adapter.num_slots + 1):
            raise ValueError(
                f"recipe: run.strides are {list(strides)}; they are for isd, up to num_slots + 1"
            )
        return recipe

    def _check_lean(self) -> None:
        run = self.run
        if self.adapter.enter and not run.lean:
            raise ValueError(
                f"recipe: adapter.enter is {self.adapter.enter}; slots that enter above the first "
                "layer are trained with run.lean = true"
            )
        if not run.lean:
            return
        if not self.adapter.gated or self.model.teacher is not None or run.clean:
            raise ValueError("recipe: run.lean is for gated adapters without another teacher")
        if run.objective not in ("one-hot", "kl"):
            raise ValueError(
                f"recipe: run.objective is {run.objective!r}; run.lean knows one-hot and kl"
            )
        if self.model.dtype == "float16":
            raise ValueError("recipe: model.dtype is float16; run.lean uses float32 or bfloat16")
        if run.label_share + run.overlap_share > 1:
            raise ValueError(
                f"recipe: run.label_share {run.label_share:g} and run.overlap_share "
                f"{run.overlap_share:g} are more than 1 together; lower one"
            )

    def decisive(self) -> dict[str, Any]:
        """What decides a run's steps: all but its length, its reports and how it is written."""
        free = {"num_steps", "checkpoint_minutes", "workers", "half", "choose"}
        free |= {name for name in RunTable.model_fields if name.startswith("eval_")}
        # nothing is said of what is not there: checkpoints older than a key go on
        free |= {
            name for name in ("label_share", "clean", "strides") if not getattr(self.run, name)
        }
        if not self.run.lean:
            free |= LEAN
        if self.run.strides:
            free.discard("num_steps")  # it says when the next stride's turn is
        absent = {"teacher"} if self.model.teacher is None else set()
        unset = {name for name in ("enter", "initial") if not getattr(self.adapter, name)}
        excluded: dict[str, Any] = {"run": free, "model": absent, "adapter": unset}
        if self.blocks is None:
            excluded["blocks"] = True
        return self.model_dump(mode="json", exclude=excluded)

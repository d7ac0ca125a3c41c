"""Read an adapter recipe's tables ([data]: see `training.text.sources.build_source`)."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from decoders.core.adapter_config import Code, SlotVariant
from training.adapter.objectives import ObjectiveName
from training.adapter.windows import BlocksTable, WindowSampling
from training.recipe import (
    Count,
    LoopTable,
    ModelTable,
    NotNegative,
    Rate,
    Recipe,
    RecipeTable,
    Seed,
    Share,
    StorageDType,
    TopP,
)


class _ModelTable(ModelTable):
    """[model]: the base model, and the dtype of its weights and activations.

    `teacher` is another model with the same vocabulary, for which a small base model drafts; the
    adapter learns the teacher's picks. None: the base model is the teacher.
    """

    teacher: str | None = None
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


class AdapterTable(RecipeTable):
    """[adapter]: see `decoders.core.adapter_config.AdapterConfig`.

    `initial_scale` is the root mean square of embedded uniforms relative to that of token
    embeddings. `initial` is the folder of an adapter of the same sizes to begin from.
    """

    variant: SlotVariant = "o-ptp"
    num_slots: Count = 16
    rank: NotNegative = 64
    alpha: Rate = 64.0
    code: Code = "dyadic"
    embedding_hidden: NotNegative = 0
    conditioned: bool = False
    anchored: bool = False
    standalone: bool = False
    numbered: bool = False
    enter: NotNegative = 0
    initial: str | None = None
    initial_scale: Rate = 1.0
    seed: Seed = 0


class AdapterRunTable(LoopTable):
    """[run]: objective, length, rates, sizes and evaluation.

    Attributes:
        label_share: share of the text's own tokens in the loss; the rest is the teacher's.
        muon_lr: peak learning rate of the delta's matrices.
        max_tokens: most padded tokens in one group of rows.
        lean: use the lean loss (`training.adapter.lean_job`), for stored completions. The next
            three keys apply only to it.
        teacher_top: number of the teacher's likeliest tokens to learn.
        head_words: number of the head's words that are always in the loss; 0: all.
        position_decay: decay of the weights of slots; slot k has weight exp(-k position_decay).
        choose: write the last weights, or those with the best held-out report.
    """

    objective: ObjectiveName = "one-hot"
    label_share: Share = 0.0
    workers: Count = 2
    decay: Share = 0.95
    muon_lr: Rate
    slots_per_row: Count = 128
    max_tokens: Count = 2600
    seed: Seed = 1
    eval_steps: Count = 300
    eval_temperature: Rate = 0.7
    eval_top_p: TopP = 0.95
    stored: StorageDType = "float16"
    lean: bool = False
    teacher_top: Count = 16
    head_words: NotNegative = 0
    position_decay: float = Field(default=0.0, ge=0)
    choose: Literal["last", "best"] = "last"


class AdapterRecipe(Recipe):
    """Define a recipe of `training.adapters`."""

    model: _ModelTable
    adapter: AdapterTable = AdapterTable()
    sampling: WindowSampling = WindowSampling()
    blocks: BlocksTable | None = None
    data: dict[str, Any]
    run: AdapterRunTable

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Check that all tables fit the same kind of slots."""
        run, adapter = self.run, self.adapter
        if not run.lean:
            run.refuse_unread(("teacher_top", "head_words", "position_decay"), "run.lean = false")
        variant, objective = adapter.variant, run.objective
        checks: dict[str, Any] = {
            f"run.objective is {objective!r}; blocks learn the text, use one-hot": (
                variant == "refine" and objective != "one-hot"
            ),
            f"[blocks] is for adapter.variant refine, not {variant}": (
                self.blocks is not None and variant != "refine"
            ),
            f"run.lean trains on data of kind 'completions', not {self.data.get('kind')!r}": (
                run.lean and self.data.get("kind") != "completions"
            ),
            "run.lean is for adapters without another teacher": (
                run.lean and self.model.teacher is not None
            ),
            f"run.objective is {objective!r}; run.lean knows one-hot and kl": (
                run.lean and objective not in ("one-hot", "kl")
            ),
        }
        for message, wrong in checks.items():
            if wrong:
                raise ValueError(message)
        return self

"""The tables of a recipe of heads; of [data] see `training.text.sources.source_of`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from training.recipe import Count, Rate, Recipe, RecipeTable, Seed, Share


class _ModelTable(RecipeTable):
    """[model]: the target, as for `bench run --model`, and the dtype that it runs in."""

    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"


class HeadsTable(RecipeTable):
    """[heads]: how many there are, the width of each one's residual block, and their seed."""

    num_heads: Count = 4
    rank: Count = 256
    seed: Seed = 0


class LayerTable(RecipeTable):
    """[layer]: tokens it drafts in training, width of its MLP, its attention heads, its seed."""

    unroll: Count = 4
    rank: Count = 768
    num_heads: Count = 4
    seed: Seed = 0


class ExitTable(RecipeTable):
    """[exit]: after how many layers it leaves, the width of its block, its seed."""

    after: Count = 2
    rank: Count = 768
    seed: Seed = 0


class RunTable(RecipeTable):
    """[run]: length, rates, sizes and evaluation.

    Attributes:
        num_steps: of the whole run.
        warmup_steps: of the learning rate.
        decay: share of the steps over which it falls, linearly, at the end.
        adamw_lr: its peak.
        head_decay: head h weighs ``head_decay ** h`` in the loss (h counts from 0).
        max_tokens: padded tokens of one group of rows.
        max_logits: logits that are held at a time; more of them, fewer pieces.
        eval_steps: steps between held-out reports.
        eval_rows: rows of a report.
        checkpoint_minutes: minutes between checkpoints.
        half: write the heads in float16.
    """

    num_steps: Count
    warmup_steps: int = Field(default=40, ge=0)
    decay: Share = 0.9
    adamw_lr: Rate
    head_decay: Share = 0.8
    max_tokens: Count = 2600
    max_logits: Count = 16_000_000
    eval_steps: Count = 200
    eval_rows: Count = 60
    checkpoint_minutes: float = Field(default=4.0, ge=0)
    half: bool = True


class HeadsRecipe(Recipe):
    """A recipe of `training.heads.train`: of heads, unless there is a [layer] or an [exit]."""

    model: _ModelTable
    heads: HeadsTable | None = None
    layer: LayerTable | None = None
    exit: ExitTable | None = None
    data: dict[str, Any]
    run: RunTable

    def decisive(self) -> dict[str, Any]:
        """What decides a run's steps: all but its length, its reports and how it is written."""
        free = {"num_steps", "checkpoint_minutes", "eval_steps", "eval_rows", "half"}
        return self.model_dump(mode="json", exclude={"run": free})

"""The tables of a recipe of heads; of [data] see `training.text.sources.source_of`."""

from __future__ import annotations

from typing import Any, Literal

from training.recipe import Count, LoopTable, NotNegative, Recipe, RecipeTable, Seed, Share


class _ModelTable(RecipeTable):
    """[model]: the target, as for `bench run --model`, and the dtype that it runs in."""

    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"


class HeadsTable(RecipeTable):
    """[heads]: their number, the width of each one's residual block, and their seed."""

    num_heads: Count = 4
    rank: Count = 256
    seed: Seed = 0


class LayerTable(RecipeTable):
    """[layer]: a draft layer.

    Attributes:
        unroll: tokens it drafts in training, one after another.
        rank: width of its MLP.
        words: number of words that it drafts, those most frequent in answers; 0: all.
    """

    unroll: Count = 4
    rank: Count = 768
    num_heads: Count = 4
    words: NotNegative = 0
    seed: Seed = 0


class ExitTable(RecipeTable):
    """[exit]: the layers before it, the width of its block, its seed."""

    after: Count = 2
    rank: Count = 768
    seed: Seed = 0


class RunTable(LoopTable):
    """[run]: head h (from 0) weighs ``head_decay ** h`` in the loss.

    At most `max_logits` are held at a time: the more of them, the fewer pieces. With `keep_states`
    the target's states of each answer, once computed, stay in memory for a draft layer.
    """

    warmup_steps: NotNegative = 40
    head_decay: Share = 0.8
    max_tokens: Count = 2600
    max_logits: Count = 16_000_000
    keep_states: bool = False
    half: bool = True


class HeadsRecipe(Recipe):
    """A recipe of `training.heads.train`: of heads, unless there is a [layer] or an [exit]."""

    model: _ModelTable
    heads: HeadsTable | None = None
    layer: LayerTable | None = None
    exit: ExitTable | None = None
    data: dict[str, Any]
    run: RunTable

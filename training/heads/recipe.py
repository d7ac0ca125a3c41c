"""The tables of a recipe of heads; of [data] see `training.text.sources.source_of`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from decoders.core.adapter.embedding import Code
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
    Stored,
)


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


class DrafterTable(RecipeTable):
    """[drafter]: layers that draft in one pass; fields are as in `AdapterConfig`.

    Attributes:
        num_words: as [layer]'s `words`; of fewer words there are all.
        code: how slots know their uniforms; ``constant``: they do not.
    """

    num_slots: Count = 8
    num_layers: Count = 2
    rank: Count = 1024
    num_heads: Count = 4
    num_words: NotNegative = 0
    bias_rank: NotNegative = 128
    code: Code = "dyadic"
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

    Attributes:
        choose: write the last weights, or those of the best held-out report.
        muon_lr: peak rate of the matrices of a drafter's layers; None: AdamW's.
        anchors_per_row: places of an answer that a drafter drafts from, drawn anew each time.
        position_decay: slot k of a drafter weighs exp(-k position_decay).
        teacher_top: likeliest tokens of the teacher that greedy text is compared with.
        label_share: share of the text's own token in the loss of greedy text.
    """

    warmup_steps: NotNegative = 40
    head_decay: Share = 0.8
    max_tokens: Count = 2600
    max_logits: Count = 16_000_000
    keep_states: bool = False
    stored: Stored = "float16"
    choose: Literal["last", "best"] = "last"
    muon_lr: Rate | None = None
    anchors_per_row: Count = 64
    position_decay: float = Field(default=0.25, ge=0)
    teacher_top: Count = 16
    label_share: Share = 0.3


class HeadsRecipe(Recipe):
    """A recipe of `training.adapters`: of heads, unless there is another of its tables."""

    model: ModelTable
    heads: HeadsTable | None = None
    layer: LayerTable | None = None
    drafter: DrafterTable | None = None
    exit: ExitTable | None = None
    data: dict[str, Any]
    run: RunTable

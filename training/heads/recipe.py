"""Read the tables of a recipe of heads ([data]: see `training.text.sources.build_source`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from decoders.core.adapter_config import Code
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
)


class HeadsTable(RecipeTable):
    """[heads]: number of heads, width of each head's residual block (`rank`), and seed."""

    num_heads: Count = 4
    rank: Count = 256
    seed: Seed = 0


class LayerTable(RecipeTable):
    """[layer]: a draft layer.

    Attributes:
        unroll: number of tokens the layer drafts in training, one after another.
        rank: width of the layer's MLP.
        words: number of words the layer can draft, the most frequent in answers; 0: all.
        initial: folder of a layer of these sizes whose weights replace fresh ones (not its words).
    """

    unroll: Count = 4
    rank: Count = 768
    num_heads: Count = 4
    words: NotNegative = 0
    initial: str | None = None
    seed: Seed = 0


class DrafterTable(RecipeTable):
    """[drafter]: layers that draft in one forward pass, with fields of `AdapterConfig`.

    Attributes:
        num_words: as `words` of [layer], at most the whole vocabulary.
        code: encoding of the slots' uniforms; ``constant``: slots do not see them.
    """

    num_slots: Count = 8
    num_layers: Count = 2
    rank: Count = 1024
    num_heads: Count = 4
    num_words: NotNegative = 0
    bias_rank: NotNegative = 128
    code: Code = "dyadic"
    seed: Seed = 0


class HeadsRunTable(LoopTable):
    """[run]: head h (from 0) has weight ``head_decay ** h`` in the loss.

    At most `max_logits` logits are in memory at a time; a higher limit gives fewer pieces. With
    `keep_states`, a draft layer's job keeps the target's computed states of each answer in memory.

    Attributes:
        choose: write the last weights, or those with the best held-out report.
        muon_lr: peak learning rate of the matrices of a drafter's layers; None: AdamW for all.
        anchors_per_row: number of random places per answer that a drafter drafts from in a step.
        position_decay: decay of a drafter's slots; slot k has weight exp(-k position_decay).
        teacher_top: number of the teacher's likeliest tokens in the loss of greedy text.
        label_share: share of the text's own token in the loss of greedy text.
    """

    warmup_steps: NotNegative = 40
    head_decay: Share = 0.8
    max_tokens: Count = 2600
    max_logits: Count = 16_000_000
    keep_states: bool = False
    stored: StorageDType = "float16"
    choose: Literal["last", "best"] = "last"
    muon_lr: Rate | None = None
    anchors_per_row: Count = 64
    position_decay: float = Field(default=0.25, ge=0)
    teacher_top: Count = 16
    label_share: Share = 0.3


class HeadsRecipe(Recipe):
    """A recipe of `training.adapters`: trains the heads, layer or drafter it has."""

    model: ModelTable
    heads: HeadsTable | None = None
    layer: LayerTable | None = None
    drafter: DrafterTable | None = None
    data: dict[str, Any]
    run: HeadsRunTable

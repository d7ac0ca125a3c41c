"""Read the tables of a recipe of heads ([data]: see `training.text.sources.build_source`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, create_model

from bench.registry import extras
from decoders.core.adapter_config import Code
from training.recipe import (
    RECIPES,
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


class NetworkTable(RecipeTable):
    """Define a recipe's table with the sizes of a network, and a verb of `bench train`.

    Attributes:
        verb: name of the verb, and of its recipes VERB.toml (zoo) and VERB-any.toml in `recipes`.
        help: help of the verb.
        name: name of the table.
        network: variant of the network (`HiddenAdapter`).
        job: class of the job, a `HiddenJob`, as MODULE:CLASS.
    """

    verb: ClassVar[str]
    help: ClassVar[str]
    name: ClassVar[str]
    network: ClassVar[str]
    job: ClassVar[str]
    recipes: ClassVar[Path] = RECIPES

    def fields(self, num_words: int) -> dict[str, Any]:
        """Return fields of `AdapterConfig` for a model of `num_words` words."""
        return self.model_dump(exclude={"seed", "initial"}, by_alias=True)


class HeadsTable(NetworkTable):
    """[heads]: number of heads, width of each head's residual block (`rank`), and seed."""

    verb, name, network, job = "medusa", "heads", "medusa", "training.heads.job:HeadsJob"
    help = "Train Medusa heads for a model (resumable); see docs/decoders/medusa.md."
    num_heads: Count = Field(default=4, serialization_alias="num_slots")
    rank: Count = 256
    seed: Seed = 0


class LayerTable(NetworkTable):
    """[layer]: a draft layer.

    Attributes:
        unroll: number of tokens the layer drafts in training, one after another.
        rank: width of the layer's MLP.
        words: number of words the layer can draft, the most frequent in answers; 0: all.
        initial: folder of a layer of these sizes whose weights replace fresh ones (not its words).
    """

    verb, name, network, job = "eagle", "layer", "eagle", "training.heads.job:LayerJob"
    help = "Train EAGLE's draft layer for a model (resumable); see docs/decoders/eagle.md."
    unroll: Count = Field(default=4, serialization_alias="num_slots")
    rank: Count = 768
    num_heads: Count = 4
    words: NotNegative = Field(default=0, serialization_alias="num_words")
    initial: str | None = None
    seed: Seed = 0


class DrafterTable(NetworkTable):
    """[drafter]: layers that draft in one forward pass, with fields of `AdapterConfig`.

    Attributes:
        num_words: as `words` of [layer], at most the whole vocabulary.
        candidates: number of each slot's words that a selector chooses from; 0: no selector.
        hidden_layers: layers of the target whose states are read; empty: the last.
        code: encoding of the slots' uniforms; ``constant``: slots do not see them.
    """

    verb, name, network = "drafter", "drafter", "shallow"
    job = "training.heads.parallel_job:ParallelJob"
    help = "Train layers that draft in one pass (resumable); see docs/decoders/shallow.md."
    num_slots: Count = 8
    num_layers: Count = 2
    rank: Count = 1024
    num_heads: Count = 4
    num_words: NotNegative = 0
    bias_rank: NotNegative = 128
    candidates: NotNegative = 0
    hidden_layers: list[int] = Field(default_factory=list)
    code: Code = "dyadic"
    seed: Seed = 0

    def fields(self, num_words: int) -> dict[str, Any]:
        """See `NetworkTable.fields`."""
        words = min(self.num_words, num_words) or num_words
        fields = {**super().fields(num_words), "num_words": words}
        sizes = {name: fields.pop(name) for name in ("candidates", "hidden_layers")}
        return {**fields, "sizes": {name: size for name, size in sizes.items() if size}}


class HeadsRunTable(LoopTable):
    """[run]: head h (from 0) has weight ``head_decay ** h`` in the loss.

    At most `max_logits` logits are in memory at a time; a higher limit gives fewer pieces. With
    `keep_states`, a draft layer's job keeps the target's computed states of each answer in memory.

    Attributes:
        choose: write the last weights, or those with the best held-out report.
        muon_lr: peak learning rate of the layers' matrices; None: AdamW for all.
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
    """Define a recipe of `training.adapters`, which trains the network whose table it has."""

    model: ModelTable
    data: dict[str, Any]
    run: HeadsRunTable

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Self:
        """Check tables as `Recipe.of`, among them the one of a registered network."""
        kinds = network_tables()
        present = [kind for kind in kinds.values() if kind.name in tables]
        if len(present) != 1:
            names = ", ".join(sorted(kind.name for kind in kinds.values()))
            raise ValueError(f"recipe: the table of a network is missing; add one of {names}")
        fields: Any = {present[0].name: (present[0], ...)}
        return super(HeadsRecipe, create_model(cls.__name__, __base__=cls, **fields)).of(tables)

    @property
    def network(self) -> NetworkTable:
        """The network's table."""
        return next(each for each in vars(self).values() if isinstance(each, NetworkTable))


def network_tables() -> dict[str, type[NetworkTable]]:
    """Return the registered tables of networks by verb."""
    kinds = extras("bench.trainers").items()
    tables = {verb: kind for verb, kind in kinds if isinstance(kind, type)}
    return {verb: kind for verb, kind in tables.items() if issubclass(kind, NetworkTable)}

"""What an adapter is: its variant, sizes and training range, as ``adapter.json`` keeps them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from decoders.core.adapter.embedding import CODES, Code

FORMAT = 1
SlotVariant = Literal["o-ptp", "c-ptp", "refine", "isd"]
HeadsVariant = Literal["medusa", "eagle", "exit"]
Variant = Literal[SlotVariant, HeadsVariant]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
MASKED_VARIANTS: tuple[Variant, ...] = ("refine", "isd", *get_args(HeadsVariant))
"""Variants that know no uniform: slots that carry none, heads, a draft layer and an exit."""
HEADS: tuple[Variant, ...] = get_args(HeadsVariant)
"""Variants without slots, which read hidden states: `DraftHeads`, `DraftLayer`, `ExitBlock`."""
CONFIG_FILE, WEIGHTS_FILE = "adapter.json", "adapter.safetensors"
_OF_HEADS = ("variant", "num_slots", "layers", "width", "rank", "code", "base", "measured")
_OF_SOME = ("num_heads", "exit_layer")


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """All that is not a weight.

    Attributes:
        variant: ``o-ptp``: the slot that carries u_k predicts token k; ``c-ptp``: it predicts the
            distribution of token k + 1. In both others a slot at a token's own place carries a
            mask, or in ``refine`` that token, and predicts the distribution of the token after it:
            ``isd`` slots see earlier ones, ``refine`` slots see their whole block. ``medusa`` has
            no slots but heads on the last hidden state, ``eagle`` a decoder layer that reads it,
            ``exit`` a block on the hidden state after some layers.
        num_slots: slots of a training window (the longest block of ``refine``; heads; how many
            tokens one after another a draft layer was trained to draft; 1 of an exit).
        layers: (in, out) of every gated layer of the base model; none with heads.
        width: D.
        rank: r; 0 for a full-rank delta. With heads and of an exit the width of the residual
            block, in a draft layer that of its MLP.
        alpha: the delta is scaled by alpha / r.
        code: how u is embedded.
        embedding_hidden: middle width of the embedding's network (0: one linear layer).
        conditioned: whether the embedding is told temperature and top-p.
        anchored: whether the first slot of a branch also carries the embedding of the token before
            it (not in the paper; the base row's input, so it starts from what that row computes).
        standalone: whether a branch does without the base row of the token before it, which its
            first slot stands for (`anchored`): proposing then takes slots alone. Not in the paper.
        numbered: whether slots carry a learned embedding of their number in the branch (not in the
            paper, which leaves the order to the positions).
        enter: the decoder layer at which slots enter, counted from 0. Above 0, a slot begins as the
            hidden state there of the base row before its branch, times a learned scale for its
            number, plus its embedding, and the layers below have no delta. Not in the paper.
        temperatures: lowest and highest temperature of training.
        top_ps: the nucleus sizes of training.
        top_k: of training.
        greedy: whether blank slots were trained on greedy continuations.
        num_heads: attention heads of a draft layer; 0 for all others.
        exit_layer: how many decoder layers run before an exit; 0 for all others.
        order: order in which a distribution is accumulated by `pick`.
        base: what is known of the base model (architecture, hash of its weights).
        measured: the held-out report: per-slot accuracy, survival, calibration.
    """

    variant: Variant = "o-ptp"
    num_slots: int = 16
    layers: Mapping[str, tuple[int, int]]
    width: int
    rank: int = 64
    alpha: float = 64.0
    code: Code = "dyadic"
    embedding_hidden: int = 0
    conditioned: bool = False
    anchored: bool = False
    standalone: bool = False
    numbered: bool = False
    enter: int = 0
    temperatures: tuple[float, float] = (1.0, 1.0)
    top_ps: tuple[float, ...] = (1.0,)
    top_k: int = 0
    greedy: bool = False
    num_heads: int = 0
    exit_layer: int = 0
    order: str = "vocabulary"
    base: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """`ValueError` for a value this version does not know."""
        _demand(self.variant in VARIANTS, "variant", self.variant, ", ".join(VARIANTS))
        _demand(self.code in CODES, "code", self.code, ", ".join(CODES))
        _demand(self.order == "vocabulary", "order", self.order, "vocabulary")
        _demand(self.num_slots >= 1, "num_slots", self.num_slots, "1 or above")
        _demand(self.width >= 1, "width", self.width, "1 or above")
        _demand(self.embedding_hidden >= 0, "embedding_hidden", self.embedding_hidden, "0 or above")
        for name, shape in self.layers.items():
            fits = len(shape) == 2 and min(shape) >= 1
            _demand(fits, f"layers.{name}", shape, "two sizes of 1 or above")
        plain = self.code != "dyadic" and (self.conditioned or self.embedding_hidden)
        _demand(not plain, "code", self.code, "dyadic for conditioned or embedding_hidden")
        alone = self.standalone and not (self.anchored and self.variant == "o-ptp")
        _demand(not alone, "standalone", True, "false, unless it is an anchored o-ptp adapter")
        _demand(self.enter >= 0, "enter", self.enter, "0 (with the tokens) or above")
        late = self.enter and (self.variant == "refine" or self.anchored or self.standalone)
        _demand(
            not late,
            "enter",
            self.enter,
            "0 for refine (its passes have no base row to begin from), anchored and standalone",
        )
        _demand(self.rank >= 0, "rank", self.rank, "1 or above, or 0 for full rank")
        if self.variant in HEADS:
            _demand(not self.layers, "layers", dict(self.layers), "empty where there are heads")
            _demand(self.rank >= 1, "rank", self.rank, "1 or above where there are heads")
        of_layer = self.variant == "eagle"
        divides = self.num_heads >= 1 and self.width % (2 * self.num_heads) == 0
        _demand(
            divides if of_layer else self.num_heads == 0,
            "num_heads",
            self.num_heads,
            f"a number that cuts the width of {self.width} into even parts"
            if of_layer
            else "0 where there is no draft layer",
        )
        leaves = self.variant == "exit"
        _demand(
            self.exit_layer >= 1 if leaves else self.exit_layer == 0,
            "exit_layer",
            self.exit_layer,
            "1 or above" if leaves else "0 where there is no exit",
        )
        code = "constant" if self.masked else self.code
        _demand(self.code == code, "code", self.code, f"constant where slots are {self.variant}")

    @property
    def masked(self) -> bool:
        """Whether slots, if there are any, carry a mask and no uniform."""
        return self.variant in MASKED_VARIANTS

    @property
    def scale(self) -> float:
        """The factor on B A."""
        return self.alpha / self.rank if self.rank else 1.0

    def to_json(self) -> str:
        """As it stands in ``adapter.json``."""
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        if not self.enter:
            del fields["enter"]  # as in files older than it
        if self.variant in HEADS:  # nothing is said of slots
            fields = {name: fields[name] for name in ("format", *_OF_HEADS, *_OF_SOME)}
        for name in _OF_SOME:
            if not fields[name]:
                del fields[name]
        lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> AdapterConfig:
        """Read `to_json`'s text back.

        Raises:
            ValueError: for another format, a missing or an unknown field.
        """
        values = json.loads(text)
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"it is not an adapter configuration of format {FORMAT}")
        known = {f.name for f in dataclasses.fields(cls)}
        if strange := sorted(set(values) - known):
            raise ValueError(f"unknown field {strange[0]!r}; known are {', '.join(sorted(known))}")
        if missing := sorted({"layers", "width"} - set(values)):
            raise ValueError(f"field {missing[0]!r} is missing")
        if not isinstance(values["layers"], dict):
            raise ValueError(f"field 'layers' is {values['layers']!r}; it must be an object")
        values["layers"] = {name: tuple(shape) for name, shape in values["layers"].items()}
        for name in ("temperatures", "top_ps"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)


def _demand(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"adapter field {name!r} is {value!r}; it must be {allowed}")

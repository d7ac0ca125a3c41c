"""Configuration of an adapter, as stored in ``adapter.json``: variant, sizes, training range."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from decoders.core.plugins import NETWORKS, network, network_names
from decoders.core.types import demand

Code = Literal["dyadic", "constant"]
CODES: tuple[Code, ...] = get_args(Code)

FORMAT = 1
SlotVariant = Literal["o-ptp", "c-ptp", "refine", "isd"]
Variant = str
"""A kind of slots, or a registered network, which has no slots in calls (`HiddenAdapter`)."""
SLOT_VARIANTS: tuple[SlotVariant, ...] = get_args(SlotVariant)
MASKED_VARIANTS: tuple[SlotVariant, ...] = ("refine", "isd")
"""Variants whose slots carry a mask instead of a uniform."""
CONFIG_FILE, WEIGHTS_FILE = "adapter.json", "adapter.safetensors"
_OF_SOME = ("num_heads", "num_words", "num_layers", "bias_rank")
SizeRule = tuple[bool, str, str]
"""Result of a field's check, the field's name, and its allowed values."""
_ANCHORED = "an anchored o-ptp adapter"
_OF_DYADIC = "conditioned or embedding_hidden"
_WITH_TOKENS = "0 for refine (its passes have no base row to start from), anchored and standalone"


def is_masked(variant: Variant) -> bool:
    """Return whether adapters of a variant draft without uniforms."""
    return variant in MASKED_VARIANTS if variant in SLOT_VARIANTS else bool(network(variant).masked)


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Describe everything in an adapter except its weights. Fields marked * are not in the paper.

    Attributes:
        variant: ``o-ptp``: the slot that carries u_k predicts token k. ``c-ptp``: it predicts the
            distribution of token k + 1. ``isd`` and ``refine``: a slot at a token's position
            carries a mask (in ``refine``, a mask or that token) and predicts the distribution of
            the next token; ``isd`` slots see earlier slots, ``refine`` slots their whole block.
            Any other variant names a network on the last hidden state, without slots in calls.
        num_slots: slots per training window; for ``refine`` the longest block, for a network the
            number of drafts that it was trained for.
        layers: (in, out) of every gated layer of the base model; empty for a network.
        width: D.
        rank: r; 0 for a full-rank delta. In a network, the width of a block or of an MLP.
        alpha: the delta is scaled by alpha / r.
        code: encoding of u in the embedding.
        embedding_hidden: hidden width of the embedding's network (0: one linear layer).
        conditioned: temperature and top-p are inputs of the embedding.
        anchored*: the first slot of a branch also carries the embedding of the token before it.
        standalone*: a branch needs no base row for the token before it, because its first slot
            replaces that row (`anchored`); proposing then takes only slots.
        numbered*: slots carry a learned embedding of their number in the branch.
        enter*: decoder layer at which slots enter, from 0. Above 0, a slot starts as the hidden
            state, at that layer, of the base row before its branch, times a learned scale for its
            number, plus its embedding; the layers below have no delta.
        temperatures: lowest and highest temperature in training.
        top_ps: nucleus sizes in training.
        top_k: top-k in training.
        greedy: blank slots were trained on greedy continuations.
        num_heads: attention heads of a network.
        num_words: number of frequent words that a network's head scores; 0: the whole vocabulary.
        num_layers: number of layers of a network.
        bias_rank: rank of the bias of a draft on the next one's logits; 0: no bias.
        sizes: further numbers of a network, by the names that the network gives them.
        order: order in which `pick` accumulates a distribution.
        base: facts of the base model (architecture, hash of its weights).
        measured: held-out report: per-slot accuracy, survival, calibration.
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
    num_words: int = 0
    num_layers: int = 0
    bias_rank: int = 0
    sizes: Mapping[str, Any] = field(default_factory=dict)
    order: str = "vocabulary"
    base: Mapping[str, Any] = field(default_factory=dict, repr=False)  # no graph depends on them
    measured: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        has_slots = self.variant in SLOT_VARIANTS
        if not has_slots and self.variant not in NETWORKS:
            names = (*SLOT_VARIANTS, *network_names())
            registered, allowed = self.variant in names, ", ".join(names)
            demand(registered, "adapter field 'variant'", repr(self.variant), allowed)
        of_dyadic = self.conditioned or self.embedding_hidden
        anchored = self.anchored and self.variant == "o-ptp"
        no_late = self.variant == "refine" or self.anchored or self.standalone
        kind = None if has_slots else network(self.variant)
        uses, zero = {*kind.uses} if kind else set(), f"0 for {self.variant}"
        extra = ", ".join(sorted(uses - {*_OF_SOME})) or "nothing"
        rules = [
            (self.code in CODES, "code", ", ".join(CODES)),
            (self.order == "vocabulary", "order", "vocabulary"),
            (self.num_slots >= 1, "num_slots", "1 or above"),
            (self.width >= 1, "width", "1 or above"),
            (self.embedding_hidden >= 0, "embedding_hidden", "0 or above"),
            (self.code == "dyadic" or not of_dyadic, "code", f"dyadic for {_OF_DYADIC}"),
            (anchored or not self.standalone, "standalone", f"false, unless it is {_ANCHORED}"),
            (self.enter >= 0, "enter", "0 (with the tokens) or above"),
            (not (self.enter and no_late), "enter", _WITH_TOKENS),
            (self.rank >= 0, "rank", "1 or above, or 0 for full rank"),
            (has_slots or not self.layers, "layers", "empty where there are heads"),
            (self.rank >= 1 or has_slots, "rank", "1 or above where there are heads"),
            (not self.masked or self.code == "constant", "code", f"constant for {self.variant}"),
            *[(name in uses or not getattr(self, name), name, zero) for name in _OF_SOME],
            (uses >= {*self.sizes}, "sizes", f"a table of {extra} for {self.variant}"),
        ]
        try:
            rules += kind.rules(self) if kind else ()
        except Exception as error:  # code of other packages may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{self.variant} cannot check its sizes ({reason})") from error
        for holds, name, allowed in rules:
            demand(holds, f"adapter field {name!r}", repr(getattr(self, name)), allowed)
        for name, shape in self.layers.items():
            fits = len(shape) == 2 and min(shape) >= 1
            layer = f"layers.{name}"
            demand(fits, f"adapter field {layer!r}", shape, "two sizes of 1 or above")

    @property
    def masked(self) -> bool:
        """True if slots carry a mask instead of a uniform, or drafts depend on no uniform."""
        return is_masked(self.variant)

    @property
    def scale(self) -> float:
        """Factor of the delta B A."""
        return self.alpha / self.rank if self.rank else 1.0

    def to_json(self) -> str:
        """Return the text of ``adapter.json``."""
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> AdapterConfig:
        """Read text written by `to_json`, or raise `ValueError` for another format or fields."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"it is not an adapter configuration of format {FORMAT}")
        fields = {f.name for f in dataclasses.fields(cls)}
        if strange := sorted(set(values) - fields):
            raise ValueError(f"unknown field {strange[0]!r}; known are {', '.join(sorted(fields))}")
        if missing := sorted({"layers", "width"} - set(values)):
            raise ValueError(f"field {missing[0]!r} is missing")
        if not isinstance(values["layers"], dict):
            raise ValueError(f"field 'layers' is {values['layers']!r}; it must be an object")
        values["layers"] = {name: tuple(shape) for name, shape in values["layers"].items()}
        for name in ("temperatures", "top_ps"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)

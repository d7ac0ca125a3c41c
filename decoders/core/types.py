"""Define the frozen data that decoders, scheduler and records exchange.

Its words (call, row, slot, step, draft, accepted, bonus token) are those of docs/glossary.md.
Letters: N rows of a call, S slots among them, R rows read, K drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Output = Literal["picks", "argmax", "draws", "probs", "logits", "acceptance", "block", "tree"]
Confidence = Literal["prob", "margin", "neg_entropy"]
StopReason = Literal["eos", "length"]

NO_UNIFORM = -1.0
"""Marks a slot without a uniform, which carries the adapter's learned vector instead."""

Law = Callable[[tuple[int, ...], "Tensor"], "Tensor"]
"""A law of logits: a function of an answer's tokens and the target's next logits ``[V]``, which
returns the logits to sample from. A law may forbid tokens (-inf), and must depend on nothing else.
It is also called behind drafts that it forbids, whose rows are never accepted."""

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1000.0
"""Bounds of temperatures: below, logits / temperature overflow; above, all is nearly uniform."""

MASKED = -1
"""Marks a masked slot, which shows the adapter no token."""

MAX_DRAFTS = 120
"""Maximum number of draft rows in one verifying call. After the longest prompt and answer, every
cache has room for these rows and for the row before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Hold sampling settings: temperature, top-k, top-p, budget, stop ids, a law of the logits.

    Values out of range raise `ValueError`. The order is law -> temperature -> top-k -> top-p
    (transformers' order); ``temperature=0`` is greedy; ``top_k=0`` and ``top_p=1`` are off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 256
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    law: Law | None = None

    def __post_init__(self) -> None:
        warm = MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE
        allowed = f"0 (greedy), or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
        demand(self.temperature == 0 or warm, "temperature", self.temperature, allowed)
        demand(self.top_k >= 0, "top_k", self.top_k, "0 (off) or above")
        demand(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (off)")
        demand(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "1 or above")

    @property
    def greedy(self) -> bool:
        """True if every distribution is one-hot, so that no uniform is ever used."""
        return self.temperature == 0


def demand(holds: bool, name: str, value: object, allowed: str) -> None:
    """Raise `ValueError` about a value unless `holds`.

    Args:
        holds: true if the value is allowed.
        name: the message's words for what has the value, such as ``adapter field 'rank'``.
        value: the value, shown as `str` does.
        allowed: the end of the message "it must be …", such as ``1 or above``.
    """
    if not holds:
        raise ValueError(f"{name} is {value}; it must be {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Describe the slot rows of a call, which follow its token rows and never stay in the cache.

    Attributes:
        adapter: name of the adapter that the slots run through (of `vectors`: "", none).
        uniforms: input of each of the S slots, u in [0, 1) or `NO_UNIFORM`.
        sizes: number of slots of each branch, in order; a branch continues the text after a token.
        anchors: the token before each branch.
        read: indices of the slots that are read (0 is the first slot), ascending.
        output: ``argmax``: likeliest tokens; ``draws``: draws from the warped distributions with
            the uniforms of the predicted positions. Both have confidences. ``picks``: the draws
            alone. ``probs``: the warped distributions, and draws from them. Or several forms.
        warp: temperature and top-p for the uniforms.
        slot_tokens: token that each slot shows instead of its uniform, or `MASKED`; empty: none.
        confidence: measure of confidence: ``prob``, the prediction's probability; ``margin``, its
            lead over the likeliest other token; ``neg_entropy``, exp(-H), H the entropy in nats. It
            uses the unwarped distribution for ``argmax``, the warped one for ``draws``.
        barred: ids that these slots never predict (`slot_barred` is the mass of these ids).
        vectors: ``[S, E]``, what the model itself reads in place of embedded tokens (or None).
    """

    adapter: str
    uniforms: tuple[float, ...]
    sizes: tuple[int, ...]
    anchors: tuple[int, ...]
    read: tuple[int, ...]
    output: str | tuple[str, ...] = "argmax"
    warp: tuple[float, float] = (1.0, 1.0)
    slot_tokens: tuple[int, ...] = ()
    confidence: Confidence = "prob"
    barred: frozenset[int] = frozenset()
    vectors: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRule:
    """Define when a draft is accepted. The default keeps the target's distribution.

    Attributes:
        lenience: a draft is accepted with probability min(1, target / (lenience * draft)); 1 is
            exact, a smaller number accepts more.
        top: a draft among the target's `top` likeliest tokens is always accepted.
    """

    lenience: float = 1.0
    top: int = 0


EXACT = AcceptanceRule()


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Hold the outcome of verifying K drafts: the number accepted, and the next token.

    If distributions were compared, each draft x has a value in `ratios`, min(1, target(x) /
    draft(x)), and one in `overlaps`, the sum over the vocabulary of min(target, draft).
    """

    accepted: int
    token: int
    ratios: tuple[float, ...] = field(default=(), compare=False)
    overlaps: tuple[float, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """Describe the drafts that one call of a drafter's own network makes.

    Attributes:
        depth: drafts on the longest path: levels of a tree, heads, or slots.
        width: maximum number of candidates after a row, and of rows extended at each level.
        nodes: maximum number of drafts, of which the likeliest stay.
        draws: drafts are drawn from the network's distributions; else they are likeliest tokens.
        floor: no level follows rows whose paths together have a smaller probability.
    """

    depth: int
    width: int = 1
    nodes: int = 1
    draws: bool = False
    floor: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallResult:
    """Hold the result of a call for its read rows, or of a draft call.

    The call's `output` determines the fields that are set:

    * picks: `picks`, R tokens drawn from the warped distributions with the positional uniforms;
    * argmax: `picks`, R likeliest tokens, and `confidences`, their unwarped probabilities;
    * draws: `picks` as for picks, and `confidences`, their warped probabilities (greedy: argmax);
    * probs: `probs`, warped distributions ``[R, V]`` (on the device), and picks as for draws;
    * logits: `logits`, raw float32 logits ``[R, V]`` (on the device);
    * acceptance: `acceptance`, rejection sampling of `Call.drafts`;
    * block: `acceptance`, block verification of `Call.drafts`;
    * tree: `path`, the first and the accepted read rows of `Call.drafts`, which branch as the mask
      says (siblings are drawn without replacement), and in `picks` the token after them;
    * entropy: `entropies` in nats, and topk:N: `top_ids`, the N likeliest ids of each row in order,
      with `top_probs`, both of the distribution before warping (after a law, without barred ids).

    `barred` is the mass of barred ids in each row's unwarped distribution. `slots` is the result of
    the read slots; its picks, confidences, probs and barred are also `slot_picks` and so on.
    `hidden` ``[H, D]`` (on device) are the states of `Call.hidden`; with `Call.hidden_layers`,
    ``[H, L, D]``.

    A draft call sets `picks` to its drafts, `confidences` to the probability of each (in a tree, of
    its path), `parents` to the index of the draft before each (-1: none) if they form a tree, and
    `probs` ``[R, V]`` to the distributions that drawn drafts come from.
    """

    picks: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    probs: Tensor | None = None
    logits: Tensor | None = None
    acceptance: Acceptance | None = None
    slot_picks: tuple[int, ...] = ()
    slot_confidences: tuple[float, ...] = ()
    slot_probs: Tensor | None = None
    slot_barred: tuple[float, ...] = ()
    hidden: Tensor | None = None
    entropies: tuple[float, ...] = ()
    top_ids: tuple[tuple[int, ...], ...] = ()
    top_probs: tuple[tuple[float, ...], ...] = ()
    barred: tuple[float, ...] = ()
    slots: CallResult | None = None
    parents: tuple[int, ...] = ()
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """End a step with its final tokens (none for a pass that commits nothing).

    Attributes:
        tokens: tokens committed to the output.
        drafted: number of drafts that this step verified, in all branches.
        accepted: number of accepted drafts, from the first draft without a gap.
        num_leading: number of `tokens` that come before the drafts and never were drafts.
        acceptance: result of the verification, if it compared the drafts' distributions with the
            target's.
        passes: number of passes over the block that this step finishes; 0 if it finishes none.
        rejected: the rejected drafts, in order, or empty. For a tree: the first branch that
            continues from the row at which verification stopped.
        decided: for each of `tokens`, the pass of its block that decided it (0: the target itself
            gave it); or empty.
        depth: number of drafts on the longest path of a tree; None for a chain of `drafted`.
        sources: name of the drafter of each accepted draft if there are several; or empty.
        confidences: the drafter's probability of each draft whose parents were all accepted, given
            these, and whether it was accepted, by depth, an accepted draft behind its siblings.
    """

    tokens: tuple[int, ...] = ()
    drafted: int = 0
    accepted: int = 0
    num_leading: int = 0
    acceptance: Acceptance | None = None
    passes: int = 0
    rejected: tuple[int, ...] = ()
    decided: tuple[int, ...] = ()
    depth: int | None = None
    sources: tuple[str, ...] = ()
    confidences: tuple[tuple[float, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent(Emit):
    """Describe an emit, cut at EOS and budget, and the work of its calls (padding excluded).

    `accepted`, `num_leading`, `decided` and `sources` end at the cut, and a cut step has no
    `rejected`; all else counts what was verified. In place of `acceptance`, if the drafts'
    distributions were compared with the target's, `tested` counts the drafts that follow only
    accepted drafts, `overlap` is the sum of their overlaps, and `alpha` sums min(1, target / draft)
    over the step's tokens (1 for a token that was no draft). Otherwise these three are None.
    """

    target_calls: int
    target_rows: int
    draft_calls: int
    draft_rows: int
    tested: int | None = None
    overlap: float | None = None
    alpha: float | None = None

    @property
    def max_accepted(self) -> int:
        """Number of drafts on the longest path (in a chain: all drafts)."""
        return self.drafted if self.depth is None else self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Hold a finished answer: ids (EOS included), steps, and the reason of its end."""

    tokens: tuple[int, ...]
    steps: tuple[StepEvent, ...]
    stop: StopReason


Outcome = Generation | Exception
"""The answer to a prompt, or the exception raised by its decoder or call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Hold the facts that rebuild a decoder: its name or path, label, and options as text."""

    name: str
    label: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def cell(self) -> str:
        """The name of the decoder's row in every table: NAME or NAME@LABEL."""
        return f"{self.name}@{self.label}" if self.label else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedForm:
    """Describe the form of a masked target.

    Attributes:
        mask_id: id of the mask token (None: unknown).
        shifted: the row of token i predicts token i + 1, as in the causal parent; else token i.
        block: tokens of a block, which see one another and all blocks before (0: all tokens see
            all others).
    """

    mask_id: int | None = None
    shifted: bool = False
    block: int = 0

"""The frozen data that decoders, scheduler and records exchange. No torch at import time.

Words (one meaning everywhere): a *call* is one forward pass of one model for one sequence; a *row*
is one query position fed in a call; a *step* is one turn of a decoder's loop and ends with an
`Emit`; *drafted* tokens were proposed, *accepted* ones were confirmed by the target, and the
*bonus* token that the verifying call adds itself is never counted as accepted.

Letters: N rows of a call, R rows read, K drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from decoders.core.model import Session

Want = Literal["picks", "argmax", "probs", "logits", "verdict"]
StopReason = Literal["eos", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn, for how long, and what ends an answer.

    The warp order is temperature -> top-k -> top-p (transformers' order); ``temperature=0`` is
    greedy, ``top_k=0`` and ``top_p=1`` are off. Errors: `ValueError` on a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 256
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0

    def __post_init__(self) -> None:
        _demand(self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or above")
        _demand(self.top_k >= 0, "top_k", self.top_k, "0 (off) or above")
        _demand(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (off)")
        _demand(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "1 or above")

    @property
    def greedy(self) -> bool:
        """True where every law is one-hot, so that no uniform is ever consulted."""
        return self.temperature == 0


def _demand(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}; it must be {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One forward pass asked for by a decoder; made by `Session.call`, never by hand.

    `tokens` are the N rows in order. `positions` are their places in the sequence (None: they
    continue the cache). `mask[i, j]` says whether row i sees row j (None: causal); every row sees
    the whole committed cache. `read` lists the R rows whose prediction is wanted, in `want`'s form.
    With ``want="verdict"`` rows `read` verify `drafts`, which were drawn from `draft_probs`, one
    tensor ``[V]`` each (None: deterministic drafts, i.e. one-hot laws).
    """

    session: Session
    tokens: tuple[int, ...]
    read: tuple[int, ...]
    want: Want
    positions: tuple[int, ...] | None = None
    mask: Tensor | None = None
    drafts: tuple[int, ...] = ()
    draft_probs: tuple[Tensor, ...] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of verifying K drafts: how many stand, and the token that follows them."""

    accepted: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallResult:
    """What a call returned for its R read rows; only the fields its `want` names are set.

    =========  =====================================================================
    picks      `picks`: R tokens drawn from the warped laws with the positional uniforms
    argmax     `picks`: R likeliest tokens; `confidences`: their unwarped probabilities
    probs      `probs`: warped laws ``[R, V]`` (on the device) and `picks` drawn from them
    logits     `logits`: raw float32 logits ``[R, V]`` (on the device)
    verdict    `verdict`: rejection sampling of `Call.drafts`
    =========  =====================================================================
    """

    picks: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    probs: Tensor | None = None
    logits: Tensor | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """The end of a step: final tokens only (empty for a pass that commits nothing)."""

    tokens: tuple[int, ...] = ()
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One step after the cut at EOS and budget, with the work its calls cost.

    `accepted_by_depth` is derivable: within a step, drafts 1..accepted stood. `target_rows` and
    `draft_rows` are real rows; padding is counted apart, by the model.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    target_calls: int
    target_rows: int
    draft_calls: int
    draft_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A finished answer: ids (EOS included), its steps, and why it ended. No text, no times."""

    tokens: tuple[int, ...]
    steps: tuple[StepEvent, ...]
    stop: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Enough to rebuild a decoder: where it comes from, its label, and its options as text."""

    name: str
    label: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def cell(self) -> str:
        """The name of its row in every table: NAME or NAME@LABEL."""
        return f"{self.name}@{self.label}" if self.label else self.name

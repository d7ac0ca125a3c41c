"""Models and sessions: who owns the KV cache, and how a decoder speaks to it.

A `Model` holds weights and a KV cache of B rows; a `Session` is one sequence's row in it. Decoders
make `Call`s of sessions and move the committed length; the scheduler hands calls to
`Model.forward`, which runs them and commits their rows.

Letters: B cache rows (sequences), N rows of a call, R rows read, V vocabulary, D hidden width,
H heads of an adapter.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from decoders.core.old_names import accept_old_names
from decoders.core.types import EXACT, AcceptanceRule, Call, Output, Slots

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decoders.core.adapter.config import AdapterConfig


class Model(ABC):
    """A causal language model with a KV cache that any number of sessions share.

    Open sessions are in its first cache rows; an exit has a cache of its own, with as many.

    Attributes:
        vocab_size: V, the number of next-token logits.
        max_length: the longest sequence (prompt and answer) the model was made for.
        device: where logits live.
    """

    vocab_size: int
    max_length: int
    device: torch.device

    def __init__(self) -> None:
        """Reserve no row yet."""
        self._open: list[Session] = []
        self._size = (0, 0)
        self._exits: dict[str, Any] = {}

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of the weights."""

    @property
    @abstractmethod
    def adapters(self) -> Mapping[str, AdapterConfig]:
        """Attached adapters by name; calls with slots name one of them."""

    @abstractmethod
    def adapter_bytes(self, name: str) -> int:
        """Return the bytes of an attached adapter."""

    @property
    @abstractmethod
    def library_module(self) -> Any:
        """The same weights as a plain module of transformers, for loops that are not ours."""

    @abstractmethod
    def cache_bytes(self) -> int:
        """Return the bytes of the preallocated KV cache (0 before `reserve`)."""

    def holds(self, num_rows: int, capacity: int) -> bool:
        """Tell whether `num_rows` sequences of `capacity` tokens fit into the cache."""
        own = num_rows <= self._size[0] and capacity <= self._size[1]
        return own and all(early.holds(num_rows, capacity) for early in self._exits.values())

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Allocate just such a cache (no-op if it is there); no session may be open."""
        assert not self._open, f"{len(self._open)} sessions are open; close them first"
        for early in self._exits.values():
            early.reserve(num_rows, capacity)
        self._size = num_rows, capacity

    def open(self) -> Session:
        """Start an empty sequence in the lowest free cache row."""
        assert len(self._open) < self._size[0], f"all {self._size[0]} rows are taken"
        self._open.append(Session(self, len(self._open), self._size[1]))
        return self._open[-1]

    def close(self, session: Session) -> None:
        """Give a session's row back; open ones keep rows 0..n-1 (the last moves)."""
        assert self._owns(session), "closing a session that is not open here"
        last = self._open.pop()
        if last is not session:
            self._move_row(last.row, session.row, last.length)
            self._open[session.row] = last
            last.row = session.row
        session.row = -1

    def _owns(self, session: Session) -> bool:
        return 0 <= session.row < len(self._open) and self._open[session.row] is session

    @abstractmethod
    def _move_row(self, source: int, row: int, length: int) -> None:
        """Copy the first `length` cache entries of row `source` to `row`."""

    @abstractmethod
    def forward(self, calls: Sequence[Call]) -> Tensor:
        """Run calls of distinct sessions as one merged pass: float32 logits ``[sum R, V]``.

        They are those of the read tokens and then the read slots of the first call, then of the
        next, and so on. Calls are committed, with the states of those that ask for `hidden`.
        """

    @abstractmethod
    def propose(self, name: str, hidden: Tensor) -> Tensor:
        """Return float32 logits ``[R, H, V]`` of an adapter's heads on states ``[R, D]``.

        Head h of H (from 0) predicts the token h + 2 positions after the row.
        """

    @abstractmethod
    def drafter(self, name: str, capacity: int) -> RunningLayer | RunningSlots:
        """Begin an attached draft layer for one sequence, with a cache of `capacity` rows."""

    def early(self, name: str) -> Any:
        """Return the model of an attached exit: these weights, a cache of its own."""
        return self._exits[name]

    @abstractmethod
    def gather(self, session: Session, sources: Sequence[int], start: int) -> None:
        """Copy cache entries `sources` (ascending) of one row to `start`, `start` + 1, … ."""


class RunningLayer(Protocol):
    """A draft layer at work on one sequence, on the last hidden states of its model.

    A row is the state behind a position and the token picked there; it gives the logits of the
    token after that one, and a state to go on from.

    Attributes:
        words: ids of the W words that the logits cover; None: the vocabulary.
    """

    words: Sequence[int] | None

    def feed(self, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append text to model's states ``[N, D]``, forget drafts; return the last."""

    def draft(
        self, states: Tensor, tokens: Sequence[int], parents: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Append drafts behind the text; logits ``[N, W]`` and states ``[N, D]`` of all.

        `states` ``[N, D]`` are the layer's own; `parents` are rows of drafts since the last `feed`,
        or -1 for the last row of text.
        """


class RunningSlots(Protocol):
    """Layers that draft in one pass, at work on one sequence (`SlotCache`)."""

    def propose(
        self, states: Tensor, tokens: Sequence[int], uniforms: Sequence[float], temperature: float
    ) -> tuple[list[int], list[float]]:
        """Append text to model's states ``[N, D]``; a draft and its chance for each uniform."""


class Session:
    """One sequence of one model: committed length and work counters.

    `length` tokens are in the cache; `calls` and `rows` count the work done, padding excluded, and
    `draft_calls` and `draft_rows` that of a draft layer. `hidden` are the states ``[R, D]`` of the
    last call's read rows where it asked for them. `kept` are tokens of an earlier text whose
    entries are still in the cache of an empty session (`engine.forward`).
    """

    def __init__(self, model: Model, row: int, capacity: int) -> None:
        """Begin an empty sequence in cache row `row` of `capacity` entries."""
        self.model = model
        self.row = row
        self.capacity = capacity
        self.reset()

    @property
    def room(self) -> int:
        """Rows that the next call may have."""
        return self.capacity - self.length

    def reset(self) -> None:
        """Forget the sequence and the counters."""
        self.kept: tuple[int, ...] = ()
        self.length = self.base = self.calls = self.rows = 0
        self.draft_calls = self.draft_rows = 0
        self.hidden: Tensor | None = None
        self._layers: dict[str, Any] = {}

    def keep_text(self, tokens: Sequence[int]) -> None:
        """Be empty again, to decoders and counters; the entries of `tokens`, just fed, stay."""
        self.reset()
        self.kept = tuple(tokens)

    @accept_old_names(want="output")
    def call(
        self,
        tokens: Sequence[int],
        *,
        output: Output = "picks",
        read: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        mask: Tensor | None = None,
        slots: Slots | None = None,
        drafts: Sequence[int] = (),
        draft_probs: Sequence[Tensor] | None = None,
        acceptance_rule: AcceptanceRule = EXACT,
        hidden: bool = False,
    ) -> Call:
        """Describe a forward pass over `tokens` and `slots`; nothing runs until it is yielded.

        Args:
            tokens: ids of the token rows, appended to the cache in order; none only with slots.
            output: the form of the result (see `CallResult`).
            read: token rows to read, ascending; negative counts from the end; default the last.
            positions: sequence position of each row; default continues the committed length, the
                first slot standing where the last token does.
            mask: bool ``[N, N]``, row i sees row j; default causal.
            slots: rows that follow the tokens, run through an adapter and leave nothing behind.
            drafts: for ``output="acceptance"``: the K drafts that the K + 1 read rows verify.
            draft_probs: the distributions ``[V]`` the drafts were drawn from; None: one-hot ones.
            acceptance_rule: when a draft stands; anything but the default is lossy.
            hidden: whether the result holds the last hidden states of the read rows, too.

        Raises:
            ValueError: for what cannot run: it is the decoder's, and says what to change.
        """
        num_tokens = len(tokens)
        num_rows = num_tokens + (0 if slots is None else len(slots.uniforms))
        if num_rows < 1:
            raise ValueError("a call has no rows; give it at least one token or slot")
        if self.length + num_rows > self.capacity:
            raise ValueError(
                f"a call of {num_rows} rows after {self.length} tokens exceeds the cache of "
                f"{self.capacity}; feed {self.room} rows at most (session.room)"
            )
        if not all(-num_tokens <= row < num_tokens for row in read or ()):
            raise ValueError(
                f"a call of {num_tokens} tokens has no rows {tuple(read or ())} to read"
            )
        rows = (num_tokens - 1,) if read is None else tuple(r % num_tokens for r in read)
        rows = rows if num_tokens else ()
        if output == "acceptance" and len(rows) != len(drafts) + 1:
            raise ValueError(
                f"{len(rows)} rows are read to verify {len(drafts)} drafts; "
                f"read {len(drafts) + 1}: "
                "the row before the first draft, and the row of every draft"
            )
        return Call(
            session=self,
            tokens=tuple(tokens),
            read=rows,
            output=output,
            positions=None if positions is None else tuple(positions),
            mask=mask,
            slots=slots,
            drafts=tuple(drafts),
            draft_probs=None if draft_probs is None else tuple(draft_probs),
            acceptance_rule=acceptance_rule,
            hidden=hidden,
        )

    def propose(self, name: str, hidden: Tensor) -> Tensor:
        """Return logits ``[R, H, V]`` of an adapter's heads (`Model.propose`); no call is made."""
        return self.model.propose(name, hidden)

    def drafter(self, name: str, num_rows: int) -> Any:
        """Return a draft layer at work here (`Model.drafter`), for a draft call of `num_rows`."""
        if name not in self._layers:
            self._layers[name] = self.model.drafter(name, self.capacity)
        self.draft_calls += 1
        self.draft_rows += num_rows
        return self._layers[name]

    def committed(self, call: Call, hidden: Tensor | None = None) -> None:
        """Count the token rows of a call that ran as cached; `hidden` are its states."""
        self.hidden = hidden
        self.kept = ()  # from here on entries may be written over
        self.base = self.length
        self.length += len(call.tokens)
        self.calls += 1
        self.rows += call.num_rows

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens (`ValueError` where there are fewer)."""
        if not 0 <= length <= self.length:
            raise ValueError(
                f"truncate({length}) of a session that holds {self.length} tokens; give 0 to "
                f"{self.length}: a token is there once a call fed it, drafts included, and the "
                "token that a call picked is not"
            )
        self.length = length

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only `rows` (ascending) of the last call, e.g. a tree path; or `ValueError`."""
        num_rows = self.length - self.base
        ascending = all(a < b for a, b in itertools.pairwise(rows))
        if not ascending or (rows and not 0 <= rows[0] <= rows[-1] < num_rows):
            raise ValueError(
                f"select_rows({list(rows)}) after a call that left {num_rows} token rows; "
                f"give some of 0 to {num_rows - 1}, ascending"
            )
        if any(row != index for index, row in enumerate(rows)):
            self.model.gather(self, [self.base + row for row in rows], self.base)
        self.length = self.base + len(rows)

    keep = select_rows
    """The method's name in decoders written before 0.1.0."""

"""Models and sessions: who owns the KV cache, and how a decoder speaks to it.

A `Model` holds weights and a KV cache of B rows; a `Session` is one sequence's place in it.
Decoders see sessions only: they make `Call`s and move the committed length, both of which are
bookkeeping on integers. The scheduler hands calls to `Model.forward`, which runs them and commits
their rows.

Letters: B cache rows (sequences), N rows of a call, R rows read, T cache positions, V vocabulary,
D hidden width, H heads of an adapter.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from decoders.core.old_names import accept_old_names
from decoders.core.types import EXACT, AcceptanceRule, Call, Output, Slots

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decoders.core.adapter.config import AdapterConfig


class Model(Protocol):
    """A causal language model with a KV cache that any number of sessions share."""

    @property
    def vocab_size(self) -> int:
        """V, the number of next-token logits."""

    @property
    def max_length(self) -> int:
        """The longest sequence (prompt and answer) the model was made for."""

    @property
    def device(self) -> torch.device:
        """Where logits live."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""

    @property
    def adapters(self) -> Mapping[str, AdapterConfig]:
        """Attached adapters by name; calls with slots name one of them."""

    def adapter_bytes(self, name: str) -> int:
        """Bytes of an attached adapter."""

    @property
    def library_module(self) -> Any:
        """The same weights as a module of transformers that nothing of ours is wrapped around.

        It is for loops that are not ours (`SelfDriven`), and keeps no state between two of them.
        """

    def cache_bytes(self) -> int:
        """Bytes of the preallocated KV cache (0 before `reserve`)."""

    def holds(self, num_rows: int, capacity: int) -> bool:
        """Whether the allocated cache has room for `num_rows` sequences of `capacity` tokens."""

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Allocate a cache of exactly that size (no-op if it is there); no session may be open."""

    def open(self) -> Session:
        """Start an empty sequence in the lowest free cache row (`assert`s that one is free)."""

    def close(self, session: Session) -> None:
        """Give a session's row back; open sessions keep occupying rows 0..n-1 (the last moves)."""

    def forward(self, calls: Sequence[Call]) -> Tensor:
        """Run calls of distinct sessions of this model as one merged forward pass.

        Narrower calls are padded to the widest. Returns float32 logits ``[sum R, V]``: the read
        tokens and then the read slots of the first call, then those of the second, and so on.
        Every session's `length` grows by its token rows; one whose call asks for `hidden` is given
        it (`Session.committed`).
        """

    def propose(self, name: str, hidden: Tensor) -> Tensor:
        """Float32 logits ``[R, H, V]`` of an attached adapter's heads on hidden states ``[R, D]``.

        Head h of H predicts the token h + 2 places after the row, whose own logits are of the token
        one place after it (h counts from 0).
        """

    def drafter(self, name: str, capacity: int) -> RunningLayer:
        """An attached draft layer with an empty cache of `capacity` rows, for one sequence."""

    def early(self, name: str) -> Model:
        """The model that leaves by an attached exit: weights of this one, a cache of its own.

        `reserve` allocates that cache, too.
        """

    def gather(self, session: Session, sources: Sequence[int], start: int) -> None:
        """Copy cache entries `sources` (ascending) of one row to `start`, `start` + 1, … ."""


class RunningLayer(Protocol):
    """A draft layer at work on one sequence, beside a model whose last hidden states it is fed.

    A row is the state behind a place and the token picked there; it gives the logits of the token
    after that one, and a state to go on from.
    """

    def feed(self, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append rows of text, forgetting drafts; logits ``[1, V]``, state ``[1, D]`` of the last.

        `states` ``[N, D]`` are the model's own.
        """

    def draft(
        self, states: Tensor, tokens: Sequence[int], parents: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Append rows of drafts behind the text; logits ``[N, V]`` and states ``[N, D]`` of all.

        `states` ``[N, D]`` are the layer's own; `parents` are rows of drafts since the last `feed`,
        by number, or -1 for the last row of text.
        """


class Session:
    """One sequence of one model: committed length and work counters.

    `length` tokens are in the cache; `calls` and `rows` count the work done, padding excluded, and
    `draft_calls` and `draft_rows` that of a draft layer.
    `hidden` are the hidden states ``[R, D]`` of the last call's read rows where it asked for them.
    `kept` are tokens whose entries an earlier text left in the cache of an empty session: the
    engine takes them from there where the first call begins with them (`engine.forward`).
    """

    __slots__ = (
        "_layers",
        "base",
        "calls",
        "capacity",
        "draft_calls",
        "draft_rows",
        "hidden",
        "kept",
        "length",
        "model",
        "row",
        "rows",
    )

    def __init__(self, model: Model, row: int, capacity: int) -> None:
        """Made by `Model.open`: an empty sequence in cache row `row` of `capacity` entries."""
        self.model = model
        self.row = row
        self.capacity = capacity
        self.reset()

    @property
    def room(self) -> int:
        """Rows that the next call may have."""
        return self.capacity - self.length

    def reset(self) -> None:
        """Forget the sequence and the counters: the next prompt finds nothing of this one."""
        self.kept: tuple[int, ...] = ()
        self.length = self.base = self.calls = self.rows = 0
        self.draft_calls = self.draft_rows = 0
        self.hidden: Tensor | None = None
        self._layers: dict[str, RunningLayer] = {}

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
            draft_probs: the distributions ``[V]`` the drafts were drawn from; None for one-hot
            distributions.
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
        """Logits ``[R, H, V]`` of an adapter's heads, see `Model.propose`; no call, and no row."""
        return self.model.propose(name, hidden)

    def draft(
        self,
        name: str,
        states: Tensor,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run a draft layer and count it as a draft call: `RunningLayer.draft`, or its `feed`.

        Args:
            name: of the attached layer.
            states: ``[N, D]``, behind which the tokens stand.
            tokens: N of them.
            parents: of drafts; None: the rows are text.
        """
        layer = self._layers.get(name)
        if layer is None:
            layer = self._layers[name] = self.model.drafter(name, self.capacity)
        self.draft_calls += 1
        self.draft_rows += len(tokens)
        if parents is None:
            return layer.feed(states, tokens)
        return layer.draft(states, tokens, parents)

    def committed(self, call: Call, hidden: Tensor | None = None) -> None:
        """Called by `Model.forward` after `call` ran: its token rows are in the cache now.

        `hidden` are the states ``[R, D]`` of its read rows, if it asked for them.
        """
        self.hidden = hidden
        self.kept = ()  # from here on entries may be written over
        self.base = self.length
        self.length += len(call.tokens)
        self.calls += 1
        self.rows += call.num_rows

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` committed tokens (`ValueError` where there are fewer)."""
        if not 0 <= length <= self.length:
            raise ValueError(
                f"truncate({length}) of a session that holds {self.length} tokens; give 0 to "
                f"{self.length}: a token is there once a call fed it, drafts included, and the "
                "token that a call picked is not"
            )
        self.length = length

    def select_rows(self, rows: Sequence[int]) -> None:
        """Of the last call's rows keep only `rows` (ascending), e.g. an accepted tree path.

        Raises:
            ValueError: for rows that do not ascend, or that the last call did not have.
        """
        num_rows = self.length - self.base
        ascending = all(a < b for a, b in itertools.pairwise(rows))
        if not ascending or (rows and not 0 <= rows[0] <= rows[-1] < num_rows):
            raise ValueError(
                f"select_rows({list(rows)}) after a call that left {num_rows} token rows; "
                f"give some of 0 to {num_rows - 1}, ascending"
            )
        if any(row != place for place, row in enumerate(rows)):
            self.model.gather(self, [self.base + row for row in rows], self.base)
        self.length = self.base + len(rows)

    keep = select_rows
    """The method's name in decoders written before 0.1.0."""

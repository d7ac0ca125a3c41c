"""Define models, which own the KV cache, and sessions, through which decoders use the cache.

A `Model` holds weights and a KV cache of B rows; a `Session` is one sequence's cache row. Decoders
make `Call`s with sessions and move the committed length; the scheduler passes calls to
`Model.forward`, which runs them and commits their rows.

Letters: B cache rows (sequences), N rows of a call, R rows read, V vocabulary, D hidden width.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decoders.core.outputs import Chain, demand_readable, forms, layer_numbers
from decoders.core.types import EXACT, AcceptanceRule, CallResult, DraftShape, Sampling, Slots

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decoders.core.adapter_config import AdapterConfig
    from decoders.core.sampling import Uniforms
    from decoders.core.token_reads import Ahead, TokenReads
    from decoders.core.types import MaskedForm

MERGED_ROWS = 64
"""A CPU merges calls of at most this many rows: larger calls save nothing by sharing weights."""


class Model(ABC):
    """Define a language model with a KV cache that any number of sessions share.

    Attributes:
        vocab_size: V, the number of next-token logits.
        num_layers: number of decoder layers.
        max_length: the longest sequence (prompt and answer) that the model supports.
        device: the device of the logits.
        masked: the form of a model that predicts masked tokens (None: a causal one).
        merges: calls of several sequences need no padding.
        reads_ahead: a graph of the model may read tokens itself; otherwise it gets no `reads`.
    """

    vocab_size: int
    num_layers: int
    max_length: int
    device: torch.device
    masked: MaskedForm | None = None
    merges = False
    reads_ahead = False

    def __init__(self) -> None:
        """Begin without a cache row, which `reserve` allocates."""
        self._open: list[Session] = []
        self._size = (0, 0)

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of the weights."""

    @property
    @abstractmethod
    def adapters(self) -> Mapping[str, AdapterConfig]:
        """Attached adapters by the name that a call with slots uses."""

    @abstractmethod
    def adapter_bytes(self, name: str) -> int:
        """Return the bytes of an attached adapter."""

    @property
    def library_module(self) -> Any:
        """A plain transformers module with the same weights, for the loops of other libraries."""
        raise ValueError("this model is no module of transformers")

    @abstractmethod
    def cache_bytes(self) -> int:
        """Return the bytes of the preallocated KV cache (0 before `reserve`)."""

    def holds(self, num_rows: int, capacity: int) -> bool:
        """Return whether `num_rows` sequences of `capacity` tokens fit into the cache."""
        return num_rows <= self._size[0] and capacity <= self._size[1]

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Allocate a cache of exactly this size, unless it exists, while no session is open."""
        assert not self._open, f"{len(self._open)} sessions are open; close them first"
        self._size = num_rows, capacity

    def open(self) -> Session:
        """Start an empty sequence in the lowest free cache row."""
        assert len(self._open) < self._size[0], f"all {self._size[0]} rows are taken"
        self._open.append(Session(self, len(self._open), self._size[1]))
        return self._open[-1]

    def close(self, session: Session) -> None:
        """Release a session's row and move the last row there: open sessions use rows 0..n-1."""
        assert session in self._open, "closing a session that is not open"
        last = self._open.pop()
        if last is not session:
            self.copy_row(last.row, session.row, last.length)
            self._open[session.row] = last
            last.row = session.row
        session.row = -1

    def wipe(self, row: int) -> None:  # noqa: B027 - few read more than a text
        """Clear a cache row: NaN behind a text would spoil the text, as zero times NaN is NaN."""

    @abstractmethod
    def copy_row(self, source: int, row: int, length: int) -> None:
        """Copy the beginning of a cache row to another row, for a fork or a row that moves.

        Args:
            source: index of the row that is read.
            row: index of the row that is overwritten.
            length: number of entries to copy, from the first.
        """

    @abstractmethod
    def forward(self, calls: Sequence[Call]) -> Tensor:
        """Run calls of distinct sessions as one pass and return float32 logits ``[sum R, V]``.

        The logits are ordered by call; within a call, read tokens come before read slots. Calls are
        committed, with the hidden states of those that set `hidden`.
        """

    def forward_reading(self, calls: Sequence[Call], reads: TokenReads) -> Tensor:
        """Run `forward` on calls. Logits that were read `ahead` are valid until the next pass."""
        return self.forward(calls)

    def ahead(self, logits: Tensor) -> Ahead:
        """Return the results, by form, that the pass of these logits read itself."""
        return {}

    def as_graph(
        self, work: Callable[[Mapping[str, Tensor]], Tensor], inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Return ``work(inputs)``, of which a GPU may capture one graph per (hashable) `work`."""
        return work(inputs)

    @abstractmethod
    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        """Run an attached network once for calls of distinct sessions and equal name and shape."""

    @abstractmethod
    def gather(self, session: Session, sources: Sequence[int], start: int) -> None:
        """Move cache entries of one row forward, as only an accepted path of a tree stays.

        Args:
            session: the session that uses the row, and moves its own `text` and `length`.
            sources: indices of the entries in the row, ascending.
            start: the index for the first of them; the others follow it.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftCall:
    """Request drafts of a network on hidden states by `Session.draft`, which explains fields."""

    session: Session
    name: str
    states: Tensor
    tokens: tuple[int, ...]
    shape: DraftShape
    sampling: Sampling
    max_depth: int
    uniforms: tuple[float, ...] = ()
    rows: Sequence[int] | None = None

    @property
    def num_rows(self) -> int:
        """N, the number of rows of new text."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """Request one forward pass by `Session.call`, which explains the fields.

    Its N rows (`num_rows`) are `tokens` in order, then `slots`; every row sees the whole committed
    cache. Rows and layers are counted from the first.
    """

    session: Session
    tokens: tuple[int, ...]
    read: tuple[int, ...]
    output: str | tuple[str, ...]
    positions: tuple[int, ...] | None = None
    mask: Tensor | None = None
    slots: Slots | None = None
    drafts: tuple[int, ...] = ()
    draft_probs: tuple[Tensor, ...] | None = None
    acceptance_rule: AcceptanceRule = EXACT
    hidden: tuple[int, ...] = ()
    hidden_layers: tuple[int, ...] = ()
    barred: frozenset[int] = frozenset()
    uniforms: Uniforms | None = None
    chain: Chain | None = None
    ahead: bool = False
    num_rows: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        num_slots = 0 if self.slots is None else len(self.slots.uniforms)
        object.__setattr__(self, "num_rows", len(self.tokens) + num_slots)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Tell a decoder that reads a result from the call that it must yield the call."""
            advice = "`result = yield request.target.call(…)` gives its result"
            raise AttributeError(f"a Call has no {name!r}; {advice}", name=name, obj=self)

    def row_positions(self) -> tuple[int, ...]:
        """Return the positions of all rows, by default the last token's for the first slot."""
        if self.positions is not None:
            return self.positions
        start = self.session.length
        end = start + len(self.tokens)
        return (*range(start, end), *range(end - 1, start + self.num_rows - 1))


class Session:
    """Hold one sequence of one model: its committed length and its work counters.

    `length` tokens are in the cache. `calls` and `rows` count the work done (padding excluded);
    `draft_calls` and `draft_rows` count the work of drafters' networks, and `fed` the rows of text
    that each has been fed, by name. `hidden` has the states ``[R, D]`` of the last call's read
    rows, if that call set `hidden`; `chained` is its result if its chain ran with it. `kept` are
    tokens of an earlier text whose entries are still in the cache of an empty session
    (`engine.forward`). `text` has the ids of the cache's entries, the first `length` of which
    count. `root` is the session that began the answer, `forks` are its open copies, at most
    `max_sequences` in all. `dead_ends` are answers after which a law forbids every token.
    """

    def __init__(self, model: Model, row: int, capacity: int) -> None:
        """Begin an empty sequence in cache row `row` of `capacity` entries."""
        self.model, self.row, self.capacity = model, row, capacity
        self.root, self.forks, self.max_sequences = self, list[Session](), 1
        self.reset()

    @property
    def room(self) -> int:
        """Maximum number of rows of the next call."""
        return self.capacity - self.length

    def reset(self) -> None:
        """Forget the sequence and the counters."""
        self.kept: tuple[int, ...] = ()
        self.text: list[int] = []
        self.dead_ends = set[tuple[int, ...]]()
        self.length = self.base = self.calls = self.rows = 0
        self.draft_calls = self.draft_rows = 0
        self.hidden: Tensor | None = None
        self.chained: CallResult | None = None
        self.fed: dict[str, int] = {}

    def fork(self) -> Session:
        """Copy the sequence to another cache row, as one more sequence of the same answer.

        `ValueError` if the answer has as many open sequences as its decoder declares.
        """
        root = self.root
        if self.row < 0 or len(root.forks) + (root.row >= 0) >= root.max_sequences:
            raise ValueError(
                f"fork() of a closed session, or beyond the {root.max_sequences} sequences of an "
                "answer that Decoder.sequences declares; close() one first, or declare more"
            )
        root.forks.append(twin := self.model.open())  # now, so that the fork is closed in any case
        self.model.copy_row(self.row, twin.row, self.length)
        twin.text, twin.length, twin.base = self.text[: self.length], self.length, self.base
        twin.root, twin.hidden, twin.fed = root, self.hidden, self.fed
        return twin

    def close(self) -> None:
        """Free the cache row, and add a fork's calls to those of its answer's first session."""
        self.model.close(self)
        if (root := self.root) is not self:
            root.forks.remove(self)
            root.calls, root.rows = root.calls + self.calls, root.rows + self.rows
            root.draft_calls += self.draft_calls
            root.draft_rows += self.draft_rows

    def keep_text(self, tokens: Sequence[int]) -> None:
        """Empty the session for decoders and counters, but keep the cache entries of `tokens`."""
        self.reset()
        self.kept, self.text = tuple(tokens), list(tokens)

    def call(
        self,
        tokens: Sequence[int],
        *,
        output: str | Sequence[str] = "picks",
        read: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        mask: Tensor | None = None,
        slots: Slots | None = None,
        drafts: Sequence[int] = (),
        draft_probs: Sequence[Tensor] | None = None,
        acceptance_rule: AcceptanceRule = EXACT,
        hidden: bool | Sequence[int] = False,
        hidden_layers: Sequence[int] = (),
        barred: Collection[int] = (),
        uniforms: Uniforms | None = None,
        chain: Chain | None = None,
        ahead: bool = False,
    ) -> Call:
        """Describe a forward pass over `tokens` and `slots`, which runs once it is yielded.

        Args:
            tokens: ids of the token rows, appended to the cache in order; empty only with slots.
            output: the form of the result, or several (see `CallResult`).
            read: token rows to read, ascending; negative: from the end; default: the last row.
            positions: one per row; by default tokens continue the text, slots begin at the last.
            mask: bool ``[N, N]``, row i sees row j; default causal.
            slots: rows that follow the tokens, run through an adapter and are not cached.
            drafts: the K drafts that K + 1 read rows verify (`acceptance`, `block`, `tree`).
            draft_probs: the distributions ``[V]`` the drafts were drawn from; None: one-hot.
            acceptance_rule: the rule that accepts a draft; any rule but the default is lossy.
            hidden: token rows whose last hidden states are returned; True: the read rows.
            hidden_layers: numbers of layers whose states are returned instead of the last; 0: the
                embedded rows; -1: the last, after the norm.
            barred: ids that the read rows never predict.
            uniforms: uniforms for draws and tests; None: the sequence's, by position alone.
            chain: calls that follow with this call's pick; one result has the picks of all calls.
            ahead: True if a call of this call's pick follows; a GPU may begin it before the read.

        Raises:
            ValueError: if the call cannot run (a decoder error); it says what to change.
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
        states = () if isinstance(hidden, bool) else tuple(hidden)
        named = (*(read or ()), *states)
        if named and not -num_tokens <= min(named) <= max(named) < num_tokens:
            raise ValueError(f"a call of {num_tokens} tokens has no rows {named} to read")
        places = range(num_tokens)  # rows may count from the end
        rows = tuple(places[-1:] if read is None else map(places.__getitem__, read))
        states = rows if hidden is True else tuple(map(places.__getitem__, states))
        outputs = forms(output if isinstance(output, str) else tuple(output))
        call = Call(
            session=self,
            tokens=tuple(tokens),
            read=rows,
            output=outputs[0] if len(outputs) == 1 else outputs,
            positions=None if positions is None else tuple(positions),
            mask=mask,
            slots=slots,
            drafts=tuple(drafts),
            draft_probs=None if draft_probs is None else tuple(draft_probs),
            acceptance_rule=acceptance_rule,
            hidden=states,
            hidden_layers=layer_numbers(hidden_layers, self.model) if hidden_layers else (),
            barred=frozenset(barred),
            uniforms=uniforms,
            chain=chain,
            ahead=ahead,
        )
        if call.output != "picks" or slots or call.barred or hidden_layers or chain:  # a few
            demand_readable(call)
        return call

    def draft(
        self,
        name: str,
        states: Tensor,
        tokens: Sequence[int],
        shape: DraftShape,
        sampling: Sampling,
        uniforms: Sequence[float] = (),
        *,
        max_depth: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> DraftCall:
        """Describe a call of an attached network on the target's hidden states, which drafts.

        The call runs once it is yielded. The network keeps its own state of earlier text.

        Args:
            name: name of the adapter, or of the checkpoint's own network.
            states: states ``[R, D]`` of text that the network has not read (of L layers:
                ``[R, L D]``).
            tokens: the N tokens picked at these states, the text's last token at the end.
            shape: the form of the drafts.
            sampling: settings by which the network's distributions are warped.
            uniforms: those of the slots, or ``shape.width`` of each level; empty: nothing is drawn.
            max_depth: depth behind which drafts are of no use; None: that of the shape.
            rows: the N rows of `states` that belong to `tokens`, in order; None: all.
        """
        return DraftCall(
            session=self,
            name=name,
            states=states,
            tokens=tuple(tokens),
            shape=shape,
            sampling=sampling,
            max_depth=shape.depth if max_depth is None else min(max_depth, shape.depth),
            uniforms=tuple(uniforms),
            rows=rows,
        )

    def drafted(self, call: DraftCall, num_calls: int, num_rows: int) -> None:
        """Commit the text of a draft call, and count the work of its network.

        Args:
            call: the call, which ran.
            num_calls: number of passes of the network.
            num_rows: number of rows of all these passes, padding excluded.
        """
        self.fed = {**self.fed, call.name: self.fed.get(call.name, 0) + len(call.tokens)}
        self.draft_calls += num_calls
        self.draft_rows += num_rows

    def committed(self, call: Call, hidden: Tensor | None = None, more: Sequence[int] = ()) -> None:
        """Commit the token rows of a call, and count its work.

        Args:
            call: the call, which ran.
            hidden: the states that it requests, ``[H, D]`` or ``[H, L, D]``; None: no states.
            more: tokens that its chain fed with it, each a call of one row.
        """
        self.hidden, self.chained = hidden, None
        self.kept = ()  # from now on these entries may be overwritten
        self.text[self.length :] = tokens = (*call.tokens, *more)
        self.base = self.length + (len(tokens) - 1 if more else 0)
        self.length += len(tokens)
        self.calls += 1 + len(more)
        self.rows += call.num_rows + len(more)

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens (`ValueError` if there are fewer)."""
        if not 0 <= length <= self.length:
            raise ValueError(
                f"truncate({length}) of a session that holds {self.length} tokens; give 0 to "
                f"{self.length}: it holds the tokens that calls fed, drafts included, but "
                "not the token that a call picked"
            )
        self.length = length

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only `rows` (ascending) of the last call, e.g. a tree path, else `ValueError`."""
        num_rows = self.length - self.base
        ascending = all(a < b for a, b in itertools.pairwise(rows))
        if not ascending or (rows and not 0 <= rows[0] <= rows[-1] < num_rows):
            raise ValueError(
                f"select_rows({list(rows)}) after a call that left {num_rows} token rows; "
                f"give some of 0 to {num_rows - 1}, ascending"
            )
        if [*rows] != [*range(len(rows))]:
            self.model.gather(self, [self.base + row for row in rows], self.base)
        self.text[self.base :] = [self.text[self.base + row] for row in rows]
        self.length = self.base + len(rows)

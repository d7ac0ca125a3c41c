"""The record of one answer, and the append-only file that holds a run's records.

One line of ``samples.jsonl`` is one `SampleRecord`: decoder x prompt x repeat, errors included. A
*prompt* is one turn of a conversation; a *block* is what is measured together and counts only as a
whole: one prompt (or, at batch size B, one fixed group of 4B prompts) under one repeat, by every
decoder. Unknown is None (null in the file), never 0. No torch here.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from bench.records.store import AnswerStore, Packed, packed
from decoders.core.types import Generation

SCHEMA = 1
"""Version of the record; raised whenever the meaning of a field or metric changes."""

Kind = Literal["timing", "quality"]

MOST_REJECTED = 32
"""Ids of rejected drafts that a record keeps of one step, and (below) of one answer."""
MOST_REJECTED_IN_ALL = 1024


class _PackedColumns:
    """Room for columns that were not read yet, which is no field."""

    __slots__ = ("_packed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns(_PackedColumns):
    """The steps of one answer, one entry per step; step 0 is the prefill's.

    `emitted` counts tokens, so that slices of the answer's ids give each step's tokens. Those with
    a default (see `StepEvent`) are empty where no step has any: `passes` where no blocks are
    refined, `undrafted` where all steps begin with their drafts, `depth` where all drafts are
    chains, `source` where one drafter made all drafts, `tested`, `overlap` and `alpha` where the
    distributions of drafts were not compared. `source` has of each accepted draft the place of its
    drafter in `SampleRecord.drafters`.

    The last three are for whoever looks at the answer; no metric reads them. `rejected` has ids of
    the drafts that fell, at most `MOST_REJECTED` of a step and `MOST_REJECTED_IN_ALL` of the answer
    (how many there were is drafted - accepted); `decided` the pass that decided each token, 0 for
    the target's own; `ended_s` seconds from the request's start to the end of each step.
    """

    emitted: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    target_calls: tuple[int, ...]
    target_rows: tuple[int, ...]
    draft_calls: tuple[int, ...]
    draft_rows: tuple[int, ...]
    passes: tuple[int, ...] = ()
    tested: tuple[int, ...] = ()
    overlap: tuple[float, ...] = ()
    alpha: tuple[float, ...] = ()
    undrafted: tuple[int, ...] = ()
    depth: tuple[int, ...] = ()
    source: tuple[tuple[int, ...], ...] = ()
    rejected: tuple[tuple[int, ...], ...] = ()
    decided: tuple[tuple[int, ...], ...] = ()
    ended_s: tuple[float, ...] = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """The most drafts of each step that could have stood: all of a chain, a tree's depth."""
        return self.depth or self.drafted

    @classmethod
    def of_packed(cls, packed: Packed) -> Self:
        """Columns that are read when they are asked for (see `SampleRecord.spill_to_disk`)."""
        steps = object.__new__(cls)
        object.__setattr__(steps, "_packed", packed)
        return steps

    if not TYPE_CHECKING:  # for mypy every field has a value, and there are no other names

        def __getattr__(self, name: str) -> Any:
            """Read a column: only a field without a value comes here."""
            if name not in _PLACES:
                raise AttributeError(f"steps have no {name}", name=name, obj=self)
            column = self._packed[_PLACES[name]]
            if name in _LISTS:
                ends = self._packed[_PLACES[f"ends of {name}"]]
                column = tuple(column[a:b] for a, b in itertools.pairwise((0, *ends)))
            object.__setattr__(self, name, column)
            return column

    @classmethod
    def of(cls, generation: Generation, ended_s: Sequence[float] = ()) -> Self:
        """Columns of a generation's steps, and when these ended where that is known."""
        steps = generation.steps
        refined = any(step.passes for step in steps)
        preceded = any(step.num_leading for step in steps)
        branched = any(step.depth is not None for step in steps)
        drafters = drafters_of(generation)
        compared = [step for step in steps if any(s.tested is not None for s in steps)]
        return cls(
            emitted=tuple(len(step.tokens) for step in steps),
            drafted=tuple(step.drafted for step in steps),
            accepted=tuple(step.accepted for step in steps),
            target_calls=tuple(step.target_calls for step in steps),
            target_rows=tuple(step.target_rows for step in steps),
            draft_calls=tuple(step.draft_calls for step in steps),
            draft_rows=tuple(step.draft_rows for step in steps),
            passes=tuple(step.passes for step in steps if refined),
            tested=tuple(step.tested or 0 for step in compared),
            overlap=tuple(round(step.overlap or 0.0, 6) for step in compared),
            # a step that verified nothing emitted tokens of the target's own
            alpha=tuple(
                round(len(step.tokens) if step.alpha is None else step.alpha, 6)
                for step in compared
            ),
            undrafted=tuple(step.num_leading for step in steps if preceded),
            rejected=_bounded([step.rejected for step in steps]),
            decided=tuple(step.decided for step in steps) if any(s.decided for s in steps) else (),
            ended_s=tuple(round(end_s, 6) for end_s in ended_s),
            depth=tuple(step.longest for step in steps if branched),
            source=tuple(tuple(map(drafters.index, s.sources)) for s in steps if drafters),
        )


def drafters_of(generation: Generation) -> tuple[str, ...]:
    """Names of the drafters that made accepted drafts, where several drafted."""
    return tuple(dict.fromkeys(name for step in generation.steps for name in step.sources))


def _bounded(rejected: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The ids that a record keeps, step by step; none where no step has any."""
    kept: list[tuple[int, ...]] = []
    left = MOST_REJECTED_IN_ALL
    for ids in rejected:
        kept.append(tuple(ids[: min(MOST_REJECTED, left)]))
        left -= len(kept[-1])
    return tuple(kept) if any(kept) else ()


class _Stored:
    """Room for where a record's answer lies, which is no field of it."""

    __slots__ = ("_place", "_store")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(_Stored):
    """One answer of one decoder to one prompt under one repeat (one line of samples.jsonl).

    `ttft_s` and `total_s` run from the request's start; they are None in the quality pass, and at
    batch size > 1, where `group_s` is the makespan of the whole group instead. `order` is the place
    of the decoder within its block; `attempt` counts the sessions (first run 0, each resume + 1)
    that wrote to the file. `nll`, `agreement` and `entropy` are what the target says of a quality
    answer: mean negative log-likelihood of a token, share of tokens that were its likeliest, and
    mean entropy of its distributions (nats). `recounted` is the length of the baseline's answer as
    Spec-Bench counts it (`bench.settings.protocol`), under its protocol only. With `error` set,
    everything measured is None; `error_at` is where in its file the decoder raised it or stood, as
    ``FILE.py:LINE``. `worker` measured it on `node` (a hash that names a machine), where work was
    handed out to several; `machine` is the comparability key of the part of a merged run it is
    from. `drafters` are named where several drafted, see `StepColumns`.

    After `spill_to_disk`, `text`, `tokens` and `steps` are read whenever they are asked for.
    """

    kind: Kind
    decoder: str
    family: str
    conversation: str
    turn: int
    prompt_hash: str
    repeat: int
    seed: int
    block: int
    order: int
    attempt: int
    batch_size: int
    num_prompt_tokens: int
    tokens: tuple[int, ...] | None = None
    text: str | None = None
    stop: str | None = None
    steps: StepColumns | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    group_s: float | None = None
    peak_memory_bytes: int | None = None
    scores: Mapping[str, float] | None = None
    nll: float | None = None
    agreement: float | None = None
    entropy: float | None = None
    recounted: int | None = None
    error: str | None = None
    error_at: str | None = None
    worker: str | None = None
    node: str | None = None
    machine: str | None = None
    drafters: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def prompt(self) -> str:
        """Identity of the prompt: conversation and turn."""
        return f"{self.conversation}#{self.turn}"

    @property
    def failure(self) -> str | None:
        """The error with its place, for people."""
        return f"{self.error} ({self.error_at})" if self.error and self.error_at else self.error

    @property
    def has_steps(self) -> bool:
        """Whether `steps` are known; none are read for it."""
        return hasattr(self, "_place") or self.steps is not None

    def spill_to_disk(self, store: AnswerStore) -> None:
        """Keep `text`, `tokens` and `steps` in `store` instead of here.

        Nothing of a failed answer, and nothing again of one that was put by already.

        Raises:
            OverflowError: one of their integers takes more than 8 bytes.
            BenchError: the store has no room (exit 1).
        """
        if hasattr(self, "_place") or self.tokens is None or self.steps is None:
            return
        columns = [self.text or "", self.tokens, *_flat(self.steps)]
        object.__setattr__(self, "_place", store.add(packed(columns, _REAL_PARTS)))
        object.__setattr__(self, "_store", store)
        for name in _PARTS:
            if getattr(self, name) is not None:
                object.__delattr__(self, name)

    if not TYPE_CHECKING:  # for mypy every field has a value, and there are no other names

        def __getattr__(self, name: str) -> Any:
            """Read what was put by: only a field without a value comes here."""
            if name not in _PARTS:
                raise AttributeError(f"a record has no {name}", name=name, obj=self)
            packed = Packed(self._store.read(self._place))
            return StepColumns.of_packed(packed) if name == "steps" else packed[_PLACES[name]]

    def to_json(self) -> str:
        """The record as one line of JSON, without the newline."""
        data = fields_of(self) | {"steps": self.steps and fields_of(self.steps)}
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a record from a parsed line.

        Raises:
            ValueError: on another schema, or a field that is missing, unknown or of a type that
                is not its own: what reads records need not ask again.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(
                f"record of schema {data.get('schema')!r}; this version reads schema {SCHEMA}"
            )
        fields = dict(data)
        for name in _NAMES:
            if isinstance(value := fields.get(name), str):
                fields[name] = sys.intern(value)
        if (tokens := fields.get("tokens")) is not None:
            fields["tokens"] = _numbers("tokens", tokens, int)
        if (steps := fields.get("steps")) is not None:
            fields["steps"] = _steps(steps)
        names = fields.get("drafters", [])
        fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
        _demand(fits, "drafters", names)
        fields["drafters"] = tuple(names)
        if (scores := fields.get("scores")) is not None:
            _demand(isinstance(scores, dict), "scores", scores)
            _numbers("scores", list(scores.values()), float)
        try:
            record = cls(**fields)
        except TypeError as error:
            raise ValueError(f"a record's fields are not those of this version: {error}") from error
        for kind, optional, names in _FIELDS:
            for name in names:
                value = getattr(record, name)
                fits = isinstance(value, kind) and not isinstance(value, bool)
                _demand(fits or (optional and value is None), name, value)
        _demand(record.kind in get_args(Kind), "kind", record.kind)
        _demand(record.decoder.isprintable(), "decoder", record.decoder)
        return record


def fields_of(data: SampleRecord | StepColumns) -> dict[str, Any]:
    """Fields by name, as they are: `dataclasses.asdict` would copy every number in them."""
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}


_REAL = (int, float)
_FIELDS: tuple[tuple[Any, bool, Sequence[str]], ...] = (
    (str, False, ("kind", "decoder", "family", "conversation", "prompt_hash")),
    (int, False, ("turn", "repeat", "seed", "block", "order", "attempt")),
    (int, False, ("batch_size", "num_prompt_tokens")),
    (str, True, ("text", "stop", "error", "error_at", "worker", "node", "machine")),
    (_REAL, True, ("ttft_s", "total_s", "group_s", "nll", "agreement", "entropy")),
    (int, True, ("peak_memory_bytes", "recounted")),
)
"""Types of the plain fields, and whether they may be unknown."""
_NAMES = tuple(n for kind, _, names in _FIELDS if kind is str for n in names if n != "text")
"""Strings that many records have in common."""
_REAL_COLUMNS = ("overlap", "alpha", "ended_s")
_LISTS = ("source", "rejected", "decided")
_KINDS_OF: Mapping[type, set[type]] = {int: {int}, float: {int, float}}
_PARTS = ("text", "tokens", "steps")
"""What `SampleRecord.spill_to_disk` moves."""
_COLUMNS = tuple(field.name for field in dataclasses.fields(StepColumns))
_PACKED = ("text", "tokens", *_COLUMNS, *(f"ends of {name}" for name in _LISTS))
"""Columns of an answer that was put by; of those of lists, all numbers and where each list ends."""
_PLACES = {name: place for place, name in enumerate(_PACKED)}
_REAL_PARTS = tuple(name in _REAL_COLUMNS for name in _PACKED)


def _flat(steps: StepColumns) -> list[Sequence[Any]]:
    """The columns of steps in the order of `_PACKED`."""
    lists = [getattr(steps, name) for name in _LISTS]
    flat = {n: tuple(itertools.chain(*each)) for n, each in zip(_LISTS, lists, strict=True)}
    ends = [tuple(itertools.accumulate(map(len, each))) for each in lists]
    return [*(flat[n] if n in flat else getattr(steps, n) for n in _COLUMNS), *ends]


def _steps(data: object) -> StepColumns:
    """The steps of a parsed line (raises as `SampleRecord.from_dict`)."""
    if not isinstance(data, dict):
        raise ValueError(f"a record's steps are {data!r}")
    try:
        steps = StepColumns(**{name: _column(name, data[name]) for name in data})
    except (TypeError, OverflowError) as error:
        raise ValueError(f"a record's steps are not those of this version: {error}") from error
    for field in dataclasses.fields(steps):
        column = getattr(steps, field.name)
        often_empty = field.default is not dataclasses.MISSING
        fits = len(column) == len(steps.emitted) or (often_empty and not column)
        _demand(fits, f"steps.{field.name}", f"{len(column)} of {len(steps.emitted)} steps")
    return steps


def _column(name: str, values: object) -> tuple[Any, ...]:
    """One entry a step: a number, or the list of them that `_LISTS` have."""
    if name not in _LISTS:
        return _numbers(name, values, float if name in _REAL_COLUMNS else int)
    _demand(isinstance(values, list), name, values)
    assert isinstance(values, list)
    return tuple(_numbers(name, each, int) for each in values)


def _numbers(name: str, values: object, kind: type) -> tuple[Any, ...]:
    """A list of numbers as a tuple: integers, or (for ``float``) any reals."""
    _demand(isinstance(values, list), name, values)
    assert isinstance(values, list)
    _demand(set(map(type, values)) <= _KINDS_OF[kind], name, values)
    return tuple(values) if kind is int else tuple(map(float, values))


def _demand(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise ValueError(f"a record's {name} cannot be {str(value)[:40]!r}")


def broken_invariants(record: SampleRecord, max_new_tokens: int) -> Sequence[str]:
    """The invariants a record breaks, in words (empty when it is sound or an error row)."""
    steps, tokens = record.steps, record.tokens
    if steps is None or tokens is None:
        return ()
    broken = []
    if sum(steps.emitted) != len(tokens):
        broken.append(f"steps emit {sum(steps.emitted)} tokens, the answer has {len(tokens)}")
    if any(a > d for a, d in zip(steps.accepted, steps.depths, strict=True)):
        broken.append("a step accepted more tokens than it drafted in a row")
    if any(depth > d for depth, d in zip(steps.depths, steps.drafted, strict=True)):
        broken.append("a step drafted more tokens in a row than it drafted")
    fallen = [d - a for d, a in zip(steps.drafted, steps.accepted, strict=True)]
    if any(len(ids) > n for ids, n in zip(steps.rejected, fallen, strict=False)):
        broken.append("a step rejected more tokens than it drafted and did not accept")
    sources = [len(p) for p in steps.source]
    if sources and sources != list(steps.accepted):
        broken.append("a step names the drafters of other drafts than those that stood")
    if any(number >= len(record.drafters) for p in steps.source for number in p):
        broken.append("a step's drafter has no name")
    told = [(len(p), n) for p, n in zip(steps.decided, steps.emitted, strict=False) if p]
    if any(passes != num for passes, num in told):
        broken.append("a step says of other tokens than it emitted which pass decided them")
    if any(after < before for before, after in itertools.pairwise(steps.ended_s)):
        broken.append("a step ended before the one before it")
    counts = (*steps.accepted, *steps.drafted, *steps.emitted, *steps.undrafted, *steps.depth)
    if any(number < 0 for number in counts):
        broken.append("a step counts below 0")
    if len(tokens) > max_new_tokens:
        broken.append(f"{len(tokens)} tokens exceed the budget of {max_new_tokens}")
    if record.decoder in ("ar", "ar@aa") and sum(steps.target_calls) != len(tokens):
        broken.append(f"ar made {sum(steps.target_calls)} calls for {len(tokens)} tokens")
    return tuple(broken)

"""Define the record of one answer: one line of ``samples.jsonl``.

Each line is one `SampleRecord`: decoder x prompt x repeat, errors included. A *prompt* is one turn
of a conversation. A *block* is measured together and counts only if complete: one prompt (or, at
batch size B, one fixed group of 4B prompts) under one repeat, answered by every decoder. Unknown
values are None (null in the file), never 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, ValidationError

from bench.records.files import SCHEMA, validator
from bench.settings.bounds import (
    BatchSize,
    BlockNumber,
    Byte,
    Bytes,
    Num,
    Real,
    RecordSeed,
    Share,
    Time,
    TokenId,
    allowed,
)
from decoders.core.types import Generation

Kind = Literal["timing", "quality"]

LEVELS = 127
"""Stored number of the confidence 1."""
MAX_REJECTED = 32
"""Maximum number of a record's rejected ids per step, and (below) per answer."""
MAX_REJECTED_PER_ANSWER = 1024


class _Holder:
    __slots__ = ("_packed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns(_Holder):
    """Steps of one answer as columns with one entry per step, first the prefill (step 0).

    `emitted` counts each step's tokens, so it splits the answer's ids into steps. Columns with a
    default (see `StepEvent`) are empty in these cases: `passes` if no blocks are refined,
    `undrafted` if all steps begin with their drafts, `depth` if all drafts are chains, `source` if
    one drafter made all drafts, and `tested`, `overlap` and `alpha` if draft distributions were not
    compared. `source` lists, for each accepted draft, its drafter's index in
    `SampleRecord.drafters`. `confidence` has a number for each draft whose parents were all
    accepted: twice the drafter's probability of the draft (given the parents) in 127ths, plus 1
    if the draft was accepted. The column is empty for drafters without probabilities. Siblings
    precede an accepted draft, so drafts of position j follow j - 1 odd numbers.

    No column of ``summary.csv`` reads the last three columns. `rejected` lists ids of rejected
    drafts, at most `MAX_REJECTED` per step and `MAX_REJECTED_PER_ANSWER` per answer (their number
    is drafted - accepted). `decided` is the pass that decided each token, 0 for the target's own
    token; ceilings of lists use it. `ended_s` is the time from the request's start to the end of
    each step, in seconds; latencies use it.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    emitted: tuple[Num, ...]
    drafted: tuple[Num, ...]
    accepted: tuple[Num, ...]
    target_calls: tuple[Num, ...]
    target_rows: tuple[Num, ...]
    draft_calls: tuple[Num, ...]
    draft_rows: tuple[Num, ...]
    passes: tuple[Num, ...] = ()
    tested: tuple[Num, ...] = ()
    overlap: tuple[Real, ...] = ()
    alpha: tuple[Real, ...] = ()
    undrafted: tuple[Num, ...] = ()
    depth: tuple[Num, ...] = ()
    source: tuple[tuple[Num, ...], ...] = ()
    confidence: tuple[tuple[Byte, ...], ...] = ()
    rejected: tuple[tuple[TokenId, ...], ...] = ()
    decided: tuple[tuple[Num, ...], ...] = ()
    ended_s: tuple[Time, ...] = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """Number of drafts that each step could accept: a chain's length, a tree's depth."""
        return self.depth or self.drafted

    @property
    def first(self) -> int:
        """Index of the step of the first token, after empty steps."""
        return next((step for step, emitted in enumerate(self.emitted) if emitted), 0)

    if not TYPE_CHECKING:  # mypy knows declared fields only, each with a value

        def __getattr__(self, name: str) -> Any:
            """Unpack a column. Python calls this only if the field has no value."""
            if name not in _INDEX:
                raise AttributeError(f"steps have no {name}", name=name, obj=self)
            column = tuple(self._packed[_INDEX[name]])
            if name in NESTED_COLUMNS:
                ends = self._packed[_INDEX[f"ends of {name}"]]
                column = tuple(column[a:b] for a, b in itertools.pairwise((0, *ends)))
            object.__setattr__(self, name, column)
            return column

    @classmethod
    def of(cls, generation: Generation, ended_s: Sequence[float] = ()) -> Self:
        """Make columns from a generation's steps and, if known, the steps' end times (s)."""
        steps = generation.steps
        drafters = drafter_names(generation)
        compared = [step for step in steps if any(s.tested is not None for s in steps)]

        def column(name: str) -> Any:
            return tuple(getattr(step, name) for step in steps)

        def optional(name: str) -> Any:
            return column(name) if any(column(name)) else ()

        kept: list[tuple[int, ...]] = []
        left = MAX_REJECTED_PER_ANSWER
        for ids in [step.rejected for step in steps]:
            kept.append(tuple(ids[: min(MAX_REJECTED, left)]))
            left -= len(kept[-1])
        return cls(
            emitted=tuple(len(step.tokens) for step in steps),
            **{name: column(name) for name in _COUNTS},
            passes=optional("passes"),
            tested=tuple(step.tested or 0 for step in compared),
            overlap=tuple(round(step.overlap or 0.0, 6) for step in compared),
            # a step that verified nothing emitted only the target's own tokens
            alpha=tuple(
                round(len(step.tokens) if step.alpha is None else step.alpha, 6)
                for step in compared
            ),
            undrafted=optional("num_leading"),
            rejected=tuple(kept) if any(kept) else (),
            decided=optional("decided"),
            ended_s=tuple(round(end_s, 6) for end_s in ended_s),
            depth=column("max_accepted") if any(s.depth is not None for s in steps) else (),
            source=tuple(tuple(map(drafters.index, s.sources)) for s in steps if drafters),
            confidence=tuple(
                tuple(2 * round(LEVELS * min(sure, 1.0)) + passed for sure, passed in drafts)
                for drafts in optional("confidences")
            ),
        )


def drafter_names(generation: Generation) -> tuple[str, ...]:
    """Return the names of drafters with accepted drafts, if there were several."""
    return tuple(dict.fromkeys(name for step in generation.steps for name in step.sources))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(_Holder):
    """One answer of one decoder to one prompt under one repeat (one line of samples.jsonl).

    `ttft_s` and `total_s` run from the request's start. They are None in the quality pass, and at
    batch size > 1, where `group_s` is the makespan of the whole group. `order` is the position of
    the decoder within its block. `energy_j` is the device's energy during the answer, or an even
    share of the group's. `attempt` numbers the attempt that wrote the record: 0 for the first run,
    + 1 for each resume. `nll`, `agreement` and `entropy` evaluate a quality answer under the
    target: mean negative log-likelihood per token, share of tokens that were the target's most
    likely token, and mean entropy of its distributions (nats). `recounted` is the length of the
    baseline's answer as Spec-Bench counts it (`bench.settings.protocol`), only under its protocol.
    If `error` is set, all measurements are None, and `error_at` is the line of the decoder's file
    that raised the error or was running, as ``FILE.py:LINE``. `worker` and `node` (a hash that
    names a machine) name the measuring worker if there were several. In a merged run, `machine` is
    the comparability key of the answer's part. `num_behind` tokens follow the first end token,
    which a run of a fixed length ignores; `text` ends there. `drafters` names the drafters if there
    were several, see `StepColumns`. After `pack`, `tokens` and `steps` are unpacked on demand.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    kind: Kind
    decoder: str
    family: str
    conversation: str
    turn: Num
    prompt_hash: str
    repeat: Num
    seed: RecordSeed
    block: BlockNumber
    order: Num
    attempt: Num
    batch_size: BatchSize
    num_prompt_tokens: Num
    tokens: tuple[TokenId, ...] | None = None
    text: str | None = None
    stop: str | None = None
    steps: StepColumns | None = None
    ttft_s: Time | None = None
    total_s: Time | None = None
    group_s: Time | None = None
    peak_memory_bytes: Bytes | None = None
    scores: Mapping[str, Real] | None = None
    nll: Real | None = None
    agreement: Share | None = None
    entropy: Real | None = None
    recounted: BlockNumber | None = None
    error: str | None = None
    error_at: str | None = None
    worker: str | None = None
    node: str | None = None
    machine: str | None = None
    energy_j: Real | None = None
    num_behind: Num | None = None
    drafters: tuple[str, ...] = ()
    schema: Num = SCHEMA

    @property
    def prompt(self) -> str:
        """Name of the prompt: conversation and turn."""
        return f"{self.conversation}#{self.turn}"

    @property
    def failure(self) -> str | None:
        """Error and its position, for display."""
        return f"{self.error} ({self.error_at})" if self.error and self.error_at else self.error

    def pack(self) -> None:
        """Pack the answer into a tenth of its memory (`OverflowError`: integers above 8 bytes)."""
        if hasattr(self, "_packed") or self.tokens is None or self.steps is None:
            return
        columns = {"tokens": self.tokens, **field_values(self.steps)}
        for name in NESTED_COLUMNS:
            columns[f"ends of {name}"] = tuple(itertools.accumulate(map(len, columns[name])))
            columns[name] = tuple(itertools.chain(*columns[name]))
        packed = tuple(narrow(name, columns[name]) for name in _PACKED)
        object.__setattr__(self, "_packed", packed)
        for name in _PARTS:
            object.__delattr__(self, name)

    if not TYPE_CHECKING:  # mypy knows declared fields only, each with a value

        def __getattr__(self, name: str) -> Any:
            """Unpack a field. Python calls this only if the field has no value."""
            if name not in _PARTS:
                raise AttributeError(f"a record has no {name}", name=name, obj=self)
            if name == "tokens":
                return tuple(self._packed[0])
            steps = object.__new__(StepColumns)
            object.__setattr__(steps, "_packed", self._packed)
            return steps

    def to_json(self) -> str:
        """Return the record as one line of JSON, without the newline."""
        data = field_values(self) | {"steps": self.steps and field_values(self.steps)}
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a record from a parsed line.

        Raises:
            ValueError: the schema differs, or a field is missing, unknown or of the wrong type.
        """
        if (schema := data.get("schema")) != SCHEMA:
            raise ValueError(f"record of schema {schema!r}; this version reads schema {SCHEMA}")
        names = {n: sys.intern(name) for n in _NAMES if isinstance(name := data.get(n), str)}
        try:
            record: Self = validator(cls).validate_python({**data, **names})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where, value = ".".join(map(str, first["loc"])), str(first["input"])[:40]
            raise ValueError(f"a record's {where} cannot be {value!r}: {allowed(first)}") from error
        if not record.decoder.isprintable():
            raise ValueError(f"a record's decoder cannot be {record.decoder[:40]!r}")
        if steps := record.steps:
            number = max(itertools.chain(*steps.source), default=-1)
            if number >= (num := len(record.drafters)):
                line = f"a record's steps.source has drafter {number}, but only {num} have names"
                raise ValueError(line)
            for field in dataclasses.fields(steps):
                num, num_steps = len(getattr(steps, field.name)), len(steps.emitted)
                if num != num_steps and (num or field.default is dataclasses.MISSING):
                    raise ValueError(f"a record's {field.name} has {num} of {num_steps} steps")
        return record


def field_values(data: SampleRecord | StepColumns) -> dict[str, Any]:
    """Return fields by name, without copies of every number as by `asdict`."""
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}


_NAMES = (
    *("kind", "decoder", "family", "conversation", "prompt_hash", "stop"),
    *("error", "error_at", "worker", "node", "machine"),
)
"""Fields whose strings repeat across records, so they are interned."""
_COUNTS = ("drafted", "accepted", "target_calls", "target_rows", "draft_calls", "draft_rows")
REAL_COLUMNS = ("overlap", "alpha", "ended_s")
NESTED_COLUMNS = ("source", "confidence", "rejected", "decided")
_PARTS = ("tokens", "steps")
"""Fields that `SampleRecord.pack` packs."""
_PACKED = (
    *("tokens", *(field.name for field in dataclasses.fields(StepColumns))),
    *(f"ends of {name}" for name in NESTED_COLUMNS),
)
"""Columns of a packed answer; a column of lists is stored as flat numbers and list ends."""
_INDEX = {name: index for index, name in enumerate(_PACKED)}


def narrow(name: str, column: Sequence[Any]) -> bytes | array[Any]:
    """Pack a column into the narrowest type that holds its largest number, at most 8 bytes."""
    if column and name in REAL_COLUMNS:
        return array("d", column)
    for kind in (bytes, partial(array, "H"), partial(array, "i")):
        with contextlib.suppress(ValueError, OverflowError):  # too large, or below 0
            return kind(column)
    return array("q", column)

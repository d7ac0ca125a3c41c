"""Make rows of token ids, and groups of rows that share a forward pass.

A row is one text and starts at position 0, as in decoding. Rows of one group have similar lengths
and are padded on the right, where a causal model needs no attention mask. Only learnt tokens have a
loss. The rows of a step depend only on (seed, step).

Letters: B rows, T positions.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specbench_tasks.generators import generate
from specbench_tasks.generators.base import Item
from training.text.tokenizer import ASSISTANT, END, PAD, USER
from training.workers import worker

_STEPS = 10_000_000  # steps of one seed; those of the next seed follow


@dataclass(frozen=True, slots=True)
class Row:
    """Hold the ids of one text, with `learn[t]` True if predicting ``ids[t]`` is trained.

    `temperature` is the answer's sampling temperature, set if windows are to be trained at it.
    """

    ids: list[int]
    learn: list[bool]
    temperature: float | None = None


class Encoder:
    """Encode generator text in the zoo's chat format."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.user, self.assistant, self.end, self.pad = tokenizer.convert_tokens_to_ids(
            [USER, ASSISTANT, END, PAD]
        )

    def text(self, text: str) -> list[int]:
        """Return the ids of ``" " + text``, as the chat template renders it."""
        ids: list[int] = self.tokenizer.encode(f" {text}", add_special_tokens=False)
        return ids

    def row(self, example: Item) -> Row:
        """Return an example in the chat format, with learnt answers and end tokens."""
        ids: list[int] = []
        learn: list[bool] = []
        for turn, response in zip(example.turns, example.responses, strict=True):
            prompt = [self.user, *self.text(turn), self.assistant]
            answer = [*self.text(response), self.end]
            ids += prompt + answer
            learn += [False] * len(prompt) + [True] * len(answer)
        return Row(ids, learn)

    def rows(self, counts: Mapping[str, int], seed: int, step: int) -> list[Row]:
        """Return a step's rows: `counts` training examples of each family."""
        number = _STEPS * seed + step
        return [
            self.row(example)
            for family, count in counts.items()
            for example in itertools.islice(generate(family, "train", number), count)
        ]

    def repeated(self, count: int, seed: int, step: int) -> list[Row]:
        """Return a step's rows that teach copying: random tokens, then the same ones, learnt."""
        rng, rows = random.Random(f"repeated {_STEPS * seed + step}"), list[Row]()
        first_id = min(260, len(self.tokenizer) // 2)
        for _ in range(count):
            length = rng.randint(8, 48)
            once = [rng.randrange(first_id, len(self.tokenizer)) for _ in range(length)]
            ids = [self.user, *once, self.assistant, *once, self.end]
            rows.append(Row(ids, [False] * (length + 2) + [True] * (length + 1)))
        return rows


def groups(rows: Iterable[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Yield rows in order of length, in groups of at most `max_tokens` padded tokens."""
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if group and len(row.ids) * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def worker_groups(rows: Iterable[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Yield `groups` of this worker's rows: every n-th by length, so that workers share evenly."""
    rank, world = worker()
    return groups(sorted(rows, key=lambda row: len(row.ids))[rank::world], max_tokens)


def padded(rows: Sequence[Row], pad: int = 0) -> Tensor:
    """Return the ids ``[B, T]`` of rows, padded on the right."""
    ids = [torch.tensor(row.ids) for row in rows]
    return pad_sequence(ids, batch_first=True, padding_value=pad)


def learnt(rows: Sequence[Row]) -> Tensor:
    """Return a mask ``[B, T]`` of the learnt tokens of rows, without the first token of each."""
    return pad_sequence([torch.tensor([False, *row.learn[1:]]) for row in rows], batch_first=True)


_HELD_OUT_SHARE = 20  # one distinct row of this many is held out ...
_MIN_HELD_OUT = 4  # ... but at least this many rows, and at most half of all


class PoolSource:
    """Deal a fixed pool of rows to steps, in a new order after each round through the pool.

    A row's hash decides whether it is held out, so equal rows are on the same side. Rows take five
    bytes per token. Implements `training.text.sources.Source`.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        kind: str,
        name: str,
        rows_per_step: int,
        seed: int,
        key: Callable[[Row], int] | None = None,
    ) -> None:
        """Read all rows with a learnt token. `name` is that of the data in errors.

        Rows with the same `key` (a number below 2**64; None: `row_hash`) are on the same side; if
        held out, only one is used. Fewer than 8 keys, or no rows per step, raise `ValueError`.
        """
        if rows_per_step < 1:
            raise ValueError(f"rows_per_step is {rows_per_step}; it must be 1 or above")
        self.kind, self._rows_per_step, self._seed = kind, rows_per_step, seed
        pool: list[tuple[int, _Packed]] = []
        digest = hashlib.sha256()
        for row in rows:
            if any(row.learn[1:]):
                packed = array("i", row.ids), bytes(row.learn), row.temperature
                pool.append(((key or row_hash)(row), packed))
                digest.update(packed[0].tobytes() + packed[1])
        hashes = sorted({number for number, _ in pool})
        if len(hashes) < 2 * _MIN_HELD_OUT:
            raise ValueError(
                f"{name} gives {len(hashes)} different rows to learn from; at least "
                f"{2 * _MIN_HELD_OUT} are needed: give more text, or a smaller max_tokens"
            )
        bound = max(2**64 // _HELD_OUT_SHARE, hashes[_MIN_HELD_OUT])
        bound = min(bound, hashes[len(hashes) // 2])
        self._training = [packed for number, packed in pool if number >= bound]
        held_out = {number: packed for number, packed in pool if number < bound}
        self._held_out = [held_out[number] for number in sorted(held_out)]
        self._shuffled: tuple[int, list[int]] = (-1, [])
        self.digest = digest.hexdigest()[:16]

    def rows(self, step: int) -> list[Row]:
        """Return the training rows of a step, which may span two rounds."""
        first, size, rows = step * self._rows_per_step, len(self._training), list[Row]()
        for number in range(first, first + self._rows_per_step):
            round, index = divmod(number, size)
            if self._shuffled[0] != round:
                order = list(range(size))
                random.Random(f"round {self._seed} {round}").shuffle(order)
                self._shuffled = round, order
            rows.append(_unpack(self._training[self._shuffled[1][index]]))
        return rows

    def held_out(self, num: int) -> list[Row]:
        """Return the first `num` distinct held-out rows by hash, or all if fewer exist."""
        return [_unpack(packed) for packed in self._held_out[:num]]

    def frequent(self, num: int) -> list[int]:
        """Return the `num` token ids learnt most often in training rows (ties: lower ids first)."""
        counts: Counter[int] = Counter()
        for ids, learn, _ in self._training:
            counts.update(itertools.compress(ids, learn))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [token for token, _ in ranked[:num]]


_Packed = tuple["array[int]", bytes, float | None]


def row_hash(row: Row) -> int:
    """Return a hash below 2**64 of a row's token ids."""
    return int.from_bytes(hashlib.blake2b(array("i", row.ids).tobytes(), digest_size=8).digest())


def prompt_hash(row: Row) -> int:
    """Return a hash below 2**64 of a row's prompt, the tokens before the first learnt token."""
    return row_hash(Row(row.ids[: row.learn.index(True)], []))


def _unpack(packed: _Packed) -> Row:
    return Row(list(packed[0]), [bool(learnt) for learnt in packed[1]], packed[2])

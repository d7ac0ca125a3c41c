"""Rows of token ids, and groups of them that are run together.

A row is one text and starts at position 0, as it does at decode time. Rows of one group have about
one length and are padded on the right, where a causal model needs no attention mask. Loss falls on
learnt tokens alone. Which examples a step sees depends on (seed, step) only.

Letters: B rows, T positions.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench_tasks.generators import generate
from specbench_tasks.task import Example
from training.text.tokenizer import ASSISTANT, END, PAD, USER, words_of
from training.workers import worker


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of one text; `learn[t]` says whether predicting ``ids[t]`` is trained.

    `temperature` is what the answer was sampled at, where windows shall be trained at just that.
    """

    ids: list[int]
    learn: list[bool]
    temperature: float | None = None


class Encoder:
    """Encodes generator text by whole words (a dictionary look-up), else by the tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.user, self.assistant, self.end, self.pad = tokenizer.convert_tokens_to_ids(
            [USER, ASSISTANT, END, PAD]
        )
        self._cache: dict[str, list[int]] = {}

    def text(self, text: str) -> list[int]:
        """Return ids of ``" " + text``, equal to the tokenizer's."""
        ids: list[int] = []
        for word in words_of(f" {text}"):
            if word not in self._cache:
                self._cache[word] = self.tokenizer.encode(word, add_special_tokens=False)
            ids += self._cache[word]
        return ids

    def row(self, example: Example) -> Row:
        """Return an example in the chat format: answers (with their end token) are trained."""
        ids: list[int] = []
        learn: list[bool] = []
        for turn, response in zip(example.conversation.turns, example.responses, strict=True):
            prompt = [self.user, *self.text(turn), self.assistant]
            answer = [*self.text(response), self.end]
            ids += prompt + answer
            learn += [False] * len(prompt) + [True] * len(answer)
        return Row(ids, learn)

    def repeated(self, rng: random.Random, length: int, first_id: int) -> Row:
        """Return random tokens said twice; the second time is trained. It teaches copying early."""
        once = [rng.randrange(first_id, len(self.tokenizer)) for _ in range(length)]
        ids = [self.user, *once, self.assistant, *once, self.end]
        return Row(ids, [False] * (length + 2) + [True] * (length + 1))


def step_rows(
    encoder: Encoder, counts: Mapping[str, int], num_repeated: int, seed: int, step: int
) -> list[Row]:
    """Return the rows of one step: examples per family, and some repeated random sequences."""
    number = seed * 10_000_000 + step
    rows = [
        encoder.row(example)
        for family, count in counts.items()
        for example in itertools.islice(generate(family, "train", number), count)
    ]
    rng = random.Random(f"repeated {number}")
    first_id = min(260, len(encoder.tokenizer) // 2)
    rows += [encoder.repeated(rng, rng.randint(8, 48), first_id) for _ in range(num_repeated)]
    return rows


def groups(rows: Iterable[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Yield rows by rising length in groups of at most `max_tokens` padded tokens."""
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if group and len(row.ids) * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def worker_groups(rows: Iterable[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Yield `groups` of this worker's rows: every n-th, so that long ones are spread evenly."""
    rank, world = worker()
    return groups(sorted(rows, key=lambda row: len(row.ids))[rank::world], max_tokens)


def padded(rows: Sequence[Row], pad: int = 0) -> Tensor:
    """Return the ids ``[B, T]`` of rows, filled up on the right."""
    width = max(len(row.ids) for row in rows)
    return torch.tensor([row.ids + [pad] * (width - len(row.ids)) for row in rows])


def learnt(rows: Sequence[Row]) -> Tensor:
    """Return a mask ``[B, T]`` of the learnt tokens of rows, their first ones excepted."""
    width = max(len(row.ids) for row in rows)
    return torch.tensor(
        [[False, *row.learn[1:]] + [False] * (width - len(row.ids)) for row in rows]
    )

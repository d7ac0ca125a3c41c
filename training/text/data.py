"""Tokenised batches for zoo training: conversations cut into length-sorted groups without masks.

A row is one conversation and starts at position 0, as it does at decode time. Rows of one group
have about one length and are padded on the right, where a causal model needs no attention mask.
Loss falls on answer tokens alone. Which examples a step sees depends on (seed, step) only, so a
resumed run sees what an uninterrupted one would.

Letters: B rows, T positions.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from specbench_tasks.generators import generate
from specbench_tasks.task import Example
from training.text.tokenizer import ASSISTANT, END, PAD, USER, words_of


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of one conversation; `learn[t]` says whether predicting ``ids[t]`` is trained.

    `temperature` is what the answer was sampled at, where windows shall be trained at just that.
    """

    ids: list[int]
    learn: list[bool]
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One group of rows.

    `ids` (B, T) int64; `places` (M,) flat positions whose next token is trained; `targets` (M,)
    those next tokens.
    """

    ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor


class Encoder:
    """Encodes generator text by whole words (a dictionary look-up), else by the tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.user, self.assistant, self.end, self.pad = tokenizer.convert_tokens_to_ids(
            [USER, ASSISTANT, END, PAD]
        )
        self._cache: dict[str, list[int]] = {}

    def text(self, text: str) -> list[int]:
        """Ids of ``" " + text``, equal to the tokenizer's."""
        ids: list[int] = []
        for word in words_of(f" {text}"):
            known = self._cache.get(word)
            if known is None:
                known = self.tokenizer.encode(word, add_special_tokens=False)
                self._cache[word] = known
            ids += known
        return ids

    def row(self, example: Example) -> Row:
        """The chat format of an example: answers (with their end token) are trained."""
        ids: list[int] = []
        learn: list[bool] = []
        for turn, response in zip(example.conversation.turns, example.responses, strict=True):
            prompt = [self.user, *self.text(turn), self.assistant]
            answer = [*self.text(response), self.end]
            ids += prompt + answer
            learn += [False] * len(prompt) + [True] * len(answer)
        return Row(ids, learn)

    def repeated(self, rng: random.Random, length: int, first_id: int) -> Row:
        """Random tokens said twice; the second time is trained. It teaches copying early."""
        once = [rng.randrange(first_id, len(self.tokenizer)) for _ in range(length)]
        ids = [self.user, *once, self.assistant, *once, self.end]
        return Row(ids, [False] * (length + 2) + [True] * (length + 1))


def step_rows(
    encoder: Encoder, counts: dict[str, int], num_repeated: int, seed: int, step: int
) -> list[Row]:
    """The rows of one step: `counts` examples per family and some repeated random sequences."""
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
    """Rows of rising length, cut into groups of at most `max_tokens` padded tokens."""
    group: list[Row] = []
    for row in rows:
        if group and len(row.ids) * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def group_rows(rows: list[Row], pad: int, max_tokens: int) -> list[Batch]:
    """Sorts rows by length and makes a batch of each of their `groups`."""
    ordered = sorted(rows, key=lambda row: len(row.ids))
    return [_batch(group, pad) for group in groups(ordered, max_tokens)]


def _batch(rows: list[Row], pad: int) -> Batch:
    width = max(len(row.ids) for row in rows)
    ids = [row.ids + [pad] * (width - len(row.ids)) for row in rows]
    places, targets = [], []
    for index, row in enumerate(rows):
        for position in range(1, len(row.ids)):
            if row.learn[position]:
                places.append(index * width + position - 1)
                targets.append(row.ids[position])
    return Batch(ids=torch.tensor(ids), places=torch.tensor(places), targets=torch.tensor(targets))

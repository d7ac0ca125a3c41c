"""Prompt lookup: what is proposed, against a search of the whole text; the exact distribution."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.plan.select import built_in_cells
from decoders.ar import Autoregressive
from decoders.core.engine import sequence
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.model import Call
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.lookup import PromptLookup, _Index
from tests.enumeration import enumerated_distribution


def searched(text: Sequence[int], n: int, most: int) -> tuple[int, ...]:
    """What the index should say, by a search of the whole text, backwards."""
    for size in range(min(n, len(text)), 0, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                return tuple(text[start + size : start + size + most])
    return ()


class Recording(TableModel):
    """Remembers its calls."""

    def __init__(self, vocab_size: int = 7) -> None:
        super().__init__(vocab_size, seed=1)
        self.seen: list[Call] = []

    def forward(self, calls: Sequence[Call]) -> Tensor:
        self.seen += calls
        return super().forward(calls)


class Cycle(TableModel):
    """0, 1, …, V - 1, 0, … whatever came before the last token."""

    def logits(self, context: Sequence[int]) -> Tensor:
        return 50 * torch.eye(self.vocab_size)[(context[-1] + 1) % self.vocab_size]


@given(
    st.lists(st.integers(0, 3), max_size=40), st.lists(st.lists(st.integers(0, 3), max_size=4)),
    st.integers(1, 5), st.integers(0, 5),
)  # fmt: skip
def test_the_index_finds_the_same_continuation_as_a_search_of_the_whole_text(
    prompt: list[int], pieces: list[list[int]], n: int, most: int
) -> None:
    index, text = _Index(n, prompt), [*prompt]
    for piece in pieces:
        assert index.continuation(most) == searched(text, n, most)
        index.append(piece)
        text += piece
    assert index.continuation(most) == searched(text, n, most)


def test_the_last_occurrence_of_the_longest_match_is_continued() -> None:
    text = [1, 2, 3, 70, 1, 2, 3, 80, 9, 2, 3, 90, 5, 3, 60, 1, 2, 3]
    assert _Index(3, text).continuation(1) == (80,)  # 1 2 3, and not 9 2 3 or 5 3 behind it
    assert _Index(2, text).continuation(2) == (90, 5)
    assert _Index(1, text).continuation(9) == (60, 1, 2, 3)
    assert _Index(3, [4, 5, 6]).continuation(3) == ()


def test_a_step_reads_as_little_of_a_long_text_as_of_a_short_one() -> None:
    class Counting(list):
        tokens_read = 0

        def __getitem__(self, key: Any) -> Any:
            value = super().__getitem__(key)
            Counting.tokens_read += len(value) if isinstance(key, slice) else 1
            return value

    spent = []
    for length in (50, 5000):
        index = _Index(3, [7 * place % 11 for place in range(length)])
        index._text = Counting(index._text)
        before, entries = Counting.tokens_read, len(index._next)
        index.append((99, 98))
        assert len(index._next) - entries <= 2 * 3
        index.continuation(5)
        spent.append(Counting.tokens_read - before)
    assert spent[0] == spent[1] <= 2 * 6 + 6 + 5


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("n", [1, 3])
def test_a_call_feeds_the_last_token_and_the_continuation_that_the_search_finds(
    temperature: float, n: int
) -> None:
    model, prompt = Recording(), [1, 2, 3, 1, 2]
    sampling = Sampling(temperature=temperature, max_new_tokens=60, seed=4)
    answer = generate(PromptLookup(n=n, k=4), prompt, sampling, Models(target=model))
    assert model.seen[0].tokens == tuple(prompt)
    assert answer.steps[0].drafted == 0
    text = [*prompt, *answer.steps[0].tokens]
    for call, step in zip(model.seen[1:], answer.steps[1:], strict=True):
        left = 60 - (len(text) - len(prompt))
        assert call.tokens == (text[-1], *searched(text, n, min(4, left - 1)))
        assert call.read == tuple(range(len(call.tokens)))
        assert step.drafted == len(call.tokens) - 1
        text += step.tokens
    assert sum(step.accepted for step in answer.steps) > 0


def test_the_prompt_is_matched_from_the_first_step_on() -> None:
    prompt = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    answer = generate(
        PromptLookup(k=5), prompt, Sampling(max_new_tokens=20), Models(target=Cycle(10))
    )
    assert answer.tokens == tuple((2 + place) % 10 for place in range(20))
    assert [(step.drafted, step.accepted) for step in answer.steps] == [
        (0, 0),
        *[(5, 5)] * 3,
        (0, 0),
    ]


def test_a_match_that_is_too_short_proposes_nothing() -> None:
    text = [1, 2, 3, 70, 9, 2, 3, 80, 5, 3]
    assert _Index(3, text).continuation(1) == (80,)
    assert _Index(3, text, min_match=2).continuation(1) == ()
    assert _Index(3, [*text[:-2], 2, 3], min_match=2).continuation(1) == (80,)
    with pytest.raises(ValueError, match=r"'shortest' of decoder 'lookup' is 4; .* from 1 to n=3"):
        PromptLookup(shortest=4)


def test_no_draft_is_proposed_before_a_repetition_or_beyond_the_budget() -> None:
    answer = generate(PromptLookup(k=8), [0], Sampling(max_new_tokens=14), Models(target=Cycle(10)))
    # nine steps until 0 comes again, then what the budget holds beside the call's own token
    assert [step.drafted for step in answer.steps] == [0] * 10 + [3]
    assert [step.target_rows for step in answer.steps] == [1] * 10 + [4]


@pytest.mark.slow
@pytest.mark.parametrize("decoder", [PromptLookup(n=1, k=1), PromptLookup(n=2, k=2)])
def test_answers_have_the_exact_distribution_of_the_table(
    monkeypatch: pytest.MonkeyPatch, decoder: PromptLookup
) -> None:
    """Every uniform runs over the midpoints of a grid of sixths, in which all chances are."""

    class Sixths(TableModel):
        def logits(self, context: Sequence[int]) -> Tensor:
            weights = ((2, 2, 2), (3, 3, 0), (1, 1, 4))[sum(context[-2:]) % 3]
            return torch.tensor([math.log(weight) if weight else -math.inf for weight in weights])

    prompt, model, sampling = [1, 2, 0, 1], Sixths(3), Sampling(temperature=1.0, max_new_tokens=4)
    found: defaultdict[tuple[int, ...], float] = defaultdict(float)
    accepted = 0
    for values in itertools.product([(step + 0.5) / 6 for step in range(6)], repeat=4):

        class Scripted:
            def __init__(self, seed: int, prompt: Sequence[int], table: tuple = values) -> None:
                self._table = table

            def at(self, stream: str, position: int) -> float:
                assert stream == "draw"  # no other number decides anything
                return self._table[position]

        monkeypatch.setattr(sequence, "Uniforms", Scripted)
        answer = generate(decoder, prompt, sampling, Models(target=model))
        found[answer.tokens] += 1 / 6**4
        accepted += sum(step.accepted for step in answer.steps)
    assert accepted > 0
    expected = enumerated_distribution(model, prompt, sampling, 4)
    assert found.keys() == expected.keys()
    for tokens, mass in expected.items():
        assert found[tokens] == pytest.approx(mass, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_batches_of_unequal_prompts_have_ars_tokens(batch_size: int, temperature: float) -> None:
    models = Models(target=TableModel(8, seed=3, max_length=400))
    sampling = Sampling(
        temperature=temperature, top_p=0.9, max_new_tokens=50, stop_ids=frozenset({4})
    )
    prompts = [[place % (2 + number % 3) for place in range(1 + 9 * number)] for number in range(7)]

    def answers(decoder: Autoregressive | PromptLookup, size: int) -> list[tuple[int, ...]]:
        outcomes = Scheduler(decoder, models, sampling, size).run(prompts)
        return [outcome.tokens for outcome in outcomes if isinstance(outcome, Generation)]

    expected = answers(Autoregressive(), 1)
    assert len(expected) == len(prompts)
    assert answers(PromptLookup(n=2, k=6), batch_size) == expected


def test_lookup_needs_only_the_target_and_runs_by_default() -> None:
    assert PromptLookup().needs == ()
    assert PromptLookup().lossless
    assert "lookup" in built_in_cells()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"n": 0}, "'n' of decoder 'lookup' is 0; it must be from 1 to 16"),
        ({"n": 17}, "'n' of decoder 'lookup' is 17; it must be from 1 to 16"),
        ({"k": 0}, "'k' of decoder 'lookup' is 0; it must be 1 or above"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        PromptLookup(**options)

"""Suffix decoding: its trees against a count of the whole text, its drafts, and AR's tokens."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plan.select import built_in_cells
from decoders import suffix
from decoders.ar import Autoregressive
from decoders.core.drafting.drafter import Text
from decoders.core.drafting.tree import DraftTree
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.sampling import Uniforms
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.suffix import SuffixDecoding, _Node, _Suffixes

TEXT = st.lists(st.integers(0, 2), max_size=40)


def drafts(*args: Any, **options: Any) -> tuple[list[int], list[int], set[str]]:
    """The tokens, parents and sources of the drafts after a text and earlier answers."""
    tree = drafted(*args, **options)
    return tree.tokens[1:], tree.parents[1:], set(tree.sources)


def drafted(
    options: SuffixDecoding,
    tokens: Sequence[int],
    past: Sequence[Sequence[int]] = (),
    most: int = 9,
) -> DraftTree:
    """The tree of drafts after a text and earlier answers."""
    memory = options.memory()
    for answer in past:
        assert memory is not None
        memory.add((), answer)
    request: Any = SimpleNamespace(
        prompt_ids=tuple(tokens),
        sampling=Sampling(max_new_tokens=20),
        uniforms=Uniforms(0, tokens),
        memory=memory,
    )
    tree = options.drafter(request).propose(Text(request), most)
    assert isinstance(tree, DraftTree)
    return tree


def occurrences(texts: Sequence[Sequence[int]], run: Sequence[int]) -> list[int | None]:
    """What followed each occurrence of a run (None: the end of a text)."""
    size = len(run)
    return [
        text[start + size] if start + size < len(text) else None
        for text in texts
        for start in range(len(text) - size + 1)
        if list(text[start : start + size]) == list(run)
    ]


@given(TEXT, st.integers(1, 5))
def test_matches_are_suffixes_that_occurred_before_with_counts_of_the_next_tokens(
    text: list[int], depth: int
) -> None:
    tree = _Suffixes(depth)
    for token in text:  # bit by bit, as an answer grows
        tree.extend([token])
    ends = [text[-size:] for size in range(1, min(depth, len(text)) + 1)]
    ends = [end for end in ends if len(occurrences([text], end)) > 1]
    assert [node.count for node in tree.matches] == [len(occurrences([text], e)) for e in ends]
    for end, node in zip(ends[: depth - 1], tree.matches, strict=False):
        found = Counter({token: count for count, token, _ in tree.followers(node)})
        expected = Counter(t for t in occurrences([text], end) if t is not None)
        assert found == expected
        assert node.total == expected.total()


@given(st.lists(TEXT.filter(bool), max_size=4), TEXT, st.integers(2, 5))
def test_matches_in_earlier_answers_never_cross_from_one_to_the_next(
    answers: list[list[int]], text: list[int], depth: int
) -> None:
    tree, matches = _Suffixes(depth), list[_Node]()
    for answer in answers:
        tree.add((), answer)
    for token in text:
        matches = tree.advance(matches, token)
    ends = [text[-size:] for size in range(1, min(depth, len(text)) + 1)]
    ends = [end for end in ends if occurrences(answers, end)]
    assert len(matches) == len(ends)
    for end, node in zip(ends[: depth - 1], matches, strict=False):
        found = Counter({token: count for count, token, _ in tree.followers(node)})
        assert found == Counter(t for t in occurrences(answers, end) if t is not None)


def test_the_longest_match_is_continued_and_a_longer_match_gets_more_drafts() -> None:
    options = SuffixDecoding(factor=1.0)
    assert drafts(options, [1, 2, 3, 4, 5, 6, 9, 1])[0] == [2]
    assert drafts(options, [1, 2, 3, 4, 5, 6, 9, 1, 2])[0] == [3, 4]
    assert drafts(options, [1, 2, 3, 4, 5, 6, 9, 1, 2, 3])[0] == [4, 5, 6]
    assert drafts(options, [1, 2, 3, 4, 5, 6, 9, 1, 2, 3], most=2)[0] == [4, 5]
    assert drafts(SuffixDecoding(factor=2.0), [1, 2, 3, 4, 5, 6, 9, 1, 2])[0] == [3, 4, 5, 6]
    assert drafts(SuffixDecoding(depth=1), [1, 2, 3, 4, 5, 6, 9, 1, 2])[0] == [3, 4]
    assert drafts(options, [1, 2, 3, 4])[0] == []
    assert drafts(options, [1, 2, 1], most=0)[0] == []


def test_drafts_are_a_tree_of_earlier_continuations_with_the_likeliest_first() -> None:
    text = [7, 8, 1, 5, 7, 8, 1, 6, 7, 8, 2, 4, 7, 8]
    tokens, parents, _ = drafts(SuffixDecoding(), text)
    assert (tokens, parents) == ([1, 2, 5, 6], [0, 0, 1, 1])  # 2/3, then thrice 1/3, by rows
    tokens, parents, _ = drafts(SuffixDecoding(branches=False), text)
    assert (tokens[0], parents) == (1, [0, 1, 2, 3][: len(tokens)])
    assert drafts(SuffixDecoding(chance=0.5), text)[0] == [1]


def test_a_drafts_confidence_is_its_share_of_the_continuations_of_its_prefix() -> None:
    tree = drafted(SuffixDecoding(), [7, 8, 1, 5, 7, 8, 1, 6, 7, 8, 2, 4, 7, 8])
    assert tree.confidences == pytest.approx({1: 2 / 3, 2: 1 / 3, 3: 1 / 2, 4: 1 / 2})


def test_a_draft_of_exactly_the_minimum_chance_is_proposed() -> None:
    text = [1, 2, 1, 3, 1]
    assert drafts(SuffixDecoding(chance=0.5), text)[0] == [2, 3]
    assert drafts(SuffixDecoding(chance=0.51), text)[0] == []


def test_the_end_of_an_earlier_answer_lowers_no_chance() -> None:
    tree = drafted(SuffixDecoding(chance=0.6), [9, 1], [[1], [1, 2]])
    assert (tree.tokens[1:], tree.confidences) == ([2], {1: 1.0})  # all that ever followed 1


def test_a_shorter_match_proposes_as_many_drafts_as_its_length_allows() -> None:
    usual = [2, 5, 6, 7, 8]
    text = [1, 2, 3, 1, 2, 4, *(4 * usual), 1, 2]  # after 1, 2: 3 and 4, of which none is likely
    assert drafts(SuffixDecoding(chance=0.6), text)[0] == [5, 6]
    assert drafts(SuffixDecoding(chance=0.6, factor=4.0), text)[0] == [5, 6, 7, 8]


def test_the_better_match_of_text_and_earlier_answers_is_proposed() -> None:
    options, text = SuffixDecoding(), [1, 2, 9, 5, 6, 1, 2]
    assert drafts(options, text, [[3, 1, 2, 7, 7, 7]])[2] == {"text"}  # equal: the text's
    found = drafts(options, text, [[6, 1, 2, 7, 8, 0, 3, 4, 4]])
    assert found == ([7, 8, 0, 3, 4, 4], [0, 1, 2, 3, 4, 5], {"answers"})  # three tokens match
    assert drafts(options, [1, 2], [[1], [2]]) == ([], [], set())
    assert drafts(SuffixDecoding(answers=False), text)[2] == {"text"}


def test_a_full_memory_adds_no_further_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "_MAX_TOKENS", 8)
    tree = _Suffixes(4)
    for first in range(5):
        tree.add((), [first, 9, 9, 9])
    assert tree.tokens == [0, 9, 9, 9, -1, 1, 9, 9, 9, -1]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("options", [{}, {"branches": False, "factor": 3.5}, {"answers": False}])
def test_tokens_equal_ars_in_batches_that_share_a_memory(
    temperature: float, options: dict[str, Any]
) -> None:
    models = Models(target=TableModel(8, seed=3, max_length=400))
    sampling = Sampling(
        temperature=temperature, top_p=0.9, max_new_tokens=50, stop_ids=frozenset({4})
    )
    prompts = [[place % (2 + number % 3) for place in range(1 + 9 * number)] for number in range(7)]
    expected = [generate(Autoregressive(), each, sampling, models).tokens for each in prompts]
    decoder = SuffixDecoding(**options)
    for size in (1, 3):
        outcomes = Scheduler(decoder, models, sampling, size, memory=decoder.memory()).run(prompts)
        assert [each.tokens for each in outcomes if isinstance(each, Generation)] == expected


def test_an_earlier_answer_is_drafted_from_the_memory() -> None:
    models = Models(target=TableModel(50, seed=3, max_length=400))
    decoder, sampling = SuffixDecoding(), Sampling(temperature=1.0, max_new_tokens=60)
    scheduler = Scheduler(decoder, models, sampling, memory=decoder.memory())
    first, second = scheduler.run([[1, 2, 3], [1, 2, 3]])
    assert isinstance(first, Generation)
    assert isinstance(second, Generation)
    assert first.tokens == second.tokens
    assert len(second.steps) < len(first.steps) / 2
    forgetful = Scheduler(decoder, models, sampling).run([[1, 2, 3], [1, 2, 3]])
    assert forgetful == [first, first]


def test_suffix_remembers_answers_unless_switched_off_and_runs_only_if_named() -> None:
    assert SuffixDecoding().remembers == "answers"
    assert SuffixDecoding(answers=False).remembers is None
    assert SuffixDecoding(answers=False).memory() is None
    assert "suffix" not in built_in_cells()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"depth": 0}, "'depth' of decoder 'suffix' is 0; it must be from 1 to 64"),
        ({"depth": 65}, "'depth' of decoder 'suffix' is 65; it must be from 1 to 64"),
        ({"factor": 0.0}, "'factor' of decoder 'suffix' is 0.0; it must be above 0"),
        ({"chance": 0.0}, "'chance' of decoder 'suffix' is 0.0; it must be above 0, up to 1"),
        ({"chance": 1.5}, "'chance' of decoder 'suffix' is 1.5; it must be above 0, up to 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        SuffixDecoding(**options)

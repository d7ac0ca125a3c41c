"""The loop of all drafts: what drafters are asked and told, what calls hold, what is emitted."""

import itertools
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from decoders.ar import Autoregressive
from decoders.core.checks import check_drafter
from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Drafts, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.model import Call
from decoders.core.types import CallResult, Generation, Sampling
from tests.recording import Recording

PROMPT = [1, 2, 3]
GREEDY = Sampling(max_new_tokens=20)
WARM = Sampling(temperature=0.9, max_new_tokens=20, seed=3)


def answer_of(decoder: DraftAndVerify | Autoregressive, sampling: Sampling) -> Generation:
    return generate(decoder, PROMPT, sampling, Models(target=Recording()))


@dataclass
class Told(Drafter):
    """Proposes the truth and wrong tokens behind it; notes what it is asked and told."""

    truth: Sequence[int]
    right: int = 2
    asked: list[int] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    stood: list[int] = field(default_factory=list)

    def propose(self, text: Text, most: int) -> Drafts:
        self.asked.append(most)
        self.texts.append(list(text.tokens))
        ahead = list(self.truth[text.output : text.output + 6])
        return ahead[: self.right] + [(token + 1) % 5 for token in ahead[self.right :]]

    def observe(self, text: Text, verdict: Verdict) -> None:
        self.stood.append(verdict.accepted)


class Fork(Told):
    """The wrong branch first, the truth behind it: rows of the cache have to move."""

    branches = True

    def propose(self, text: Text, most: int) -> DraftTree:
        tokens = list(self.truth[text.output :][: min(self.right, most)])
        tree = DraftTree(text.last)
        tree.add([(token + 1) % 5 for token in tokens])
        tree.add(tokens)
        return tree


class Sticky(Drafter):
    """Proposes as many tokens as it was ever asked for: a list that all answers share."""

    def __init__(self, shared: list[int]) -> None:
        self.shared = shared

    def propose(self, text: Text, most: int) -> Sequence[int]:
        self.shared.append(most)
        return [text.last] * (len(self.shared) % 4)


def scripted(drafter: Drafter) -> DraftAndVerify:
    @dataclass(frozen=True, kw_only=True)
    class Scripted(DraftAndVerify):
        def drafter(self, request: Request) -> Drafter:
            return drafter

    return Scripted()


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_drafters_get_the_committed_text_each_verdict_and_the_remaining_budget(
    sampling: Sampling,
) -> None:
    truth = answer_of(Autoregressive(), sampling).tokens
    drafter = Told(truth)
    answer = answer_of(scripted(drafter), sampling)
    assert answer.tokens == truth
    assert drafter.stood[:-1] == [0, *[2] * (len(answer.steps) - 2)]
    emitted = [PROMPT, *(list(step.tokens) for step in answer.steps)]
    for turn, (most, text) in enumerate(zip(drafter.asked, drafter.texts, strict=True), 2):
        assert text == list(itertools.chain(*emitted[:turn]))
        assert most == 20 - (len(text) - len(PROMPT)) - 1
    for step in answer.steps[1:5]:
        assert (step.drafted, step.accepted, step.depth) == (6, 2, None)
        assert len(step.rejected) == 4


def test_verified_drafts_stay_within_the_budget_even_if_a_drafter_proposes_more() -> None:
    truth = answer_of(Autoregressive(), GREEDY).tokens
    model = Recording()
    generate(scripted(Told(truth, right=6)), PROMPT, GREEDY, Models(target=model))
    assert [len(call.tokens) for call in model.seen] == [3, 7, 7, 5]  # 1, 7 and 7 tokens, then 5


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_the_rows_of_the_accepted_branch_are_kept(sampling: Sampling) -> None:
    truth = answer_of(Autoregressive(), sampling).tokens
    answer = answer_of(scripted(Fork(truth)), sampling)
    assert answer.tokens == truth
    for step in answer.steps[1:-1]:
        assert (step.drafted, step.accepted, step.depth) == (4, 2, 2)


class Ahead(Drafter):
    """Has the target give a token in a call of its own, and drafts nothing after it."""

    def __init__(self, request: Request) -> None:
        self.target = request.target

    def draft(self, text: Text, most: int) -> Generator[Call, CallResult, DraftTree]:
        result = yield self.target.call((text.last,))
        text.tokens += result.picks
        tree = DraftTree(text.last)
        tree.first = result.picks
        return tree


@dataclass(frozen=True, kw_only=True)
class Eager(DraftAndVerify):
    def drafter(self, request: Request) -> Drafter:
        return Ahead(request)


def test_no_verification_follows_a_drafting_call_that_gave_the_last_token() -> None:
    truth = answer_of(Autoregressive(), GREEDY).tokens
    for place, token in enumerate(truth):
        short = Sampling(max_new_tokens=place + 1)
        stopped = Sampling(max_new_tokens=20, stop_ids=frozenset({token}))
        for sampling, length in ((short, place + 1), (stopped, truth.index(token) + 1)):
            model = Recording()
            answer = generate(Eager(), PROMPT, sampling, Models(target=model))
            assert answer.tokens == truth[:length]
            assert len(model.seen) == length  # every call gives one token


@pytest.mark.parametrize(
    ("carried", "named"),
    [({"output": "probs"}, "output"), ({"output": "logits"}, "output"), ({"read": [0]}, "read")],
)
def test_a_drafter_cannot_change_how_its_drafts_are_verified(
    carried: dict[str, Any], named: str
) -> None:
    class Meddling(Told):
        def carry(self, text: Text, tree: DraftTree) -> dict[str, Any]:
            return carried

    message = rf"Meddling.carry returned '{named}'.*allowed: slots, positions, mask, hidden"
    with pytest.raises(ValueError, match=message):
        answer_of(scripted(Meddling([1, 2, 3])), WARM)


def test_a_drafter_without_a_proposal_decodes_as_ar_does() -> None:
    class Silent(Drafter):
        def propose(self, text: Text, most: int) -> Sequence[int]:
            return ()

    assert answer_of(scripted(Silent()), WARM).tokens == answer_of(Autoregressive(), WARM).tokens


def test_an_incomplete_drafter_or_decoder_raises_an_error_that_names_the_missing_method() -> None:
    with pytest.raises(NotImplementedError, match="Drafter must define propose or draft"):
        answer_of(scripted(Drafter()), GREEDY)
    with pytest.raises(NotImplementedError, match=r"DraftAndVerify must define drafter\(request\)"):
        answer_of(DraftAndVerify(), GREEDY)


@pytest.mark.parametrize("wrong", [None, ["a"], [1.5], "ab", 3])
def test_a_drafter_that_returns_no_token_ids_is_refused_with_its_name_and_return_value(
    wrong: Any,
) -> None:
    class Odd(Drafter):
        def propose(self, text: Text, most: int) -> Drafts:
            return wrong  # type: ignore[no-any-return]

    class Drawn(Drafter):
        def draft(self, text: Text, most: int) -> Any:
            yield from ()
            return wrong

    for drafter, method in ((Odd(), "Odd.propose"), (Drawn(), "Drawn.draft")):
        line = re.escape(f"{method} returned {wrong!r}; return a list of token ids or a DraftTree")
        with pytest.raises(TypeError, match=line):
            answer_of(scripted(drafter), GREEDY)


def test_a_drafter_of_a_few_lines_meets_the_contract() -> None:
    class Repeats(Drafter):
        def propose(self, text: Text, most: int) -> Sequence[int]:
            return [text.last] * 3

    check_drafter(lambda request: Repeats())


def test_a_drafter_that_remembers_an_earlier_answer_is_caught() -> None:
    shared: list[int] = []
    with pytest.raises(AssertionError, match="gives the same tokens in other steps when run again"):
        check_drafter(lambda request: Sticky(shared))

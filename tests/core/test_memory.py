"""The declared memory of a decoder: when it is filled, and which uses the contract refuses."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from decoders.core.checks import (
    StepsDifferError,
    check_decoder,
    check_greedy_equals_ar,
    check_prompts_leave_no_trace,
    check_tokens_ignore_the_memory,
    checks_for,
)
from decoders.core.decoder import PastAnswers, Request, Steps
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.registry import build, parse_spec
from decoders.core.testing.check_models import table_draws
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Emit, Generation, Sampling

SAMPLING = Sampling(max_new_tokens=6)


class Listed(Drafter):
    """Proposes the tokens of a list."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = list(tokens)

    def propose(self, text: Text, most: int) -> Sequence[int]:
        return self.tokens[text.output :][:most]


@dataclass(frozen=True, kw_only=True)
class Last(DraftAndVerify):
    """Drafts the last answer, whatever the prompt."""

    remembers = "answers"  # type: ignore[assignment]

    def past(self, request: Request) -> PastAnswers:
        assert isinstance(request.memory, PastAnswers)
        return request.memory

    def drafter(self, request: Request) -> Drafter:
        return Listed(self.past(request)[-1][1] if self.past(request) else ())


class Leaning(Last):
    """Begins with the last answer's first token, verified or not: its tokens depend on the past."""

    def steps(self, request: Request) -> Steps:
        past, steps = self.past(request), super().steps(request)
        item: Any = next(steps)
        is_first = bool(past)
        while True:
            if isinstance(item, Emit):
                yield Emit(tokens=(past[-1][1][0],)) if is_first else item
                is_first, item = False, next(steps)
            else:
                item = steps.send((yield item))


class Writing(Last):
    """Fills its memory itself, from the middle of an answer."""

    def drafter(self, request: Request) -> Drafter:
        self.past(request).add((), ())
        return Listed([len(self.past(request)) % 3] * 30)


class Global(Last):
    """Declares a memory and keeps a secret one besides."""

    secret: list[int] = []  # noqa: RUF012

    def drafter(self, request: Request) -> Drafter:
        self.secret.append(len(self.secret) % 5)
        return Listed(self.secret)


def test_drafts_from_the_past_meet_the_contract() -> None:
    assert check_tokens_ignore_the_memory in checks_for(Last())
    check_decoder(Last())


def test_only_the_memory_check_catches_tokens_that_depend_on_past_answers() -> None:
    for check in (check_prompts_leave_no_trace, check_greedy_equals_ar):
        check(Leaning())
    with pytest.raises(AssertionError, match="other tokens after answers that it remembers") as e:
        check_tokens_ignore_the_memory(Leaning())
    assert not isinstance(e.value, StepsDifferError)


def test_a_memory_that_only_the_decoder_can_fill_fails_the_memory_check() -> None:
    with pytest.raises(StepsDifferError, match="in other steps with a memory made again"):
        check_tokens_ignore_the_memory(Writing())


def test_state_beside_the_declared_memory_is_still_found() -> None:
    with pytest.raises(StepsDifferError, match="in other steps after other prompts"):
        check_prompts_leave_no_trace(Global())
    with pytest.raises(StepsDifferError, match="in other steps with a memory made again"):
        check_tokens_ignore_the_memory(Global())


def test_draws_of_a_distribution_share_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PastAnswers()
    monkeypatch.setattr(Last, "memory", lambda _: memory)
    table_draws(Last(), 5).draw(0, 2)
    assert len(memory) == 5


def test_an_answer_sees_only_earlier_answers_of_its_own_scope() -> None:
    models, seen = Models(target=TableModel(7, seed=1)), list[int]()

    class Counting(Last):
        def drafter(self, request: Request) -> Drafter:
            seen.append(len(self.past(request)))
            return Listed(())

    decoder, prompts = Counting(), [[1], [2], [3], [4]]
    Scheduler(decoder, models, SAMPLING).run(prompts)
    assert seen == [0, 0, 0, 0], "without a memory of a scope nothing is remembered"
    seen.clear()
    memory = PastAnswers()
    outcomes = Scheduler(decoder, models, SAMPLING, memory=memory).run(prompts)
    assert seen == [0, 1, 2, 3]
    expected = [((n,), o.tokens) for n, o in enumerate(outcomes, 1) if isinstance(o, Generation)]
    assert memory == expected
    seen.clear()
    Scheduler(decoder, models, SAMPLING, 2, memory=PastAnswers()).run(prompts)
    assert seen == [0, 0, 2, 2], "answers of a batch do not see each other"


def test_a_failed_answer_is_not_remembered_and_a_failing_memory_fails_the_answer() -> None:
    class Failing(PastAnswers):
        def add(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
            if prompt[0] == 2:
                raise KeyError("full")
            super().add(prompt, tokens)

    memory, models = Failing(), Models(target=TableModel(7, seed=1))
    outcomes = Scheduler(Last(), models, SAMPLING, memory=memory).run([[1], [2], [], [3]])
    assert [isinstance(o, Generation) for o in outcomes] == [True, False, False, True]
    assert isinstance(outcomes[1], KeyError)
    assert [prompt for prompt, _ in memory] == [(1,), (3,)]


def test_an_unknown_value_of_remembers_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "from decoders.lookup import PromptLookup\n"
        "class Odd(PromptLookup):\n    remembers = 'everything'\n"
    )
    with pytest.raises(ValueError, match="remembers 'everything'; allowed: \"answers\", or None"):
        build(parse_spec(f"{file}:Odd"))


def test_a_hybrid_refuses_a_part_with_a_memory() -> None:
    with pytest.raises(ValueError, match=r"it must be without a memory, as suffix\+answers=false"):
        build(parse_spec("hybrid:first=suffix:then=lookup"))
    assert build(parse_spec("hybrid:first=suffix+answers=false:then=lookup")).remembers is None

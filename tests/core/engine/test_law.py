"""A law of the logits holds for every lossless decoder, as if it were the target's own."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core import masks
from decoders.core.decoder import Decoder
from decoders.core.engine.forms import answers_before, apply_law
from decoders.core.engine.models import Models
from decoders.core.engine.readout import read_out
from decoders.core.engine.reads import readouts
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.model import Call, Session
from decoders.core.registry import build, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.testing.check_models import EOS, VOCAB, llamas, with_adapters
from decoders.core.testing.goodness import Draws
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.spec import Speculative
from tests.decoders.test_laws import QUARTERS, SIXTHS, Flat, Known
from tests.enumeration import enumerated_distribution, integrated_answers

LOSSLESS = (
    *("ar", "ar:cache=false", "lookup", "spec:k=3", "spec:verify=coupled", "eagle", "shallow"),
    *("medusa", "hybrid:then=eagle", "jacobi", "lookahead", "ptp", "ptp:mode=pqd", "ptp_spec"),
    *("isd", "isd:branches=all", "isd:verify=coupled", "eagle:verify=rejection"),
)


def no_echo(answer: tuple[int, ...], logits: Tensor) -> Tensor:
    """Never the last two tokens again, no word 0 at odd places, and other preferences at even."""
    logits = logits.roll(len(answer))
    forbidden = [*answer[-2:], *([0] if len(answer) % 2 else [])]
    return logits.index_fill(0, torch.tensor(forbidden, dtype=torch.long), -torch.inf)


class Lawful(TableModel):
    """A table that has the law in its own logits, after prompts of a known length."""

    num_prompt = 3

    def logits(self, context: Sequence[int]) -> Tensor:
        plain = super().logits(context)
        answer = tuple(context[self.num_prompt :])
        return no_echo(answer, plain) if len(context) >= self.num_prompt else plain


def sampling(temperature: float, law: Any = no_echo) -> Sampling:
    stops = frozenset({EOS})
    return Sampling(temperature=temperature, law=law, max_new_tokens=20, stop_ids=stops, seed=5)


def plain(decoder: Decoder, kind: type[TableModel] = TableModel) -> Models:
    target = kind(VOCAB, seed=1, scale=1.5)
    draft = TableModel(VOCAB, seed=2, scale=1.5, agree_with=target, agreement=0.6)
    return with_adapters(decoder, Models(target=target, draft=draft), 0.4)


PROMPTS = ([1, 2, 3], [4, 0, 5], [2, 2, 2])


@pytest.mark.parametrize("spec", LOSSLESS)
def test_answers_under_a_law_equal_those_of_a_target_with_the_law_built_in(spec: str) -> None:
    decoder, ar = build(parse_spec(spec)), build(parse_spec("ar"))
    for temperature in (0.0, 0.9) if decoder.coupled else (0.0,):
        expected = [
            generate(ar, prompt, sampling(temperature, None), plain(ar, Lawful)).tokens
            for prompt in PROMPTS
        ]
        settings = sampling(temperature)
        alone = [generate(decoder, prompt, settings, plain(decoder)).tokens for prompt in PROMPTS]
        assert alone == expected
        outcomes = Scheduler(decoder, plain(decoder), settings, 3).run(PROMPTS)
        assert [o.tokens for o in outcomes if isinstance(o, Generation)] == expected
    without = [generate(ar, prompt, sampling(0.0, None), plain(ar)).tokens for prompt in PROMPTS]
    assert without != expected


@pytest.mark.parametrize("spec", ["ar", "spec:k=2", "eagle", "ptp", "isd"])
def test_the_law_holds_for_real_tensors(spec: str) -> None:
    decoder, ar = build(parse_spec(spec)), build(parse_spec("ar"))
    for prompt in PROMPTS:
        answer = generate(decoder, prompt, sampling(0.0), llamas(decoder)).tokens
        assert answer == generate(ar, prompt, sampling(0.0), llamas(ar)).tokens
        pairs = [*itertools.pairwise(answer), *zip(answer, answer[2:], strict=False)]
        assert all(a != b for a, b in pairs)
        assert 0 not in answer[1::2]


def test_sampled_answers_have_the_lawful_distribution() -> None:
    def turned(answer: tuple[int, ...], logits: Tensor) -> Tensor:
        return logits.roll(1) if len(answer) == 2 else logits

    class Turned(Known):
        def logits(self, context: Sequence[int]) -> Tensor:
            return turned(tuple(context[1:]), super().logits(context))

    models = Models(target=Known(SIXTHS), draft=Flat(3))
    settings = Sampling(temperature=1.0, max_new_tokens=3, law=turned)

    def grid(stream: str, position: int, candidate: int) -> int:
        return {"draw": 3 - candidate, "accept": 2, "recover": 6}[stream] if position else 1

    found = integrated_answers(Speculative(k=2), models, [0], settings, grid)
    expected = enumerated_distribution(Turned(SIXTHS), [0], settings, 3)
    unlawful = enumerated_distribution(Known(SIXTHS), [0], settings, 3)
    assert sum(abs(found.get(a, 0) - expected.get(a, 0)) for a in {*found, *expected}) < 1e-6
    assert sum(abs(expected.get(a, 0) - unlawful.get(a, 0)) for a in {*expected, *unlawful}) > 0.1


@pytest.mark.parametrize("spec", ["ar", "spec:k=2"])
def test_drawn_answers_are_tested_against_the_lawful_distribution(spec: str) -> None:
    decoder = build(parse_spec(spec))
    settings = Sampling(temperature=0.9, max_new_tokens=3, law=no_echo)
    draws = Draws(decoder, plain(decoder), PROMPTS[0], settings, 600)
    draws.draw(0, 64)
    assert draws.fits[0].p_value > 1e-3
    after = {text: allowed for text, allowed in draws.distribution.possible.items() if text}
    assert len(after) > 1
    assert not any(allowed[text[-1]] for text, allowed in after.items())


def answers(call: Call, num_prompt: int) -> list[list[int]]:
    (readout,) = readouts(call, Uniforms(0, [0]), num_prompt)
    call.session.model.forward([call])
    return answers_before(readout)


@pytest.fixture
def session() -> Session:
    model = TableModel(VOCAB)
    model.reserve(2, 2000)
    return model.open()


def test_the_law_sees_the_right_answer_after_prompts_chains_trees_and_rollbacks(
    session: Session,
) -> None:
    assert answers(session.call([1, 2, 3]), 3) == [[]]
    assert answers(session.call([4, 5, 0], read=range(3)), 3) == [[4], [4, 5], [4, 5, 0]]
    session.truncate(4)
    tree = [masks.ROOT, 0, 0, 1]
    positions = [4, 5, 5, 6]
    call = session.call([6, 1, 2, 3], read=range(4), mask=masks.tree(tree), positions=positions)
    assert answers(call, 3) == [[4, 6], [4, 6, 1], [4, 6, 2], [4, 6, 1, 3]]
    session.select_rows([0, 2])
    assert answers(session.call([5]), 3) == [[4, 6, 2, 5]]
    assert answers(session.call([5], read=[0]), 100) == [[]]  # inside the prompt


def test_the_law_sees_the_right_answer_after_a_kept_prefix_and_a_chunked_prompt(
    session: Session,
) -> None:
    from decoders.core.engine.forward import forward

    prompt = [number % VOCAB for number in range(1200)]
    session.keep_text(prompt[:900])
    call = session.call(prompt)
    (readout,) = readouts(call, Uniforms(0, [0]), len(prompt))
    forward([call])
    assert answers_before(readout) == [[]]
    assert answers(session.call([1, 2], read=range(2)), len(prompt)) == [[1], [1, 2]]
    assert session.text == [*prompt, 1, 2]


def test_rows_at_dead_ends_of_the_law_stay_unchanged_and_their_answers_are_recorded() -> None:
    def strict(answer: tuple[int, ...], logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf) if 3 in answer else logits

    rows, settings, dead_ends = torch.randn(2, VOCAB), sampling(0.0, strict), set[Any]()
    assert apply_law(rows, [[1], [1, 3]], settings, dead_ends).equal(rows)
    assert dead_ends == {(1, 3)}
    assert apply_law(rows, [[1], [1, 3]], settings).equal(rows)
    with pytest.raises(ValueError, match=r"returned \[3\]; return logits of shape \[7\]"):
        apply_law(rows, [[], []], sampling(0.0, lambda answer, logits: logits[:3]))
    with pytest.raises(ValueError, match="returned NoneType"):
        apply_law(rows, [[], []], sampling(0.0, lambda answer, logits: None))
    assert apply_law(rows, [[], []], sampling(0.0, None)) is rows


def test_a_law_may_compute_in_another_precision() -> None:
    rows = torch.randn(2, VOCAB)
    settings = sampling(0.0, lambda answer, logits: logits.double() if answer else logits)
    changed = apply_law(rows, [[], [1]], settings)
    assert changed.dtype == rows.dtype
    assert changed.equal(rows)


def test_a_dead_end_in_a_fork_is_recorded_for_its_answer(session: Session) -> None:
    def strict(answer: tuple[int, ...], logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf) if answer == (4, 5) else logits

    session.max_sequences = 2
    session.model.forward([session.call([1, 2, 3])])
    call = session.fork().call([4, 5], read=(0, 1))
    parts = readouts(call, Uniforms(0, [0]), 3)
    read_out(session.model.forward([call]), parts, sampling(0.0, strict))
    assert session.dead_ends == {(4, 5)}


def test_a_law_that_raises_an_error_fails_its_own_answer() -> None:
    def failing(answer: tuple[int, ...], logits: Tensor) -> Tensor:
        if len(answer) == 2:
            raise KeyError("no rule")
        return logits

    (outcome,) = Scheduler(
        build(parse_spec("ar")), plain(build(parse_spec("ar"))), sampling(0.0, failing)
    ).run([[1, 2, 3]])
    assert isinstance(outcome, KeyError)


def test_a_draft_that_leads_to_a_dead_end_of_the_law_changes_no_answer() -> None:
    class Ends(TableModel):
        """Proposes word 3, which the target never picks."""

        def logits(self, context: Sequence[int]) -> Tensor:
            return torch.full((VOCAB,), -9.0).index_fill(0, torch.tensor([3]), 9.0)

    def ends_after_3(answer: tuple[int, ...], logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf) if 3 in answer else logits

    class Never(TableModel):
        def logits(self, context: Sequence[int]) -> Tensor:
            return super().logits(context).index_fill(0, torch.tensor([3]), -50.0)

    models = Models(target=Never(VOCAB, seed=1), draft=Ends(VOCAB))
    settings = sampling(0.0, ends_after_3)
    expected = generate(build(parse_spec("ar")), PROMPTS[0], settings, models).tokens
    answer = generate(Speculative(k=3), PROMPTS[0], settings, models)
    assert answer.tokens == expected
    assert sum(step.drafted for step in answer.steps) > 0


def dead(after: Callable[[tuple[int, ...]], bool]) -> Any:
    """A law that has no token after some answers, but again after one token more."""
    return lambda answer, logits: logits - torch.inf if after(answer) else logits


def said(outcome: Any) -> Any:
    """The tokens of an answer, or why it failed."""
    return outcome.tokens if isinstance(outcome, Generation) else str(outcome)


def test_a_budget_or_stop_token_at_a_dead_end_ends_an_answer_as_with_ar() -> None:
    class Sure(TableModel):
        def logits(self, context: Sequence[int]) -> Tensor:
            return torch.eye(VOCAB)[(context[-1] + 1) % VOCAB] * 9

    models = Models(target=Sure(VOCAB), draft=Sure(VOCAB))
    for stops, num, expected in (
        (frozenset[int](), 2, (2, 3)),
        (frozenset({3}), 9, (2, 3)),
        (frozenset[int](), 3, "the law forbids every token after 2 tokens"),
    ):
        settings = Sampling(
            max_new_tokens=num, stop_ids=stops, law=dead(lambda answer: answer[-1:] == (3,))
        )
        for decoder in (build(parse_spec("ar")), Speculative(k=4)):
            (outcome,) = Scheduler(decoder, models, settings).run([[1]])
            assert said(outcome) == expected
            if stops and decoder.name == "spec":
                assert isinstance(outcome, Generation)
                assert sum(step.accepted for step in outcome.steps) == 1


@pytest.mark.parametrize("decoder", [Speculative(k=2), Speculative(k=2, verify="block")])
def test_sampled_answers_fail_as_often_as_ars(decoder: Decoder) -> None:
    block = decoder.verification.fresh  # type: ignore[attr-defined]
    weights = QUARTERS if block else SIXTHS
    models = Models(target=Known(weights), draft=Flat(len(weights)))
    law = dead(lambda answer: len(answer) == 2 and answer[1] == 0)
    settings = Sampling(temperature=1.0, max_new_tokens=4 if block else 3, law=law)

    def outcomes(some: Decoder, grid: Any) -> dict[Any, float]:
        return integrated_answers(some, models, [0], settings, grid, read=said)

    def grid(stream: str, position: int, candidate: int) -> int:
        sizes = {"draw": len(weights) - candidate, "accept": 2, "recover": 2 * len(weights)}
        if block:
            is_end = position == settings.max_new_tokens - 1
            sizes |= {"accept": 4 if position > 1 else 1, "recover": 4 if is_end else 1}
        return sizes[stream] if position else 1

    expected = outcomes(build(parse_spec("ar")), lambda *_: 2 * len(weights))
    found = outcomes(decoder, grid)
    assert 0.1 < expected["the law forbids every token after 2 tokens"] < 0.9
    assert sum(abs(found.get(a, 0) - expected.get(a, 0)) for a in {*found, *expected}) < 1e-6


def test_a_law_may_overwrite_its_logits_and_a_row_without_allowed_tokens_stays_unchanged() -> None:
    logits, dead_ends = torch.arange(10.0).view(2, 5), set[tuple[int, ...]]()
    sampling = Sampling(law=lambda _, row: row.fill_(-torch.inf))
    changed = apply_law(logits, [[1], [2]], sampling, dead_ends)
    assert torch.equal(changed, torch.arange(10.0).view(2, 5))
    assert dead_ends == {(1,), (2,)}

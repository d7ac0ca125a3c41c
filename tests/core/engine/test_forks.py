"""Several sequences of one answer: beam search, best of n, and what forks leave behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from bench.machine.usage import PeakMemory
from decoders.ar import Autoregressive
from decoders.core.checks import Check, check_decoder, checks_for
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.hf.shapes import random_model, shape_config
from decoders.core.model import Session
from decoders.core.registry import build, parse_spec
from decoders.core.testing.check_models import llamas
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, DraftShape, Emit, Generation, Sampling
from decoders.eagle import Eagle

EXAMPLES = Path(__file__).parents[3] / "examples"
PROMPTS = [[1, 2, 3], [4, 0], [5], [2, 2, 6, 1, 3, 3]]


def example(spec: str) -> Decoder:
    file, rest = spec.split("+")
    return build(parse_spec(f"{EXAMPLES / file}:{rest}"))


def beam(width: int) -> Decoder:
    return example(f"beam.py+Beam:width={width}")


def best_of(n: int) -> Decoder:
    return example(f"best_of_n.py+BestOf:n={n}")


@pytest.mark.parametrize(
    ("decoder", "check"),
    [(each, check) for each in (beam(3), best_of(3)) for check in checks_for(each)],
    ids=lambda value: getattr(value, "__name__", getattr(value, "name", "")),
)
def test_the_examples_meet_the_contract(decoder: Decoder, check: Check) -> None:
    check(decoder)


Law = Callable[[list[int]], torch.Tensor]


def brute_force(law: Law, prompt: list[int], width: int, num: int, stop: int) -> list[int]:
    """Beam search over whole texts, every probability computed again from the start."""
    beams = [(0.0, list[int]())]
    for _ in range(num):
        texts = [(score, text) for score, text in beams if text[-1:] == [stop]]
        for score, text in beams:
            if text[-1:] != [stop]:
                logs = law([*prompt, *text]).log_softmax(-1).tolist()
                texts += [(score + log, [*text, token]) for token, log in enumerate(logs)]
        beams = sorted(texts, key=lambda each: -each[0])[:width]
    return beams[0][1]


@pytest.mark.parametrize("stop", [6, -1])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_beam_search_matches_a_brute_force_search(width: int, stop: int) -> None:
    model = TableModel(7, seed=3, scale=1.0, order=3)
    stops = frozenset({stop} if stop >= 0 else ())
    sampling = Sampling(max_new_tokens=9, stop_ids=stops)
    outcomes = Scheduler(beam(width), Models(target=model), sampling, 3).run(PROMPTS)
    for prompt, outcome in zip(PROMPTS, outcomes, strict=True):
        assert isinstance(outcome, Generation)
        assert list(outcome.tokens) == brute_force(model.logits, prompt, width, 9, stop)


def test_a_beam_as_wide_as_all_texts_finds_the_likeliest_text() -> None:
    model, prompt = TableModel(4, seed=1, scale=1.0, order=4), [1, 2]

    def chance(text: tuple[int, ...]) -> float:
        laws = (model.logits([*prompt, *text[:i]]).log_softmax(-1) for i in range(len(text)))
        return sum(float(law[token]) for law, token in zip(laws, text, strict=True))

    likeliest = max(itertools.product(range(4), repeat=4), key=chance)
    answer = generate(beam(64), prompt, Sampling(max_new_tokens=4), Models(target=model))
    assert answer.tokens == likeliest
    greedy = generate(Autoregressive(), prompt, Sampling(max_new_tokens=4), Models(target=model))
    assert greedy.tokens != likeliest, "the example is too easy"


@pytest.mark.parametrize("how", [{}, {"compile": True, "backend": "eager"}, {"in_place": False}])
def test_beam_search_matches_transformers(how: dict[str, Any]) -> None:
    config = shape_config(
        "llama-1b",
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=50,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    module = random_model(config, dtype=torch.float32, device="cpu", spread=0.3).library_module
    prompts = [[3, 9, 27, 31], [8, 1], [40, 2, 2, 17, 5]]
    expected = [
        module.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=4,
            do_sample=False,
            max_new_tokens=12,
            length_penalty=0.0,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    models = Models(target=HFModel(module, **how))
    for batch_size in (1, 3):
        outcomes = Scheduler(beam(4), models, Sampling(max_new_tokens=12), batch_size).run(prompts)
        assert [list(each.tokens) for each in outcomes] == expected  # type: ignore[union-attr]
    greedy = generate(Autoregressive(), prompts[0], Sampling(max_new_tokens=12), models)
    assert list(greedy.tokens) != expected[0], "the example is too easy"
    torch.compiler.reset()


@dataclass(frozen=True, kw_only=True)
class One(Decoder):
    """The sample with one number of `BestOf`, alone."""

    number: int = 0
    lossless = drafts = False

    def steps(self, request: Request) -> Steps:
        uniforms, tokens = request.uniforms.at_step(self.number), request.prompt_ids
        while True:
            result = yield request.target.call(tokens, uniforms=uniforms)
            tokens = result.picks
            yield Emit(tokens=tokens)


@pytest.mark.parametrize("stops", [frozenset({6}), frozenset()])
def test_best_of_n_is_the_likeliest_of_n_single_answers(stops: frozenset[int]) -> None:
    model = TableModel(7, seed=3, scale=1.0)
    sampling = Sampling(temperature=0.9, max_new_tokens=11, stop_ids=stops, seed=4)
    models, chosen = Models(target=model), set()

    def score(prompt: list[int], tokens: tuple[int, ...]) -> float:
        laws = (model.logits([*prompt, *tokens[:i]]) / 0.9 for i in range(len(tokens)))
        logs = [float(law.log_softmax(-1)[t]) for law, t in zip(laws, tokens, strict=True)]
        return sum(logs) / len(logs)

    outcomes = Scheduler(best_of(4), models, sampling, 2).run(PROMPTS)
    for prompt, outcome in zip(PROMPTS, outcomes, strict=True):
        single = [generate(One(number=i), prompt, sampling, models).tokens for i in range(4)]
        assert single[0] == generate(Autoregressive(), prompt, sampling, models).tokens
        best = max(single, key=lambda tokens, prompt=prompt: score(prompt, tokens))  # type: ignore[misc]
        assert isinstance(outcome, Generation)
        assert outcome.tokens == best
        chosen.add(single.index(best))
        calls = sum(step.target_calls for step in outcome.steps)
        rows = sum(step.target_rows for step in outcome.steps)
        assert calls == sum(map(len, single)) + (len(prompt) > 1)  # closed forks count, too
        assert rows == sum(map(len, single)) + len(prompt) - 1
    assert len(chosen) > 1, "the first sample is always the best"


def test_the_calls_of_an_answers_sequences_run_as_one_pass() -> None:
    model = TableModel(7, seed=3)
    sampling = Sampling(temperature=0.9, max_new_tokens=10)
    generate(best_of(4), [1, 2, 3], sampling, Models(target=model))
    assert model.num_forwards == 1 + 10
    model.num_forwards = 0
    Scheduler(best_of(4), Models(target=model), sampling, 3).run([[1, 2, 3]] * 3)
    assert model.num_forwards == 1 + 10, "calls of several answers merge, as always"


def test_a_fork_and_its_origin_continue_independently(architecture: HFModel) -> None:
    """Both read what a session reads that was fed their whole text at once."""
    model, text = architecture, [5, 9, 2, 7, 1, 1, 8, 3, 4, 6]
    Models(target=model).ensure(4, 40)
    origin = model.open()
    origin.max_sequences = 3
    model.forward([origin.call(text)])
    origin.truncate(8)
    fork = origin.fork()
    model.forward([origin.call([9, 9, 9]), fork.call([2, 3])])
    third = fork.fork()
    fork.close()
    calls = [third.call([4], output="logits"), origin.call([4], output="logits")]
    results = model.forward(calls)
    assert third.text[: third.length] == [*text[:8], 2, 3, 4]
    for result, tokens in zip(
        results, ([*text[:8], 2, 3, 4], [*text[:8], 9, 9, 9, 4]), strict=True
    ):
        whole = model.open()
        expected = model.forward([whole.call(tokens, output="logits")])[0]
        whole.close()
        assert torch.allclose(result, expected, atol=1e-5)


def test_a_fork_and_its_origin_draft_independently_after_their_shared_prompt() -> None:
    """A network keeps states of the text: both draft as one session that was fed their text."""
    model = llamas(Eagle(), 12).target
    assert isinstance(model, HFModel)
    Models(target=model).ensure(3, 40)

    def drafts(session: Session, *texts: list[int]) -> tuple[float, ...]:
        results: Sequence[CallResult] = ()
        for text in texts:
            model.forward([session.call(text, hidden=range(len(text)))])
            assert session.hidden is not None
            shape, after = DraftShape(depth=3, nodes=3), [*text[1:], 4]
            results = model.draft(
                [session.draft("eagle", session.hidden, after, shape, Sampling())]
            )
        return results[0].confidences

    prompt, texts = [5, 9, 2, 7, 1], ([3, 8], [6, 6, 10])
    origin = model.open()
    origin.max_sequences = 2
    drafts(origin, prompt)
    pair = (origin, origin.fork())
    apart = [drafts(session, text) for session, text in zip(pair, texts, strict=True)]
    for text, shown in zip(texts, apart, strict=True):
        alone = model.open()
        assert shown == pytest.approx(drafts(alone, prompt, text), abs=1e-5)
        alone.close()
    assert apart[0] != pytest.approx(apart[1], abs=1e-3)
    origin.close()
    assert drafts(pair[1], [2]) == pytest.approx(
        drafts(model.open(), prompt, texts[1], [2]), abs=1e-5
    )
    counts = [(session.draft_calls, session.draft_rows) for session in pair]
    pair[1].close()
    assert (origin.draft_calls, origin.draft_rows) == tuple(map(sum, zip(*counts, strict=True)))


def test_calls_of_open_and_closed_forks_of_the_draft_model_are_counted() -> None:
    class Forks(Decoder):
        lossless = drafts = False
        needs = ("draft",)
        sequences = 2

        def steps(self, request: Request) -> Steps:
            draft = request.draft
            assert draft is not None
            result = yield request.target.call(request.prompt_ids)
            yield draft.call(request.prompt_ids)
            fork = draft.fork()
            yield [draft.call([1]), fork.call([2, 3])]
            yield Emit(tokens=result.picks)
            yield fork.call([4])
            fork.close()
            yield Emit(tokens=result.picks)

    models = Models(target=TableModel(7), draft=TableModel(7, seed=1))
    answer = generate(Forks(), [1, 2], Sampling(max_new_tokens=2), models)
    assert [(step.draft_calls, step.draft_rows) for step in answer.steps] == [(3, 5), (1, 1)]


@pytest.fixture(params=["llama", "window"])
def architecture(request: pytest.FixtureRequest) -> Iterator[HFModel]:
    if request.param == "llama":
        target = llamas(Autoregressive(), 12).target
        assert isinstance(target, HFModel)
        yield target
        return
    from tests.tiny_models import tiny

    yield HFModel(tiny("mistral-window", "sdpa"))


def test_the_accepted_rows_of_a_call_may_be_kept_in_a_fork() -> None:
    model = TableModel(7)
    Models(target=model).ensure(2, 40)
    origin = model.open()
    origin.max_sequences = 2
    model.forward([origin.call([1, 2])])
    model.forward([origin.call([3, 4, 5])])
    fork = origin.fork()
    fork.select_rows([0, 2])
    assert fork.text == [1, 2, 3, 5]
    assert origin.text == [1, 2, 3, 4, 5]
    logits = model.forward([fork.call([6])])
    assert torch.equal(logits[0], model.logits([5, 6]))


def test_all_cache_rows_are_free_after_a_run_that_fails() -> None:
    model = TableModel(7, seed=3)
    models = Models(target=model)

    @dataclass(frozen=True, kw_only=True)
    class Fails(Decoder):
        lossless = drafts = False
        sequences = 3

        def steps(self, request: Request) -> Steps:
            yield request.target.call(request.prompt_ids)
            first, _ = request.target.fork(), request.target.fork()
            request.target.close()
            yield first.call([1])
            raise ValueError("enough")

    (outcome,) = Scheduler(Fails(), models, Sampling()).run([[1, 2]])
    assert str(outcome) == "enough"
    models.reserve(1, 10)  # refuses while a session is open


def test_an_answer_with_nan_logits_wipes_only_its_open_cache_rows() -> None:
    class Wiped(TableModel):
        rows: ClassVar[list[int]] = []

        def wipe(self, row: int) -> None:
            self.rows.append(row)

        def logits(self, context: Sequence[int]) -> torch.Tensor:
            return super().logits(context) + (torch.nan if context[-1] == 5 else 0)

    class Moves(Decoder):
        lossless = drafts = False
        sequences = 2

        def steps(self, request: Request) -> Steps:
            yield request.target.call(request.prompt_ids)
            fork = request.target.fork()
            request.target.close()
            yield fork.call([5])

    (outcome,) = Scheduler(Moves(), Models(target=Wiped()), Sampling()).run([[1, 2]])
    assert isinstance(outcome, FloatingPointError)
    assert Wiped.rows == [0], "row -1 is the last one, of another answer"


def faulty(steps: Callable[[Request], Steps], **declared: Any) -> Exception:
    """The error of a decoder with these steps, whose neighbours in the batch are answered."""

    class Faulty(Decoder):
        lossless = drafts = False

        def steps(self, request: Request) -> Steps:
            if request.prompt_ids == (1, 2):
                return steps(request)
            return Autoregressive().steps(request)

    for name, value in declared.items():
        setattr(Faulty, name, value)
    models = Models(target=TableModel(7), draft=TableModel(7, seed=1))
    prompts = [[3, 3], [1, 2], [4]]
    before, wrong, after = Scheduler(Faulty(), models, Sampling(), 3).run(prompts)
    assert isinstance(before, Generation)
    assert isinstance(after, Generation)
    assert isinstance(wrong, Exception)
    return wrong


def test_more_forks_than_declared_are_refused() -> None:
    def steps(request: Request) -> Steps:
        result = yield request.target.call(request.prompt_ids)
        request.target.fork()
        yield Emit(tokens=result.picks)

    line = str(faulty(steps))
    assert "the 1 sequences" in line
    assert "Decoder.sequences" in line
    assert "returned before" in str(faulty(steps, sequences=2))


@pytest.mark.parametrize("case", ["none", "two models", "twice", "closed", "no call"])
def test_calls_that_cannot_run_together_are_refused(case: str) -> None:
    def steps(request: Request) -> Steps:
        target, draft = request.target, request.draft
        yield target.call(request.prompt_ids)
        fork = target.fork()
        assert draft is not None
        if case == "closed":
            fork.close()
        yield {
            "none": [],
            "two models": [target.call([1]), draft.call([1])],
            "twice": [fork.call([1]), fork.call([2])],
            "closed": fork.call([1]),
            "no call": [target.call([1]), Emit()],
        }[case]  # type: ignore[misc]

    line = str(faulty(steps, sequences=2, needs=("draft",)))
    expected = {"closed": "that it closed", "no call": "yield a Call"}
    assert expected.get(case, "calls of one model, at least one, each of another session") in line


def test_a_failing_group_of_calls_fails_only_its_own_answer() -> None:
    def steps(request: Request) -> Steps:
        yield request.target.call(request.prompt_ids)
        fork = request.target.fork()
        mask = torch.ones(1, 9, dtype=torch.bool)  # of another shape than the call
        yield [request.target.call([1, 2], mask=mask, read=(0, 1)), fork.call([1])]

    assert isinstance(faulty(steps, sequences=2), Exception)


def test_a_decoder_may_emit_all_tokens_at_the_end_of_a_long_answer() -> None:
    model = TableModel(7, seed=3)
    sampling = Sampling(temperature=0.9, max_new_tokens=1500)
    answer = generate(best_of(1), [1, 2], sampling, Models(target=model))
    assert len(answer.tokens) == 1500
    assert (
        answer.tokens == generate(Autoregressive(), [1, 2], sampling, Models(target=model)).tokens
    )


def test_a_reused_prefix_is_read_once() -> None:
    models, prompt = llamas(best_of(3)), [1, 2, 3, 4, 5, 0]
    sampling = Sampling(temperature=0.9, max_new_tokens=8)
    scheduler = Scheduler(best_of(3), models, sampling)
    expected = scheduler.run([prompt])
    scheduler = Scheduler(best_of(3), llamas(best_of(3)), sampling)  # without a cache so far
    scheduler.prefill_prefix(prompt, 4)
    again = scheduler.run([prompt])
    assert again[0].tokens == expected[0].tokens  # type: ignore[union-attr]


def test_memory_counts_the_rows_that_a_decoder_may_open() -> None:
    """A run's cache has the rows of its widest decoder; each counts its own share."""
    models, wide = llamas(beam(4)), beam(4)
    models.reserve(2 * 4, 50)
    both = [Autoregressive(), wide]
    used = Models(target=models.target)
    peaks = [PeakMemory(models, used, each, both).peak_bytes() for each in both]
    weights, cache = models.target.weight_bytes, models.target.cache_bytes()
    assert peaks == [weights + cache // 4, weights + cache]
    assert PeakMemory(models, used, wide).peak_bytes() == weights + cache


def test_the_cache_of_a_run_has_room_for_all_sequences() -> None:
    models = Models(target=TableModel(7))
    Scheduler(beam(3), models, Sampling(max_new_tokens=5), 2).run([[1, 2], [3]])
    assert models.target.holds(6, 7)
    assert not models.target.holds(7, 7)


@pytest.mark.slow
def test_the_examples_meet_the_contract_with_other_options() -> None:
    for decoder in (beam(1), beam(6), best_of(1), best_of(7)):
        check_decoder(decoder)

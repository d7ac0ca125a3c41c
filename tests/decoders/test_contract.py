"""Every decoder meets the contract of `decoders.core.checks`; broken ones are caught."""

import ast
import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from bench.extras.sections.drafts import acceptance_by_position
from bench.records.record import StepColumns
from bench.stats.counters import Tally
from decoders.core.checks import (
    Check,
    StepsDifferError,
    _sampling,
    check_batch_equals_alone,
    check_budget_and_eos,
    check_coupled_equals_ar,
    check_decoder,
    check_distribution,
    check_greedy_equals_ar,
    check_lawful_answers_equal_ar,
    check_prompts_leave_no_trace,
    check_real_tensors,
    check_runs_repeat,
    check_steps_concatenate,
    checks_for,
)
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.model import Call
from decoders.core.registry import build, names, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.testing.check_models import tables
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Emit, Generation, Sampling
from decoders.lookup import PromptLookup
from decoders.ptp import ParallelTokenPrediction
from decoders.spec import Speculative
from tests.bench.conftest import make_record

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = [
    *names(),
    "spec@coupled:verify=coupled",
    "spec@k1:k=1",
    "spec@k7:k=7",
    "spec@block:verify=block",
    "spec@auto:k=auto",
    "spec@auto_coupled:k=auto:verify=coupled:draft_cost=0.05",
    "spec@auto_block:k=auto:verify=block:draft_cost=0.05",
    "ptp@pqd:mode=pqd",
    "ptp@few:slots=3",
    "ptp@tight:mode=pqd:budget=5:row_cost=0",
    "nar@predicted:length=predicted:block=5",
    "nar@oracle:length=oracle:block=5:picks=argmax",
    "idlm@cmlm:commit=cmlm:block=6:max_passes=3:revise=none",
    "idlm@adaptive:commit=threshold:max_passes=0:revise=remask:confidence=margin",
    "jacobi@b6:block=6",
    "lookahead@small:window=2:n=3:candidates=2:from_prompt=false",
    "lookahead@bigrams:n=2:window=1",
    "lookup@n1:n=1:k=1",
    "eagle@chain:width=1:nodes=3",
    "eagle@wide:width=7:nodes=40:depth=4",
    "eagle@shallow:depth=1",
    "eagle@auto:nodes=auto",
    "medusa@auto:nodes=auto",
    "shallow@auto:slots=auto",
    "eagle@block:verify=block:width=1:nodes=6",
    "eagle@rejection:verify=rejection",
    "eagle@rejection_wide:verify=rejection:width=3:nodes=30:depth=4",
    "medusa@chain:width=1:nodes=3",
    "medusa@wide:width=7:nodes=40",
    "medusa@one:heads=1",
    "medusa@block:verify=block:width=1",
    "medusa@rejection:verify=rejection",
    "medusa@rejection_wide:verify=rejection:width=3:nodes=30",
    "mtp@far:k=5",
    "mtp@block:k=3:verify=block",
    "mtp@rejection:k=3:verify=rejection",
    "lookup@long:n=5:k=12",
    "suffix@text:answers=false",
    "suffix@chain:branches=false",
    "suffix@far:depth=4:factor=6:chance=0.01",
    "hybrid@merge:how=merge",
    "hybrid@model:first=lookup+n=2+k=8:then=spec:least=2",
    "hybrid@block:then=spec:least=2:verify=block",
    "hybrid@trained:first=medusa:then=eagle+depth=3:how=merge",
    "idlm@isd:mode=isd",
    "idlm@coupled:mode=isd:verify=coupled:stride=8",
    "idlm@all:mode=isd:branches=all",
    "idlm@all_coupled:mode=isd:branches=all:verify=coupled:stride=3",
    "idlm@argmax:mode=isd:proposal=argmax:stride=2",
    "idlm@relaxed:mode=isd:verify=relaxed",
    "idlm@topk:mode=isd:verify=topk",
    "idlm@unverified:mode=isd:verify=none",
    f"{EXAMPLES / 'recycle.py'}:Recycle",
    f"{EXAMPLES / 'recycle.py'}:Recycle@k1:k=1",
    f"{EXAMPLES / 'sure.py'}:SureLookup",
    f"{EXAMPLES / 'esp.py'}:Probing",
    f"{EXAMPLES / 'esp.py'}:Probing@rejection:verify=rejection:k=3",
]
ESSENTIAL = {
    check_steps_concatenate,
    check_budget_and_eos,
    check_greedy_equals_ar,
    check_coupled_equals_ar,
}
"""Checks of every set of options by default; a decoder of `WHOLE` has all of them.

The laws of rejection are held by enumeration as well, in `test_laws.py`.
"""

WHOLE = {
    *(spec for spec in SPECS if ":" not in spec),
    "idlm@isd:mode=isd",
    "ptp@pqd:mode=pqd",
    f"{EXAMPLES / 'recycle.py'}:Recycle",
    f"{EXAMPLES / 'sure.py'}:SureLookup",
    f"{EXAMPLES / 'esp.py'}:Probing",
}

ON_LLAMA = (
    *("ar", "spec", "ptp", "isd", "mtp"),
    f"{EXAMPLES / 'sure.py'}:SureLookup",
    f"{EXAMPLES / 'esp.py'}:Probing",
)
"""Decoders that run on a tiny Llama by default: a draft model, slots with uniforms, masks, networks
that are built from it, vectors."""


def slow_unless(fast: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if fast else (pytest.mark.slow,)


CASES = [
    pytest.param(
        spec,
        check,
        id=f"{Path(spec).name}-{check.__name__}",
        marks=slow_unless(
            check in ESSENTIAL
            or (check is check_batch_equals_alone and spec.startswith("hybrid@block"))
            or (spec in WHOLE and (check is not check_real_tensors or spec in ON_LLAMA))
        ),
    )
    for spec in SPECS
    for check in checks_for(build(parse_spec(spec)))
]


@pytest.fixture
def merged_calls_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a merged pass that fails fail the test: its calls would run one by one, unnoticed."""
    run: Any = Scheduler._run

    def once(self: Scheduler, group: Sequence[Any], calls: Sequence[Any]) -> Any:
        try:
            return run(self, group, calls)
        except Exception as error:
            if len(group) > 1:
                pytest.fail(f"a pass of {len(calls)} calls failed: {error!r}")  # no `Exception`
            raise

    monkeypatch.setattr(Scheduler, "_run", once)


@pytest.mark.usefixtures("merged_calls_run_once")
@pytest.mark.parametrize(("spec", "check"), CASES)
def test_decoder_meets_the_contract(
    spec: str, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a distance of 0.104 is caught with a chance of 90 %; at the defaults 0.080
    monkeypatch.setattr("decoders.core.checks.NUM_DISTRIBUTION_DRAWS", 1500)
    check(build(parse_spec(spec)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [name for name in names() if check_distribution in checks_for(build(parse_spec(name)))]
)
def test_many_draws_follow_the_targets_distribution(spec: str) -> None:
    check_distribution(build(parse_spec(spec)))


@pytest.mark.parametrize(
    "spec",
    [pytest.param(s, marks=slow_unless(":" not in s), id=Path(s).name) for s in SPECS],
)
def test_one_plus_the_unconditional_acceptance_rates_equals_the_tokens_per_step(spec: str) -> None:
    """Exactly, in whole numbers: also of answers that EOS or a budget cut anywhere in a step."""
    decoder, records = build(parse_spec(spec)), []
    models = tables(decoder)
    for budget, temperature in itertools.product(range(1, 25), (0.0, 0.9)):
        sampling = _sampling(temperature, budget, seed=budget)
        steps = StepColumns.of(generate(decoder, [5, 3, 5, 3, 5], sampling, models))
        records.append(make_record("x", steps=steps))
    tally, positions = Tally.pool(records), acceptance_by_position(records)
    if tally.drafted:
        emitted = tally.emitted - tally.first_emitted
        assert tally.later_steps + sum(count.added for count in positions) == emitted
        rates = [count.unconditional or 0.0 for count in positions]
        assert rates == sorted(rates, reverse=True)
        assert tally.acceptance_length == pytest.approx(1 + sum(rates), abs=1e-12)
    else:
        assert positions == []


def test_every_file_in_decoders_defines_the_decoder_of_that_name() -> None:
    for name in names():
        assert type(build(parse_spec(name))).name == name


def test_check_decoder_runs_every_check() -> None:
    check_decoder(build(parse_spec("ar")))


def test_a_decoder_that_reuses_target_tokens_by_context_is_caught_under_a_law() -> None:
    class Memoising(Decoder):
        """Right on a table of two tokens of context, whatever the law says of the rest."""

        def steps(self, request: Request) -> Steps:
            said, text = dict[tuple[int, ...], int](), list(request.prompt_ids)
            while True:
                if (last := tuple(text[-2:])) not in said:
                    result = yield request.target.call(text[request.target.length :])
                    (said[last],) = result.picks
                text.append(said[last])
                yield Emit(tokens=(said[last],))

    check_greedy_equals_ar(Memoising())
    with pytest.raises(AssertionError, match=r"under a law at T=0\.0, up to") as caught:
        check_lawful_answers_equal_ar(Memoising())
    answer, expected = map(ast.literal_eval, re.findall(r"\(.*?\)", str(caught.value))[-2:])
    assert answer[:-1] == expected[:-1]  # both are shown up to the first difference
    assert answer[-1] != expected[-1]


def test_a_wrong_answer_is_shown_even_if_shorter_ones_fail() -> None:
    class Whole(Decoder):
        """Wrong from the fourth token on, and helpless with a small budget."""

        def steps(self, request: Request) -> Steps:
            assert request.sampling.max_new_tokens == 24
            text = request.prompt_ids
            for step in itertools.count():
                result = yield request.target.call(text[request.target.length :])
                text += result.picks
                yield Emit(tokens=result.picks if step < 3 else (0,))

    with pytest.raises(AssertionError, match=r"up to the first difference: \(\d, \d, \d, 0\), AR"):
        check_greedy_equals_ar(Whole())


def test_a_decoder_must_report_how_many_tokens_come_before_its_drafts() -> None:
    class Silent(ParallelTokenPrediction):
        def steps(self, request: Request) -> Steps:
            steps = super().steps(request)
            item = next(steps)
            while True:
                if isinstance(item, Emit):
                    yield dataclasses.replace(item, num_leading=0)
                    item = next(steps)
                else:
                    item = steps.send((yield item))

    with pytest.raises(AssertionError, match="2 tokens are neither accepted drafts"):
        check_steps_concatenate(Silent())


def remembering(tokens: bool) -> type[PromptLookup]:
    """A decoder whose drafts, or tokens, depend on how many answers came before."""
    past: list[int] = []

    class Remembering(PromptLookup):
        def steps(self, request: Request) -> Steps:
            past.append(0)
            number = len(past)
            steps = (self if tokens else type(self)(k=1 + number % 3))._steps(request)
            item = next(steps)
            while True:
                if isinstance(item, Emit):
                    odd = tokens and number % 3 == 0
                    yield Emit(tokens=(0,)) if odd else item
                    item = next(steps)
                else:
                    item = steps.send((yield item))

        def _steps(self, request: Request) -> Steps:
            return super().steps(request)

    return Remembering


CHECKS = [check_runs_repeat, check_prompts_leave_no_trace, check_batch_equals_alone]


@pytest.mark.parametrize("check", CHECKS)
def test_the_same_tokens_in_different_steps_are_reported_as_different_steps(check: Check) -> None:
    line = r"gives the same tokens in other steps .*; step \d: tokens=.*; not tokens="
    with pytest.raises(StepsDifferError, match=line):
        check(remembering(tokens=False)())


@pytest.mark.parametrize("check", CHECKS)
def test_different_tokens_are_reported_as_different_tokens(check: Check) -> None:
    with pytest.raises(AssertionError, match="gives other tokens") as caught:
        check(remembering(tokens=True)())
    assert not isinstance(caught.value, StepsDifferError)


def test_results_on_tables_are_inference_tensors_of_real_width() -> None:
    model = TableModel(7)
    model.reserve(1, 8)
    session = model.open()
    logits = model.forward([session.call([1, 2], output="logits", hidden=True)])
    assert session.hidden is not None
    assert session.hidden.shape[-1] >= 8
    for result in (logits, session.hidden):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            result += 1


def test_block_verification_gives_the_tokens_of_a_second_implementation() -> None:
    ours, other = (
        build(parse_spec(spec))
        for spec in ("spec:k=3:verify=block", f"{EXAMPLES / 'wrong.py'}:BlockVerified:k=3")
    )
    prompts, models = [[5, 3, 5], [1, 2], [0], [4, 4, 1]], tables(ours)
    for seed in range(3):
        sampling = _sampling(0.9, 40, seed=seed)
        together = Scheduler(ours, models, sampling, 4).run(prompts)
        for prompt, answer in zip(prompts, together, strict=True):
            assert isinstance(answer, Generation)
            assert answer.tokens == generate(other, prompt, sampling, models).tokens


@pytest.mark.slow
def test_block_verification_meets_the_contract() -> None:
    decoder = build(parse_spec(f"{EXAMPLES / 'wrong.py'}:BlockVerified"))
    for check in set(checks_for(decoder)) - {check_distribution}:
        check(decoder)


BRANCHING = (
    "eagle",
    "hybrid",
    "lookahead",
    "medusa",
    "suffix",
)  # drafts are a tree: those that fell are no end of its rows
VERIFYING = [
    spec for spec in SPECS if not spec.startswith(("ar", "nar", "idlm", "dllm", "hf", *BRANCHING))
]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    "spec", [*VERIFYING, "idlm@isd:mode=isd", "idlm@topk:mode=isd:verify=topk"]
)
def test_a_decoder_reports_exactly_the_rejected_drafts(spec: str, temperature: float) -> None:
    decoder = build(parse_spec(spec))
    target = Recording(7, seed=1)
    draft = TableModel(7, seed=2, agree_with=target, agreement=0.6)
    for part in decoder.parts:
        if part.adapter_name is not None:
            adapted = target if part.adapter_of == "target" else draft
            adapted.attach(part.adapter_name, 0.4, *part.variants[:1])
    sampling = Sampling(temperature=temperature, max_new_tokens=40)
    num_fallen = 0
    for prompt in ([1, 2, 3, 1, 2], [4, 4, 4, 4], [5, 6, 0, 5, 6]):
        target.fed.clear()
        answer = generate(decoder, prompt, sampling, Models(target=target, draft=draft))
        calls = iter(target.fed)
        for step in answer.steps:
            *_, verifying = itertools.islice(calls, step.target_calls)
            drafts = verifying[len(verifying) - step.drafted :]
            assert step.rejected == drafts[step.accepted :]
            num_fallen += len(step.rejected)
    assert num_fallen > 0


class Recording(TableModel):
    """Remembers the tokens of every call."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        super().__init__(vocab_size, seed=seed)
        self.fed: list[tuple[int, ...]] = []

    def forward(self, calls: Sequence[Call]) -> Tensor:
        self.fed += [call.tokens for call in calls]
        return super().forward(calls)


class Repeats(Drafter):
    def propose(self, text: Text, most: int) -> list[int]:
        return [text.last, text.last]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            lambda emit: {"accepted": emit.accepted + 1},
            r" at T=0\.0, seed 0: more drafts .* never count the bonus token: tokens=\(\d,\), "
            r"drafted=0, accepted=1, target_calls=1, target_rows=\d$",
        ),
        (
            lambda emit: {"drafted": emit.drafted + 5},
            r": feed the last token and all drafts, 6 rows: .*drafted=5, .*target_rows=3",
        ),
    ],
)
def test_a_wrong_count_is_named_without_the_fields_that_are_empty(
    changes: Callable[[Emit], dict], message: str
) -> None:
    class Counting(DraftAndVerify):
        def drafter(self, request: Request) -> Drafter:
            return Repeats()

        def steps(self, request: Request) -> Steps:
            steps = super().steps(request)
            item = next(steps)
            while True:
                if isinstance(item, Emit):
                    yield dataclasses.replace(item, **changes(item))
                    item = next(steps)
                else:
                    item = steps.send((yield item))

    with pytest.raises(AssertionError, match=message) as caught:
        check_steps_concatenate(Counting())
    assert "overlap" not in str(caught.value)


@pytest.mark.parametrize("extra", [{"rejected": (1,)}, {"decided": (1,)}])
def test_rejected_and_decided_must_cover_the_whole_step(extra: dict) -> None:
    class Halfway(Speculative):
        def steps(self, request: Request) -> Steps:
            steps = super().steps(request)
            item = next(steps)
            while True:
                if isinstance(item, Emit):
                    yield dataclasses.replace(item, **extra)
                    item = next(steps)
                else:
                    item = steps.send((yield item))

    with pytest.raises(AssertionError, match=r"drafts were rejected|passes of 1 tokens"):
        check_steps_concatenate(Halfway())


def test_a_decoder_that_never_verifies_fails_the_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("decoders.core.checks.NUM_DISTRIBUTION_DRAWS", 1000)
    with pytest.raises(AssertionError, match="does not follow the target's distribution"):
        check_distribution(build(parse_spec(f"{EXAMPLES / 'wrong.py'}:Unverified")))


def test_an_accept_stream_that_reuses_the_draws_fails_the_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the uniform that drew a draft must not decide whether it stands
    class Reusing(Uniforms):
        def at(self, stream: str, position: int, candidate: int = 0) -> float:  # type: ignore[override]
            return super().at("draw", position, candidate)

    monkeypatch.setattr("decoders.core.engine.sequence.Uniforms", Reusing)
    monkeypatch.setattr("decoders.core.checks.NUM_DISTRIBUTION_DRAWS", 1000)
    with pytest.raises(AssertionError, match="does not follow the target's distribution"):
        check_distribution(Speculative())


def test_probing_drafts_up_to_10_tokens_so_that_its_masks_fit_into_the_cache() -> None:
    """A call of k drafts has 1 + k + (k + 1) k rows, and the cache 128 behind the budget."""
    spec = f"{EXAMPLES / 'esp.py'}:Probing"
    decoder = build(parse_spec(f"{spec}:k=10"))
    answer = generate(decoder, [1, 2], Sampling(max_new_tokens=40), tables(decoder, 1.0))
    assert max(step.drafted for step in answer.steps) == 10
    with pytest.raises(ValueError, match=r"option 'k' of decoder 'esp' is 11; it must be 1 to 10"):
        build(parse_spec(f"{spec}:k=11"))

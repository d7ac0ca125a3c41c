"""The scheduler's loop: cut, clip, counts, merging, admission, failures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.engine import forward, sequence
from decoders.core.engine.models import Models
from decoders.core.engine.readout import read_out
from decoders.core.engine.scheduler import Scheduler, _next_group, generate, row_bucket
from decoders.core.masks import causal
from decoders.core.model import Call, DraftCall, Session
from decoders.core.testing.check_models import llamas, with_adapters
from decoders.core.testing.table_model import TableModel
from decoders.core.types import (
    MAX_DRAFTS,
    NO_UNIFORM,
    CallResult,
    DraftShape,
    Emit,
    Generation,
    Output,
    Sampling,
    Slots,
)
from decoders.eagle import Eagle
from decoders.medusa import Medusa
from decoders.ptp import ParallelTokenPrediction
from decoders.spec import Speculative


@dataclass(frozen=True, kw_only=True)
class Scripted(Decoder):
    """Emits what it is told, after one call."""

    emits: tuple[Emit, ...]

    def steps(self, request: Request) -> Steps:
        yield request.target.call(request.prompt_ids)
        yield from self.emits


class Recording(TableModel):
    """A table model that remembers the widths of every merged forward pass."""

    def __init__(self, **options: float) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.merged: list[list[int]] = []

    def forward(self, calls: Sequence[Call]) -> Tensor:
        self.merged.append([len(call.tokens) for call in calls])
        return super().forward(calls)


def run_script(*emits: Emit, budget: int = 10, stop: int = 6) -> Generation:
    sampling = Sampling(max_new_tokens=budget, stop_ids=frozenset({stop}))
    return generate(Scripted(emits=emits), [1], sampling, Models(target=TableModel()))


def test_eos_inside_a_block_ends_the_answer_and_clips_accepted() -> None:
    answer = run_script(Emit(tokens=(1,)), Emit(tokens=(2, 6, 3, 4), drafted=4, accepted=3))
    assert answer.tokens == (1, 2, 6)
    assert answer.stop == "eos"
    assert (answer.steps[1].drafted, answer.steps[1].accepted) == (4, 2)


def test_steps_list_no_drafters_for_drafts_after_the_cut() -> None:
    drafted: dict[str, Any] = {"drafted": 4, "accepted": 3, "sources": ("a", "b", "b")}
    for cut in ({}, {"budget": 3}):
        end = 6 if not cut else 5
        answer = run_script(Emit(tokens=(1,)), Emit(tokens=(2, end, 3, 4), **drafted), **cut)
        assert answer.steps[1].accepted == 2
        assert answer.steps[1].sources == ("a", "b")
    whole = run_script(Emit(tokens=(1,)), Emit(tokens=(2, 5, 3, 6), **drafted))
    assert whole.steps[1].sources == ("a", "b", "b")


@pytest.mark.parametrize(("budget", "held"), [(10, 5 + 10), (126, 128)])
def test_caches_fit_the_longest_prompt_plus_the_budget_but_never_exceed_the_context(
    budget: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, asked = TableModel(max_length=128), []
    monkeypatch.setattr(Models, "ensure", lambda _, *sizes: asked.append(sizes))
    sampling = Sampling(max_new_tokens=budget)
    scheduler = Scheduler(Autoregressive(), Models(target=target), sampling, 3)
    target.reserve(3, 300)
    scheduler.run([[1], [1, 2, 3, 4, 5]])
    assert asked == [(2, held)]


def waiting(kind: int, *, turns: int = 0, num_rows: int = 1, length: int = 9) -> Any:
    """A sequence that waits with a call of a model (one for each `kind`)."""
    session = SimpleNamespace(length=length, model=_MODELS[kind], root=object())
    call = SimpleNamespace(session=session, num_rows=num_rows, read=(0,))
    return SimpleNamespace(
        index=0,
        pending=(call,),
        turns_waited=turns,
        request=SimpleNamespace(target=session.root),
    )


_MODELS = [
    SimpleNamespace(device=torch.device(name), merges=merges)
    for name, merges in (("cpu", False), ("cpu", False), ("cuda", False), ("cpu", True))
]


def drafting(depth: int, num_rows: int) -> Any:
    """A sequence that waits with a draft call."""
    job = waiting(0)
    shape = DraftShape(depth=depth)
    call = Session(_MODELS[0], 0, 99).draft(  # type: ignore[arg-type]
        "eagle", torch.zeros(num_rows, 1), [1] * num_rows, shape, Sampling()
    )
    job.pending = (call,)
    return job


def test_drafting_calls_run_before_verifying_calls_so_that_verification_is_merged() -> None:
    draft, many = waiting(1), [waiting(0, turns=5) for _ in range(4)]
    draft.request = SimpleNamespace(target=object())
    assert _next_group([*many, draft]) == [draft]
    slots = waiting(0)
    slots.pending[0].read = ()  # they propose and verify nothing
    assert _next_group([*many, slots]) == [slots]
    network = drafting(3, 1)
    assert _next_group([*many, network]) == [network]


def test_draft_calls_with_few_rows_and_the_same_shape_are_merged() -> None:
    few = [drafting(3, rows) for rows in (1, 9, 16)]
    assert _next_group([*few, drafting(3, 17), drafting(2, 1)]) == few


def test_calls_of_up_to_16_rows_are_merged_where_rows_cost_less_than_passes() -> None:
    for kind, merged in ((0, 1), (2, 3)):
        jobs = [waiting(kind, num_rows=num_rows) for num_rows in (1, 5, 16, 17)]
        assert _next_group(jobs) == jobs[:merged]


def test_the_widest_call_of_a_sequence_decides_which_calls_it_merges_with() -> None:
    beams, few = waiting(2), [waiting(2, num_rows=num_rows) for num_rows in (1, 5)]
    beams.pending = (*beams.pending, *waiting(2, num_rows=17).pending)
    assert _next_group([beams, *few]) == few


def test_calls_of_different_widths_are_merged_where_no_row_is_padded() -> None:
    jobs = [waiting(3, num_rows=num_rows) for num_rows in (1, 5, 64, 65)]
    assert _next_group(jobs) == jobs[:3]
    drafts = [waiting(3, num_rows=num_rows, length=0) for num_rows in (2, 40)]
    assert _next_group([*jobs, *drafts]) == drafts


def test_long_calls_run_alone_on_a_cpu() -> None:
    for kind, groups in ((0, [[33, 64], [65], [128]]), (2, [[33, 64], [65, 128]])):
        jobs = [waiting(kind, num_rows=rows, length=0) for rows in (33, 64, 65, 128)]
        for number, job in enumerate(jobs):
            job.index = number
        found = []
        while jobs:
            group = _next_group(jobs)
            found.append([job.pending[0].num_rows for job in group])
            jobs = [job for job in jobs if job not in group]
        assert found == groups


def test_the_longest_of_several_calls_of_an_answer_decides_whether_they_run_alone() -> None:
    forks, long = waiting(3), waiting(3, num_rows=65)
    forks.index, forks.pending = 1, (*forks.pending, *long.pending)
    few = [waiting(3) for _ in range(2)]
    assert _next_group([forks, *few]) == few


def test_a_prefill_runs_before_a_larger_group_and_a_larger_group_before_a_smaller_one() -> None:
    prefill, many = waiting(0, length=0), [waiting(0, turns=5) for _ in range(4)]
    assert _next_group([*many, prefill]) == [prefill]
    few = [waiting(1) for _ in range(3)]
    assert _next_group([*few, *many]) == many
    assert {job.turns_waited for job in many} == {0}
    assert {job.turns_waited for job in few} == {1}


def test_waiting_raises_the_priority_of_a_group_by_its_longest_wait() -> None:
    pair, three = [waiting(0), waiting(0, turns=2)], [waiting(1, turns=0) for _ in range(3)]
    assert _next_group([*three, *pair]) == pair
    alone, three = waiting(0, turns=1), [waiting(1) for _ in range(3)]
    chosen = [_next_group([*three, alone])[0] for _ in range(4)]
    assert chosen[0] is three[0], "a wait of one turn is less than two calls more"
    assert alone in chosen, "it would wait for ever"


def test_the_budget_cuts_a_block_and_eos_at_the_cut_still_counts_as_eos() -> None:
    answer = run_script(Emit(tokens=(1,)), Emit(tokens=(2, 3, 4), drafted=3, accepted=2), budget=3)
    assert (answer.tokens, answer.stop) == ((1, 2, 3), "length")
    assert answer.steps[1].accepted == 2
    answer = run_script(Emit(tokens=(1, 6)), budget=2)
    assert (answer.tokens, answer.stop) == ((1, 6), "eos")


@pytest.mark.parametrize(
    ("tokens", "num_leading", "accepted"),
    [((0, 2, 3, 6, 4, 5), 1, 3), ((0, 2, 3, 4, 5, 6), 1, 4), ((6, 2, 3, 4, 5), 1, 0), ((6,), 2, 0)],
)
def test_tokens_before_the_drafts_are_never_accepted_ones(
    tokens: tuple[int, ...], num_leading: int, accepted: int
) -> None:
    step = Emit(tokens=tokens, drafted=4, accepted=4, num_leading=num_leading)
    _, found = run_script(Emit(tokens=(1,)), step).steps
    assert (found.drafted, found.accepted) == (4, accepted)
    assert found.num_leading == 1


EMITS = st.lists(
    st.builds(
        lambda tokens, extra, accepted: Emit(
            tokens=tuple(tokens), drafted=accepted + extra, accepted=accepted
        ),
        st.lists(st.integers(0, 6), max_size=5),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    max_size=12,
)


@given(emits=EMITS, budget=st.integers(1, 20), batch_size=st.integers(1, 3))
@settings(deadline=None, max_examples=100)
def test_emitted_tokens_are_cut_at_budget_or_stop_id_and_accepted_counts_are_clipped(
    emits: list[Emit], budget: int, batch_size: int
) -> None:
    stop = 6
    said = [token for emit in emits for token in emit.tokens]
    end = next((i + 1 for i, token in enumerate(said) if token == stop), len(said) + 1)
    expected = tuple(said[: min(end, budget)])
    sampling = Sampling(max_new_tokens=budget, stop_ids=frozenset({stop}))
    scheduler = Scheduler(
        Scripted(emits=tuple(emits)), Models(target=TableModel()), sampling, batch_size
    )
    for outcome in scheduler.run([[1]] * batch_size):
        if len(said) < min(end, budget):
            assert isinstance(outcome, RuntimeError)
            continue
        assert isinstance(outcome, Generation)
        assert outcome.tokens == expected
        assert sum((step.tokens for step in outcome.steps), ()) == expected
        claims = [emit.accepted for emit in emits[: len(outcome.steps)]]
        claims[-1] = min(claims[-1], len(outcome.steps[-1].tokens))  # before the end none is cut
        assert [step.accepted for step in outcome.steps] == claims
        assert outcome.stop == ("eos" if expected[-1] == stop else "length")
        assert sum(step.target_calls for step in outcome.steps) == 1


PROMPTS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=9), min_size=1, max_size=6)


@given(
    prompts=PROMPTS,
    batch_size=st.integers(1, 4),
    decoder=st.sampled_from([Autoregressive(), Speculative(k=3, verify="coupled")]),
    temperature=st.sampled_from([0.0, 1.0]),
)
@settings(deadline=None, max_examples=60)
def test_prompts_get_the_same_answers_in_a_batch_as_alone(
    prompts: list[list[int]], batch_size: int, decoder: Decoder, temperature: float
) -> None:
    models = Models(target=TableModel(seed=1), draft=TableModel(seed=2))
    sampling = Sampling(max_new_tokens=9, temperature=temperature, stop_ids=frozenset({6}))
    together = Scheduler(decoder, models, sampling, batch_size).run(prompts)
    alone = [generate(Autoregressive(), prompt, sampling, models) for prompt in prompts]
    assert [o.tokens for o in together if isinstance(o, Generation)] == [a.tokens for a in alone]


def test_only_consecutive_steps_and_calls_without_a_token_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long answer may have any number of them, with tokens in between."""
    nothing, token = [Emit(tokens=())] * 900, Emit(tokens=(1,))
    answer = run_script(*nothing, token, *nothing, token, *nothing, token, budget=3)
    assert (answer.tokens, len(answer.steps)) == ((1, 1, 1), 2703)
    monkeypatch.setattr(sequence, "_MAX_IDLE_CALLS", 5)
    models, sampling = Models(target=TableModel()), Sampling(max_new_tokens=30)
    assert len(generate(Autoregressive(), [1], sampling, models).tokens) == 30


def test_empty_emits_are_steps_that_commit_nothing() -> None:
    answer = run_script(Emit(), Emit(tokens=(1,)), Emit(), Emit(tokens=(6,)))
    assert [step.tokens for step in answer.steps] == [(), (1,), (), (6,)]


def test_a_decoder_that_stops_yielding_is_an_error_not_a_short_answer() -> None:
    with pytest.raises(RuntimeError, match="before EOS or budget"):
        run_script(Emit(tokens=(1,)))


def test_a_decoder_that_never_emits_is_stopped() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Silent(Decoder):
        def steps(self, request: Request) -> Steps:
            yield request.target.call(request.prompt_ids)
            while True:
                yield Emit()

    with pytest.raises(RuntimeError, match="emitted nothing"):
        generate(Silent(), [1], Sampling(), Models(target=TableModel()))


def test_a_failing_sequence_does_not_affect_other_sequences() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Picky(Autoregressive):
        def steps(self, request: Request) -> Steps:
            if request.prompt_ids[0] == 3:
                raise KeyError("no threes")
            yield from super().steps(request)

    models, sampling = Models(target=TableModel()), Sampling(max_new_tokens=5)
    outcomes = Scheduler(Picky(), models, sampling, 2).run([[1], [3], [2]])
    assert isinstance(outcomes[1], KeyError)
    assert outcomes[0] == generate(Autoregressive(), [1], sampling, models)
    assert outcomes[2] == generate(Autoregressive(), [2], sampling, models)


def test_a_prompt_beyond_the_context_fails_alone_and_the_error_names_the_limits() -> None:
    models = Models(target=TableModel(max_length=20))
    outcomes = Scheduler(Autoregressive(), models, Sampling(max_new_tokens=8), 2).run(
        [[1] * 12, [1] * 13]
    )
    assert isinstance(outcomes[0], Generation)
    with pytest.raises(ValueError, match=r"prompt of 13 tokens.*holds 1 to 12"):
        raise outcomes[1]  # type: ignore[misc]


def test_an_error_of_the_model_becomes_the_outcome_of_the_prompt() -> None:
    class Broken(TableModel):
        def forward(self, calls: Sequence[Call]) -> Tensor:
            raise MemoryError("out of memory")

    (outcome,) = Scheduler(Autoregressive(), Models(target=Broken()), Sampling()).run([[1]])
    assert isinstance(outcome, MemoryError)


class Unmergeable(TableModel):
    """Fails on merged calls once they are committed, as when their results cannot be read."""

    num_failed = 0

    def forward(self, calls: Sequence[Call]) -> Tensor:
        return self._alone(calls, super().forward(calls))

    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        return self._alone(calls, super().draft(calls))

    def _alone(self, calls: Sequence[Any], results: Any) -> Any:
        if len(calls) > 1:
            self.num_failed += 1
            raise RuntimeError("too many at once")
        return results


@pytest.mark.parametrize("decoder", [Autoregressive(), Speculative(k=2), Eagle(), Medusa()])
def test_work_is_counted_once_if_a_merged_call_fails_and_its_calls_run_again(
    decoder: Decoder,
) -> None:
    """Its calls run again one by one: tokens, calls and rows are those of sequences alone."""
    sampling, prompts = Sampling(max_new_tokens=12), [[1, 2], [3, 4, 5], [2, 6]]

    def models(kind: type[TableModel]) -> Models:
        target = kind(seed=1)
        draft = kind(seed=2, agree_with=target, agreement=0.6)
        return with_adapters(decoder, Models(target=target, draft=draft), error=0.4)

    failing = models(Unmergeable)
    outcomes = Scheduler(decoder, failing, sampling, 3).run(prompts)
    assert failing.target.num_failed > 0  # type: ignore[attr-defined]
    alone = [generate(decoder, prompt, sampling, models(TableModel)) for prompt in prompts]
    assert outcomes == alone


def test_a_draft_layer_is_fed_once_if_merged_draft_calls_fail() -> None:
    decoder, sampling, prompts = Eagle(), Sampling(max_new_tokens=12), [[1, 2], [3, 4, 5], [2, 0]]
    models = llamas(decoder)

    def failing(calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        results = forward.draft(calls)
        if len(calls) > 1:
            raise RuntimeError("too many at once")
        return results

    outcomes = Scheduler(decoder, models, sampling, 3, draft=failing).run(prompts)
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        alone = generate(decoder, prompt, sampling, models)
        assert isinstance(outcome, Generation)
        for step, expected in zip(outcome.steps, alone.steps, strict=True):
            assert (step.tokens, step.rejected) == (expected.tokens, expected.rejected)
            assert step.draft_rows == expected.draft_rows


def test_if_a_merged_call_fails_only_the_calls_at_fault_fail() -> None:
    class Fragile(TableModel):
        def forward(self, calls: Sequence[Call]) -> Tensor:
            if any(3 in call.tokens for call in calls):
                raise RuntimeError("no threes")
            return super().forward(calls)

    sampling = Sampling(max_new_tokens=1)
    outcomes = Scheduler(Autoregressive(), Models(target=Fragile()), sampling, 3).run(
        [[1], [3], [2]]
    )
    assert [isinstance(outcome, Generation) for outcome in outcomes] == [True, False, True]


def test_sessions_are_released_after_every_run_even_an_interrupted_one() -> None:
    class Interrupted(TableModel):
        def forward(self, calls: Sequence[Call]) -> Tensor:
            raise KeyboardInterrupt

    models = Models(target=Interrupted())
    scheduler = Scheduler(Autoregressive(), models, Sampling(), 3)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            scheduler.run([[1], [2], [3]])


def test_instruments_wrap_each_part_of_the_scheduler_and_change_no_answer() -> None:
    models, sampling = Models(target=TableModel()), Sampling(max_new_tokens=5)
    decoder, seen = Autoregressive(), {"steps": 0, "forward": 0, "read_out": 0}

    def counted(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            seen[part] += 1
            return function(*args)

        return counting

    scheduler = Scheduler(
        decoder,
        models,
        sampling,
        steps=counted("steps", decoder.steps),
        forward=counted("forward", forward.forward),
        read_out=counted("read_out", read_out),
    )
    prompts = [[1], [2, 3]]
    assert scheduler.run(prompts) == Scheduler(decoder, models, sampling).run(prompts)
    assert seen == {"steps": 2, "forward": 2 * 5, "read_out": 2 * 5}


def test_every_emit_is_reported_with_its_number() -> None:
    emits = [Emit(tokens=(1,)), Emit(), Emit(tokens=(2,)), Emit(tokens=(3,))]
    for budget, steps in ((1, 1), (3, 4)):
        told: list[tuple[int, int]] = []
        sampling = Sampling(max_new_tokens=budget)
        scheduler = Scheduler(
            Scripted(emits=tuple(emits)), Models(target=TableModel()), sampling, 1
        )
        scheduler.run([[1]], on_emit=lambda *emit, told=told: told.append(emit))
        assert told == [(0, number) for number in range(steps)]


def test_callbacks_tell_the_emits_and_the_end_of_each_prompt() -> None:
    emits: list[tuple[int, int]] = []
    ends: list[int] = []
    Scheduler(Autoregressive(), Models(target=TableModel()), Sampling(max_new_tokens=3), 2).run(
        [[1], [2], [3]],
        on_emit=lambda *emit: emits.append(emit),
        on_finish=lambda index, _: ends.append(index),
    )
    assert sorted(emits) == [(index, number) for index in range(3) for number in range(3)]
    assert ends == [0, 1, 2]


def test_rejected_drafts_and_deciding_passes_are_recorded_up_to_the_cut() -> None:
    step = Emit(tokens=(2, 3), drafted=3, accepted=1, rejected=(4, 5), decided=(0, 2), passes=2)
    whole = run_script(Emit(tokens=(1,)), step, Emit(tokens=(6,)))
    assert (whole.steps[1].rejected, whole.steps[1].decided) == ((4, 5), (0, 2))
    cut = run_script(Emit(tokens=(1,)), step, budget=2)
    assert (cut.steps[1].rejected, cut.steps[1].decided) == ((), (0,))


def test_calls_merge_within_row_buckets_and_prompts_run_first() -> None:
    target = Recording(vocab_size=5)
    sampling = Sampling(max_new_tokens=4)
    Scheduler(Autoregressive(), Models(target=target), sampling, 4).run([[1] * 3] * 4 + [[2]])
    assert target.merged[0] == [3, 3, 3, 3]
    assert target.merged[1:4] == [[1] * 4] * 3
    assert target.merged[4] == [1]  # the fifth prompt is admitted when the four have ended


def test_a_freed_place_is_taken_by_the_next_prompt_at_once() -> None:
    target = Recording(vocab_size=5)
    sampling = Sampling(max_new_tokens=6, stop_ids=frozenset({0}))
    prompts = [[seed % 5, seed // 5] for seed in range(10)]
    Scheduler(Autoregressive(), Models(target=target), sampling, 3).run(prompts)
    admitted = 0
    for widths in target.merged:
        admitted += sum(width == 2 for width in widths)
        assert len(widths) == 3 or widths[0] == 2 or admitted == len(prompts)


def test_a_new_prompt_runs_before_the_next_steps_of_running_sequences() -> None:
    """One of three sequences ends at once; the prompt that takes its place is the next to run."""

    @dataclass(frozen=True, kw_only=True)
    class Brief(Autoregressive):
        def steps(self, request: Request) -> Steps:
            if request.prompt_ids[0] == 3:
                yield request.target.call(request.prompt_ids)
                yield Emit(tokens=(6,))
            yield from super().steps(request)

    target = Recording()
    sampling = Sampling(max_new_tokens=9, stop_ids=frozenset({6}))
    prompts = [[1, 1], [2, 1], [3, 1], [4, 4, 4]]
    Scheduler(Brief(), Models(target=target), sampling, 3).run(prompts)
    assert target.merged[:3] == [[2, 2, 2], [3], [1, 1, 1]]


@pytest.mark.parametrize(
    ("width", "same"), [(1, (1,)), (3, (2, 3, 4)), (7, (5, 6, 7, 8)), (16, (9, 16)), (17, (17, 32))]
)
def test_row_buckets_have_the_expected_bounds(width: int, same: tuple[int, ...]) -> None:
    assert {row_bucket(other) for other in same} == {row_bucket(width)}
    assert row_bucket(min(same) - 1) != row_bucket(width)
    assert row_bucket(max(same) + 1) != row_bucket(width)


def test_speculative_sequences_fall_into_step_instead_of_verifying_one_by_one() -> None:
    target = Recording(vocab_size=7, seed=1)
    draft = TableModel(vocab_size=7, seed=2, agree_with=target, agreement=0.6)
    models = Models(target=target, draft=draft)
    prompts = [[seed % 7, seed // 7] for seed in range(8)]
    Scheduler(Speculative(k=3), models, Sampling(temperature=1.0, max_new_tokens=60), 8).run(
        prompts
    )
    verifying = [len(widths) for widths in target.merged if widths[0] > 2]
    assert sum(verifying) / len(verifying) > 4


def test_long_prompts_run_in_chunks_that_count_as_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompt, sampling = [token % 7 for token in range(50)], Sampling(max_new_tokens=5)
    whole = generate(Autoregressive(), prompt, sampling, Models(target=TableModel()))
    target = Recording()
    monkeypatch.setattr(forward, "PREFILL_CHUNK", 16)
    chunked = generate(Autoregressive(), prompt, sampling, Models(target=target))
    assert chunked == whole
    assert chunked.steps[0].target_calls == 1
    assert chunked.steps[0].target_rows == 50
    assert target.merged[:4] == [[16], [16], [16], [2]]


@pytest.mark.parametrize(("read", "hidden"), [((0, 49), None), ((20, 49), None), ((20, 49), 15)])
def test_rows_that_are_read_or_have_a_non_causal_mask_run_after_the_chunks(
    read: Sequence[int], hidden: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits() -> Tensor:
        model = TableModel(order=8)
        model.reserve(1, 64)
        tokens, mask = [token * token % 7 for token in range(50)], causal(50)
        if hidden is not None:
            mask[hidden + 1 :, hidden] = False
        call = model.open().call(tokens, read=read, mask=mask, output="logits")
        return forward.forward([call])

    whole = logits()
    monkeypatch.setattr(forward, "PREFILL_CHUNK", 16)
    assert torch.equal(logits(), whole)


def test_a_draft_of_another_vocabulary_is_refused_with_both_sizes() -> None:
    models = Models(target=TableModel(7), draft=TableModel(9))
    with pytest.raises(ValueError, match="draft's vocabulary has 9 tokens, the target's 7"):
        Scheduler(Speculative(), models, Sampling())
    with pytest.raises(ValueError, match="decoder 'spec' needs a draft model"):
        Scheduler(Speculative(), Models(target=TableModel(7)), Sampling())


def test_a_decoder_that_no_one_registered_is_called_by_its_class() -> None:
    class Faster(Speculative):
        pass

    with pytest.raises(ValueError, match="decoder 'Faster' needs a draft model"):
        Scheduler(Faster(), Models(target=TableModel(7)), Sampling())


def test_calls_with_different_outputs_may_share_one_forward_pass() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Asks(Decoder):
        def steps(self, request: Request) -> Steps:
            outputs: tuple[Output, ...] = ("picks", "argmax", "probs", "logits")
            output = outputs[request.prompt_ids[0]]
            result = yield request.target.call(request.prompt_ids, output=output)
            if output == "logits":
                assert result.logits is not None
                token = int(result.logits.argmax())
            elif output == "probs":
                assert result.probs is not None
                torch.testing.assert_close(result.probs.sum(-1), torch.ones(1))
                token = int(result.probs.argmax())
            else:
                token = result.picks[0]
            while True:
                yield Emit(tokens=(token,))

    models, sampling = Models(target=TableModel()), Sampling(max_new_tokens=1)
    together = Scheduler(Asks(), models, sampling, 4).run([[0], [1], [2], [3]])
    expected = [generate(Autoregressive(), [first], sampling, models) for first in range(4)]
    assert together == expected


# Slots.


@pytest.mark.parametrize("variant", ["o-ptp", "c-ptp"])
@pytest.mark.parametrize("lengths", [(50,), (50, 3, 33, 16)])
def test_prompts_with_slots_run_in_chunks_and_the_last_one_carries_the_slots(
    monkeypatch: pytest.MonkeyPatch, variant: str, lengths: tuple[int, ...]
) -> None:
    class Slotted(TableModel):
        def __init__(self) -> None:
            super().__init__()
            self.attach("ptp", 0.2, variant)  # type: ignore[arg-type]
            self.slots: list[list[int]] = []

        def forward(self, calls: Sequence[Call]) -> Tensor:
            self.slots.append([call.num_rows - len(call.tokens) for call in calls])
            return super().forward(calls)

    prompts = [[(token * length) % 7 for token in range(length)] for length in lengths]
    decoder, sampling = ParallelTokenPrediction(), Sampling(temperature=0.7, max_new_tokens=9)
    whole = Scheduler(decoder, Models(target=Slotted()), sampling, 4).run(prompts)
    monkeypatch.setattr(forward, "PREFILL_CHUNK", 16)
    target = Slotted()
    assert Scheduler(decoder, Models(target=target), sampling, 4).run(prompts) == whole
    num_heads = sum((length - 1) // 16 for length in lengths)
    assert target.slots[:num_heads] == [[0]] * num_heads
    assert min(target.slots[num_heads]) > 0
    first = whole[0]
    assert isinstance(first, Generation)
    assert first.steps[0].target_calls == 1
    assert first.steps[0].target_rows == 50 + target.slots[num_heads][0]


def test_calls_with_and_without_slots_may_share_one_forward_pass() -> None:
    """Each gets its own picks, and predictions only where it asked for them."""

    @dataclass(frozen=True, kw_only=True)
    class Sometimes(Decoder):
        def steps(self, request: Request) -> Steps:
            prompt, slots = request.prompt_ids, None
            if prompt[0] % 2:
                count = prompt[0]
                slots = Slots(
                    adapter="ptp",
                    uniforms=(NO_UNIFORM,) * count,
                    sizes=(count,),
                    anchors=prompt[-1:],
                    read=tuple(range(count)),
                )
            result = yield request.target.call(prompt, slots=slots)
            # of a perfect greedy student the first prediction is the row's own pick
            assert result.slot_picks[:1] == (result.picks if slots else ())
            assert len(result.slot_picks) == len(result.slot_confidences) == prompt[0] * bool(slots)
            yield Emit(tokens=result.slot_picks or result.picks)
            while True:
                yield Emit(tokens=(0,))

    target = TableModel()
    target.attach("ptp", 0.0)
    models, sampling = Models(target=target), Sampling(max_new_tokens=5)
    prompts = [[3, 1], [2, 4], [5, 0], [1, 1], [4, 2]]
    together = Scheduler(Sometimes(), models, sampling, 5).run(prompts)
    for prompt, answer in zip(prompts, together, strict=True):
        assert isinstance(answer, Generation)
        count = prompt[0] if prompt[0] % 2 else 1
        expected = generate(Autoregressive(), prompt, sampling, models).tokens[:count]
        assert answer.steps[0].tokens == expected
        assert answer.steps[0].target_rows == 2 + (prompt[0] if prompt[0] % 2 else 0)


@pytest.mark.parametrize("before", [20, 20 + MAX_DRAFTS, 500])
def test_caches_always_have_room_for_rejected_rows_behind_the_text(before: int) -> None:
    target = TableModel(5, seed=1)
    target.reserve(1, before)
    Models(target=target).ensure(1, 20)
    assert target.holds(1, 20 + MAX_DRAFTS + 1)


def test_a_decoder_gets_the_models_that_it_needs_and_no_others() -> None:
    target, draft, judge, tiny = (TableModel(5, seed=seed) for seed in range(4))
    models = Models(target=target, draft=draft, named={"judge": judge, "tiny": tiny})
    assert models.for_decoder(Autoregressive()).roles == {"target": target}
    assert models.for_decoder(Speculative()).roles == {"target": target, "draft": draft}
    cascade = models.for_decoder(Speculative(cascade="tiny"))
    assert cascade.roles == {"target": target, "draft": draft, "model:tiny": tiny}

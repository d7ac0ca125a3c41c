"""Caches that begin with the turn before: the same answers, fewer rows, nothing of it left over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decoders.core import masks
from decoders.core.engine.forward import forward
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from tests.tiny_models import fresh, slot_adapter

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
KEPT = 6
WARM = Sampling(temperature=0.8, max_new_tokens=20, seed=3)
SPECS = ["ar", "spec", "spec@coupled:verify=coupled", "lookup", "lookahead", "jacobi"]
SLOTS = {
    "ptp": "o-ptp",
    "ptp@pqd:mode=pqd": "o-ptp",
    "idlm@isd:mode=isd": "isd",
    "idlm": "refine",  # masks in the call of the prompt
    "nar": "refine",
}


def answered(scheduler: Scheduler, prompt: list[int]) -> Generation:
    (outcome,) = scheduler.run([prompt])
    assert isinstance(outcome, Generation)
    return outcome


def both(name: str, spec: str) -> Models:
    target = HFModel(fresh(name))
    decoder = build(parse_spec(spec))
    if (variant := SLOTS.get(spec)) is not None:
        code = "dyadic" if variant == "o-ptp" else "constant"
        adapter: Any = slot_adapter(target.module, variant=variant, code=code, greedy=True)
        target.attach(str(decoder.adapter_name), adapter)
    return Models(target=target, draft=HFModel(fresh(name)))


@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=20), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *(("llama-gqa", spec) for spec in [*SPECS, *SLOTS]),
        *(
            pytest.param("qwen2-window", s, marks=() if s in ("ar", "ptp") else pytest.mark.slow)
            for s in [*SPECS, *SLOTS]
        ),
    ],
)
def test_a_kept_prefix_saves_rows_of_the_prompt_and_changes_no_answer(
    name: str, spec: str, sampling: Sampling
) -> None:
    models, decoder = both(name, spec), build(parse_spec(spec))
    plain = answered(Scheduler(decoder, models, sampling), PROMPT)
    scheduler = Scheduler(decoder, models, sampling)
    scheduler.prefill_prefix(PROMPT, KEPT)
    reused = answered(scheduler, PROMPT)
    assert reused.tokens == plain.tokens
    saved = plain.steps[0].target_rows - reused.steps[0].target_rows
    assert saved == KEPT
    assert [s.target_calls for s in reused.steps] == [s.target_calls for s in plain.steps]
    rows = [sum(step.draft_rows for step in answer.steps) for answer in (plain, reused)]
    assert rows[0] - rows[1] == (KEPT if spec.startswith("spec") else 0)
    again = answered(Scheduler(decoder, models, sampling), PROMPT)
    assert again == plain


def test_a_prompt_that_diverges_from_the_cached_one_reuses_their_common_prefix() -> None:
    models = both("llama", "ar")
    decoder, sampling = build(parse_spec("ar")), Sampling(max_new_tokens=12)
    other = [*PROMPT[:3], 40, *PROMPT[4:]]
    plain = answered(Scheduler(decoder, models, sampling), other)
    scheduler = Scheduler(decoder, models, sampling)
    scheduler.prefill_prefix(PROMPT, KEPT)
    reused = answered(scheduler, other)
    assert reused.tokens == plain.tokens
    assert reused.steps[0].target_rows == len(other) - 3


def test_a_cached_prompt_still_runs_its_last_row_and_all_rows_from_the_first_that_is_read() -> None:
    models = both("llama", "ar")
    model = models.target
    models.reserve(1, 40)
    whole = model.open()
    expected = forward([whole.call(PROMPT, read=[2, 9], hidden=True)])
    states = whole.hidden
    model.close(whole)
    session = model.open()
    forward([session.call(PROMPT, read=())])
    session.keep_text(PROMPT)
    assert (session.length, session.calls, session.rows) == (0, 0, 0)
    got = forward([session.call(PROMPT, read=[2, 9], hidden=True)])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(session.hidden, states, atol=1e-5, rtol=1e-5)
    assert (session.length, session.base, session.calls, session.rows) == (10, 0, 1, 8)
    assert session.kept == ()
    model.close(session)
    session = model.open()
    forward([session.call(PROMPT, read=())])
    session.keep_text(PROMPT)
    forward([session.call(PROMPT, hidden=[2, 9])])
    torch.testing.assert_close(session.hidden, states, atol=1e-5, rtol=1e-5)
    assert session.rows == 8
    model.close(session)
    reads: list[dict[str, Any]] = [{}, {"read": ()}]
    for how in reads:
        session = model.open()
        forward([session.call(PROMPT, read=())])
        session.keep_text(PROMPT)
        forward([session.call(PROMPT, **how)])
        assert (session.length, session.calls, session.rows) == (10, 1, 1)
        model.close(session)


def test_long_prompts_run_in_chunks_behind_the_cached_prefix() -> None:
    target = TableModel(7, seed=1)
    models, sampling = Models(target=target), Sampling(max_new_tokens=5)
    prompt = [token % 7 for token in range(1300)]
    decoder = build(parse_spec("ar"))
    plain = answered(Scheduler(decoder, models, sampling), prompt)
    scheduler = Scheduler(decoder, models, sampling)
    scheduler.prefill_prefix(prompt, 600)
    reused = answered(scheduler, prompt)
    assert reused.tokens == plain.tokens
    assert reused.steps[0].target_rows == 700
    assert reused.steps[0].target_calls == 1


def test_sessions_with_a_kept_prefix_are_closed_if_their_prompt_never_starts() -> None:
    target = TableModel(7, seed=1, max_length=30)
    models = Models(target=target)
    scheduler = Scheduler(build(parse_spec("ar")), models, Sampling(max_new_tokens=5))
    scheduler.prefill_prefix([1, 2, 3], 2)
    (outcome,) = scheduler.run([[1] * 29])
    assert isinstance(outcome, ValueError)
    models.reserve(1, 40)  # asserts that no session is open


def test_kept_rows_are_run_again_if_their_mask_or_positions_differ() -> None:
    model = both("llama", "ar").target
    model.reserve(1, 40)
    backwards, hiding = masks.causal(len(PROMPT)), masks.causal(len(PROMPT))
    backwards[1, 0] = hiding[-1, 1] = False
    cases: list[tuple[dict[str, Any], int]] = [
        ({"mask": backwards}, 10),
        ({"mask": hiding}, 10),
        ({"positions": range(1, 11)}, 10),
        ({"mask": masks.causal(len(PROMPT)), "positions": range(10)}, 4),
    ]
    for how, num_run in cases:
        session = model.open()
        expected = forward([session.call(PROMPT, **how)])
        session.truncate(0)
        forward([session.call(PROMPT, read=())])
        session.keep_text(PROMPT[:KEPT])
        got = forward([session.call(PROMPT, **how)])
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
        assert session.rows == num_run
        model.close(session)


def test_a_call_split_into_chunks_continues_behind_the_rows_of_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("decoders.core.engine.forward.PREFILL_CHUNK", 3)
    model = both("llama", "ar").target
    model.reserve(1, 40)
    session = model.open()
    expected = model.forward([session.call(PROMPT)])
    session.truncate(2)
    torch.testing.assert_close(forward([session.call(PROMPT[2:])]), expected, atol=1e-5, rtol=1e-5)
    assert session.length == len(PROMPT)

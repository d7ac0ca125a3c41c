"""PTP on a small draft model: AR's tokens, one draft call a step that proposes them all."""

import dataclasses
from typing import Any

import pytest

from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.sampling import Uniforms
from decoders.core.types import Generation, Sampling
from decoders.ptp_spec import ParallelSpeculative
from tests import recording

VOCAB = 23
PROMPTS = ([1, 2, 3], [4], [0, 5, 1, 1, 2], [2, 2])
SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_new_tokens=24)
FREE = ParallelSpeculative(row_cost=0.0)
KINDS: dict[str, dict[str, Any]] = {
    "o-ptp": {"variant": "o-ptp"},
    "c-ptp": {"variant": "c-ptp"},
    "standalone": {"variant": "o-ptp", "standalone": True},
}


class Recording(recording.Places):
    """Remembers its calls, where they start and their rows' places."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(VOCAB, seed=seed, order=2, **options)


def models_of(kind: str, *, agreement: float = 1.0, error: float = 0.0) -> Models:
    """A target and a draft that agrees with it so far, whose student errs so often."""
    target = Recording(1)
    draft = Recording(2, agree_with=target, agreement=agreement)
    draft.attach("ptp-draft", error, **KINDS[kind])
    return Models(target=target, draft=draft)


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize(
    ("agreement", "error"),
    [
        pytest.param(agreement, error, marks=() if fast else pytest.mark.slow)
        for agreement in (0.0, 0.6, 1.0)
        for error in (0.0, 0.4, 1.0)
        for fast in [(agreement, error) in ((0.0, 1.0), (0.6, 0.4), (1.0, 0.0))]
    ],
)
def test_tokens_equal_ars_for_any_proposals_of_the_draft_model(
    kind: str, agreement: float, error: float
) -> None:
    models = models_of(kind, agreement=agreement, error=error)
    for temperature, length in ((0.0, 24), (0.0, 3), (0.7, 24), (0.7, 1), (1.0, 9), (1.0, 2)):
        sampling = dataclasses.replace(SAMPLING, temperature=temperature, max_new_tokens=length)
        expected = Scheduler(Autoregressive(), models, sampling, 4).run(PROMPTS)
        together = Scheduler(FREE, models, sampling, 4).run(PROMPTS)
        for answer, reference in zip(together, expected, strict=True):
            assert isinstance(answer, Generation)
            assert isinstance(reference, Generation)
            assert answer.tokens == reference.tokens
        assert generate(FREE, PROMPTS[2], sampling, models) == together[2]


@every_kind
@pytest.mark.parametrize("slots", [1, 2, 6])
def test_one_call_of_a_perfect_draft_model_proposes_all_accepted_drafts_of_a_step(
    kind: str, slots: int
) -> None:
    decoder = dataclasses.replace(FREE, slots=slots)
    answer = generate(decoder, PROMPTS[0], SAMPLING, models_of(kind))
    proposed = slots + (kind == "c-ptp")  # the draft's own row gives C-PTP its first token
    first, *steps = answer.steps
    assert (first.target_calls, first.draft_calls) == (1, 0)
    for step in steps[:-1]:
        assert (step.target_calls, step.draft_calls) == (1, 1)
        assert step.drafted == step.accepted == proposed
        assert step.target_rows == 1 + proposed
        assert len(step.tokens) == 1 + proposed


@every_kind
def test_slots_continue_the_positions_and_uniforms_of_their_text(kind: str) -> None:
    models = models_of(kind, agreement=0.7)
    answer = generate(FREE, PROMPTS[0], SAMPLING, models)
    text = [*PROMPTS[0], *answer.tokens]
    uniforms = Uniforms(SAMPLING.seed, PROMPTS[0])
    assert isinstance(models.draft, Recording)
    calls = models.draft.seen
    assert len(calls) > 4
    for start, call, places in calls:
        if call.slots is None:  # C-PTP, with room for the draft's own token alone
            assert kind == "c-ptp"
            continue
        fed = start + len(call.tokens)
        assert list(call.tokens) == text[start:fed]
        anchor = fed if kind == "standalone" else fed - 1  # its own row is left out
        assert call.slots.anchors == (text[anchor],)
        output = anchor + 1 - len(PROMPTS[0])
        expected = [uniforms.at("draw", output + s) for s in range(len(call.slots.uniforms))]
        assert list(call.slots.uniforms) == expected
        first = anchor + (kind == "c-ptp")
        assert list(places[len(call.tokens) :]) == [*range(first, first + len(expected))]
        # nothing is read but what proposes
        assert len(call.read) == int(kind == "c-ptp")
        assert len(call.slots.read) == len(expected)


def test_a_draft_model_whose_proposals_never_pay_is_not_called() -> None:
    models = models_of("o-ptp")
    assert isinstance(models.draft, Recording)
    hopeless = {"survival": [0.01] * 6}
    adapter = dataclasses.replace(models.draft.adapters["ptp-draft"], measured=hopeless)
    models.draft.adapters["ptp-draft"] = adapter
    answer = generate(ParallelSpeculative(row_cost=0.5), PROMPTS[0], SAMPLING, models)
    assert models.draft.seen == []
    assert all(step.draft_calls == step.drafted == 0 for step in answer.steps)


@every_kind
def test_proposals_shrink_after_rejections_and_grow_after_acceptances(kind: str) -> None:
    """A slot costs something: how many there are follows how the answer's others fared."""
    decoder, sampling = ParallelSpeculative(row_cost=0.2), Sampling(max_new_tokens=60)

    def sizes(error: float, agreement: float) -> list[int]:
        models = models_of(kind, error=error, agreement=agreement)
        generate(decoder, PROMPTS[0], sampling, models)
        assert isinstance(models.draft, Recording)
        return [0 if c.slots is None else len(c.slots.uniforms) for _, c, _ in models.draft.seen]

    hopeless, perfect = sizes(1.0, 0.0), sizes(0.0, 1.0)
    assert hopeless[0] == perfect[0]
    assert hopeless[9] < hopeless[0]  # far from where the budget ends
    assert perfect[2] > perfect[0]


@every_kind
@pytest.mark.parametrize("num_tokens", [2, 3, 4, 5])
def test_no_slot_proposes_tokens_beyond_the_budget(kind: str, num_tokens: int) -> None:
    """The verifying call adds one token itself: before the last call nothing is proposed."""
    models = models_of(kind)
    sampling = dataclasses.replace(SAMPLING, max_new_tokens=num_tokens)
    answer = generate(FREE, PROMPTS[0], sampling, models)
    assert [step.drafted for step in answer.steps] == [0, num_tokens - 2]
    assert isinstance(models.draft, Recording)
    proposed = [
        len(call.read) + (0 if call.slots is None else len(call.slots.read))
        for _, call, _ in models.draft.seen
    ]
    assert sum(proposed) == num_tokens - 2


@pytest.mark.parametrize("option", [{"slots": -1}, {"row_cost": -0.1}])
def test_an_option_out_of_range_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"of decoder 'ptp_spec' is -.*; it must be 0 .*or above"):
        ParallelSpeculative(**option)

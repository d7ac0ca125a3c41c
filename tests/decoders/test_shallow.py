"""Shallow drafters: AR's tokens, what calls feed and count, where drafts end, who refuses what."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.adapter_config import AdapterConfig
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.model import DraftCall
from decoders.core.sampling import Uniforms
from decoders.core.types import CallResult, Generation, Sampling
from decoders.shallow import Shallow
from tests import recording
from tests.tiny_models import WIDTH, fresh

PROMPT = [1, 2, 3]
GREEDY = Sampling(max_new_tokens=40)
WARM = Sampling(temperature=0.9, max_new_tokens=40, seed=2)
NUCLEUS = dataclasses.replace(WARM, top_p=0.9)


class Recording(recording.Recording):
    """Remembers its calls and what its slots are given; these err in a share of cases."""

    def __init__(self, error: float = 0.2, chances: Sequence[float] = ()) -> None:
        super().__init__(7, seed=1, scale=2.0)
        self.attach("shallow", error, "shallow")
        self.given: list[tuple[list[int], list[float], float]] = []
        self.chances = chances

    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        for call in calls:
            assert call.rows is not None
            assert len(call.rows) == len(call.tokens)
            temperature = call.sampling.temperature
            self.given.append((list(call.tokens), list(call.uniforms), temperature))
        results = super().draft(calls)
        chances = tuple(self.chances)
        return [dataclasses.replace(r, confidences=chances or r.confidences) for r in results]


def answer_of(decoder: Shallow, sampling: Sampling, error: float = 0.2) -> Generation:
    return generate(decoder, PROMPT, sampling, Models(target=Recording(error)))


@pytest.mark.parametrize("sampling", [GREEDY, WARM, NUCLEUS], ids=["greedy", "sampled", "nucleus"])
@pytest.mark.parametrize("options", [{}, {"slots": 1}, {"stop": 0.0}, {"stop": 0.9}])
def test_tokens_equal_ars_tokens(sampling: Sampling, options: dict[str, Any]) -> None:
    answer = answer_of(Shallow(**options), sampling)
    expected = generate(Autoregressive(), PROMPT, sampling, Models(target=Recording()))
    assert answer.tokens == expected.tokens
    assert (sum(step.accepted for step in answer.steps) > 0) == (options != {"stop": 0.9})


def test_drafts_of_perfect_slots_are_all_accepted() -> None:
    """Each is given the uniform that the target picks its token by, and the row's temperature."""
    model, tokens = Recording(0.0), list(PROMPT)
    answer = generate(Shallow(), PROMPT, WARM, Models(target=model))
    assert all(step.accepted == step.drafted for step in answer.steps[:-1])
    assert max(step.drafted for step in answer.steps) == 6
    uniforms = Uniforms(WARM.seed, PROMPT)
    tokens += answer.steps[0].tokens
    for (fed, given, temperature), step in zip(model.given, answer.steps[1:], strict=False):
        first = len(tokens) - len(PROMPT)
        assert given == [uniforms.at("draw", first + slot) for slot in range(len(given))]
        assert temperature == WARM.temperature
        assert tokens[-len(fed) :] == fed
        tokens += step.tokens


def test_every_token_is_fed_once_and_a_proposal_is_one_draft_call() -> None:
    model = Recording()
    answer = generate(Shallow(), PROMPT, GREEDY, Models(target=model))
    assert len(model.seen) == len(answer.steps)
    assert all(call.hidden for call in model.seen)
    drafted = [step for step in answer.steps if step.draft_calls]
    assert [step.draft_calls for step in drafted] == [1] * len(model.given)
    rows = [len(fed) + len(given) for fed, given, _ in model.given]
    assert [step.draft_rows for step in drafted] == rows
    fed = [token for tokens, _, _ in model.given for token in tokens]
    whole = [*PROMPT, *answer.tokens]
    assert fed == whole[1 : 1 + len(fed)]


def test_only_the_last_256_tokens_of_a_long_prompt_are_fed() -> None:
    model, prompt = Recording(), [token % 7 for token in range(700)]
    answer = generate(Shallow(), prompt, GREEDY, Models(target=model))
    assert len(model.given[0][0]) == 256
    expected = generate(Autoregressive(), prompt, GREEDY, Models(target=Recording()))
    assert answer.tokens == expected.tokens


@pytest.mark.parametrize(
    ("chances", "stop", "drafted"),
    [
        ((0.9, 0.9, 0.5, 0.9, 0.9, 0.9), 0.4, 4 - 1 + 0),
        ((0.9, 0.9, 0.5, 0.9, 0.9, 0.9), 0.3, 5),
        ((0.1,) * 6, 0.15, 0),
        ((0.1,) * 6, 0.0, 6),
        ((0.9, float("nan"), 1.0, 1.0, 1.0, 1.0), 0.1, 1),
    ],
)
def test_a_proposal_ends_before_its_chance_falls_below_stop(
    chances: tuple[float, ...], stop: float, drafted: int
) -> None:
    model = Recording(0.0, chances)
    answer = generate(Shallow(stop=stop), PROMPT, GREEDY, Models(target=model))
    assert answer.steps[1].drafted == drafted


def test_no_draft_exceeds_the_budget() -> None:
    for num_tokens, drafts in ((4, 2), (2, 0)):
        model = Recording(0.0)
        sampling = Sampling(max_new_tokens=num_tokens)
        answer = generate(Shallow(), PROMPT, sampling, Models(target=model))
        assert [step.drafted for step in answer.steps] == [0, drafts]
        assert [len(given) for _, given, _ in model.given] == [6] * bool(drafts)  # all slots run


@pytest.mark.parametrize("wrong", [{"slots": -1}, {"slots": 10**6}, {"stop": 1.0}, {"stop": -0.1}])
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Shallow(**wrong)


@pytest.mark.parametrize("sampling", [GREEDY, WARM, NUCLEUS], ids=["greedy", "sampled", "nucleus"])
@pytest.mark.parametrize(
    "name", [pytest.param("llama", marks=pytest.mark.slow), "gpt2", "qwen2-window"]
)
def test_batched_tokens_on_a_transformer_equal_ars(name: str, sampling: Sampling) -> None:
    model = HFModel(fresh(name))
    sizes: dict[str, Any] = {
        "num_slots": 3,
        "rank": 8,
        "num_heads": 2,
        "num_layers": 2,
        "bias_rank": 2,
    }
    config = AdapterConfig(variant="shallow", layers={}, width=WIDTH, num_words=40, **sizes)
    model.attach("shallow", ParallelLayers(config))
    models, decoder = Models(target=model), Shallow(stop=0.0)
    prompts = [[4, 5, 6], [7, 8], [9, 10, 11, 12]]
    sampling = dataclasses.replace(sampling, max_new_tokens=16)
    together = Scheduler(decoder, models, sampling, batch_size=3).run(prompts)
    for prompt, outcome in zip(prompts, together, strict=True):
        assert isinstance(outcome, Generation)
        assert outcome.tokens == generate(Autoregressive(), prompt, sampling, models).tokens
        assert sum(step.drafted for step in outcome.steps) > 0


def test_weights_that_are_not_numbers_draft_nothing() -> None:
    model = HFModel(fresh("llama"))
    sizes: dict[str, Any] = {
        "num_slots": 3,
        "rank": 8,
        "num_heads": 2,
        "num_layers": 1,
        "bias_rank": 2,
    }
    layers = ParallelLayers(
        AdapterConfig(variant="shallow", layers={}, width=WIDTH, num_words=40, **sizes)
    )
    layers.scale.data.fill_(torch.nan)
    model.attach("shallow", layers)
    sampling = Sampling(max_new_tokens=8)
    answer = generate(Shallow(), PROMPT, sampling, Models(target=model))
    expected = generate(Autoregressive(), PROMPT, sampling, Models(target=model))
    assert answer.tokens == expected.tokens
    assert sum(step.drafted for step in answer.steps) == 0

"""Early exit: the target's first layers as a draft model, AR's tokens, who refuses what."""

import dataclasses
from typing import Any

import pytest

from bench.errors import BenchError
from bench.plan.select import built_in_cells, choose_decoders
from bench.settings.config import RunConfig
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.exit import EarlyExit
from tests.tiny_models import exit_block, fresh

PROMPT = [1, 2, 3]
GREEDY = Sampling(max_new_tokens=40)
WARM = Sampling(temperature=0.9, max_new_tokens=40, seed=2)


def models(error: float = 0.4) -> Models:
    target = TableModel(7, seed=1, scale=2.0)
    target.attach("exit", error, "exit")
    return Models(target=target)


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_its_tokens_are_those_of_ar(sampling: Sampling, k: int) -> None:
    both = models()
    answer = generate(EarlyExit(k=k, verify="coupled"), PROMPT, sampling, both)
    assert answer.tokens == generate(Autoregressive(), PROMPT, sampling, both).tokens
    assert sum(step.accepted for step in answer.steps) > 0


def test_a_step_drafts_k_tokens_in_k_calls_of_the_first_layers() -> None:
    both = models()
    assert isinstance(both.target, TableModel)
    early = both.target.early("exit")
    answer = generate(EarlyExit(k=3, stop=0.0), PROMPT, GREEDY, both)
    steps = answer.steps[1:-3]  # the last ones draft what the budget still holds
    assert {step.drafted for step in steps} == {3}
    assert {step.draft_calls for step in steps} == {3}
    assert {step.target_calls for step in steps} == {1}
    assert early.num_forwards == sum(step.draft_calls for step in answer.steps)
    assert both.target.num_forwards == len(answer.steps)


def test_a_better_exit_has_more_accepted() -> None:
    def accepted(error: float) -> int:
        prompts = [[a, b] for a in range(5) for b in range(5)]
        answers = [generate(EarlyExit(), prompt, WARM, models(error)) for prompt in prompts]
        return sum(step.accepted for answer in answers for step in answer.steps)

    assert accepted(1.0) < accepted(0.5) < accepted(0.0)


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "name", [pytest.param("llama", marks=pytest.mark.slow), "llama-gqa", "gpt2", "qwen2-window"]
)
def test_on_a_transformer_alone_and_in_a_batch(name: str, sampling: Sampling, verify: Any) -> None:
    model = HFModel(fresh(name))
    model.attach("exit", exit_block())
    both, decoder = Models(target=model), EarlyExit(verify=verify)
    prompts = [[4, 5, 6], [7, 8], [9, 10, 11, 12]]
    sampling = dataclasses.replace(sampling, max_new_tokens=16)
    together = Scheduler(decoder, both, sampling, batch_size=3).run(prompts)
    for prompt, outcome in zip(prompts, together, strict=True):
        assert isinstance(outcome, Generation)
        assert outcome.tokens == generate(decoder, prompt, sampling, both).tokens
        if verify == "coupled" or sampling.greedy:
            expected = generate(Autoregressive(), prompt, sampling, both)
            assert outcome.tokens == expected.tokens
    steps = [step for outcome in together for step in outcome.steps]  # type: ignore[union-attr]
    assert sum(step.drafted for step in steps) > 0


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="'k' of decoder 'exit' is 0; it must be 1 or above"):
        EarlyExit(k=0)
    with pytest.raises(ValueError, match=r"'stop' of decoder 'exit' is 1.0; it must be 0 \(off\)"):
        EarlyExit(stop=1.0)


def test_it_runs_where_it_is_named_and_says_how_to_get_an_exit() -> None:
    assert "exit" not in built_in_cells()
    config = RunConfig(model="somewhere", decoders={"exit": {}})
    with pytest.raises(BenchError, match=r"needs an adapter named 'exit'.* `bench train exit`"):
        choose_decoders(config, lambda _: None)


def test_heads_are_no_exit() -> None:
    model = TableModel(7, seed=1)
    model.attach("exit", 0.1, "medusa")
    with pytest.raises(ValueError, match="is of variant medusa; decoder 'exit' needs exit"):
        generate(EarlyExit(), PROMPT, GREEDY, Models(target=model))

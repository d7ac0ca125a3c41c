"""Medusa: trees from hidden states, AR's tokens, what calls ask for, and who refuses what."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bench.errors import BenchError
from bench.plan.select import built_in_cells, choose_decoders
from bench.settings.config import RunConfig
from decoders.ar import Autoregressive
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter_config import AdapterConfig
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.model import DraftCall
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, Generation, Sampling
from decoders.medusa import Medusa
from tests import recording
from tests.tiny_models import WIDTH, fresh

PROMPT = [1, 2, 3]
GREEDY = Sampling(max_new_tokens=40)
WARM = Sampling(temperature=0.9, max_new_tokens=40, seed=2)


class Recording(recording.Recording):
    """Remembers its calls; its heads err in a share of cases."""

    def __init__(self, error: float = 0.2) -> None:
        super().__init__(7, seed=1, scale=2.0)
        self.attach("medusa", error, "medusa")
        self.num_fed: list[int] = []

    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        self.num_fed += [len(call.tokens) for call in calls]
        return super().draft(calls)


def answer_of(decoder: Medusa, sampling: Sampling, error: float = 0.2) -> Generation:
    return generate(decoder, PROMPT, sampling, Models(target=Recording(error)))


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", [{}, {"nodes": 1}, {"heads": 2, "width": 7, "nodes": 30}])
def test_tokens_equal_ars_tokens(sampling: Sampling, options: dict[str, Any]) -> None:
    answer = answer_of(Medusa(**options), sampling)
    expected = generate(Autoregressive(), PROMPT, sampling, Models(target=Recording()))
    assert answer.tokens == expected.tokens
    assert sum(step.accepted for step in answer.steps) > 0


def test_a_step_is_one_call_of_the_last_token_and_up_to_nodes_drafts() -> None:
    model = Recording()
    answer = generate(Medusa(nodes=5), PROMPT, GREEDY, Models(target=model))
    assert len(model.seen) == len(answer.steps)
    assert all(call.hidden for call in model.seen)
    length = len(PROMPT)
    for call, step in zip(model.seen[1:], answer.steps[1:], strict=True):
        assert len(call.tokens) <= 6
        assert min(call.row_positions()) == length
        assert step.drafted == len(call.tokens) - 1
        length += len(step.tokens)
    assert {*model.num_fed} == {1}, "the last state alone, however many drafts were accepted"


def test_no_draft_exceeds_the_budget() -> None:
    answer = answer_of(Medusa(nodes=60), Sampling(max_new_tokens=4), error=0.0)
    assert [step.depth for step in answer.steps] == [0, 2]
    answer = answer_of(Medusa(), Sampling(max_new_tokens=2), error=0.0)
    assert [step.drafted for step in answer.steps] == [0, 0]


def test_no_more_heads_draft_than_the_option_allows() -> None:
    answer = answer_of(Medusa(heads=2, nodes=40), GREEDY, error=0.0)
    assert {step.depth for step in answer.steps[1:-1]} == {2}


def test_more_heads_than_the_adapter_has_means_all_heads() -> None:
    many, all_ = (answer_of(Medusa(heads=heads, nodes=12), WARM) for heads in (50, 0))
    assert many.steps == all_.steps


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_tokens_outside_the_warped_distribution_are_not_drafted(verify: Any) -> None:
    """With top-k 1 one token of seven may follow each: the tree is a chain."""
    model = Recording(0.0)
    sampling = Sampling(temperature=0.9, top_k=1, max_new_tokens=20)
    decoder = Medusa(nodes=60, width=9, verify=verify)
    generate(decoder, PROMPT, sampling, Models(target=model))
    num_heads = model.adapters["medusa"].num_slots
    assert all(len(call.tokens) <= 1 + num_heads for call in model.seen[1:])
    assert max(len(call.tokens) for call in model.seen[1:]) == 1 + num_heads


def test_better_heads_have_more_drafts_accepted() -> None:
    def accepted(error: float) -> int:
        return sum(step.accepted for step in answer_of(Medusa(nodes=12), GREEDY, error).steps)

    assert accepted(0.9) < accepted(0.4) < accepted(0.0)


def test_rejection_samples_different_tokens_than_ar_and_equals_coupled_when_greedy() -> None:
    models = Models(target=Recording())
    expected = generate(Autoregressive(), PROMPT, WARM, models).tokens
    assert answer_of(Medusa(verify="rejection"), WARM).tokens != expected
    assert answer_of(Medusa(verify="rejection"), GREEDY) == answer_of(Medusa(), GREEDY)


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "name", [pytest.param("llama", marks=pytest.mark.slow), "gpt2", "qwen2-window"]
)
def test_batched_answers_on_a_transformer_equal_those_alone(
    name: str, sampling: Sampling, verify: Any
) -> None:
    model = HFModel(fresh(name))
    config = AdapterConfig(
        variant="medusa", code="constant", num_slots=3, layers={}, width=WIDTH, rank=8
    )
    heads = DraftHeads(config)
    heads.up.data = 0.1 * torch.randn(heads.up.shape, generator=torch.Generator().manual_seed(1))
    model.attach("medusa", heads)
    models, decoder = Models(target=model), Medusa(verify=verify)
    prompts = [[4, 5, 6], [7, 8], [9, 10, 11, 12]]
    sampling = dataclasses.replace(sampling, max_new_tokens=16)
    together = Scheduler(decoder, models, sampling, batch_size=3).run(prompts)
    for prompt, outcome in zip(prompts, together, strict=True):
        assert isinstance(outcome, Generation)
        assert outcome.tokens == generate(decoder, prompt, sampling, models).tokens
        if verify == "coupled":
            expected = generate(Autoregressive(), prompt, sampling, models)
            assert outcome.tokens == expected.tokens
    steps = [step for outcome in together for step in outcome.steps]  # type: ignore[union-attr]
    assert sum(step.accepted for step in steps) > 0


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="'nodes' of decoder 'medusa' is 0; it must be 1 to 120"):
        Medusa(nodes=0)
    with pytest.raises(ValueError, match="'nodes' of decoder 'medusa' is 121; it must be 1 to 120"):
        Medusa(nodes=121)
    with pytest.raises(ValueError, match="'width' of decoder 'medusa' is 0"):
        Medusa(width=0)
    with pytest.raises(ValueError, match="'heads' of decoder 'medusa' is -1"):
        Medusa(heads=-1)


def test_medusa_runs_only_if_named_and_explains_how_to_get_heads() -> None:
    assert "medusa" not in built_in_cells()
    config = RunConfig(model="somewhere", decoders={"medusa": {}})
    with pytest.raises(BenchError, match=r"named 'medusa'.*--adapter medusa=PATH, or train one"):
        choose_decoders(config, lambda _: None)


def test_an_adapter_of_slots_is_refused_as_heads() -> None:
    model = TableModel(7, seed=1)
    model.attach("medusa", 0.1, "isd")
    with pytest.raises(ValueError, match="is of variant isd; decoder 'medusa' needs medusa"):
        generate(Medusa(), PROMPT, GREEDY, Models(target=model))

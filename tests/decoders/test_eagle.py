"""EAGLE: trees from a draft layer, AR's tokens, what calls ask for and count, who refuses what."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.errors import BenchError
from bench.plan.select import built_in_cells, choose_decoders
from bench.settings.config import RunConfig
from decoders.ar import Autoregressive
from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter_config import AdapterConfig
from decoders.core.decoder import Request
from decoders.core.drafting.length import Length
from decoders.core.drafting.tree import DraftTree
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.model import Call, DraftCall
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, Emit, Generation, Sampling
from decoders.eagle import Eagle
from tests import recording
from tests.core.test_tree_verification import walk
from tests.enumeration import integrated
from tests.tiny_models import WIDTH, fresh

PROMPT = [1, 2, 3]
GREEDY = Sampling(max_new_tokens=40)
WARM = Sampling(temperature=0.9, max_new_tokens=40, seed=2)


class Recording(recording.Recording):
    """Remembers its calls, and what its draft layer is fed; the layer errs in a share of cases."""

    def __init__(self, error: float = 0.2, words: Sequence[int] | None = None) -> None:
        super().__init__(7, seed=1, scale=2.0)
        self.attach("eagle", error, "eagle")
        self.drafted_rows: list[int] = []
        self.words = None if words is None else torch.tensor(words)

    def _drafted(self, name: str, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        self.drafted_rows.append(len(tokens))
        logits, after = super()._drafted(name, states, tokens)
        return logits if self.words is None else logits[:, self.words], after


def answer_of(decoder: Eagle, sampling: Sampling, error: float = 0.2) -> Generation:
    return generate(decoder, PROMPT, sampling, Models(target=Recording(error)))


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", [{}, {"nodes": 1}, {"depth": 2, "width": 7, "nodes": 30}])
def test_tokens_equal_ars_tokens(sampling: Sampling, options: dict[str, Any]) -> None:
    answer = answer_of(Eagle(**options), sampling)
    expected = generate(Autoregressive(), PROMPT, sampling, Models(target=Recording()))
    assert answer.tokens == expected.tokens
    assert sum(step.accepted for step in answer.steps) > 0


def test_automatic_tree_sizes_are_priced_by_the_draft_calls_of_each_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent, choose = list[int](), Length.worthwhile

    def seen(self: Length, paths: Sequence[float], num_calls: int = 1) -> int:
        spent.append(num_calls)
        return choose(self, paths, num_calls)

    monkeypatch.setattr(Length, "worthwhile", seen)
    answer = answer_of(Eagle(nodes="auto", depth=3), GREEDY)
    assert spent == [step.draft_calls for step in answer.steps if step.draft_calls]
    assert len(spent) > 5


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_a_layer_with_a_reduced_vocabulary_drafts_only_its_words(verify: Any) -> None:
    words = (1, 4, 6)
    model = Recording(0.0, words)
    answer = generate(Eagle(verify=verify), PROMPT, WARM, Models(target=model))
    drafts = {token for call in model.seen[1:] for token in call.tokens[1:]}
    assert drafts == set(words)
    assert sum(step.accepted for step in answer.steps) > 5
    if verify == "coupled":
        expected = generate(Autoregressive(), PROMPT, WARM, Models(target=Recording()))
        assert answer.tokens == expected.tokens


def test_a_step_is_one_target_call_and_its_draft_calls_are_counted() -> None:
    model = Recording()
    answer = generate(Eagle(nodes=5, depth=4), PROMPT, GREEDY, Models(target=model))
    assert len(model.seen) == len(answer.steps)
    assert all(call.hidden for call in model.seen)
    assert sum(step.draft_calls for step in answer.steps) == len(model.drafted_rows)
    assert sum(step.draft_rows for step in answer.steps) == sum(model.drafted_rows)
    assert answer.steps[0].draft_calls == 0
    assert model.drafted_rows[0] == len(PROMPT)
    length = len(PROMPT)
    for call, step in zip(model.seen[1:], answer.steps[1:], strict=True):
        assert len(call.tokens) <= 6
        assert min(call.row_positions()) == length
        assert step.drafted == len(call.tokens) - 1
        assert step.depth is not None
        assert step.depth <= 4
        assert step.draft_calls <= 4
        length += len(step.tokens)


def likeliest(model: TableModel, width: int, depth: int, nodes: int) -> set[tuple[int, ...]]:
    """The tree by brute force where no row is left out: its paths behind `PROMPT` and a 4."""
    paths: dict[tuple[int, ...], float] = {(): 1.0}
    level: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        new = []
        for path in level:
            chances = model.logits([*PROMPT, 4, *path]).softmax(-1).tolist()
            for token in sorted(range(7), key=lambda token: -chances[token])[:width]:
                paths[*path, token] = paths[path] * chances[token]
                new.append((*path, token))
        level = new
    del paths[()]
    return set(sorted(paths, key=lambda path: -paths[path])[:nodes])


@pytest.mark.parametrize(("depth", "nodes"), [(1, 4), (2, 7), (2, 40), (3, 9)])
def test_the_tree_holds_the_likeliest_of_all_paths(depth: int, nodes: int) -> None:
    """With as many rows gone on with as there are; the layer is right about the table."""
    model = Recording(0.0)
    trees: list[Call] = []

    class Asked(Recording):
        def forward(self, calls: Sequence[Call]) -> Tensor:
            trees.extend(calls)
            logits = super().forward(calls)
            return torch.eye(7)[4][None].expand(len(logits), 7) if len(trees) == 1 else logits

    target = Asked(0.0)
    decoder = Eagle(width=7, depth=depth, nodes=nodes)
    generate(decoder, PROMPT, GREEDY, Models(target=target))
    call = trees[1]
    assert call.mask is not None
    got = {
        tuple(call.tokens[seen] for seen in range(1, row + 1) if call.mask[row, seen])
        for row in range(1, len(call.tokens))
    }
    expected = likeliest(model, 7, depth, nodes)
    if depth < 3:  # all rows of a level are gone on with: at most seven
        assert got == expected
    else:
        assert len(got & expected) >= len(expected) - 1


def test_the_layer_is_fed_every_token_once_and_only_the_last_256_tokens_of_a_prompt() -> None:
    model = Recording()
    prompt = [token % 7 for token in range(700)]
    models = Models(target=model)
    expected = generate(Autoregressive(), prompt, GREEDY, models).tokens
    model.seen.clear()
    fed: list[int] = []
    draft = model.draft

    def counting(calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        fed.extend(call.num_rows for call in calls)
        return draft(calls)

    model.draft = counting  # type: ignore[method-assign]
    answer = generate(Eagle(), prompt, GREEDY, models)
    assert answer.tokens == expected
    steps = answer.steps
    assert fed[0] == 256
    rest = [len(step.tokens) for step in steps[1:-1]]
    assert fed[1:] == rest[: len(fed) - 1]


def test_no_drafts_are_made_beyond_the_token_budget() -> None:
    for num_tokens, depth in ((4, 2), (2, 0)):
        model = Recording(0.0)
        sampling = Sampling(max_new_tokens=num_tokens)
        answer = generate(Eagle(), PROMPT, sampling, Models(target=model))
        assert [step.depth for step in answer.steps] == [0, depth]
        assert len(model.drafted_rows) == depth


class Chances(Recording):
    """A layer that says the same behind every token."""

    chances = (1.0,) * 7

    def _drafted(self, name: str, states: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        logits, after = super()._drafted(name, states, tokens)
        return torch.tensor(self.chances).log().expand_as(logits), after


class Sure(Chances):
    """It is nearly sure of one token."""

    chances = (0.01, 0.01, 0.01, 0.94, 0.01, 0.01, 0.01)


@pytest.mark.parametrize(("layer", "depth"), [(Sure, 3), (Chances, 1)])
def test_a_tree_is_a_chain_for_a_sure_layer_and_one_level_for_an_unsure_layer(
    layer: type[Chances], depth: int
) -> None:
    """The likeliest three drafts: a chain where the layer is sure, else those after the text."""
    sampling = Sampling(max_new_tokens=8)
    model = layer()
    answer = generate(Eagle(nodes=3, width=3), PROMPT, sampling, Models(target=model))
    for call, step in zip(model.seen[1:3], answer.steps[1:3], strict=True):
        assert len(call.tokens) == 1 + 3
        assert max(call.row_positions()) - min(call.row_positions()) == depth
        assert step.draft_calls == depth


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_tokens_that_the_sampling_rules_out_are_not_drafted(verify: Any) -> None:
    """With top-k 1 one token of seven may follow each: the tree is a chain."""
    model = Recording(0.0)
    sampling = Sampling(temperature=0.9, top_k=1, max_new_tokens=20)
    decoder = Eagle(nodes=60, depth=3, width=9, verify=verify)
    answer = generate(decoder, PROMPT, sampling, Models(target=model))
    assert all(len(call.tokens) <= 1 + 3 for call in model.seen[1:])
    assert all(step.accepted == step.drafted for step in answer.steps[:-1])


@pytest.mark.parametrize(("nodes", "rows"), [(8, 8), (9, 8), (2, 4), (4, 4)])
def test_drawn_trees_have_an_even_share_of_the_nodes_on_every_level(nodes: int, rows: int) -> None:
    """At least one: of four levels, with chances on every token."""
    model = Chances()
    decoder = Eagle(nodes=nodes, depth=4, width=5, verify="rejection")
    generate(decoder, PROMPT, WARM, Models(target=model))
    call = model.seen[1]
    assert len(call.tokens) == 1 + rows
    places = call.row_positions()
    assert [places.count(places[0] + level) for level in range(1, 5)] == [rows // 4] * 4


@pytest.mark.slow
def test_a_better_layer_has_more_drafts_accepted() -> None:
    def accepted(error: float) -> int:
        """In answers to many prompts: greedy ones of a table soon go round in a circle."""
        models = Models(target=Recording(error))
        prompts = [[a, b] for a in range(5) for b in range(5)]
        answers = [generate(Eagle(), prompt, WARM, models) for prompt in prompts]
        return sum(step.accepted for answer in answers for step in answer.steps)

    assert accepted(1.0) < accepted(0.5) < accepted(0.0)


def test_rejection_samples_different_tokens_than_ar_and_equals_coupled_when_greedy() -> None:
    models = Models(target=Recording())
    expected = generate(Autoregressive(), PROMPT, WARM, models).tokens
    assert answer_of(Eagle(verify="rejection"), WARM).tokens != expected
    assert answer_of(Eagle(verify="rejection"), GREEDY) == answer_of(Eagle(), GREEDY)


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
        variant="eagle", code="constant", num_slots=3, layers={}, width=WIDTH, rank=8, num_heads=2
    )
    model.attach("eagle", DraftLayer(config))
    models, decoder = Models(target=model), Eagle(verify=verify)
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
    assert sum(step.drafted for step in steps) > 0


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="'nodes' of decoder 'eagle' is 0; it must be 1 to 120"):
        Eagle(nodes=0)
    with pytest.raises(ValueError, match="'depth' of decoder 'eagle' is 0; it must be 1 to 120"):
        Eagle(depth=0)
    with pytest.raises(
        ValueError, match=r"'width' of decoder 'eagle' is 13; .* 1 to 12 at depth 10"
    ):
        Eagle(width=13, depth=10)


def test_eagle_is_not_a_default_cell_and_is_refused_with_the_way_to_get_a_layer() -> None:
    assert "eagle" not in built_in_cells()
    config = RunConfig(model="somewhere", decoders={"eagle": {}})
    with pytest.raises(BenchError, match=r"named 'eagle'.*--adapter eagle=PATH, or train one"):
        choose_decoders(config, lambda _: None)


def test_an_adapter_of_heads_is_refused_as_a_draft_layer() -> None:
    model = TableModel(7, seed=1)
    model.attach("eagle", 0.1, "medusa")
    with pytest.raises(ValueError, match="is of variant medusa; decoder 'eagle' needs eagle"):
        generate(Eagle(), PROMPT, GREEDY, Models(target=model))


@pytest.mark.slow
def test_answers_under_rejection_have_the_targets_distribution_by_enumeration() -> None:
    """Three tokens of two kinds, every uniform that is asked for on a grid of quarters.

    The layer errs, and which rows of its trees have drafts depends on those drawn before.
    """
    target = {(): [1, 3], (0,): [3, 1], (1,): [2, 2]}
    layer = {(): [2, 2], (0,): [2, 2], (1,): [2, 2]}

    def logits(table: dict[tuple[int, ...], list[int]], context: Sequence[int]) -> Tensor:
        return (torch.tensor(table[tuple(context[1:][-1:])]) / 4).log()

    class Known(TableModel):
        def logits(self, context: Sequence[int]) -> Tensor:
            return logits(target, context)

        def _drafted(self, name: str, states: Tensor, tokens: Sequence[int]) -> Any:
            _, after = super()._drafted(name, states, tokens)
            contexts = [[int(known) for known in state if known >= 0] for state in after]
            return torch.stack([logits(layer, context) for context in contexts]), after

    model = Known(2, order=6)
    model.attach("eagle", 0.0, "eagle")
    models = Models(target=model)
    models.ensure(1, 8)
    decoder = Eagle(verify="rejection", nodes=4, width=2, depth=2)

    def answer(uniforms: Any) -> tuple[int, ...]:
        session = model.open()
        tokens: list[int] = []
        try:
            request = Request(
                prompt_ids=(0,),
                sampling=Sampling(temperature=1.0, max_new_tokens=3),
                target=session,
                uniforms=uniforms,
                adapter=model.adapters["eagle"],
            )
            steps = decoder.steps(request)
            item = next(steps)
            while True:
                if isinstance(item, Emit):
                    tokens += item.tokens
                    if len(tokens) >= 3:
                        return tuple(tokens[:3])
                    item = next(steps)
                    continue
                if isinstance(item, DraftCall):
                    item = steps.send(model.draft([item])[0])
                    continue
                assert isinstance(item, Call)
                probs = torch.softmax(model.forward([item]), -1)
                path, token = list[int](), 0
                if item.output == "tree":  # as `verify_tree` does it, asking for fewer uniforms
                    assert item.mask is not None
                    assert item.positions is not None
                    sees = [row.nonzero().flatten().tolist() for row in item.mask]
                    parents = [-1, *[rows[-2] for rows in sees[1:]]]
                    laws = dict(zip(parents[1:], item.draft_probs or (), strict=True))
                    tree = DraftTree.of(item.tokens, parents)
                    path, token = walk(tree, probs, laws, uniforms, item.positions[0])
                else:
                    token = int(probs[0, 0] <= uniforms.at("draw", 0))
                result = CallResult(picks=(token,), path=tuple(path), hidden=session.hidden)
                item = steps.send(result)
        finally:
            model.close(session)

    distribution = integrated(answer, 4)
    for tokens in itertools.product((0, 1), repeat=3):
        expected = 1.0
        for place, token in enumerate(tokens):
            expected *= target[tokens[place - 1 : place] if place else ()][token] / 4
        assert distribution[tokens] == pytest.approx(expected, abs=1e-6)

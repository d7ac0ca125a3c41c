"""Draft layers run as graphs: they draft as the plain layers do, in caches that are used again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter.module import HiddenAdapter
from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.adapter_config import AdapterConfig
from decoders.core.hf.compiled import COMPILED_PROMPT, Backend
from decoders.core.hf.model import HFModel
from decoders.core.model import MERGED_ROWS
from decoders.core.types import MAX_DRAFTS, CallResult, DraftShape, Sampling
from tests.tiny_models import VOCAB, WIDTH, fresh, slot_adapter

TEXTS: Mapping[int, Sequence[int]] = {0: (3, 1, 5, 2, 1), 2: (9, 2, 1), 3: (1, 1, 1, 4)}
UNIFORMS = [0.1, 0.9, 0.4, 0.6, 0.3, 0.8]


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers_of(variant: str, num_words: int = 0) -> HiddenAdapter:
    """Layers with so many words, or with a selector of so many candidates of two layers."""
    sizes: dict[str, Any] = {"num_slots": 4, "rank": 6, "width": WIDTH, "num_heads": 4}
    if variant == "medusa":
        heads = DraftHeads(
            AdapterConfig(
                variant="medusa", num_slots=4, rank=6, width=WIDTH, code="constant", layers={}
            ),
            seed=3,
        )
        with torch.no_grad():
            heads.up.copy_(noise(*heads.up.shape, seed=4))
        return heads
    if variant == "eagle":
        config = AdapterConfig(
            variant="eagle", code="constant", layers={}, num_words=num_words, **sizes
        )
        return DraftLayer(config, seed=3)
    if num_words:
        sizes["sizes"] = {"candidates": num_words, "hidden_layers": [0, -1]}
    config = AdapterConfig(
        variant="shallow", layers={}, num_words=20, num_layers=2, bias_rank=3, **sizes
    )
    layers = ParallelLayers(config, seed=3)
    with torch.no_grad():
        layers.right.copy_(noise(*layers.right.shape, seed=4))
        if num_words:
            layers.context.copy_(noise(*layers.context.shape, seed=5))
    return layers


def model_of(layers: HiddenAdapter, backend: Backend | None = None, length: int = 300) -> HFModel:
    compiled: dict[str, Any] = {} if backend is None else {"compile": True, "backend": backend}
    model = HFModel(fresh("llama"), **compiled)
    model.attach("drafts", layers)
    model.reserve(4, length)
    return model


def shape_of(variant: str) -> DraftShape:
    return DraftShape(depth=3, width=1 if variant == "shallow" else 2, nodes=6)


def drafts(
    model: HFModel,
    texts: Mapping[int, Sequence[int]] = TEXTS,
    temperature: float = 0.7,
    among: int = 1,
    shape: DraftShape | None = None,
    **budget: Any,
) -> list[CallResult]:
    """All drafts after texts in cache rows, which are fed in parts of these lengths together.

    States of a text are every `among`-th row of those that calls have.
    """
    sessions = [model.open() for _ in range(1 + max(texts))]
    shape, found = shape or shape_of(model.adapters["drafts"].variant), list[CallResult]()
    sampling = Sampling(temperature=temperature, **budget)
    width = WIDTH * max(1, len(model.adapters["drafts"].sizes.get("hidden_layers", ())))
    for step in range(max(map(len, texts.values()))):
        calls = []
        for row, lengths in texts.items():
            if step < len(lengths):
                states = noise(lengths[step], width, seed=100 * row + step).to(model.device)
                tokens = [(7 * step + row + 3 * n) % VOCAB for n in range(len(states))]
                uniforms = [(u + 0.17 * row) % 1 for u in UNIFORMS[: shape.depth * shape.width]]
                args: Any = (tokens, shape, sampling, uniforms)
                if among > 1:
                    rows = range(0, among * len(states), among)
                    all_rows = torch.full((among * len(states), width), torch.nan)
                    all_rows[[*rows]] = states
                    call = sessions[row].draft("drafts", all_rows, *args, rows=rows)
                else:
                    call = sessions[row].draft("drafts", states, *args)
                calls.append(call)
        found += model.draft(calls[::-1])[::-1]
    for session in sessions[::-1]:
        model.close(session)
    return found


def assert_alike(found: list[CallResult], expected: list[CallResult]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.picks
        assert (one.picks, one.parents) == (other.picks, other.parents)
        assert one.confidences == pytest.approx(other.confidences, rel=1e-4)


VARIANTS = [("shallow", 0), ("shallow", 5), ("eagle", 0), ("eagle", 9), ("medusa", 0)]


@pytest.mark.parametrize(("variant", "words"), VARIANTS)
def test_texts_drafted_together_get_the_same_drafts_as_alone(variant: str, words: int) -> None:
    model = model_of(layers_of(variant, words))
    together = drafts(model)
    alone = {row: drafts(model, {row: lengths}) for row, lengths in TEXTS.items()}
    expected = [alone[row][n] for n in range(5) for row in TEXTS if n < len(TEXTS[row])]
    assert_alike(together, expected)


DRAWN = DraftShape(depth=3, width=2, nodes=6, draws=True)
SHORT = DraftShape(depth=3, width=2, nodes=10, floor=0.5)


@pytest.mark.parametrize(
    ("variant", "words", "shape"),
    [
        *(("eagle", words, shape) for words in (0, 9) for shape in (DRAWN, SHORT)),
        ("medusa", 0, DRAWN),
    ],
)
@pytest.mark.parametrize("backend", [None, "eager"])
def test_sampled_and_shorter_trees_drafted_together_or_in_graphs_equal_each_tree_alone(
    variant: str, words: int, shape: DraftShape, backend: Backend | None
) -> None:
    layers = layers_of(variant, words)
    # that of all words is not reached by the likeliest 64, after which a graph leaves rows open
    options: dict[str, Any] = {"shape": shape, "top_p": 0.9 if words else 0.9999}
    plain = model_of(layers)
    alone = {row: drafts(plain, {row: lengths}, **options) for row, lengths in TEXTS.items()}
    expected = [alone[row][n] for n in range(5) for row in TEXTS if n < len(TEXTS[row])]
    found = drafts(model_of(layers, backend), **options)
    assert_alike(found, expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.probs, other.probs)
        rows = [] if one.probs is None else one.probs.tolist()
        for law, pick, parent, sure in zip(
            rows, one.picks, one.parents, one.confidences, strict=False
        ):
            before = one.confidences[parent] if parent >= 0 else 1.0
            assert sure == pytest.approx(before * law[pick])
    assert shape.draws or len({len(each.picks) for each in found}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "words"), VARIANTS)
@pytest.mark.parametrize("backend", ["export", "eager"])
@pytest.mark.parametrize("texts", [TEXTS, {1: (3, 1, 5, 2, 1)}], ids=["together", "alone"])
def test_graphs_draft_as_plain_layers(
    variant: str, words: int, backend: Backend, texts: Mapping[int, Sequence[int]]
) -> None:
    layers = layers_of(variant, words)
    model, plain = model_of(layers, backend), model_of(layers)
    for temperature in (0.7, 0.0):
        assert_alike(drafts(model, texts, temperature), drafts(plain, texts, temperature))
    if backend == "export" and variant != "medusa":  # one serves all sizes
        assert model.num_graphs == (1 if len(texts) == 1 else 2)


@pytest.mark.parametrize(("variant", "words"), VARIANTS)
@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("texts", [TEXTS, {1: (3, 1, 5, 2, 1)}], ids=["together", "alone"])
def test_states_of_a_text_may_lie_among_states_that_are_never_read(
    variant: str, words: int, backend: Backend | None, texts: Mapping[int, Sequence[int]]
) -> None:
    layers = layers_of(variant, words)
    expected = drafts(model_of(layers), texts)
    assert_alike(drafts(model_of(layers, backend), texts, among=3), expected)


def test_all_levels_of_a_tree_share_one_graph_if_graphs_have_fixed_shapes() -> None:
    model = model_of(layers_of("eagle"), "eager")
    drafts(model, {0: (8, 3, 5)})
    assert model.num_graphs == 1


def test_graphs_of_trees_serve_long_texts_of_any_length_budgets_and_stop_ids() -> None:
    model, plain = (model_of(layers_of("eagle"), backend) for backend in ("eager", None))
    num_graphs = set[int]()
    for length, num_tokens in ((MERGED_ROWS + 1, 9), (MERGED_ROWS + 6, 7), (200, 8)):
        budget: Any = {"max_new_tokens": num_tokens, "stop_ids": frozenset({num_tokens})}
        texts = {0: (length, 3)}
        assert_alike(drafts(model, texts, **budget), drafts(plain, texts, **budget))
        num_graphs.add(model.num_graphs)
    assert num_graphs == {1}, "that of the second text"


def test_batches_in_which_sequences_pause_need_no_further_graph() -> None:
    model = model_of(layers_of("eagle"), "eager")
    drafts(model, {0: (3,), 1: (4,), 2: (2,), 3: (5,)})
    num_graphs = model.num_graphs
    drafts(model, {0: (2,), 3: (3,)})
    assert model.num_graphs == num_graphs


@pytest.mark.parametrize("variant", ["shallow", "eagle"])
@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_text_sees_nothing_of_the_text_that_ran_before(
    variant: str, backend: Backend | None
) -> None:
    layers = layers_of(variant)
    model = model_of(layers, backend)
    drafts(model, {0: (40, 7), 1: (50,)})
    first = drafts(model)
    assert_alike(first, drafts(model_of(layers)))
    num_graphs = model.num_graphs
    assert_alike(drafts(model), first)
    assert model.num_graphs == num_graphs


def test_a_wiped_row_leaves_no_nan_to_the_text_that_follows() -> None:
    layers = layers_of("eagle")
    model = model_of(layers)
    session, states = model.open(), torch.full((12, WIDTH), torch.nan)
    model.draft([session.draft("drafts", states, range(12), shape_of("eagle"), Sampling())])
    model.wipe(session.row)
    model.close(session)
    assert_alike(drafts(model), drafts(model_of(layers)))


def test_a_text_keeps_its_entries_where_its_row_moves() -> None:
    model, stayed = (model_of(layers_of("eagle")) for _ in range(2))
    found = list[CallResult]()
    for each, moves in ((model, True), (stayed, False)):
        first, second = each.open(), each.open()
        shape, states = shape_of("eagle"), noise(6, WIDTH)
        args = shape, Sampling()
        each.draft([second.draft("drafts", states[:4], [1, 2, 3, 4], *args)])
        if moves:
            each.close(first)
            assert second.row == 0
        found += each.draft([second.draft("drafts", states[4:], [5, 6], *args)])
    assert_alike(found[:1], found[1:])


def test_long_texts_and_uncompiled_models_make_no_graph() -> None:
    model = model_of(layers_of("shallow"), "export", 2 * COMPILED_PROMPT)
    drafts(model, {0: (COMPILED_PROMPT + 1,)})
    with model.uncompiled():
        drafts(model)
    assert model.num_graphs == 0


def test_a_longer_cache_forgets_graphs_of_the_old_planes() -> None:
    layers = layers_of("shallow")
    model = model_of(layers, "eager")
    drafts(model)
    old = [*model._drafts["drafts"].graphs._graphs.values()]  # type: ignore[union-attr]
    model.reserve(4, 350)
    assert_alike(drafts(model, {0: (220, 2)}), drafts(model_of(layers), {0: (220, 2)}))
    kept = [*model._drafts["drafts"].graphs._graphs.values()]  # type: ignore[union-attr]
    assert old
    assert kept
    assert not {*map(id, old)} & {*map(id, kept)}


def test_an_adapter_replaces_an_adapter_of_another_kind_with_the_same_name() -> None:
    model = HFModel(fresh("llama"))
    kinds: list[Any] = [slot_adapter(model.module), layers_of("medusa")]
    for first, second in (kinds, kinds[::-1]):
        model.attach("x", first)
        model.attach("x", second)
        assert model.adapters["x"].variant == second.config.variant
        assert ("x" in model._drafts) != ("x" in model._runner.adapters)


def test_memory_counts_the_planes_of_all_sequences() -> None:
    model = model_of(layers_of("shallow"))
    before = model.adapter_bytes("drafts")
    drafts(model, {0: (3,)})
    planes = model.adapter_bytes("drafts") - before
    assert planes == 4 * 4 * WIDTH * (300 + 2 * (MAX_DRAFTS + 1)) * 4  # rows, planes, float32
    drafts(model)
    assert model.adapter_bytes("drafts") - before == planes  # used again
    model.reserve(2, 301)
    assert model.adapter_bytes("drafts") == before


def test_a_text_as_long_as_its_cache_is_not_filled_up() -> None:
    layers = layers_of("eagle")
    found = drafts(model_of(layers, "eager", 130), {0: (130,)})
    assert_alike(found, drafts(model_of(layers), {0: (130,)}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", ["shallow", "eagle", "medusa"])
def test_a_gpu_replays_its_graphs_for_other_texts(variant: str) -> None:
    layers = layers_of(variant)
    plain, captured = (HFModel(fresh("llama").to("cuda"), compile=c) for c in (False, True))
    for model in (plain, captured):
        model.attach("drafts", layers)
        model.reserve(4, 300)
    num_graphs = []
    for texts in (TEXTS, {0: (2, 2), 1: (3,)}):
        assert_alike(drafts(captured, texts), drafts(plain, texts))
        num_graphs.append(captured.num_graphs)
    assert num_graphs[0] > 0
    assert drafts(captured)
    assert captured.num_graphs == num_graphs[1]

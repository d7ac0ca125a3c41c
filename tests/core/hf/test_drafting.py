"""Draft layers run as graphs: they draft as the plain layers do, in caches that are used again."""

from __future__ import annotations

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
from decoders.core.types import MAX_DRAFTS
from tests.tiny_models import VOCAB, WIDTH, fresh

LENGTHS = (3, 1, 5, 2, 1)
UNIFORMS = [0.1, 0.9, 0.4]


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers_of(variant: str, num_words: int = 0) -> HiddenAdapter:
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
    config = AdapterConfig(
        variant="shallow", layers={}, num_words=20, num_layers=2, bias_rank=3, **sizes
    )
    layers = ParallelLayers(config, seed=3)
    with torch.no_grad():
        layers.right.copy_(noise(*layers.right.shape, seed=4))
    return layers


def model_of(layers: HiddenAdapter, backend: Backend | None = None, length: int = 300) -> HFModel:
    compiled: dict[str, Any] = {} if backend is None else {"compile": True, "backend": backend}
    model = HFModel(fresh("llama"), **compiled)
    model.attach("drafts", layers)
    model.reserve(2, length)
    return model


def drafts(model: HFModel, seed: int = 1, lengths: tuple[int, ...] = LENGTHS) -> list[Any]:
    """Everything that layers give for one text, fed in parts and drafted behind."""
    cache, found = model.drafter("drafts", 200), list[Any]()
    for step, num in enumerate(lengths):
        states = noise(num, WIDTH, seed=100 * seed + step).to(model.device)
        tokens = [(7 * step + 3 * row) % VOCAB for row in range(num)]
        if hasattr(cache, "propose"):
            drafted, chances = cache.propose(states, tokens, UNIFORMS, 0.7)
            found += [drafted, torch.tensor(chances)]
            continue
        logits, end = cache.feed(states, tokens)
        first, states = cache.draft(end.expand(2, -1), [5, 6], [-1, -1])
        second, states = cache.draft(states[[1, 0, 1]], [1, 2, 3], [1, 0, 1])
        found += [logits, first, second, states]
    return found


def assert_alike(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, list):
            assert one == other
        else:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "words"), [("shallow", 20), ("eagle", 0), ("eagle", 9)])
@pytest.mark.parametrize(("backend", "graphs"), [("export", 1), ("eager", None)])
def test_graphs_draft_as_plain_layers(
    variant: str, words: int, backend: Backend, graphs: int | None
) -> None:
    layers = layers_of(variant, words)
    model = model_of(layers, backend)
    assert_alike(drafts(model), drafts(model_of(layers)))
    if graphs is not None:  # one serves all sizes
        assert model.num_graphs == graphs


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["export", "eager"])
def test_graphs_of_heads_propose_as_plain_heads(backend: Backend) -> None:
    layers = layers_of("medusa")
    model, plain = model_of(layers, backend), model_of(layers)
    for num in (1, 1, 3, 2):
        states = noise(num, WIDTH, seed=num)
        found, expected = (each.propose("drafts", states) for each in (model, plain))
        assert found.shape == (num, 4, VOCAB)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert model.num_graphs == 2 + (backend == "eager")  # of one row and of more, or of each number


@pytest.mark.parametrize("variant", ["shallow", "eagle"])
@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_text_that_comes_after_another_sees_nothing_of_it(
    variant: str, backend: Backend | None
) -> None:
    layers = layers_of(variant)
    model = model_of(layers, backend)
    drafts(model, seed=2, lengths=(40, 7))
    num_graphs, first = model.num_graphs, drafts(model)
    assert_alike(first, drafts(model_of(layers)))
    assert_alike(drafts(model), first)
    if backend is not None:  # the planes are those of the text before, and so are its graphs
        assert model.num_graphs <= num_graphs + 1


def test_two_texts_at_once_have_planes_of_their_own() -> None:
    model, alone = (model_of(layers_of("shallow")) for _ in range(2))
    one, two = model.drafter("drafts", 200), model.drafter("drafts", 200)
    only = alone.drafter("drafts", 200)
    for step in range(3):
        states = noise(2, WIDTH, seed=step)
        two.propose(noise(3, WIDTH, seed=9), [1, 2, 3], UNIFORMS, 0.7)
        found = one.propose(states, [step, 4], UNIFORMS, 0.7)
        assert found[0] == only.propose(states, [step, 4], UNIFORMS, 0.7)[0]


def test_long_texts_and_uncompiled_models_make_no_graph() -> None:
    model = model_of(layers_of("shallow"), "export", 2 * COMPILED_PROMPT)
    cache = model.drafter("drafts", 2 * COMPILED_PROMPT)
    num_rows = COMPILED_PROMPT + 1
    cache.propose(noise(num_rows, WIDTH), [1] * num_rows, UNIFORMS, 0.7)
    with model.uncompiled():
        drafts(model)
    assert model.num_graphs == 0


def test_a_longer_cache_forgets_graphs_of_the_old_planes() -> None:
    layers = layers_of("shallow")
    model = model_of(layers, "eager")
    drafts(model)
    old = set(model._drafts["drafts"].graphs._graphs)  # type: ignore[union-attr]
    cache = model.drafter("drafts", 250)
    tokens = [1] * 220
    found = cache.propose(noise(220, WIDTH), tokens, UNIFORMS, 0.0)
    expected = model_of(layers).drafter("drafts", 250)
    assert found[0] == expected.propose(noise(220, WIDTH), tokens, UNIFORMS, 0.0)[0]
    cache.propose(noise(2, WIDTH), [1, 1], UNIFORMS, 0.0)
    kept = set(model._drafts["drafts"].graphs._graphs)  # type: ignore[union-attr]
    assert old
    assert kept
    assert not old & kept  # by their sizes; an address may be used again


def test_memory_counts_the_planes_of_all_texts_at_once() -> None:
    model = model_of(layers_of("shallow"))
    before = model.adapter_bytes("drafts")
    caches = [model.drafter("drafts", 200) for _ in range(2)]
    planes = model.adapter_bytes("drafts") - before
    assert planes == 2 * 4 * 4 * WIDTH // 4 * (200 + MAX_DRAFTS) * 4  # texts, planes, float32
    caches.clear()
    model.drafter("drafts", 200)
    assert model.adapter_bytes("drafts") - before == planes  # used again
    model.reserve(2, 301)
    assert model.adapter_bytes("drafts") == before


def test_rows_without_a_graph_are_not_filled_up() -> None:
    """A text as long as its cache may fill it: only graphs need rounder numbers of rows."""
    model = model_of(layers_of("eagle"), "eager")
    tokens = [1] * 130
    logits, _ = model.drafter("drafts", 130).feed(noise(130, WIDTH), tokens)
    expected, _ = (
        model_of(layers_of("eagle")).drafter("drafts", 130).feed(noise(130, WIDTH), tokens)
    )
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", ["shallow", "eagle", "medusa"])
def test_a_gpu_replays_passes_of_any_text(variant: str) -> None:
    layers = layers_of(variant)
    plain, captured = (HFModel(fresh("llama").to("cuda"), compile=c) for c in (False, True))
    for model in (plain, captured):
        model.attach("drafts", layers)
        model.reserve(2, 300)
    num_graphs = []
    for seed in (1, 2):
        if variant == "medusa":
            states = noise(2, WIDTH, seed=seed).to("cuda")
            found, expected = ([m.propose("drafts", states)] for m in (captured, plain))
        else:
            found, expected = (drafts(model, seed=seed) for model in (captured, plain))
        assert_alike(found, expected)
        num_graphs.append(captured.num_graphs)
    assert 0 < num_graphs[0] == num_graphs[1]

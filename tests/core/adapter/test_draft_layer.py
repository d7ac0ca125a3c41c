"""A draft layer: cached rows against whole texts, trees against paths, files, models it fits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from decoders.core.adapter.draft_layer import DraftCache, DraftLayer, LayerPass
from decoders.core.adapter.heads import DraftHeads, read_adapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.hf.model import HFModel
from tests.tiny_models import WIDTH, fresh
from training.heads.layer_job import unrolled

VOCAB = 11


def config_of(**options: Any) -> AdapterConfig:
    chosen = {"num_slots": 3, "rank": 5, "width": WIDTH, "num_heads": 4, **options}
    return AdapterConfig(variant="eagle", code="constant", layers={}, **chosen)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Made:
    """A layer with an embedding and a head of its own."""

    def __init__(self) -> None:
        self.layer = DraftLayer(config_of(), seed=3).eval().requires_grad_(False)
        self.table, self.head = noise(VOCAB, WIDTH), noise(VOCAB, WIDTH, seed=2)

    def cache(self) -> DraftCache:
        work = LayerPass(
            self.layer, lambda ids: self.table[ids], lambda states: states @ self.head.T
        )
        return DraftCache(work, work.planes(64))

    def path(self, states: torch.Tensor, tokens: list[int], own: list[int]) -> torch.Tensor:
        """The state after `own` drafts behind a text, one row at a time, nothing else cached."""
        cache = self.cache()
        _, state = cache.feed(states, tokens)
        for number, token in enumerate(own):
            _, state = cache.draft(state, [token], [number - 1])
        return state


def test_text_in_parts_is_text_in_one_go() -> None:
    made, states, tokens = Made(), noise(6, WIDTH, seed=5), [1, 2, 3, 4, 5, 6]
    whole = made.cache().feed(states, tokens)
    cache = made.cache()
    cache.feed(states[:2], tokens[:2])
    _, state = cache.feed(states[2:3], tokens[2:3])
    cache.draft(state, [9], [-1])  # a draft that is forgotten
    parts = cache.feed(states[3:], tokens[3:])
    torch.testing.assert_close(parts, whole)


def test_a_row_of_a_tree_sees_the_text_and_its_own_ancestors() -> None:
    made, states, tokens = Made(), noise(4, WIDTH, seed=5), [1, 2, 3, 4]
    cache = made.cache()
    _, end = cache.feed(states, tokens)
    _, first = cache.draft(end.expand(2, -1), [5, 6], [-1, -1])
    _, second = cache.draft(first[[1, 0, 1]], [7, 8, 9], [1, 0, 1])
    _, third = cache.draft(second[[2]], [10], [4])
    for state, own in (
        (first[1], [6]), (second[0], [6, 7]), (second[1], [5, 8]), (third[0], [6, 9, 10])
    ):  # fmt: skip
        torch.testing.assert_close(state, made.path(states, tokens, own)[0])


def test_training_goes_on_as_decoding_does() -> None:
    """The unrolled states of every place are those of the cache, which is fed row by row."""
    made, length, depths = Made(), 7, 3
    tokens = [3, 1, 4, 1, 5, 9, 2]
    hidden = noise(length, WIDTH, seed=6)
    states = unrolled(made.layer, hidden[None], made.table[tokens][None], depths)
    for place in range(length - depths):
        own = tokens[place + 2 : place + 1 + depths]
        for depth in range(depths):
            expected = made.path(hidden[: place + 1], tokens[1 : place + 2], own[:depth])
            torch.testing.assert_close(states[depth][0, place], expected[0], atol=1e-5, rtol=1e-4)


def test_places_of_the_text_matter_and_their_start_does_not() -> None:
    made = Made()
    rows = noise(3, WIDTH, seed=7)
    for shift in (0, 5):
        query, key, _ = made.layer.project(rows, made.layer.turn(torch.arange(3) + shift))
        scores = query @ key.transpose(-1, -2)
        if shift == 0:
            expected = scores
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
    apart, key, _ = made.layer.project(rows, made.layer.turn(torch.tensor([0, 4, 9])))
    assert not torch.allclose(apart @ key.transpose(-1, -2), expected, atol=1e-2)


def test_files_keep_all_and_each_kind_is_read_as_what_it_is(tmp_path: Path) -> None:
    layer = Made().layer
    layer.save(tmp_path)
    loaded = read_adapter(tmp_path)
    assert isinstance(loaded, DraftLayer)
    assert loaded.config == layer.config
    for name, value in layer.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    with pytest.raises(ValueError, match="of variant eagle, but medusa is needed"):
        DraftHeads.load(tmp_path)
    text = (tmp_path / "adapter.json").read_text()
    (tmp_path / "adapter.json").write_text(text.replace('"rank": 5', '"rank": 500000000'))
    with pytest.raises(ValueError, match="its sizes are"):
        DraftLayer.load(tmp_path)


@pytest.mark.parametrize("num_heads", [0, 3, 64])
def test_heads_must_cut_the_width_into_even_parts(num_heads: int) -> None:
    with pytest.raises(ValueError, match="'num_heads'"):
        config_of(num_heads=num_heads)


def test_a_layer_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=f"draft layer was made for a model 40 wide, not {WIDTH}"):
        HFModel(fresh("llama")).attach("eagle", DraftLayer(config_of(width=40)))

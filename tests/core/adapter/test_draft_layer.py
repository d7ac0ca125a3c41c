"""A draft layer: trees against dense attention along each path, files, models it fits."""

import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core import products
from decoders.core.adapter import draft_layer
from decoders.core.adapter.draft_layer import DraftLayer, LayerPass
from decoders.core.adapter.draft_pass import Texts
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter.module import read_adapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.hf.model import HFModel
from decoders.core.model import DraftCall, Session
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, DraftShape, Sampling
from tests.core.hf.test_llama import Kernels
from tests.tiny_models import WIDTH, fresh
from training.heads.job import unrolled

VOCAB = 11
Path = tuple[int, ...]


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

    @property
    def work(self) -> LayerPass:
        return LayerPass(
            self.layer, lambda ids: self.table[ids], lambda states: states @ self.head.T
        )

    def path(self, states: Tensor, tokens: list[int], own: Sequence[int]) -> Tensor:
        """The state after `own` drafts behind a text, one row at a time by dense attention."""
        keys, values, out = [], [], states[0]
        for place, token in enumerate([*tokens, *own]):
            state = states[place] if place < len(tokens) else out
            row = self.layer.enter(state, self.table[token])[None]
            query, key, value = self.layer.project(row, self.layer.turn(torch.tensor([place])))
            keys.append(key)
            values.append(value)
            scores = query @ torch.cat(keys, -2).mT / query.shape[-1] ** 0.5
            out = self.layer.leave(row, scores.softmax(-1) @ torch.cat(values, -2))[0]
        return out

    def likeliest(self, states: Tensor, tokens: list[int], shape: DraftShape) -> dict[Path, float]:
        """The tree by brute force: its paths with their chances."""
        chances: dict[Path, float] = {(): 1.0}
        level: list[Path] = [()]
        for _ in range(shape.depth):
            new = []
            for path in level:
                odds = (self.head @ self.path(states, tokens, path)).softmax(-1)
                for token in odds.topk(shape.width).indices.tolist():
                    chances[*path, token] = chances[path] * float(odds[token])
                    new.append((*path, token))
            level = sorted(new, key=lambda path: -chances[path])[: shape.width]
        del chances[()]
        kept = sorted(chances, key=lambda path: -chances[path])[: shape.nodes]
        return {path: chances[path] for path in kept}


SHAPE = DraftShape(depth=4, width=3, nodes=14)


def paths(result: CallResult) -> dict[Path, float]:
    found: list[Path] = []
    for token, parent in zip(result.picks, result.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return dict(zip(found, result.confidences, strict=True))


@pytest.mark.parametrize(("bucketed", "kernels"), [(0, None), (64, None), (64, Kernels())])
def test_trees_of_several_texts_fed_in_parts_are_those_of_each_whole_text(
    bucketed: int, kernels: Kernels | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (draft_layer, products):
        monkeypatch.setattr(module, "fused_kernels", lambda _: kernels)
    made, lengths, depths = Made(), {0: (3, 1, 2), 1: (1, 4, 1), 3: (2, 2, 5)}, {0: 4, 1: 2, 3: 3}
    work, planes = made.work, made.work.planes(4, 64)
    sessions = {row: Session(TableModel(5), row, 64) for row in lengths}
    texts: dict[int, tuple[Tensor, list[int]]] = {}
    for row, parts in lengths.items():
        texts[row] = noise(sum(parts), WIDTH, seed=row), [(3 * row + n) % VOCAB for n in range(9)]
    for part in range(3):
        calls: list[DraftCall | None] = [None] * 4
        for row, parts in lengths.items():
            new = slice(sum(parts[:part]), sum(parts[: part + 1]))
            states, tokens = texts[row][0][new], texts[row][1][new]
            calls[row] = sessions[row].draft(
                "eagle", states, tokens, SHAPE, Sampling(), max_depth=depths[row]
            )
        results = work.draft(Texts.of(calls, planes, bucketed), work, VOCAB)
        for (row, parts), result in zip(lengths.items(), results, strict=True):
            num = sum(parts[: part + 1])
            shape = replace(SHAPE, depth=depths[row])
            expected = made.likeliest(texts[row][0][:num], texts[row][1][:num], shape)
            assert paths(result) == pytest.approx(expected, rel=1e-4)
            assert sessions[row].fed == {"eagle": num}
            if not bucketed:  # a graph runs all levels for every text
                assert sessions[row].draft_calls <= (part + 1) * depths[row]


@pytest.mark.parametrize("nodes", [4, 9])
def test_many_short_texts_in_one_pass_get_the_trees_and_draft_calls_of_each_text_alone(
    nodes: int,
) -> None:
    made, shape = Made(), DraftShape(depth=4, width=4, nodes=nodes)
    work, num = made.work, 17
    texts = [(noise(1, WIDTH, seed=row), [row % VOCAB]) for row in range(num)]
    together, alone = (
        [
            Session(TableModel(5), row, 64).draft("eagle", *text, shape, Sampling())
            for row, text in enumerate(texts)
        ]
        for _ in range(2)
    )
    results = work.draft(Texts.of(together, work.planes(num, 64), 0), work, VOCAB)
    for text, result, call, lone in zip(texts, results, together, alone, strict=True):
        assert paths(result) == pytest.approx(made.likeliest(*text, shape), rel=1e-4)
        work.draft(Texts.of([lone], work.planes(1, 64), 0), work, VOCAB)
        assert call.session.draft_calls == lone.session.draft_calls
    if nodes == 4:
        assert len({call.session.draft_calls for call in together}) > 1


def test_passes_stop_once_no_draft_can_be_among_the_likeliest() -> None:
    for nodes, passes in ((1, 1), (14, 4)):
        session, _ = drafted_alone(DraftShape(depth=4, width=3, nodes=nodes))
        assert (session.draft_calls, session.draft_rows) == (passes, 3 + 3 * (passes - 1))


def test_passes_stop_once_the_total_probability_of_the_next_rows_is_below_the_floor() -> None:
    _, tree = drafted_alone(DraftShape(depth=2, width=3, nodes=12))
    level = sorted(chance for path, chance in paths(tree).items() if len(path) == 2)
    between = (sum(level[-3:]) + sum(level)) / 2
    for floor, passes in ((1.0, 1), (between, 2), (sum(level[-3:]) - 1e-6, 3)):
        session, _ = drafted_alone(DraftShape(depth=3, width=3, nodes=30, floor=floor))
        assert session.draft_calls == passes


def drafted_alone(shape: DraftShape) -> tuple[Session, CallResult]:
    work, session = Made().work, Session(TableModel(5), 0, 64)
    call = session.draft("eagle", noise(3, WIDTH, seed=5), [1, 2, 3], shape, Sampling())
    (result,) = work.draft(Texts.of([call], work.planes(1, 64), 0), work, VOCAB)
    return session, result


def test_unrolled_training_states_equal_the_cached_states_of_decoding() -> None:
    """The unrolled states of every place are those of the cache, which is fed row by row."""
    made, length, depths = Made(), 7, 3
    tokens = [3, 1, 4, 1, 5, 9, 2]
    hidden = noise(length, WIDTH, seed=6)
    states = unrolled(made.layer, hidden[None], made.table[tokens][None], depths)
    for place in range(length - depths):
        own = tokens[place + 2 : place + 1 + depths]
        for depth in range(depths):
            expected = made.path(hidden[: place + 1], tokens[1 : place + 2], own[:depth])
            torch.testing.assert_close(states[depth][0, place], expected, atol=1e-5, rtol=1e-4)


def test_attention_depends_on_relative_and_not_on_absolute_positions() -> None:
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


def test_a_saved_draft_layer_loads_unchanged_and_mismatching_files_are_refused(
    tmp_path: pathlib.Path,
) -> None:
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
    with pytest.raises(ValueError, match="size mismatch for"):
        DraftLayer.load(tmp_path)


@pytest.mark.parametrize("num_heads", [0, 3, 64])
def test_the_number_of_heads_must_divide_the_width_into_parts_of_even_size(num_heads: int) -> None:
    with pytest.raises(ValueError, match="'num_heads'"):
        config_of(num_heads=num_heads)


def test_a_layer_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=f"the adapter was made for a model 40 wide, not {WIDTH}"):
        HFModel(fresh("llama")).attach("eagle", DraftLayer(config_of(width=40)))

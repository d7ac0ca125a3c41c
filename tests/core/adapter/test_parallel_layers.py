"""Layers that draft in one pass: against dense attention, cached, biased, in files, refused."""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core.adapter.draft_pass import Texts, short_head
from decoders.core.adapter.embedding import NUM_LEVELS
from decoders.core.adapter.module import read_adapter
from decoders.core.adapter.parallel_layers import ParallelLayers, SlotPass
from decoders.core.adapter_config import AdapterConfig
from decoders.core.hf.model import HFModel
from decoders.core.model import Session
from decoders.core.testing.table_model import TableModel
from decoders.core.types import MAX_DRAFTS, NO_UNIFORM, DraftShape, Sampling
from tests.tiny_models import WIDTH, fresh
from training.heads.parallel_job import run_slots

VOCAB, SLOTS, WORDS = 60, 4, 50


def config_of(**options: Any) -> AdapterConfig:
    sizes = {"num_slots": SLOTS, "rank": 6, "width": WIDTH, "num_heads": 4, "num_words": WORDS}
    chosen = {"num_layers": 2, "bias_rank": 3, **sizes, **options}
    return AdapterConfig(variant="shallow", layers={}, **chosen)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Made:
    """Layers with a bias, and an embedding and a head of their own."""

    def __init__(self, **options: Any) -> None:
        self.layers = ParallelLayers(config_of(**options), seed=3).eval().requires_grad_(False)
        self.layers.right.copy_(noise(*self.layers.right.shape, seed=4))
        self.layers.numbers.copy_(noise(*self.layers.numbers.shape, seed=8))
        self.layers.warmth.copy_(noise(WIDTH, seed=9))
        if self.layers.num_candidates:
            self.layers.context.copy_(noise(*self.layers.context.shape, seed=10))
        self.layers.words.copy_(torch.arange(self.layers.config.num_words) + 5)
        self.table, head = noise(VOCAB, WIDTH), torch.nn.Linear(WIDTH, VOCAB, bias=True)
        head.weight.data, head.bias.data = noise(VOCAB, WIDTH, seed=2), noise(VOCAB, seed=6)
        self.head = short_head(head, self.layers.words)

    def begin(self, num: int = 1) -> tuple[SlotPass, list[Tensor], list[Session]]:
        work = SlotPass(self.layers, lambda ids: self.table[ids], self.head)
        return work, work.planes(num, 64), [Session(TableModel(5), row, 64) for row in range(num)]

    def drafted(
        self,
        begun: tuple[SlotPass, list[Tensor], list[Session]],
        texts: Sequence[tuple[Tensor, list[int]]],
        uniforms: Sequence[float],
        temperature: float,
    ) -> list[tuple[list[int], list[float]]]:
        """Tokens and chances of each text's drafts; a text without a token makes no call."""
        work, planes, sessions = begun
        shape, sampling = DraftShape(depth=len(uniforms)), Sampling(temperature=temperature)
        calls = [
            session.draft("shallow", *text, shape, sampling, uniforms) if text[1] else None
            for session, text in zip(sessions, texts, strict=True)
        ]
        results = work.draft(Texts.of(calls, planes, 0), work, VOCAB)
        return [(list(each.picks), list(each.confidences)) for each in results]

    def dense(self, states: Tensor, tokens: list[int], u: Tensor, warm: float) -> Tensor:
        """States of slots behind a text by attention with one dense mask, head by head."""
        layers, num = self.layers, len(tokens)
        text = layers.enter(states, self.table[tokens])
        slots = layers.slots(text[-1], layers.embedded(u), warm)
        places = torch.arange(num + len(u))
        sees = torch.ones(len(u), num + len(u), dtype=torch.bool).tril_(num)

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            _, keys, values = layers.layers[number].project(text, layers.turn(places[:num]))
            out = []
            for head in range(len(query)):
                k, v = torch.cat([keys[head], key[head]]), torch.cat([values[head], value[head]])
                scores = query[head] @ k.T / query.shape[-1] ** 0.5
                out.append(scores.masked_fill(~sees, float("-inf")).softmax(-1) @ v)
            return torch.stack(out)

        states = layers(slots, layers.turn(places[num:]), attend)
        assert isinstance(states, Tensor)
        return states

    def whole(self, states: Tensor, before: int) -> tuple[list[int], list[float]]:
        """Drafts of slots' states by all logits and all of the bias, or by all paths."""
        if num := self.layers.num_candidates:
            return best_path(self.layers, self.head(states), states, before, num)
        tokens, chances = [], []
        for logits in self.head(states):
            known = self.layers.words.tolist().index(before) if before in range(5, 55) else WORDS
            chance = (logits + self.layers.right @ self.layers.left[known]).softmax(-1)
            before = int(self.layers.words[chance.argmax()])
            tokens.append(before)
            chances.append(chance.max().item())
        return tokens, chances


def best_path(
    layers: ParallelLayers, logits: Tensor, states: Tensor, before: int, num: int
) -> tuple[list[int], list[float]]:
    """Try every path through the likeliest words for the expected number of its first drafts."""
    words = layers.words.tolist()

    @functools.cache
    def chance(slot: int, last: int, word: int) -> float:
        row, likely = logits[slot].double(), logits[slot].topk(num).indices
        left = layers.left[words.index(last) if last in words else len(words)]
        bias = layers.right @ (left * (1 + layers.context @ states[slot]))
        biased = row.index_add(0, likely, bias[likely].double())
        return float(biased.softmax(-1)[word])

    likely = [row.topk(num).indices.tolist() for row in logits]
    found: tuple[float, list[int], list[float]] = (-1.0, [], [])
    for path in itertools.product(*likely):
        tokens = [words[word] for word in path]
        chances = [
            chance(slot, last, word)
            for slot, (last, word) in enumerate(zip([before, *tokens], path, strict=False))
        ]
        expected = float(torch.tensor(chances, dtype=torch.float64).cumprod(0).sum())
        found = max(found, (expected, tokens, chances))
    return found[1:]


U = (torch.tensor([409, 3686, 2048, 1024], dtype=torch.float64) + 0.5) / NUM_LEVELS


def test_a_pass_over_many_places_equals_dense_attention_at_each_place() -> None:
    made, tokens, anchors = Made(), [3, 1, 4, 1, 5, 9, 2], torch.tensor([[5, 2]])
    hidden = noise(len(tokens), WIDTH, seed=6)
    text = made.layers.enter(hidden, made.table[tokens])[None]
    slots = made.layers.slots(text[0, anchors], made.layers.embedded(U.expand(1, 2, -1)), 0.7)
    found = run_slots(made.layers, text, slots.flatten(1, 2), anchors).view(2, SLOTS, WIDTH)
    for states, anchor in zip(found, anchors[0].tolist(), strict=True):
        expected = made.dense(hidden[: anchor + 1], tokens[: anchor + 1], U, 0.7)
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("candidates", [0, 3])
@pytest.mark.parametrize(("temperature", "tokens"), [(0.0, [3, 11]), (0.7, [3, 12, 59])])
def test_drafts_after_a_text_fed_in_parts_equal_those_after_the_whole_text(
    temperature: float, tokens: list[int], candidates: int
) -> None:
    made, text = Made(sizes={"candidates": candidates}), [8, 9, 10, 7]
    states, uniforms = noise(len(text + tokens), WIDTH, seed=5), U.tolist()
    other, none = noise(9, WIDTH, seed=6), (states[:0], list[int]())
    begun = made.begin(3)
    slots = [0.3, 0.4]  # that are forgotten
    made.drafted(begun, [(states[:4], text), (other[:7], [1] * 7), none], slots, temperature)
    parts = [(states[4:], tokens), (other[7:], [2, 3]), none]
    found, beside = made.drafted(begun, parts, uniforms, temperature)
    u = U if temperature else torch.full_like(U, NO_UNIFORM)
    for drafts, all_states, all_tokens in (
        (found, states, text + tokens),
        (beside, other, [*[1] * 7, 2, 3]),
    ):
        expected = made.whole(made.dense(all_states, all_tokens, u, temperature), all_tokens[-1])
        assert drafts[0] == expected[0]
        assert drafts[1] == pytest.approx(expected[1], rel=1e-3)


def test_more_slots_than_any_tree_has_drafts_do_not_affect_other_texts() -> None:
    made, u = Made(num_slots=MAX_DRAFTS + 9), torch.linspace(0, 0.99, MAX_DRAFTS + 9)
    texts = [(noise(3, WIDTH, seed=row), [7, 8, 9 + row]) for row in range(3)]
    texts[1] = (texts[1][0], [])  # a row of no call beside them
    begun, alone = made.begin(3), made.begin(1)
    for _ in range(2):  # entries that an earlier call damaged would show in the later one
        found = made.drafted(begun, texts, u.tolist(), 0.7)
        expected = made.drafted(alone, texts[2:], u.tolist(), 0.7)
        assert found[1][0] == expected[0][0]
        assert found[1][1] == pytest.approx(expected[0][1], rel=1e-4)


@pytest.mark.parametrize("rank", [3, 0])
@pytest.mark.parametrize("before", [7, 2])
def test_the_full_bias_of_the_previous_draft_is_added_to_the_logits(before: int, rank: int) -> None:
    made = Made(num_words=30, bias_rank=rank)
    logits = noise(SLOTS, 30, seed=7)
    ((tokens, chances),) = made.layers.chain(logits[None], torch.tensor([before])).tolist()
    known = before - 5 if before >= 5 else 30
    for row, token, chance in zip(logits, tokens, chances, strict=True):
        expected = (row + made.layers.right @ made.layers.left[known]).softmax(-1)
        known = int(expected.argmax())
        assert token == known + 5
        assert chance == pytest.approx(expected[known].item(), rel=1e-5)


def test_the_path_is_the_best_of_all_paths_for_every_sequence() -> None:
    made = Made(num_words=30, sizes={"candidates": 5})
    befores = torch.arange(20)  # words and others
    logits, states = 0.3 * noise(20, SLOTS, 30, seed=7), noise(20, SLOTS, WIDTH, seed=11)
    states[:, 0] = 0  # first words are alike, what follows them is not
    found, at_once = made.layers.select(logits, states, befores).tolist(), 0
    for row, (tokens, chances) in enumerate(found):
        about = states[row], int(befores[row]), 5
        expected = best_path(made.layers, logits[row], *about)
        assert (tokens, pytest.approx(chances, rel=1e-4)) == expected
        at_once += tokens[:1] == best_path(made.layers, logits[row, :1], *about)[0]
    assert at_once < 20, "so looking ahead matters"


def test_states_of_several_layers_are_normed_each_and_joined() -> None:
    layers = Made(sizes={"hidden_layers": [1, -1]}).layers
    low, high, token = noise(3, WIDTH), 100 * noise(3, WIDTH, seed=2), noise(3, WIDTH, seed=3)
    whole = torch.stack([low, high, token], 1)
    parts = whole / (whole.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    joined = layers.enter(torch.cat([low, high], -1), token)
    torch.testing.assert_close(joined, parts.flatten(1) @ layers.join.T)


def test_uniforms_and_temperature_change_sampled_drafts_and_greedy_drafts_ignore_uniforms() -> None:
    made, states = Made(), noise(3, WIDTH, seed=5)

    def drafted(uniforms: list[float], temperature: float) -> list[float]:
        return made.drafted(made.begin(), [(states, [8, 9, 10])], uniforms, temperature)[0][1]

    assert drafted([0.1, 0.2], 0.7) != drafted([0.4, 0.2], 0.7)
    assert drafted([0.1, 0.2], 0.7)[0] == pytest.approx(drafted([0.1, 0.9], 0.7)[0], rel=1e-5)
    assert drafted([0.1, 0.2], 0.7) != drafted([0.1, 0.2], 1.0)
    assert drafted([0.1, 0.2], 0.0) == drafted([0.4, 0.7], 0.0)


def test_saved_parallel_layers_load_unchanged_and_mismatching_files_are_refused(
    tmp_path: Path,
) -> None:
    layers = Made(code="constant", sizes={"candidates": 9, "hidden_layers": [1, 2]}).layers
    layers.save(tmp_path)
    loaded = read_adapter(tmp_path)
    assert isinstance(loaded, ParallelLayers)
    assert loaded.config == layers.config
    for name, value in layers.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    text = (tmp_path / "adapter.json").read_text()
    for old, new in (("[1, 2]", "[1, 2, 2]"), ('"candidates": 9, ', "")):
        assert old in text
        (tmp_path / "adapter.json").write_text(text.replace(old, new))
        with pytest.raises(ValueError, match="cannot be loaded"):
            ParallelLayers.load(tmp_path)
    for own in ('"num_slots": 4', '"num_words": 50', '"bias_rank": 3', '"rank": 6'):
        large = text.replace(f" {own}", f" {own}00000000")
        (tmp_path / "adapter.json").write_text(large)
        with pytest.raises(ValueError, match="size mismatch for"):
            ParallelLayers.load(tmp_path)
    (tmp_path / "adapter.json").write_text(text.replace('"num_layers": 2', '"num_layers": 3'))
    with pytest.raises(ValueError, match="cannot be loaded"):
        ParallelLayers.load(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_heads": 3},
        {"num_words": 0},
        {"num_layers": 0},
        {"bias_rank": -1},
        {"bias_rank": 0, "sizes": {"candidates": 4}},
        {"sizes": {"candidates": WORDS}},
        {"sizes": {"candidates": "4"}},
        {"sizes": {"hidden_layers": 2}},
        {"sizes": {"hidden_layers": [1.5]}},
        {"sizes": {"candidate": 4}},
    ],
)
def test_invalid_sizes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"'{next(iter(wrong))}'"):
        config_of(**wrong)


def test_layers_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=f"the adapter was made for a model 40 wide, not {WIDTH}"):
        HFModel(fresh("llama")).attach("shallow", ParallelLayers(config_of(width=40)))

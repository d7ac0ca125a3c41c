"""Calls of several sequences on a CPU: their rows in one line, padded where they attend only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from decoders.core import masks
from decoders.core.hf.compiled import Backend
from decoders.core.hf.model import HFModel
from decoders.core.model import Call, Session
from decoders.core.products import _limit, merging
from decoders.core.types import Slots
from tests.core.hf.test_slots import slot_adapter

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
WINDOW = 6


def model_of(*, windowed: bool = False, backend: Backend | None = None) -> HFModel:
    torch.manual_seed(0)
    if windowed:
        module: Any = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW))
    else:
        module = LlamaForCausalLM(LlamaConfig(**SIZES))
    kind: dict[str, Any] = {} if backend is None else {"compile": True, "backend": backend}
    model = HFModel(module.eval(), **kind)
    model.attach("slots", slot_adapter(model.module, rank=4))
    model.reserve(5, 96)
    return model


def text(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SIZES["vocab_size"], (count,), generator=generator).tolist()


def opened(model: HFModel, lengths: Sequence[int]) -> list[Session]:
    sessions = [model.open() for _ in lengths]
    for session, length in zip(sessions, lengths, strict=True):
        model.forward([session.call(text(session.row, length), read=())])
    return sessions


def tree_call(session: Session) -> Call:
    rows, parents = text(50 + session.row, 4), [-1, 0, 0, 1]
    positions = [session.length + depth for depth in masks.depths(parents)]
    options: dict[str, Any] = {"mask": masks.tree(parents), "positions": positions}
    return session.call(rows, output="logits", read=range(4), **options)


def slot_call(session: Session) -> Call:
    slots = Slots(adapter="slots", uniforms=(0.3, 0.6), sizes=(2,), anchors=(5,), read=(0, 1))
    return session.call(text(70, 1), output="logits", read=(0,), slots=slots)


def chain_call(session: Session, num_rows: int) -> Call:
    return session.call(text(90 + num_rows, num_rows), output="logits", read=range(num_rows))


def logits_of(model: HFModel, calls: Sequence[Call], *, merged: bool) -> Tensor:
    before = [(call.session, call.session.length) for call in calls]
    logits = model.forward(calls) if merged else torch.cat([model.forward([c]) for c in calls])
    for session, length in before:
        session.truncate(length)
    return logits.clone()


def kinds_of(model: HFModel) -> list[list[Call]]:
    """Calls of three of five sequences: a tree and chains, chains of one row, slots."""
    sessions = opened(model, (9, 17, 3, 12, 8))
    chosen = [sessions[number] for number in (4, 0, 2)]  # rows 1 and 3 are between them
    return [
        [tree_call(chosen[0]), chain_call(chosen[1], 1), chain_call(chosen[2], 7)],
        [chain_call(session, 1) for session in chosen],
        [slot_call(chosen[0]), chain_call(chosen[1], 5), slot_call(chosen[2])],
    ]


@pytest.mark.parametrize(
    ("windowed", "backend"),
    [
        (False, None),
        (True, None),
        pytest.param(True, "export", marks=pytest.mark.slow),
        pytest.param(False, "export", marks=pytest.mark.slow),
    ],
)
def test_merged_calls_equal_separate_calls_and_run_no_padding_rows(
    windowed: bool, backend: Backend | None
) -> None:
    model, plain = (model_of(windowed=windowed, backend=kind) for kind in (backend, None))
    for calls, single in zip(kinds_of(model), kinds_of(plain), strict=True):
        alone = logits_of(plain, single, merged=False)
        padded = model.num_padded_rows
        torch.testing.assert_close(logits_of(model, calls, merged=True), alone, rtol=0, atol=1e-5)
        assert model.num_padded_rows == padded
    assert model.merges


def test_products_of_merged_calls_contain_no_padded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    calls = [chain_call(each, num) for each, num in zip(opened(model, (9, 4)), (1, 7), strict=True)]
    rows, plain = set[int](), torch.nn.functional.linear

    def counting(states: Tensor, *rest: Any) -> Tensor:
        rows.add(states.numel() // states.shape[-1])
        return plain(states, *rest)

    monkeypatch.setattr(torch.nn.functional, "linear", counting)
    model.forward(calls)
    assert rows == {8}


@pytest.mark.slow
def test_one_graph_serves_any_number_of_sequences() -> None:
    model = model_of(backend="export")
    sessions = opened(model, (9, 17, 3, 12, 8))
    before = model.num_graphs
    for count in (5, 2, 3, 4):
        calls = [chain_call(session, 1 + session.row) for session in sessions[:count]]
        alone = logits_of(model, calls, merged=False)
        torch.testing.assert_close(logits_of(model, calls, merged=True), alone, rtol=0, atol=1e-5)
    of_rows = model.num_graphs
    for count in (2, 4, 3):
        logits_of(model, [chain_call(session, 1) for session in sessions[:count]], merged=True)
    assert (of_rows - before, model.num_graphs - of_rows) == (2, 1), "one of a lone row"


def test_merged_calls_use_our_products_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.ones(1, 3, 8, dtype=torch.bfloat16)
    monkeypatch.setattr("decoders.core.products._is_traced", lambda: True)
    for limit, merged in ((64, 1 << 40), (32, 32)):  # a slow machine keeps the library
        monkeypatch.setattr("decoders.core.products._max_rows", {torch.bfloat16: limit})
        assert _limit(rows) == limit
        with merging(True):
            assert _limit(rows) == merged
        assert _limit(rows) == limit

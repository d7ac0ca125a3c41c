"""Captured calls padded to a number of rows: one graph and the same bits of a row in all."""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.core import masks
from decoders.core.hf.model import HFModel
from tests.tiny_models import VOCAB, fresh


def ids(seed: int, count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def opened(min_rows: int) -> HFModel:
    model = HFModel(fresh("llama-gqa").bfloat16(), compile=True, backend="eager")
    model.min_rows = min_rows
    model.reserve(2, 100)
    return model


def logits(model: HFModel, prompt: list[int], text: list[int], num_rows: int) -> Tensor:
    """Return the logits ``[N, V]`` of a text after a prompt, in calls of `num_rows`."""
    session = model.open()
    model.forward([session.call(prompt, read=())])
    parts = []
    for start in range(0, len(text), num_rows):
        fed = text[start : start + num_rows]
        call = session.call(fed, read=range(len(fed)), output="logits")
        parts.append(model.forward([call]))
    model.close(session)
    return torch.cat(parts)


def test_a_row_has_the_same_bits_in_calls_of_one_and_of_several_rows() -> None:
    model, prompt, text = opened(16), ids(1, 20), ids(2, 12)
    one = logits(model, prompt, text, 1)
    for num_rows in (2, 5, 12):
        assert torch.equal(logits(model, prompt, text, num_rows), one)
    plain = logits(opened(1), prompt, text, 1)
    assert (one - plain).square().mean() < 1e-3 * plain.square().mean()


def test_calls_with_up_to_the_padded_number_of_rows_share_a_graph() -> None:
    model, counts = opened(16), []
    session = model.open()
    for num_rows in (1, 3, 16, 7, 17):
        model.forward([session.call(ids(3, num_rows))])
        counts.append(model.num_graphs)
    assert counts == [1, 1, 1, 1, 2]
    assert model.facts["padded"] == 16
    assert "padded" not in opened(1).facts


def test_a_prompt_beside_another_sequence_runs_without_padding_rows() -> None:
    """A graph of fixed shapes would have as many rows for every cache row before it."""
    found = []
    for num_before in (0, 1):
        model = opened(1)
        sessions = [model.open() for _ in range(1 + num_before)]
        call = sessions[-1].call(ids(6, 80), read=range(80), output="logits")
        found.append(model.forward([call]).clone())
        assert model.num_padded_rows == (48, 0)[num_before]
    torch.testing.assert_close(*found, atol=0.1, rtol=0.05)


def test_rows_of_a_tree_are_padded_too() -> None:
    tree = masks.tree((masks.ROOT, 0, 0, 1))
    found = []
    for model in (opened(1), opened(16)):
        session = model.open()
        model.forward([session.call(ids(4, 9))])
        call = session.call(
            ids(5, 4), mask=tree, positions=[9, 10, 10, 11], read=range(4), output="logits"
        )
        found.append(model.forward([call]))
    torch.testing.assert_close(*found, atol=0.1, rtol=0.05)
    assert model.num_forwards == 2

"""The work of a call, replayed as a graph without the Python around it (`HFModel.replay`)."""

import pytest
import torch

from decoders.core.hf import compiled
from decoders.core.hf.graph_files import missing_compiler
from decoders.core.hf.model import HFModel
from tests.tiny_models import fresh


def prefilled(model, num_sequences=1, context=9):
    model.reserve(num_sequences, 40)
    sessions = [model.open() for _ in range(num_sequences)]
    model.forward([session.call([3] * context, read=()) for session in sessions])
    return sessions


def calls_of(sessions, num_rows):
    for session in sessions:
        session.truncate(9)
    tokens = [5 + row for row in range(num_rows)]
    return [session.call(tokens, read=range(num_rows), output="logits") for session in sessions]


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "gemma2-window", "gpt2"])
@pytest.mark.parametrize(("num_rows", "num_sequences"), [(1, 1), (4, 2)])
def test_a_replay_gives_the_logits_of_the_call_it_was_made_of(name, num_rows, num_sequences):
    model = HFModel(fresh(name), compile=True, backend="eager")
    with model.uncompiled():
        sessions = prefilled(model, num_sequences)
        expected = model.forward(calls_of(sessions, num_rows))
    before = model.num_forwards
    again = model.replay(calls_of(sessions, num_rows))
    for _ in range(2):
        torch.testing.assert_close(again()[0], expected)
    assert model.num_forwards == before


def test_where_no_compiler_is_a_line_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in str(missing_compiler())
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert missing_compiler() is None


@pytest.mark.gpu
def test_a_cuda_graph_gives_the_logits_of_the_call_it_was_captured_from():
    model = HFModel(fresh("llama-gqa", "sdpa").to("cuda"))
    sessions = prefilled(model, 2)
    expected = model.forward(calls_of(sessions, 3)).clone()
    again = model.replay(calls_of(sessions, 3))
    torch.testing.assert_close(again()[0], expected, atol=1e-4, rtol=1e-4)


def test_graphs_of_fixed_shapes_are_bounded_and_the_longest_unused_is_dropped(monkeypatch):
    monkeypatch.setattr(compiled, "MAX_CAPTURED", 2)
    model = HFModel(fresh("llama", "sdpa"), compile=True, backend="eager")
    model.reserve(1, 64)

    def graphs_after(num_rows: int) -> int:
        session = model.open()
        model.forward([session.call(range(3, 3 + num_rows))])
        model.close(session)
        return model.num_graphs

    assert [graphs_after(rows) for rows in (1, 2, 1, 2, 1)] == [1, 2, 2, 2, 2]
    assert graphs_after(4) == 3  # in place of that of two rows
    assert [graphs_after(rows) for rows in (1, 4, 2)] == [3, 3, 4]

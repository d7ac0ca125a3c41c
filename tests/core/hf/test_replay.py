"""The work of a call, replayed as a graph without the Python around it (`HFModel.replay`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


def test_a_missing_compiler_is_reported_by_name(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in str(missing_compiler())
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert missing_compiler() is None


@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "num_sequences"), [(1, 1), (3, 2)])
def test_a_cuda_graph_gives_the_logits_of_the_call_it_was_captured_from(num_rows, num_sequences):
    """The mask of a lone row is one number, seen from everywhere."""
    model = HFModel(fresh("llama-gqa", "sdpa").to("cuda"))
    sessions = prefilled(model, num_sequences)
    expected = model.forward(calls_of(sessions, num_rows)).clone()
    again = model.replay(calls_of(sessions, num_rows))
    torch.testing.assert_close(again()[0], expected, atol=1e-4, rtol=1e-4)


class Streams:
    """Streams of two GPUs that are not there: where work ran, and which stream was captured."""

    def __init__(self) -> None:
        self.gpu, self.stream = 0, "usual"
        self.ran: list[tuple[int, Any]] = []
        self.captured: list[Any] = []

    def __call__(self) -> Any:
        return type("Stream", (), {"wait_stream": lambda *_: None})()

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        before, self.gpu = self.gpu, device.index
        yield
        self.gpu = before

    @contextmanager
    def within(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextmanager
    def graph(self, graph: Any, *, stream: Any = None, pool: Any = None) -> Iterator[None]:
        self.captured.append(stream)
        with self.within(stream):
            yield

    def work(self) -> tuple[()]:
        self.ran.append((self.gpu, self.stream))
        return ()


def test_all_captures_of_a_gpu_use_one_stream_on_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS keeps a workspace, on an H100 of 32 MiB, for each stream that it ever ran on."""
    streams = Streams()
    fakes = {
        "Stream": streams,
        "device": streams.on,
        "stream": streams.within,
        "graph": streams.graph,
        "current_device": lambda: streams.gpu,
        "current_stream": streams,
        "CUDAGraph": streams,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(compiled, "_sides", {})
    for gpu in (1, 0, 1, 0):
        before = len(streams.ran)
        compiled.capture(streams.work, torch.device("cuda", gpu))
        assert {ran[0] for ran in streams.ran[before:]} == {gpu}
    assert len({stream for _, stream in streams.ran}) == 2
    assert streams.captured[0] is streams.captured[2] is not streams.captured[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_captures_leave_no_memory_behind_but_their_outputs() -> None:
    rows = torch.ones(64, 64, device="cuda")
    for num in (1, 40):  # the first brings the workspaces
        before = torch.cuda.memory_allocated()
        for _ in range(num):
            compiled.capture(lambda: (rows @ rows,), rows.device)()
    assert torch.cuda.memory_allocated() - before < 2**20


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

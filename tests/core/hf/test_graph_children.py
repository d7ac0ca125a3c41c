"""Graphs compiled in child processes, while calls run plainly."""

from __future__ import annotations

import os
import time
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decoders.core.hf import graph_children, graph_files
from decoders.core.hf.compiled import Graphs


def of_processors(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(number)))


def test_children_write_each_file_once_and_the_parent_need_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_processors(2, monkeypatch)
    paths = [tmp_path / name for name in "abc"]

    def make(path: Path) -> None:
        with path.open("a") as file:
            file.write(f"{os.getpid()} {torch.get_num_threads()} ")

    with graph_children.side_by_side() as children:
        for path in (*paths, *paths):
            assert graph_children.current.have(path, partial(make, path))
        children.wait()
        assert len(children) == 3
    written = [path.read_text().split() for path in paths]
    assert [threads for _, threads in written] == ["1", "1", "1"]
    assert str(os.getpid()) not in {pid for pid, _ in written}


def test_missing_graphs_are_listed_and_not_compiled_if_only_stored_graphs_are_used(
    tmp_path: Path,
) -> None:
    missing = tmp_path / "missing"

    def never() -> None:
        raise AssertionError("it was compiled")

    with graph_children.side_by_side(compiles=False) as children:
        assert graph_children.current.have(missing, never)  # run the call without it
        assert children.missing == [missing]
    assert not graph_children.current.have(missing, never)  # as before: compile it here


def test_a_file_that_a_child_fails_to_compile_is_left_to_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_processors(2, monkeypatch)
    with graph_children.side_by_side() as children:
        assert children.have(tmp_path / "new", lambda: 1 / 0)
        children.wait()
    assert not (tmp_path / "new").exists()
    assert not graph_children.current.have(tmp_path / "new", lambda: 1 / 0)


def test_an_error_ends_child_processes_and_one_processor_starts_no_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_processors(2, monkeypatch)
    start = time.monotonic()

    def fail() -> None:
        with graph_children.side_by_side() as children:
            children.have(tmp_path / "new", lambda: time.sleep(60))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert time.monotonic() - start < 30
    of_processors(1, monkeypatch)
    with graph_children.side_by_side() as children:
        assert not children.have(tmp_path / "new", lambda: 1 / 0)


def test_a_call_runs_plainly_while_a_child_compiles_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_processors(2, monkeypatch)
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path))
    loaded: list[Path] = []

    def load(file: Path, _: object) -> object:
        loaded.append(file)
        return lambda given: [given[0] + 2]

    monkeypatch.setattr(graph_files, "load_products", dict)
    monkeypatch.setattr("decoders.core.hf.compiled._export", lambda *_: None)
    monkeypatch.setattr(graph_files, "compile_graph", lambda file, *_: file.touch())
    monkeypatch.setattr(graph_files, "load_graph", load)
    graphs = Graphs(
        lambda name, inputs, planes: [inputs["positions"] + 1],
        lambda name: ("a model", {}),
        device=torch.device("cpu"),
        backend="inductor",
    )
    given: Any = (None, {"positions": torch.zeros(1, 3, dtype=torch.int64)}, [])
    (tmp_path / "graphs").mkdir()
    with graph_children.side_by_side() as children:
        assert graphs(*given)[0].tolist() == [[1, 1, 1]]
        children.wait()
        assert graphs(*given)[0].tolist() == [[1, 1, 1]]
    assert not loaded
    assert graphs.num_graphs == 0
    monkeypatch.setattr(graph_files, "sealed", lambda file: {} if file.exists() else None)
    assert graphs(*given)[0].tolist() == [[2, 2, 2]]
    assert len(loaded) == graphs.num_graphs == 1


def test_a_package_with_an_empty_file_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process beside this one had only begun to write the file to Inductor's cache."""
    texts = ["", "{}"]

    def compile_and_package(_: Any, *, package_path: str, inductor_configs: Any) -> str:
        assert inductor_configs["emulate_precision_casts"] is False
        with zipfile.ZipFile(package_path, "w") as package:
            package.writestr("model.wrapper.json", texts.pop(0))
        return package_path

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_and_package)
    monkeypatch.setattr(graph_files, "missing_compiler", lambda: None)
    file = tmp_path / "graph.pt2"
    graph_files.compile_graph(file, SimpleNamespace(state_dict={}, constants={}), {}, {})
    assert not texts
    assert zipfile.ZipFile(file).read("model.wrapper.json") == b"{}"

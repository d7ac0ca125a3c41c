"""Files of compiled graphs: which one serves, and what is not trusted."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import platform
import shutil
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core import products
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter_config import AdapterConfig
from decoders.core.hf import compiled, graph_children, graph_files
from decoders.core.hf.compiled import Graphs, NoGraphError
from decoders.core.hf.model import HFModel
from decoders.core.hf.runner import GraphName
from tests.tiny_models import WIDTH, fresh, slot_adapter

WEIGHT = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(graph_files, "missing_compiler", lambda: None)


def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let packages be written without a compiler."""

    def write(_: Any, *, package_path: str, inductor_configs: dict[str, object]) -> str:
        assert inductor_configs["cpp.vec_isa_ok"]
        with zipfile.ZipFile(package_path, "w") as package:
            package.writestr("model.so", "machine code" * 20)
        return package_path

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", write)


def program(**held: Tensor) -> Any:
    return SimpleNamespace(state_dict=held, constants={})


def made(monkeypatch: pytest.MonkeyPatch) -> Path:
    written(monkeypatch)
    file = graph_files.graph_file("a key", [WEIGHT], {"w": WEIGHT})
    graph_files.compile_graph(file, program(w=WEIGHT), {"w": WEIGHT}, {"model": "any"})
    assert graph_files.sealed(file)
    return file


def test_adapters_that_embed_slots_differently_have_separate_graph_files() -> None:
    model, files = HFModel(fresh("llama")), set[Path]()
    for kind in ({}, {"numbered": True}, {"anchored": True}, {"enter": 1}):
        model.attach("ptp", slot_adapter(model.module, **kind))
        text, tensors = model._runner.facts(GraphName("ptp"))
        held = {each.data_ptr() for each in tensors.values()}
        module = model._runner.adapters["ptp"].module
        assert {each.data_ptr() for each in module.parameters()} <= held
        files.add(graph_files.graph_file(text, [WEIGHT], {"w": WEIGHT}))
    assert len(files) == 4


def test_graphs_of_an_adapter_serve_it_after_another_training() -> None:
    model, texts = HFModel(fresh("llama")), set[str]()
    for accuracy in (0.5, 0.6):
        adapter = slot_adapter(model.module)
        adapter.config = replace(adapter.config, measured={"accuracy": accuracy})
        model.attach("ptp", adapter)
        texts.add(model._runner.facts(GraphName("ptp"))[0])
    assert len(texts) == 1


def test_changed_code_of_a_network_s_pass_needs_other_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another package may have its pass in another file than its network."""
    file, texts = tmp_path / "passes.py", set[str]()
    source = "from decoders.core.adapter.heads import HeadsPass\nclass Mine(HeadsPass): pass\n"
    model = HFModel(fresh("llama"))
    for comment in ("", "# changed"):
        file.write_text(source + comment)
        spec: Any = importlib.util.spec_from_file_location("passes", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, "passes", module)
        monkeypatch.setattr(DraftHeads, "work", module.Mine)
        sizes: Any = {"num_slots": 2, "rank": 4, "width": WIDTH, "code": "constant"}
        model.attach("medusa", DraftHeads(AdapterConfig(variant="medusa", layers={}, **sizes)))
        texts.add(model._drafts["medusa"]._facts(None)[0])
    assert len(texts) == 2


# ---------------------------------------------------------------- damage


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def other_text(file: Path) -> None:
    file.write_text("x")


def other_json(file: Path) -> None:
    file.write_text('["constants"]')


def no_names(file: Path) -> None:
    facts = json.loads(file.read_text())
    del facts["constants"]
    file.write_text(json.dumps(facts))


def gone(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        *((".pt2", damage) for damage in (cut, emptied, flipped, gone)),
        *((".json", damage) for damage in (cut, emptied, other_text, other_json, no_names, gone)),
    ],
)
def test_a_damaged_package_counts_as_missing_and_is_compiled_again(
    suffix: str, damage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made(monkeypatch)
    damage(file.with_suffix(suffix))
    assert graph_files.sealed(file) is None
    assert made(monkeypatch) == file


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        *((".so", damage) for damage in (cut, emptied, flipped, gone)),
        *((".json", damage) for damage in (emptied, other_text, other_json, gone)),
    ],
)
def test_a_damaged_library_is_not_loaded_but_compiled_again(
    suffix: str, damage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_to: list[Path] = []

    def make(library: Path) -> None:
        library.parent.mkdir(exist_ok=True)
        library.write_bytes(b"code" * 100)
        compiled_to.append(library)

    monkeypatch.setattr(products, "make", make)
    monkeypatch.setattr(products, "load", lambda library: {"loaded": library.read_bytes()[:4]})
    assert not graph_files.has_products()
    for _ in range(2):
        assert graph_files.load_products() == {"loaded": b"code"}
    (library,) = compiled_to
    assert graph_files.has_products()
    damage(library.with_suffix(suffix))
    assert not graph_files.has_products()
    graph_files.load_products()
    assert compiled_to == [library, library]
    assert library.read_bytes() == b"code" * 100
    assert graph_files.has_products()


@pytest.mark.parametrize("text", ["", "x", "5", "5 7 9", "5 x", "5 7", "5 7 0 x", "5 7 0 nan"])
def test_row_limits_are_measured_again_if_their_file_is_damaged(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.decoders, "product", None, raising=False)
    for name in ("_max_rows", "_prices"):
        monkeypatch.setattr(products, name, {})
    limits = {torch.bfloat16: (64, 0.031), torch.float32: (8, 0.0)}
    monkeypatch.setattr(products, "_measure", limits.get)
    library = tmp_path / "rows.so"
    library.with_suffix(".rows").write_text(text)
    few = products.load(library)
    assert (few[torch.bfloat16], few[torch.float32]) == (64, 8)
    assert library.with_suffix(".rows").read_text() == "64 8 0.031 0.000"


# ---------------------------------------------------------------- no room, no compiler


def graphs_of(function: Any) -> Graphs:
    return Graphs(
        lambda name, inputs, planes: [function(name, inputs["positions"])],
        lambda name: ("a model", {}),
        device=torch.device("cpu"),
        backend="inductor",
    )


GIVEN: Any = (None, {"positions": torch.zeros(1, 3, dtype=torch.int64)}, [])


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs without products, tracing and compiling: a package is an empty file."""
    monkeypatch.setattr(graph_files, "load_products", dict)
    monkeypatch.setattr(compiled, "_export", lambda *_: None)
    monkeypatch.setattr(graph_files, "sealed", lambda file: {} if file.exists() else None)
    monkeypatch.setattr(graph_files, "load_graph", lambda *_: lambda given: [given[0] + 2])


@pytest.mark.usefixtures("plain")
def test_without_disk_space_no_graph_is_compiled_and_the_error_names_the_folder_and_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_files, "compile_graph", lambda *_: pytest.fail("compiled"))
    usage = shutil.disk_usage

    def little(folder: Any) -> Any:
        inside = Path(folder).is_relative_to(tmp_path)
        return SimpleNamespace(free=1_200_000) if inside else usage(folder)

    monkeypatch.setattr(shutil, "disk_usage", little)
    with pytest.raises(NoGraphError) as caught:
        graphs_of(lambda _, x: x)(*GIVEN)
    assert str(caught.value).startswith(f"{tmp_path}/graphs has 1.2 MB of room, and compiling ")
    assert str(caught.value).endswith("set DECODING_BENCH_CACHE to another folder")
    assert "this model" not in str(caught.value)


@pytest.mark.usefixtures("plain")
def test_without_a_compiler_existing_graphs_still_run_and_missing_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(file: Path, *_: object) -> None:
        file.parent.mkdir(exist_ok=True)
        file.touch()

    monkeypatch.setattr(graph_files, "compile_graph", make)
    assert graphs_of(lambda _, x: x)(*GIVEN)[0].tolist() == [[2, 2, 2]]
    monkeypatch.setattr(graph_files, "missing_compiler", lambda: "no C++ compiler is found")
    assert graphs_of(lambda _, x: x)(*GIVEN)[0].tolist() == [[2, 2, 2]]
    one_row: Any = (None, {"positions": torch.zeros(1, 1, dtype=torch.int64)}, [])
    with pytest.raises(NoGraphError, match=r"^no C\+\+ compiler"):
        graphs_of(lambda _, x: x)(*one_row)


@pytest.mark.usefixtures("plain")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_compiler_that_aborts_ends_only_its_own_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def aborts(*_: object) -> None:
        faulthandler.disable()  # pytest's own, which prints a page
        os.abort()

    monkeypatch.setattr(graph_files, "compile_graph", aborts)
    with pytest.raises(NoGraphError, match="ended with SIGABRT; is a disk full"):
        graphs_of(lambda _, x: x)(*GIVEN)


def fails_with(text: str) -> None:
    raise OSError(text)


def test_an_error_in_a_child_process_is_raised_with_its_message_and_success_is_silent(
    tmp_path: Path,
) -> None:
    def fails() -> None:
        raise KeyError("no such\nnode\nand much more")

    with pytest.raises(ValueError, match=r"'no such\\nnode"):
        graph_children.apart(fails)
    with pytest.raises(ValueError, match=r"^x{1000}$"):
        graph_children.apart(partial(fails_with, "x" * 200_000))
    graph_children.apart((tmp_path / "made").touch)
    assert (tmp_path / "made").exists()
    with pytest.raises(NoGraphError, match="ended with 3"):
        graph_children.apart(lambda: os._exit(3))


# ---------------------------------------------------------------- which file serves


def path(key: str = "key", given: Any = WEIGHT, **constants: Tensor) -> Path:
    return graph_files.graph_file(key, [given], constants or {"w": WEIGHT})


def test_graphs_of_other_calls_and_of_other_weights_have_other_files() -> None:
    others = [
        path(),
        path("another"),
        path(given=WEIGHT.double()),
        path(given=WEIGHT[0]),
        path(v=WEIGHT),
        path(w=WEIGHT.double()),
        path(w=WEIGHT[:, :2]),
        path(w=WEIGHT[:, :2].contiguous()),
        path(w=WEIGHT.mT.contiguous().mT),
        path(w=WEIGHT, v=WEIGHT),
    ]
    assert len(set(others)) == len(others)
    assert path(given=WEIGHT[:1], w=WEIGHT + 1) == path(), "sizes of inputs and values are free"


def test_any_change_of_code_threads_processor_or_versions_gives_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("hf/a.py", "adapter/b.py", "products.py", "products.cpp")
    files = [tmp_path / name for name in names]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("1")
    monkeypatch.setattr(graph_files, "__file__", str(tmp_path / "hf" / "a.py"))
    machine = graph_files._machine.__wrapped__
    found = {machine()}
    assert {machine()} == found
    for file in files:
        file.write_text("2")
        found.add(machine())
    assert len(found) == 5
    read: Any = graph_files  # its own modules: another test may have imported them anew
    for thing, name, value in [
        (read.torch, "get_num_threads", lambda: 77),
        (graph_files, "_cpu_flags", lambda: "flags: none"),
        (read.torch, "__version__", "9.9"),
        (read.transformers, "__version__", "9.9"),
        (platform, "machine", lambda: "abacus"),
    ]:
        monkeypatch.setattr(thing, name, value)
        found.add(machine())
    assert len(found) == 10


def test_a_constant_tensor_that_is_no_weight_is_refused_unless_it_is_a_scalar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written(monkeypatch)
    make, file = graph_files.compile_graph, graph_files.graph_file("key", [], {"w": WEIGHT})
    for table in (torch.ones(2), torch.ones(1, 2), torch.ones(30, 30)):
        with pytest.raises(ValueError, match=r"would fix tensors that it is not given: .*table"):
            make(file, program(w=WEIGHT, table=table), {"w": WEIGHT}, {})
    make(file, program(w=WEIGHT, scale=torch.tensor(3.0)), {"w": WEIGHT}, {})
    facts = json.loads(file.with_suffix(".json").read_text())
    assert facts["values"] == {"scale": ["float32", [], 3.0]}
    assert facts["constants"] == {"w": "w"}


def test_each_name_has_its_own_graph() -> None:
    graphs = Graphs(
        lambda name, inputs, planes: [inputs["positions"] + {"a": 1, "b": 2}[name]],
        lambda name: (str(name), {}),
        device=torch.device("cpu"),
        backend="export",
    )
    inputs = {"positions": torch.zeros(1, 3, dtype=torch.int64)}
    for _ in range(2):
        assert graphs("a", inputs, [])[0].tolist() == [[1, 1, 1]]
        assert graphs("b", inputs, [])[0].tolist() == [[2, 2, 2]]
    assert graphs.num_graphs == 2

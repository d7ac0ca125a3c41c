"""Compiled calls by default: where they are made, and where a run stays eager and says why."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.errors import UnavailableError
from bench.plan.compiling import make_graphs, open_compiled
from bench.plan.select import ResolvedRun, stored_decoders
from bench.settings.config import load_config
from decoders.core import products
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.compiled import Graphs, NoGraphError
from decoders.core.hf.graph_files import missing_compiler
from decoders.core.hf.model import HFModel
from decoders.core.types import Generation, Outcome
from tests.command_line import Output, bench
from tests.tiny_checkpoint import save_checkpoint
from tests.tiny_models import fresh


@pytest.fixture(autouse=True)
def by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path / "cache"))


def measured(folder: Path, *arguments: object) -> tuple[Output, Path]:
    """A run of a tiny model, and its folder."""
    model = save_checkpoint(folder / "model")
    small = ("--limit", 2, "--repeats", 1, "--quality-limit", 1, "--max-new-tokens", 8)
    asked = ("--tasks", "qa", "--decoders", "lookup", "--output", folder, *small, *arguments)
    ended = bench("run", "--model", model, "--run-name", "tiny", "--progress", "plain", *asked)
    return ended, (folder / "latest").resolve()


def events(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "samples.jsonl").read_text().splitlines())
    return [line for line in lines if line.get("event") == "compiled"]


def config(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text())


@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
@pytest.mark.slow
def test_a_run_is_compiled_by_default_and_its_graphs_are_reported_listed_and_removed(
    tmp_path: Path, library: Callable[[Path], Path]
) -> None:
    library(tmp_path / "cache")
    ended, run = measured(tmp_path)
    assert ended.code == 0, ended.err
    assert "calls compiled" in ended.err
    assert "compiling 2/2" in ended.err
    several = len(os.sched_getaffinity(0)) > 1  # otherwise no child compiles
    assert ("compiling 2 graphs of ar, once on this machine" in ended.err) == several
    assert config(run)["compile"] is True
    assert [(line["cell"], line["graphs"]) for line in events(run)] == [("ar", 2)]
    assert "compiled calls" in (run / "report.md").read_text()
    env = json.loads((run / "env.json").read_text())
    assert env["models"]["target"]["compiled"]
    assert env["torch"]["product_rows"] in (0, *products.ROWS)
    assert 0 <= env["torch"]["product_price"] <= 0.1

    listed = json.loads(bench("ls", "graphs", "--json").out)
    assert {graph["kind"] for graph in listed} == {"1 x one row", "1 x rows"}
    assert {graph["model"] for graph in listed} == {"LlamaForCausalLM 1 x 16, torch.float32"}
    assert "1 x one row" in bench("ls", "graphs").out
    assert "removed 2 graphs" in bench("clean").out
    assert not list((tmp_path / "cache" / "graphs").glob("*.pt2"))


@pytest.mark.slow
def test_without_a_compiler_a_run_is_eager_and_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    ended, run = measured(tmp_path)
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.err.splitlines() if "eagerly" in line]
    assert "no-such-compiler" in line
    assert "install one" in line
    assert config(run)["compile"] is False
    assert not events(run)
    assert "eager calls" in (run / "report.md").read_text()
    asked, _ = measured(tmp_path, "--compile")
    assert asked.code == 5
    assert "no-such-compiler" in asked.err


def undecided(**values: Any) -> ResolvedRun:
    """A run without decoders on the CPU."""
    return ResolvedRun(config=load_config(None, {"device": "cpu", **values}), decoders={})


@pytest.mark.parametrize(
    "values", [{"numerics": "invariant"}, {"device_map": "auto"}, {"quantize": "int8"}]
)
def test_runs_whose_settings_have_no_graphs_yet_are_eager_by_default(
    values: dict[str, Any],
) -> None:
    said: list[str] = []
    chosen = undecided(**values)
    assert not open_compiled(chosen, lambda c: c, said.append).config.compile
    assert len(said) == 1
    assert "are eager by default" in said[0]


def test_a_model_that_cannot_be_compiled_is_eager_by_default_and_an_error_with_compile() -> None:
    said: list[str] = []

    def ready(opened: ResolvedRun) -> ResolvedRun:
        if opened.config.compile:
            raise NoGraphError("this model cannot be compiled: it is odd")
        return opened

    plain = undecided()
    assert not open_compiled(plain, ready, said.append).config.compile
    assert len(said) == 1
    assert "it is odd" in said[0]
    asked = plain.with_values(compile=True)
    with pytest.raises(UnavailableError, match="it is odd; use --no-compile"):
        open_compiled(asked, ready, said.append)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_graphs_are_compared_with_transformers_before_a_run_uses_them(
    batch_size: int, small: Any, opener: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"decoders": "ar", "compile": True, "batch_size": batch_size}
    setup = opener(stored_decoders(small(**values)))
    model = HFModel(fresh("llama"), compile=True, backend="eager")
    setup = replace(setup, models=Models(target=model))
    assert make_graphs(setup, progress()).models.target is model
    assert model.num_graphs > 0, "the check ran no graph"
    run_graph = Graphs.__call__

    def wrong_in_batches(graphs: Graphs, name: Any, *rest: Any, **options: Any) -> Any:
        first, *others = run_graph(graphs, name, *rest, **options)
        return [-first if name.frame.size[0] == batch_size else first, *others]

    monkeypatch.setattr(Graphs, "__call__", wrong_in_batches)
    what = "compiled calls of the target are wrong: LlamaForCausalLM gives other logits for "
    with pytest.raises(NoGraphError, match=what):
        make_graphs(setup, progress())
    unchecked = replace(setup, config=setup.config.model_copy(update={"self_check": False}))
    make_graphs(unchecked, progress())


def test_graphs_are_built_without_applying_the_law_of_the_run(
    small: Any, opener: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = opener(stored_decoders(small(decoders="ar,lookup", compile=True, self_check=False)))
    outcomes = list[Outcome]()

    class Noting(Scheduler):
        def run(self, *given: Any, **options: Any) -> list[Outcome]:
            outcomes.extend(ended := super().run(*given, **options))
            return ended

    monkeypatch.setattr("bench.plan.compiling.Scheduler", Noting)
    sampling = replace(setup.sampling, law=lambda answer, logits: logits - math.inf)
    make_graphs(replace(setup, sampling=sampling), progress())
    assert len(outcomes) > 1
    assert all(isinstance(outcome, Generation) for outcome in outcomes)


@pytest.mark.parametrize("warm", [False, True])
def test_without_a_compiler_graphs_are_used_only_if_they_are_cached(
    warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("bench.plan.compiling.has_products", lambda: warm)
    said: list[str] = []
    opened = open_compiled(undecided(), lambda run: run, said.append)
    assert opened.config.compile is warm
    assert len(said) == (not warm)


@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
@pytest.mark.slow
def test_cached_graphs_are_used_without_a_compiler_and_damaged_graphs_are_rebuilt(
    tmp_path: Path, library: Callable[[Path], Path]
) -> None:
    """In processes of their own, because a library that is cut short ends the one that loads it."""
    cache, text = tmp_path / "graphs cache", tmp_path / "few.jsonl"
    library(cache)
    model = save_checkpoint(tmp_path / "model")
    text.write_text(json.dumps({"prompt": "hello"}) + "\n")

    def run(name: str, **more: str) -> tuple[int, str, bool]:
        own = {"DECODING_BENCH_CACHE": str(cache), "TORCH_COMPILE_DISABLE": "0", **more}
        asked = ["--model", model, "-t", f"jsonl={text}", "-d", "ar", "--run-name", name]
        asked += ["--repeats", 1, "--max-new-tokens", 4, "--phase-limit", 0, "-o", tmp_path]
        ended = subprocess.run(
            [sys.executable, "-m", "bench", "run", *map(str, asked), "--progress", "plain"],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stderr, config((tmp_path / "latest").resolve())["compile"]

    code, err, compiled = run("first")
    assert (code, compiled) == (0, True), err
    files = sorted((cache / "graphs").iterdir())
    assert {file.suffix for file in files} == {".so", ".rows", ".pt2", ".json"}
    times = {file: file.stat().st_mtime_ns for file in files if file.suffix == ".pt2"}
    code, err, compiled = run("without-a-compiler", CXX="no-such-compiler")
    assert (code, compiled) == (0, True), err
    assert {file: file.stat().st_mtime_ns for file in times} == times
    for file in files:
        if file.suffix in (".so", ".pt2"):
            file.write_bytes(file.read_bytes()[:5000])
        elif file.suffix in (".rows", ".json"):
            file.write_text("x")
    code, err, compiled = run("damaged-without-a-compiler", CXX="no-such-compiler")
    assert (code, compiled) == (0, False), err
    assert "no-such-compiler" in err
    code, err, compiled = run("damaged")
    assert (code, compiled) == (0, True), err
    assert all(file.stat().st_mtime_ns > before for file, before in times.items())


def test_disabling_compilation_by_no_compile_or_torchs_variable_prints_no_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    refused = undecided(compile=False)
    assert open_compiled(refused, lambda c: c, said.append).config.compile is False
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    plain = undecided()
    assert open_compiled(plain, lambda c: c, said.append).config.compile is False
    assert not said

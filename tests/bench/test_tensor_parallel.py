"""Models cut over two processes of torchrun: the ids of one, and what does not go with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from decoders.core.hf.sharded import Ranks
from tests.command_line import bench
from tests.tiny_checkpoint import save_checkpoint

DECODERS = "spec,spec@coupled:verify=coupled,lookup,lookahead,jacobi"
OPTIONS = (
    *("--decoders", DECODERS, "--limit", 3, "--repeats", 1, "--quality-limit", 1),
    *("--max-new-tokens", 12, "--temperature", 0.7, "--progress", "none", "--dtype", "float32"),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("target", "draft")):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            save_checkpoint(home / name)
    return home


def of(models: Path) -> tuple[Any, ...]:
    return ("--model", models / "target", "--draft", models / "draft")


def torchrun(count: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(count), "-m", "bench", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )


def answers(results: Path) -> dict[tuple[str, ...], Any]:
    """Tokens and counts of every answer of the only run."""
    (file,) = results.glob("2*/samples.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines() if '"kind"' in line]
    return {
        (r["kind"], r["decoder"], r["conversation"], r["turn"]): (
            r["tokens"],
            r["steps"]["emitted"],
        )
        for r in records
    }


@pytest.mark.slow
def test_two_processes_give_the_ids_of_one(models: Path, tmp_path: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert bench("run", *of(models), *OPTIONS, "--output", alone).code == 0
    cut = ("--tensor-parallel", 2)
    ended = torchrun(2, "run", *of(models), *OPTIONS, *cut, "--output", both)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("VALID") == 1  # the follower says nothing
    expected = answers(alone)
    assert answers(both) == expected
    assert len(expected) > 6
    (env,) = both.glob("2*/env.json")
    facts = json.loads(env.read_text())["models"]
    assert facts["target"]["shards"] == facts["draft"]["shards"] == 2
    (single,) = alone.glob("2*/env.json")
    whole = json.loads(single.read_text())
    assert facts["target"]["parameters"] == whole["models"]["target"]["parameters"]
    assert json.loads(env.read_text())["comparability_key"] != whole["comparability_key"]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_in_two_processes(models: Path, tmp_path: Path) -> None:
    cut = ("--tensor-parallel", 2)
    ended = torchrun(2, "run", *of(models), *OPTIONS, *cut, "--output", tmp_path)
    assert ended.returncode == 0, ended.stderr
    expected = answers(tmp_path)
    (file,) = tmp_path.glob("2*/samples.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) // 2]))
    status = file.with_name("run.json")
    status.write_text(status.read_text().replace('"complete"', '"interrupted"'))
    ended = torchrun(2, "resume", file.parent, "--progress", "none")
    assert ended.returncode == 0, ended.stderr
    assert answers(tmp_path) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "options", "told"),
    [
        (3, ("--tensor-parallel", 3), "cannot be split into 3 equal parts"),
        (2, ("--tensor-parallel", 2, "--compile"), "--compile cannot be combined with"),
        (
            2,
            ("--tensor-parallel", 2, "-d", "hf"),
            "loops of transformers (hf) do not run",
        ),
    ],
)
def test_what_does_not_go_with_it_is_told(
    models: Path, tmp_path: Path, count: int, options: tuple[Any, ...], told: str
) -> None:
    given = ("run", "-d", "lookup", *of(models), "--limit", 1, "--output", tmp_path, *options)
    ended = torchrun(count, *given)
    assert ended.returncode != 0
    assert told in ended.stderr
    assert not list(tmp_path.glob("*"))


def test_without_torchrun_it_says_how_to_start_it(models: Path, tmp_path: Path) -> None:
    given = ("run", "-d", "lookup", *of(models), "--output", tmp_path, "--tensor-parallel", 2)
    ended = bench(*given)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert (
        "needs 2 processes, not 1; start it as `torchrun --nproc-per-node 2 -m bench" in ended.err
    )
    assert not list(tmp_path.glob("*"))


def test_ranks_are_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert Ranks.of_environment() == Ranks(0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not Ranks.of_environment().leads

"""Where training goes and on what it runs, if nobody says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.plan.numerics import open_device
from tests.command_line import bench
from training.recipe import ZOO
from training.run import _choose_device

VERBS = (
    ("ptp",),
    ("idlm", "--objective", "isd"),
    ("idlm", "--objective", "refine"),
    *((name,) for name in ("medusa", "eagle", "drafter", "zoo", "dllm", "draft", "inverse")),
)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_verb_writes_to_the_shipped_zoo_unless_it_is_named(
    verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[Path] = []

    def train(_tables: Any, output: Path, **_: Any) -> None:
        written.append(output)

    for name in ("adapters.train_adapter", "adapters.train_heads", "draft.train_draft"):
        monkeypatch.setattr(f"training.{name}", train)
    for name in ("zoo.train.train_zoo", "zoo.dllm.train_masked", "inverse.train.train_both"):
        monkeypatch.setattr(f"training.{name}", train)
    assert bench("train", *verb).code == 0
    assert bench("train", *verb, "--output", tmp_path).code == 0
    shown = bench("train", *verb).out
    assert written[1] == tmp_path
    assert written[0].parts[0] == "results"
    assert not written[0].resolve().is_relative_to(ZOO)
    assert shown == f"{written[0]}\n"


@pytest.mark.parametrize("verb", ["zoo", "medusa"])
def test_an_output_that_is_a_file_is_named_in_one_line(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = bench("train", verb, "--output", tmp_path / "file", "--progress", "none")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1)
    assert ended.err.startswith("bench: ")
    assert str(tmp_path / "file") in ended.err


@pytest.mark.parametrize("has_gpu", [True, False])
def test_training_chooses_the_same_default_device_as_bench_run(
    has_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(has_gpu))
    assert _choose_device(None).type == open_device(None).type == ("cuda" if has_gpu else "cpu")
    assert _choose_device("cpu").type == "cpu"

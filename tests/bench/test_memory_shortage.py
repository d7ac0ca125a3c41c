"""Memory that does not suffice is one line that says what did not fit and what to lower."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.errors import BenchError, Exit, UnavailableError, room_for
from bench.plan.select import choose_decoders
from bench.plan.setup import open_setup
from bench.settings.config import load_config
from tests.command_line import bench

ON_GPU = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 17.19 MiB is free.\nIf reserved memory is large try setting PYTORCH_ALLOC_CONF"
)
ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "tried"),
    [
        (torch.OutOfMemoryError(ON_GPU), " (tried to allocate 20.00 GiB)"),
        (RuntimeError(ON_CPU), " (tried to allocate 4000000000000 bytes)"),
        (RuntimeError("CUDA error: out of memory"), ""),
        (MemoryError(), ""),
    ],
)
def test_a_lack_of_memory_is_one_line_that_names_the_object_that_did_not_fit(
    error: Exception, tried: str
) -> None:
    with pytest.raises(BenchError) as caught, room_for("the elephant", "take a smaller one"):
        raise error
    assert caught.value.exit_code == Exit.FAILED
    said = f"out of memory: the elephant did not fit{tried}; take a smaller one"
    assert caught.value.message == said


@pytest.mark.parametrize("error", [RuntimeError("a bug"), UnavailableError("no"), ValueError("x")])
def test_errors_other_than_a_lack_of_memory_are_raised_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, room_for("it"):
        raise error
    assert caught.value is error


def test_weights_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(ON_GPU)

    monkeypatch.setattr("decoders.core.hf.model.HFModel.load", full)
    config = choose_decoders(load_config(None, {"decoders": "ar", "device": "cpu"}), print)
    with pytest.raises(BenchError, match=r"the weights of .*target in float32 on cpu did not fit"):
        open_setup(config)


def test_any_command_that_runs_out_of_memory_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(ON_GPU)

    monkeypatch.setattr("bench.plan.dry_run.dry_run", full)
    ended = bench("run", "--dry-run", "--progress", "none")
    assert ended.code == Exit.FAILED
    (line,) = ended.err.splitlines()
    assert line.startswith("bench: out of memory: what this command computes at once did not fit")
    assert "--batch-size" in line

"""Kernels in Triton run on the process's current GPU alone, which a run sets to its own."""

from __future__ import annotations

import pytest
import torch

from bench.plan.numerics import prepare_process
from decoders.core import device
from decoders.core.device import has_kernels, runs_triton


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two GPUs, the current one in a list."""
    current = [0]
    monkeypatch.setattr(device, "_has_triton", True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])

    def set_device(new: torch.device) -> None:
        assert new.index is not None
        current[0] = new.index

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    return current


def test_a_gpu_that_is_not_the_current_one_runs_torchs_kernels(gpus: list[int]) -> None:
    assert has_kernels(torch.device("cuda"))
    assert has_kernels(torch.device("cuda:0"))
    assert not has_kernels(torch.device("cuda:1"))
    assert not has_kernels(torch.device("cpu"))


def test_a_run_on_the_second_gpu_makes_it_the_current_one(gpus: list[int]) -> None:
    prepare_process(torch.device("cuda"))
    assert gpus == [0]
    prepare_process(torch.device("cuda:1"))
    assert gpus == [1]
    assert has_kernels(torch.device("cuda:1"))


def test_double_precision_and_gradients_need_torchs_kernels(
    gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "has_kernels", lambda _: True)
    with torch.no_grad():
        assert runs_triton(torch.zeros(1))
        assert not runs_triton(torch.zeros(1).double())
    assert not runs_triton(torch.zeros(1))

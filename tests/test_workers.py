"""The default tests in several processes (`pytest -n`): no more threads than cores."""

import os

import pytest
import torch

WORKER = os.environ.get("PYTEST_XDIST_WORKER")


@pytest.mark.skipif(WORKER is None, reason="one process may take all cores")
def test_a_worker_computes_in_one_thread_unless_omp_num_threads_sets_more() -> None:
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])

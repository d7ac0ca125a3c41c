"""Memory of training processes: kept between steps, given back at checkpoints."""

import logging
import logging.handlers
import queue
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from training import workers
from training.workers import spawn, worker

MEASURED = """
import ctypes, psutil
from training.workers import release_memory, keep_memory

keep_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
blocks = []
for number in range(400):
    block = library.malloc(1 << 20)
    ctypes.memset(block, 1, 1 << 20)
    blocks.append(block)
for block in blocks[:-1]:  # the last one keeps the heap from shrinking from its end
    library.free(ctypes.c_void_p(block))
kept = psutil.Process().memory_info().rss
release_memory()
print(kept >> 20, psutil.Process().memory_info().rss >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux")
@pytest.mark.slow
def test_memory_in_gaps_between_live_blocks_is_returned_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    assert before - after > 350


def test_workers_wait_for_the_first_as_long_as_it_samples_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default a worker gives up after half an hour, and ends all."""
    waits = []

    def begin(backend: str, store: str, wait: timedelta, **_: int) -> None:
        waits.append(wait)

    monkeypatch.setattr(torch.distributed, "init_process_group", begin)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda num: None)
    workers._start(0, 2, tmp_path, lambda: None, ())
    assert waits[0] > timedelta(days=30)


def fail_while_another_works() -> None:
    if worker()[0] == 1:
        raise ValueError("no such model")
    time.sleep(60)


@pytest.mark.slow
def test_a_workers_exception_is_raised_without_a_log_record() -> None:
    said = queue.SimpleQueue[logging.LogRecord]()
    logger = logging.getLogger("torch.multiprocessing.spawn")
    handler = logging.handlers.QueueHandler(said)
    logger.addHandler(handler)
    try:
        with pytest.raises(ValueError, match="no such model"):
            spawn(2, fail_while_another_works)
    finally:
        logger.removeHandler(handler)
    assert said.empty()

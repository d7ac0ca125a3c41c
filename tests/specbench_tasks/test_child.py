"""A child's limits are those of one question, however many there are and however far apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specbench_tasks import child
from specbench_tasks.child import Child

BUSY = f"""
import sys, time
sys.path.insert(0, {child._ROOT!r})
from specbench_tasks import child

def answer(busy_s):
    until = time.process_time() + busy_s
    while time.process_time() < until:
        pass
    return busy_s

def serve():
    child.answer_questions(answer)
"""


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Child]]:
    """Makes a child that is busy for as long as it is asked to be."""
    made: list[Child] = []

    def make(more: str = "") -> Child:
        (tmp_path / "busy.py").write_text(BUSY + more)
        monkeypatch.setattr(child, "_ROOT", str(tmp_path))
        made.append(Child("busy"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_earlier_questions_do_not_use_up_the_time_of_the_next_question(
    busy: Callable[..., Child],
) -> None:
    asked = busy()
    assert [asked.ask(1, 0.8) for _ in range(3)] == [0.8] * 3


def test_waiting_does_not_use_up_the_time_of_the_next_question(busy: Callable[..., Child]) -> None:
    asked = busy("child._WALL_S = 1\n")
    assert asked.ask(5, 0.0) == 0
    time.sleep(1.3)
    assert asked.ask(5, 0.0) == 0

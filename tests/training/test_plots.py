"""Evaluations are read from the training log."""

import json
from pathlib import Path

import pytest

from training.zoo.train import read_evaluations


def report(step: int, leading: float) -> dict[str, object]:
    held_out = {"leading_16": leading, "greedy_leading_16": leading + 1}
    return {"held_out": held_out, "step": step, "tokens": 1000 * step}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    lines = [report(1, 2.0), report(2, 3.0), {"loss": 1.0, "step": 2}, report(2, 4.0)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_a_resumed_runs_reports_replace_those_they_repeat(log: Path) -> None:
    assert [r["held_out"]["leading_16"] for r in read_evaluations(log, "held_out")] == [2.0, 4.0]

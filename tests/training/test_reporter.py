"""What training tells of itself: in which style, and how long is left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.progress import Live, Plain
from training.reporter import Reporter, TrainingProgress


def test_training_writes_plain_lines_in_ci_and_a_live_display_in_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("CI", "true")
    assert isinstance(Reporter("auto", "x", tmp_path / "x.jsonl").shown, Plain)
    monkeypatch.delenv("CI")
    with Reporter("auto", "x", tmp_path / "x.jsonl") as reporter:
        assert isinstance(reporter.shown, Live)
    with pytest.raises(ValueError, match="unknown progress 'loud'; use one of auto, rich, plain"):
        Reporter("loud", "x", tmp_path / "x.jsonl")


def test_a_plain_line_shows_the_time_left_at_the_pace_of_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run: steps 101 to 120 took 40 s, 80 steps are left."""
    now = [1000.0]
    monkeypatch.setattr("bench.progress.time.monotonic", lambda: now[0])
    told = Reporter("plain", "x", tmp_path / "x.jsonl")
    told.start(200, TrainingProgress(step=100))
    for step in range(101, 121):
        now[0] += 2.0
        told.step(1.5, TrainingProgress(step=step, tokens=500, seconds=10.0))
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "training x 120/200  2 min 40 s left  loss 1.500, 50 tokens/s"


def test_a_quiet_run_still_writes_its_log_and_a_further_worker_writes_no_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for log in (tmp_path / "x.jsonl", None):
        told = Reporter("none", "x", log)
        told.start(50, TrainingProgress())
        told.step(1.5, TrainingProgress(step=50, tokens=500, seconds=10.0))
        told.evaluation(TrainingProgress(step=50), "a line", {"held_out": {}})
    assert capsys.readouterr().err == ""
    assert len((tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]

"""A clock that is set back during a run, or between two attempts, ends no run before it begins."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.extras.sessions.sessions import Sessions, _wait
from bench.records.plan import read_status
from tests.conftest import RecordedProgress

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second reading on the computer's clock shows a day earlier."""

    class Calendar(datetime):
        readings = 0

        @classmethod
        def now(cls, zone: Any = None) -> Any:
            cls.readings += 1
            return datetime.now(zone) - timedelta(days=cls.readings - 1)

    monkeypatch.setattr("bench.machine.clock.datetime", Calendar)


def test_a_run_ends_no_earlier_than_it_began(
    set_back: None, small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    config = small(repeats=1, limit=2, quality_limit=0)
    ended = bench_run.run(config, tmp_path, progress(stop_at=3), opener, report=None)
    stopped = read_status(ended.run_dir)
    assert stopped.started_utc is not None
    assert stopped.finished_utc == stopped.started_utc
    bench_run.resume(ended.run_dir, progress(), opener, report=None)
    status = read_status(ended.run_dir)
    assert status.complete
    assert status.finished_utc == status.started_utc == stopped.started_utc


def test_a_session_waits_at_most_its_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("bench.extras.sessions.sessions.time.sleep", slept.append)
    (tmp_path / "s0").mkdir()
    later = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    (tmp_path / "s0" / "run.json").write_text(json.dumps({"started_utc": later}))
    _wait(Sessions(folder=tmp_path, num=2, every=30), RecordedProgress())
    assert slept == [1800]


@pytest.mark.parametrize("text", ["sessions = 'x'", "sessions = 2\nevery_minutes = 1e308", ""])
def test_a_damaged_plan_of_sessions_is_one_line(text: str, tmp_path: Path) -> None:
    from tests.command_line import bench

    (tmp_path / "sessions.toml").write_text(text)
    (tmp_path / "config.toml").write_text("")
    ended = bench("resume", tmp_path, "--progress", "none")
    assert (ended.code, ended.err.count("\n")) == (4, 1), ended.err

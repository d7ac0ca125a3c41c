"""A clock that is set back during a run, or between two attempts, ends no run before it begins."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.records.plan import read_status

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

"""Sessions: fresh processes one after another, and their pool."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.errors import Exit
from bench.extras.sessions import sessions
from bench.extras.sessions.sessions import make_folder, measure_sessions
from bench.records.run_folder import load_run
from bench.settings.config import load_config
from tests.bench.conftest import write_run
from tests.command_line import bench
from tests.conftest import RecordedProgress

CONFIG = load_config(None, {"decoders": ["spec"]})
Ends = Callable[..., Exit]


def status_of(how: str, minute: int = 0) -> dict[str, Any]:
    ended = {"verdict": "VALID", "reasons": [], "warnings": []}
    ended = ended if how in ("complete", "wrong") else {}
    return {
        "status": "complete" if how == "wrong" else how,
        "started_utc": f"2026-11-20T10:{minute:02}:00+00:00",
        **ended,
    }


def processes(monkeypatch: pytest.MonkeyPatch, *ends: str) -> list[tuple[str, ...]]:
    """Processes that write a run each, and end as said; returns the commands that were run."""
    asked: list[tuple[str, ...]] = []

    def run(*arguments: object) -> Exit:
        words = tuple(map(str, arguments))
        how = ends[len(asked)]
        asked.append(words)
        if how == "nothing":
            return Exit.UNAVAILABLE
        parent, number = Path(words[words.index("--output") + 1]), len(asked)
        made: dict[str, Any] = {"seed": number, "status": status_of(how, number), "quality": 0}
        write_run(parent / f"s{number}", {"spec": 3.0}, **made)
        codes = {"complete": Exit.DONE, "wrong": Exit.REGRESSION}
        return codes.get(how, Exit.INTERRUPTED)

    monkeypatch.setattr(sessions, "_process", run)
    return asked


def test_each_session_is_a_process_and_one_folder_holds_all_sessions_and_their_pool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = processes(monkeypatch, *["complete"] * 3)
    ended = bench("run", "-d", "spec", "--sessions", 3, "-o", tmp_path, "--progress", "none")
    assert ended.code == 0, ended.err
    (folder,) = tmp_path.iterdir()
    assert len(asked) == 3
    job = ("--config", str(folder / "config.toml"), "--output", str(folder))
    assert [words[:7] for words in asked] == [("run", "--session", n, *job) for n in "123"]
    assert pd.read_csv(folder / "pool.csv")["sessions"].tolist() == [3]
    assert "3 sessions, 1 occasion, 14 prompts" in ended.out


def test_all_sessions_of_a_series_share_one_date(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sessions, "today", lambda: "2026-03-01")
    folder = make_folder(CONFIG, tmp_path)
    assert load_config(folder / "config.toml", {}).date == "2026-03-01"
    folder = make_folder(CONFIG.with_values(date="2026-02-01"), tmp_path)
    assert load_config(folder / "config.toml", {}).date == "2026-02-01"


@pytest.mark.parametrize(
    ("end", "code"), [("interrupted", Exit.INTERRUPTED), ("nothing", Exit.UNAVAILABLE)]
)
def test_a_session_without_a_result_ends_the_series(
    end: str, code: Exit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = processes(monkeypatch, "complete", end)
    stopped = bench("run", "-d", "spec", "--sessions", 3, "-o", tmp_path, "--progress", "plain")
    (folder,) = tmp_path.iterdir()
    assert (stopped.code, len(asked)) == (code, 2)
    assert f"all measurements are kept: bench pool {folder}" in stopped.err
    assert not (folder / "pool.csv").exists()


@pytest.mark.parametrize("place", [0, 1])
def test_the_exit_code_is_the_worst_of_all_sessions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: int
) -> None:
    ends = ["complete", "complete"]
    ends[place] = "wrong"
    processes(monkeypatch, *ends)
    ended = measure_sessions(CONFIG, 2, 0, tmp_path, RecordedProgress(), "none")
    assert ended == Exit.REGRESSION


def test_sessions_are_spread_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slept: list[float] = []
    monkeypatch.setattr("bench.extras.sessions.sessions.time.sleep", slept.append)
    processes(monkeypatch, *["complete"] * 3)
    measure_sessions(CONFIG, 3, 30, tmp_path, RecordedProgress(), "none")
    assert slept == [pytest.approx(1800, abs=20)] * 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--sessions", 0), "--sessions 0 is not allowed; use 2 or more sessions"),
        (("--sessions", 2, "--every", -1), "--every: "),
        (("--every", 5), "--sessions 1 --every 5 is not allowed; use 2 or more sessions"),
        (("--sessions", 2, "--part", "1/2"), "--sessions excludes --part, --workers and --session"),
        (("--sessions", 2, "--session", 2), "--sessions excludes --part, --workers and --session"),
        (("--sessions", 2, "-d", "nobody"), "nobody"),
    ],
)
def test_invalid_options_end_with_one_line_and_no_run_folder(
    given: tuple[object, ...], said: str, tmp_path: Path
) -> None:
    for also in ((), ("--dry-run",)):
        ended = bench("run", *given, *also, "-o", tmp_path / "out", "--progress", "none")
        assert (ended.code, said in ended.err) == (2, True), ended.err
        assert not (tmp_path / "out").exists()


def test_ctrl_c_waits_for_the_running_session_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Child:
        def __init__(self, command: list[str], **_: object) -> None:
            self.waits = 0

        def wait(self) -> int:
            self.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            return 0

    monkeypatch.setattr(subprocess, "Popen", Child)
    assert sessions._process("run") == Exit.INTERRUPTED


@pytest.mark.slow
def test_two_real_processes_are_pooled(tmp_path: Path) -> None:
    job = ["-d", "spec", "-L", 4, "--repeats", 1, "--quality-limit", 0, "--max-new-tokens", 8]
    ended = bench("run", *job, "--sessions", 2, "-o", tmp_path, "--progress", "none")
    assert ended.code == 0, ended.err
    (folder,) = tmp_path.iterdir()
    table = pd.read_csv(folder / "pool.csv")
    assert table[["decoder", "sessions", "machines"]].to_numpy().tolist() == [["spec", 2, 1]]
    runs = [run for run in sorted(folder.iterdir()) if run.is_dir() and not run.is_symlink()]
    first, second = (load_run(run).plan for run in runs)
    assert (first.order_seed, second.order_seed) == (0, 1)
    assert first.prompts == second.prompts
    assert first.blocks != second.blocks

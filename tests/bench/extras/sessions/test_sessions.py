"""Sessions: fresh processes one after another, what is missing of them, and their pool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.errors import Exit
from bench.extras.sessions import sessions
from bench.extras.sessions.sessions import Sessions, load_sessions, measure_sessions, plan_sessions
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
        if words[0] == "resume":
            (Path(words[1]) / "run.json").write_text(json.dumps(status_of(how)))
        else:
            parent, number = Path(words[words.index("--output") + 1]), len(asked)
            made: dict[str, Any] = {"seed": number, "status": status_of(how, number), "quality": 0}
            write_run(parent / f"s{number}", {"spec": 3.0}, **made)
        codes = {"complete": Exit.DONE, "wrong": Exit.REGRESSION}
        return codes.get(how, Exit.INTERRUPTED)

    monkeypatch.setattr(sessions, "_process", run)
    return asked


def test_each_session_is_a_process_and_all_are_one_folder_with_their_pool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = processes(monkeypatch, *["complete"] * 3)
    ended = bench("run", "-d", "spec", "--sessions", 3, "-o", tmp_path, "--progress", "none")
    assert ended.code == 0, ended.err
    (folder,) = tmp_path.iterdir()
    assert len(asked) == 3
    job = ("run", "--config", str(folder / "config.toml"), "--output", str(folder))
    assert [words[:7] for words in asked] == [(*job, "--session", str(n)) for n in (1, 2, 3)]
    assert pd.read_csv(folder / "pool.csv")["sessions"].tolist() == [3]
    assert "3 sessions, 1 occasion, 14 prompts" in ended.out
    again = bench("resume", folder, "--progress", "none")  # nothing is missing
    assert (again.code, len(asked)) == (0, 3)


def test_all_sessions_have_one_date(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "today", lambda: "2026-03-01")
    plan = plan_sessions(CONFIG, 3, 0, tmp_path)
    assert load_config(plan.folder / "config.toml", {}).date == "2026-03-01"
    given = CONFIG.with_values(date="2026-02-01")
    plan = plan_sessions(given, 3, 0, tmp_path)
    assert load_config(plan.folder / "config.toml", {}).date == "2026-02-01"


def test_what_was_stopped_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = processes(monkeypatch, "complete", "interrupted", "complete", "complete")
    stopped = bench("run", "-d", "spec", "--sessions", 3, "-o", tmp_path, "--progress", "none")
    (folder,) = tmp_path.iterdir()
    assert stopped.code == Exit.INTERRUPTED
    assert f"bench resume {folder}" in stopped.err
    assert not (folder / "pool.csv").exists()
    assert bench("resume", folder.name, "-o", tmp_path, "--progress", "none").code == 0
    assert [words[0] for words in asked] == ["run", "run", "resume", "run"]
    assert asked[2][1] == str(folder / "s2")
    assert [words[6] for words in asked if words[0] == "run"] == ["1", "2", "3"]
    assert pd.read_csv(folder / "pool.csv")["sessions"].tolist() == [3]


def test_a_session_without_a_result_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = processes(monkeypatch, "complete", "nothing")
    plan, progress = plan_sessions(CONFIG, 3, 0, tmp_path), RecordedProgress()
    assert measure_sessions(plan, progress, "none") == Exit.UNAVAILABLE
    assert (len(asked), plan.missing) == (2, 2)
    assert load_sessions(plan.folder) == plan


@pytest.mark.parametrize("place", [0, 1])
def test_the_exit_code_is_the_worst_of_all_sessions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: int
) -> None:
    ends = ["complete", "complete"]
    ends[place] = "wrong"
    processes(monkeypatch, *ends)
    plan = plan_sessions(CONFIG, 2, 0, tmp_path)
    assert measure_sessions(plan, RecordedProgress(), "none") == Exit.REGRESSION


def test_sessions_are_spread_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slept: list[float] = []
    monkeypatch.setattr("bench.extras.sessions.sessions.time.sleep", slept.append)
    processes(monkeypatch, *["complete"] * 2)
    write_run(tmp_path / "s0", {"spec": 3.0}, status=status_of("complete"))
    now = datetime.now(UTC).isoformat()
    (tmp_path / "s0" / "run.json").write_text(
        json.dumps(status_of("complete") | {"started_utc": now})
    )
    measure_sessions(Sessions(folder=tmp_path, num=3, every=30), RecordedProgress(), "none")
    assert len(slept) == 2
    assert slept[0] == pytest.approx(1800, abs=20)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--sessions", 0), "--sessions 0 is not allowed; use 2 or more sessions"),
        (("--sessions", 2, "--every", -1), "--every: "),
        (("--every", 5), "--sessions 1 --every 5 is not allowed; use 2 or more sessions"),
        (("--sessions", 2, "--part", "1/2"), "with --part or --workers"),
        (("--sessions", 2, "-d", "nobody"), "nobody"),
    ],
)
def test_what_cannot_be_is_one_line_and_no_folder(
    given: tuple[object, ...], said: str, tmp_path: Path
) -> None:
    for also in ((), ("--dry-run",)):
        ended = bench("run", *given, *also, "-o", tmp_path / "out", "--progress", "none")
        assert (ended.code, said in ended.err) == (2, True), ended.err
        assert not (tmp_path / "out").exists()


def test_ctrl_c_waits_for_the_session_to_store_what_it_has(
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

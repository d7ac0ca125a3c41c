"""Real runs, killed with SIGKILL at random moments of their whole life, and resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.records.run_folder import load_run
from bench.records.samples import SAMPLES
from tests.lines import read_lines
from tests.robustness.conftest import Launcher

NUM_TRIALS = int(os.environ.get("BENCH_KILLS", "50"))
Key = tuple[str, str, str, int]


def options(model: Path, results: Path) -> list[object]:
    return [
        "run", "--decoders", "spec:k=2", "--model", model, "--draft", model,
        "--tasks", "qa,mt_bench", "--limit", 2, "--quality-limit", 1, "--repeats", 2,
        "--max-new-tokens", 4, "--output", results, "--progress", "none",
    ]  # fmt: skip


def answers(run_dir: Path) -> dict[Key, tuple[int, ...] | None]:
    """Tokens by what was asked; every effective record has a key of its own."""
    records = load_run(run_dir).records
    found: dict[Key, tuple[int, ...] | None] = {
        (r.kind, r.decoder, r.prompt, r.repeat): r.tokens for r in records
    }
    assert len(found) == len(records)
    return found


def status(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
    return found


def the_run(results: Path) -> Path | None:
    """The one run folder there is; none before it began."""
    found = [p for p in results.glob("[!.]*") if not p.is_symlink()] if results.is_dir() else []
    assert len(found) <= 1
    return found[0] if found else None


def stage(run_dir: Path | None) -> str:
    """Where a kill met the run."""
    if run_dir is None:
        return "before its folder"
    if not (run_dir / "manifest.json").is_file():
        return "opening models"
    said = status(run_dir)["status"]
    if said == "complete":
        return "over" if status(run_dir)["reported"] else "writing its report"
    return "measuring" if (run_dir / SAMPLES).is_file() else "warming up"


def pause_and_kill(launcher: Launcher, pid: int, seconds: float) -> bool:
    """Whether the process was still there to be killed."""
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)  # it is not reaped yet: the id is still its own
    return bool(launcher.wait(pid) == -signal.SIGKILL)


@pytest.mark.slow
def test_resuming_a_run_killed_at_any_moment_loses_and_repeats_no_answer(
    launcher: Launcher, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    launcher.bench(*options(tiny_model, whole))  # the first one reads files from the disk
    (tmp_path / "timed").mkdir()
    start_s = time.monotonic()
    assert launcher.bench(*options(tiny_model, tmp_path / "timed")) == 0
    whole_s = time.monotonic() - start_s
    expected = answers(the_run(whole) or whole)

    dice = random.Random(0)
    met: Counter[str] = Counter()
    num_kills = num_kept = 0
    for trial in range(NUM_TRIALS):
        results = tmp_path / f"trial-{trial}"
        delay_s = whole_s * (trial + dice.random()) / NUM_TRIALS
        pid = launcher.start(*options(tiny_model, results))
        num_kills += pause_and_kill(launcher, pid, delay_s)
        run_dir = the_run(results)
        met[stage(run_dir)] += 1
        if run_dir is None:
            continue
        if trial % 3 == 0:  # the resumption is killed as well
            pid = launcher.start("resume", run_dir)
            num_kills += pause_and_kill(launcher, pid, whole_s * dice.random() * 0.7)
        lines, length = read_lines(run_dir / SAMPLES)
        before = (run_dir / SAMPLES).read_bytes()[:length] if lines else b""
        kept = answers(run_dir) if (run_dir / "manifest.json").is_file() else {}
        num_kept += len(kept)

        assert launcher.bench("resume", run_dir) == 0, launcher.log.read_text()[-2000:]
        assert answers(run_dir) == expected
        assert kept.items() <= expected.items()
        assert (run_dir / SAMPLES).read_bytes().startswith(before)
        done = status(run_dir)
        assert (done["status"], done["verdict"], done["reported"]) == ("complete", "VALID", True)
        for name in ("report.html", "report.md", "summary.csv", "samples.parquet", "vocab.json"):
            assert (run_dir / name).stat().st_size
        assert not list(run_dir.rglob(".*")), "scratch files are left"
    with capsys.disabled():
        where = ", ".join(f"{num} {name}" for name, num in met.most_common())
        sys.stdout.write(
            f"\n{NUM_TRIALS} runs of {whole_s:.1f} s, {num_kills} kills ({where}): {num_kept} "
            f"answers were there and stayed, {len(expected)} in every completed run\n"
        )
    assert num_kills >= NUM_TRIALS / 2
    assert met["measuring"]

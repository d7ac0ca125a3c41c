"""How a run of the zoo grows: time, memory and seconds to the first measurement. By hand, idle:

    python -m tests.benchmarks.growth [LIMIT] [TIMES]

Runs of LIMIT prompts and of TIMES as many (12 and 10), each a process of its own, in turn, twice.
"Measuring" is from the first answer's line to the last; memory is the peak of the process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Grown:
    """One run: seconds to the first answer, of measuring, of all; peak memory; timed answers."""

    first_s: float
    measuring_s: float
    total_s: float
    peak_bytes: int
    answers: int


def measured(limit: int, folder: Path) -> Grown:
    """A run of `limit` prompts; both passes beside the timed one keep their size."""
    command = [sys.executable, "-m", "bench", "run", "--limit", str(limit), "--repeats", "1"]
    command += ["--quality-limit", "2", "--output", str(folder), "--progress", "none"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    first_s, last_s, last = 0.0, 0.0, 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        lines = sum(_timed(file) for file in folder.glob("*/samples.jsonl"))
        if lines > last:
            last, last_s = lines, time.perf_counter() - began
            first_s = first_s or last_s
        if pid:
            break
        time.sleep(0.05)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return Grown(
        first_s=first_s,
        measuring_s=last_s - first_s,
        total_s=time.perf_counter() - began,
        peak_bytes=usage.ru_maxrss * 1024,
        answers=last,
    )


def _timed(file: Path) -> int:
    return file.read_bytes().count(b'"kind":"timing"')


def main(limit: int = 12, times: int = 10) -> None:
    """Prints a line per run, and how the longer ones compare."""
    found: dict[int, list[Grown]] = {limit: [], limit * times: []}
    for _ in range(2):
        for size, runs in found.items():
            with tempfile.TemporaryDirectory() as name:
                runs.append(measured(size, Path(name)))
            print(f"{size} prompts: {runs[-1]}", flush=True)
    short, long = found.values()
    ratio = _middle([each.peak_bytes for each in long]) / _middle([e.peak_bytes for e in short])
    each_s = [_middle([r.measuring_s / r.answers for r in runs]) for runs in (short, long)]
    print(f"memory {ratio:.2f}x, time per answer {each_s[1] / each_s[0]:.2f}x", end="")
    print(f", first answer after {_middle([r.first_s for r in short]):.1f} s")


def _middle(values: list[float] | list[int]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))

"""All measurements that a GPU is borrowed for, in under nine minutes: ``make gpu``.

Every step is a command of its own (`bench cost`, `bench run`, pytest) with its own time: one that
fails, hangs or takes the device down does not lose the others, and the summary is written again
after each. ``--rehearse`` runs the same steps in small on the CPU. docs/gpu.md says the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from bench.errors import BenchError, Exit, UnavailableError
from bench.gpu_summary import Outcome, Status, Step, read_outcome, write_summary
from bench.machine.env import ROOT
from bench.plan.named_models import fetch

TOTAL_S = 540.0
"""Seconds of all steps together, the start of each included."""
_GRACE_S = 12.0
"""Seconds of a step's time to keep and report its results once it is interrupted."""
_SMOLLM2 = "smollm2-135m"
_FULL = ("--rows", "1,8,16,32,64", "--sequences", "1,4,16,64", "--contexts", "512", "--rounds", "6")
_SMALL = ("--rows", "1,8", "--sequences", "1,2", "--contexts", "32", "--rounds", "1", "--no-replay")
_FEW = (
    *("--limit", "2", "--repeats", "1", "--quality-limit", "0", "--phase-limit", "1"),
    *("--max-new-tokens", "16"),
)


def make_steps(folder: Path, *, rehearse: bool) -> list[Step]:
    """Return the steps in order; each has a folder of its own in `folder`."""
    device = ("--device", "cpu" if rehearse else "cuda", "--dtype", "bfloat16")
    grid = _SMALL if rehearse else _FULL

    def cost(name: str, budget_s: float, *model: str, aim: float | None = None) -> Step:
        where = ("--folder", str(folder / name), "--progress", "plain")
        words = ("bench", "cost", *model, *device, *grid, *where)
        return Step(name=name, kind="cost", words=words, budget_s=budget_s, aim=aim)

    def run(name: str, budget_s: float, *given: str, against: str | None = None) -> Step:
        where = ("--output", str(folder / name), "--progress", "plain")
        words = ("bench", "run", *given, *device, *(_FEW if rehearse else ()), *where)
        return Step(name=name, kind="run", words=words, budget_s=budget_s, against=against)

    collect = ("--collect-only",) if rehearse else ()
    tests = ("pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *collect, "tests")
    zoo = ("--model", "zoo")
    real = ("--model", _SMOLLM2)
    shapes = ("zoo", "zoo") if rehearse else ("llama-1b", "qwen3-8b")
    no_graphs = "compiling for a CPU takes minutes; its own tests do it" if rehearse else None
    not_here = "left to the GPU: its steps are those of the zoo" if rehearse else _missing_model()
    return [
        Step(name="tests", kind="tests", words=tests, budget_s=75.0),
        cost("llama-1b", 50.0, "--shape", shapes[0], aim=None if rehearse else 0.65),
        cost("qwen3-8b", 90.0, "--shape", shapes[1], aim=None if rehearse else 0.80),
        cost("zoo-cost", 35.0, *zoo),
        run("zoo", 130.0, *zoo, against="zoo-cost"),
        replace(run("zoo-graphs", 60.0, *zoo, "--compile"), left_out=no_graphs),
        replace(cost("smollm2-cost", 25.0, *real), left_out=not_here),
        replace(run("smollm2", 60.0, *real, against="smollm2-cost"), left_out=not_here),
    ]


def _missing_model() -> str | None:
    """Return why SmolLM2 is not measured, None where its weights are here."""
    try:
        fetch(_SMOLLM2)
    except BenchError as error:
        return error.message
    return None


def measure(
    steps: Sequence[Step],
    folder: Path,
    *,
    rehearsal: bool,
    grace_s: float = _GRACE_S,
    say: Callable[[str], object] = print,
) -> Exit:
    """Run the steps one after another, and write the summary after each (`BenchError`)."""
    outcomes: list[Outcome] = []
    for step in steps:
        outcome = _run(step, folder, grace_s)
        outcomes.append(outcome)
        write_summary(folder, outcomes, rehearsal=rehearsal)
        reason = f": {outcome.reason}" if outcome.reason else ""
        say(f"{step.name}: {outcome.status.value} in {outcome.seconds:.0f} s{reason}")
        if outcome.status is Status.INTERRUPTED:
            return Exit.INTERRUPTED
    say(f"{folder / 'summary.md'}  {folder / 'summary.json'}")
    return Exit.DONE if all(outcome.well for outcome in outcomes) else Exit.FAILED


def _run(step: Step, folder: Path, grace_s: float) -> Outcome:
    """Run a step as a process group of its own, its output in ``NAME.log``."""
    if step.left_out is not None:
        return Outcome(step=step, status=Status.LEFT_OUT, reason=step.left_out)
    log = folder / f"{step.name}.log"
    began = time.monotonic()
    status: Status | None = None
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *step.words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(max(0.0, step.budget_s - grace_s))
        except subprocess.TimeoutExpired:
            status = Status.OUT_OF_TIME
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        finally:
            _end(process, grace_s)
    status = status or (Status.FAILED if process.returncode else Status.PASSED)
    seconds = time.monotonic() - began
    return read_outcome(step, folder, status, process.returncode, seconds)


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Interrupt a step that still runs, and kill what has not ended by then, its children too."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with contextlib.suppress(ProcessLookupError):  # nothing of the group is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and return the exit code; without a GPU nothing is run (exit 5)."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="the same in small, on the CPU")
    parser.add_argument("--output", type=Path, default=ROOT / "results", help="where its folder is")
    given = parser.parse_args(arguments)
    try:
        if not given.rehearse and not torch.cuda.is_available():
            raise UnavailableError(
                "torch sees no CUDA device here, which `make gpu` is for; to try its steps on the "
                "CPU: make gpu GPU_ARGS=--rehearse",
            )
        folder = given.output.resolve() / f"gpu-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            line = f"cannot make {folder}: {error.strerror}; give another --output"
            raise BenchError(line) from error
        steps = make_steps(folder, rehearse=given.rehearse)
        return measure(steps, folder, rehearsal=given.rehearse)
    except BenchError as error:
        sys.stderr.write(f"bench: {error.message}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

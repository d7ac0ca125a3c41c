"""Run all measurements that need a GPU in under eleven minutes: ``make gpu``.

Every step is a separate command with its own time limit, the most valuable step first. If a step
fails, hangs or takes the device down, the other steps are not lost; the summary is rewritten
before and after each step. Only torch, transformers and their requirements must be installed; steps
that need more are left out. ``--rehearse`` runs small steps on the CPU. See docs/gpu.md.
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
from importlib.util import find_spec
from pathlib import Path

import torch

from bench.errors import BenchError, Exit, UnavailableError, UsageError
from bench.extras.gpu_summary import Status, Step, read_figures, write_summary
from decoders.core.nearest import nearest

ROOT = Path(__file__).resolve().parents[2]
TOTAL_S = 640.0
"""Time limit of all steps together in seconds, including the start of each."""
_GRACE_S = 12.0
"""Seconds of a step's time limit kept for saving results after it is interrupted."""
_CPU_SLOWER = 4
_SMOLLM2 = "smollm2-135m"
_UNREHEARSED = "left to the GPU: its steps are those of the zoo"
_FEW = (
    *("--limit", "2", "--repeats", "1", "--quality-limit", "0", "--phase-limit", "1"),
    *("--max-new-tokens", "16", "--no-compile"),  # a GPU captures calls, and compiles none
)
GPU_TESTS = (
    *("core/kernels/kernels", "core/hf/model", "core/hf/replay", "core/hf/drafting"),
    *("core/hf/tiles", "core/hf/placed", "bench/extras/cost/cost_subject"),
)
"""Files with tests marked `gpu`, the most valuable first."""
_TIMED = ("--split", "test", "--limit", "24", "--repeats", "1", "--max-new-tokens", "128")
_WHOLE = (*_TIMED, "--quality-limit", "24", "--phase-limit", "2")
_BATCH = (*_TIMED, "--quality-limit", "0", "--phase-limit", "0", "--batch-size", "8")
_REQUIREMENTS = (
    *("datasets", "jinja2", "matplotlib", "pandas", "psutil", "pyarrow", "pydantic", "rich"),
    *("rouge_score", "sacrebleu", "scipy", "tomli_w", "typer"),
)
"""Packages that `bench run` needs."""


def make_steps(folder: Path, *, rehearse: bool, tasks: str | None = None) -> list[Step]:
    """Return the steps, the most valuable first. Each writes its results to `folder`.

    SmolLM2 answers `tasks` (None: the embedded ones).
    """
    device = ("--device", "cpu" if rehearse else "cuda", "--dtype", "bfloat16")

    def bare(part: str, shape: str, budget_s: float) -> Step:
        name = f"{part}-{shape}"
        model = ("--shape", "zoo" if rehearse else shape, *device)
        rest = ("--output", str(folder / f"{name}.jsonl"), *(("--small",) if rehearse else ()))
        words = ("bench.extras.cost.bare", part, *model, *rest)
        return Step(name=name, kind="lines", words=words, budget_s=budget_s)

    files = [Path("tests", each).parent / f"test_{Path(each).name}.py" for each in GPU_TESTS]
    options = ("-q", "-m", "gpu", "-p", "no:cacheprovider", *(("--collect-only",) * rehearse))
    words = ("pytest", *options, *map(str, files))
    tests = Step(name="tests", kind="tests", words=words, budget_s=60.0, reason=_missing("pytest"))

    def run(name: str, budget_s: float, model: str, *options: str) -> Step:
        where = ("--output", str(folder / name), "--progress", "plain")
        how = (*device, *(_FEW if rehearse else options), *where)
        words = ("bench", "run", "--model", model, *how)
        reason = no_smollm2 if model == _SMOLLM2 else no_zoo
        return Step(name=name, kind="run", words=words, budget_s=budget_s, reason=reason)

    no_zoo = _missing(*_REQUIREMENTS)
    no_smollm2 = no_zoo or (_UNREHEARSED if rehearse else _missing_model())
    named = () if tasks is None else ("--tasks", tasks)
    steps = [
        bare("ar", "llama-1b", 30.0),
        bare("ar", "qwen3-8b", 45.0),
        bare("ways", "llama-1b", 45.0),
        run("smollm2", 170.0, _SMOLLM2, *_WHOLE, *named),
        run("smollm2-batch", 90.0, _SMOLLM2, *_BATCH, *named),
        tests,
        bare("scripted", "qwen3-8b", 60.0),
        bare("profile", "llama-1b", 20.0),
        bare("invariant", "llama-1b", 30.0),
        bare("scripted", "llama-1b", 45.0),
        run("zoo", 40.0, "zoo"),
    ]
    slower = _CPU_SLOWER if rehearse else 1
    return [replace(step, budget_s=step.budget_s * slower) for step in steps]


def choose(steps: Sequence[Step], names: str | None) -> Sequence[Step]:
    """Return the steps that `names`, separated by commas, choose (None: all), in their order."""
    allowed = [step.name for step in steps]
    selection = allowed if names is None else names.split(",")
    for name in set(selection) - set(allowed):
        line = f"--only has no step {name!r}; {nearest(name, allowed)}steps: {', '.join(allowed)}"
        raise UsageError(line)
    return [step for step in steps if step.name in selection]


def _missing(*packages: str) -> str | None:
    """Name the packages that a step lacks, if any."""
    missing = ", ".join(name for name in packages if find_spec(name) is None)
    return f"not installed: {missing}; `make install` brings all" if missing else None


def _missing_model() -> str | None:
    """Return a reason not to measure SmolLM2, if its weights are not available."""
    try:
        from bench.plan.sources import fetch  # this module needs more than torch and transformers

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
    """Run the steps one after another, and write the summary before and after each.

    Args:
        steps: the steps in their order; a step with a `reason` is left out.
        folder: where logs, results and the summary are written; it exists.
        rehearsal: recorded in the summary.
        grace_s: seconds of each step's time limit for saving results after it is interrupted.
        say: called with a line about each ended step, then with the path of the summary.
    """
    ended: list[Step] = []
    for step in steps:
        running = replace(step, status=Status.RUNNING, reason=None)
        write_summary(folder, [*ended, running], rehearsal=rehearsal)
        ended.append(_run(step, folder, grace_s))
        write_summary(folder, ended, rehearsal=rehearsal)
        reason = f": {ended[-1].reason}" if ended[-1].reason else ""
        say(f"{step.name}: {ended[-1].status} in {ended[-1].seconds:.0f} s{reason}")
        if ended[-1].status is Status.INTERRUPTED:
            return Exit.INTERRUPTED
    say(str(folder / "summary.json"))
    good = all(step.status in (Status.PASSED, Status.LEFT_OUT) for step in ended)
    return Exit.DONE if good else Exit.FAILED


def _run(step: Step, folder: Path, grace_s: float) -> Step:
    """Run a step in a new process group, with its output in ``NAME.log``."""
    if step.reason is not None:
        return replace(step, status=Status.LEFT_OUT)
    log = folder / f"{step.name}.log"
    start_s = time.monotonic()
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
            if process.poll() is None:  # it saves its results, then it and its children end
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(grace_s)
            with contextlib.suppress(ProcessLookupError):  # the group has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    status = status or (Status.FAILED if process.returncode else Status.PASSED)
    seconds, code = time.monotonic() - start_s, process.returncode
    return read_figures(replace(step, status=status, exit_code=code, seconds=seconds), folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps and return the exit code: 5 without a GPU, except in a rehearsal."""
    parser = argparse.ArgumentParser(prog="python -m bench.extras.gpu", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="the same in small, on the CPU")
    parser.add_argument("--output", type=Path, default=ROOT / "results", help="where its folder is")
    parser.add_argument("--tasks", help="tasks of SmolLM2, as for `bench run` [default: embedded]")
    parser.add_argument("--only", metavar="STEP,…", help="these steps, by the names in docs/gpu.md")
    options = parser.parse_args(arguments)
    try:
        if not options.rehearse and not torch.cuda.is_available():
            raise UnavailableError(
                "torch sees no CUDA device here, which `make gpu` is for; to try its steps on the "
                "CPU: make gpu GPU_ARGS=--rehearse"
            )
        folder = options.output.resolve() / f"gpu-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        there = make_steps(folder, rehearse=options.rehearse, tasks=options.tasks)
        steps = choose(there, options.only)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            line = f"cannot make {folder}: {error.strerror}; give another --output"
            raise BenchError(line) from error
        return measure(steps, folder, rehearsal=options.rehearse)
    except BenchError as error:
        sys.stderr.write(f"bench: {error.message}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

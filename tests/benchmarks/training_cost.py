"""Seconds of a training step of adapter variants, against the first. By hand, on an idle machine:

    python tests/benchmarks/training_cost.py training/recipes/ptp-compare.toml \\
        training/recipes/ptp-full.toml …

One process, one thread; steps of all recipes are interleaved, on the same rows of text. Ratios are
means of log-ratios over steps with Student's t (bench/stats/intervals.py).
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.stats.intervals import cluster_mean
from training.adapter.job import AdapterJob
from training.adapter.recipe import AdapterRecipe
from training.adapters import build_job
from training.loop import update
from training.recipe import read_recipe
from training.reporter import Reporter, TrainingProgress
from training.run import JobContext

NUM_STEPS = 12


def main(paths: list[str]) -> None:
    """Prints a line for each recipe after the first."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        runs = {Path(path).stem: _opened(Path(path), Path(name)) for path in paths}
        logs: dict[str, list[float]] = {stem: [] for stem in runs}
        for step in range(NUM_STEPS + 1):
            for stem, (job, moves) in runs.items():
                began = time.perf_counter()
                update(job.pieces(TrainingProgress(step=step)), job.trained, moves)
                logs[stem].append(math.log(time.perf_counter() - began))
    first, *others = logs
    seconds = math.exp(sum(logs[first][1:]) / NUM_STEPS)
    print(f"{first}: {seconds:.2f} s a step")
    for stem in others:
        ratios = [a - b for a, b in zip(logs[stem][1:], logs[first][1:], strict=True)]
        found = cluster_mean(ratios, [str(i) for i in range(len(ratios))])
        assert found.value is not None
        assert found.low is not None
        assert found.high is not None
        low, high = math.exp(found.low), math.exp(found.high)
        print(f"{stem} / {first}: {math.exp(found.value):.2f} [{low:.2f}, {high:.2f}]")


def _opened(path: Path, folder: Path) -> tuple[AdapterJob, list[torch.optim.Optimizer]]:
    recipe = AdapterRecipe.of(read_recipe(path))
    reporter = Reporter("none", "adapter", folder / "log.jsonl")
    job = build_job(recipe, JobContext(folder, torch.device("cpu"), reporter))
    return job, job.optimizers()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1:])

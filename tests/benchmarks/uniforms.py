"""What u is worth to a shallow drafter: ``python -m tests.benchmarks.uniforms DATA WITH WITHOUT``.

DATA are stored completions, WITH and WITHOUT the folders of a drafter and its control, trained
alike. On the same held-out answers and places it compares the leading right drafts of the drafter,
of the control, and of the drafter fed uniforms that did not pick the text. Means are of answers;
differences are paired by answer, with a 95 % t-interval.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from scipy import stats

from bench.plan.named_models import resolve
from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.types import NO_UNIFORM
from training.heads.parallel_job import _Head
from training.heads.recipe import HeadsRecipe
from training.heads.train import build_job
from training.recipe import RECIPES, read_recipe, with_settings
from training.run import Reporter


class _Strangers(ParallelLayers):
    """The same weights, with uniforms of another text."""

    def embedded(self, u: Any) -> Any:
        other = torch.rand(u.shape, dtype=u.dtype, generator=torch.Generator().manual_seed(7))
        return super().embedded(torch.where(u == NO_UNIFORM, u, other))


def main() -> None:
    """Print a line for each temperature and drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "drafter", "control"):
        parser.add_argument(name)
    parser.add_argument("--rows", type=int, default=240)
    given = parser.parse_args()
    drafter, control = ParallelLayers.load(given.drafter), ParallelLayers.load(given.control)
    strangers = _Strangers(drafter.config)
    strangers.load_state_dict(drafter.state_dict())
    config = drafter.config
    sizes = {"rank": config.rank, "bias_rank": config.bias_rank, "num_layers": config.num_layers}
    settings = [f"data.path={given.data}", *(f"drafter.{k}={v}" for k, v in sizes.items())]
    tables = with_settings(read_recipe(RECIPES / "smollm2-drafter.toml"), settings)
    recipe, silent = HeadsRecipe.of(tables), Reporter("none", "heads", None)
    job: Any = build_job(recipe, Path(), torch.device("cpu"), silent, resolve)
    drafters = {"with u": drafter, "without u": control, "another text's u": strangers}
    leading: dict[str, dict[float, list[float]]] = {name: defaultdict(list) for name in drafters}
    for number, row in enumerate(job.source.held_out(given.rows)):
        for name, heads in drafters.items():
            job.heads = heads
            job._generator.manual_seed(number)
            with torch.no_grad():
                slots = job._slots([row])
                picks = F.linear(slots.features, _Head(job).rows).argmax(-1)
            right = (picks == job.indices(slots.label)) & slots.inside
            counted = slots.inside[..., 0]
            mean = right.long().cumprod(-1).sum(-1)[counted].float().mean()
            leading[name][row.temperature or 0.0].append(float(mean))
        job._kept.clear()
    for temperature in sorted(leading["with u"]):
        base = leading["without u"][temperature]
        for name, found in leading.items():
            its = found[temperature]
            paired = [a - b for a, b in zip(its, base, strict=True)]
            gap = "" if its is base else f", over the control {_interval(paired)}"
            means = f"T = {temperature:g}, {name}: {1 + sum(its) / len(its):.3f} tokens per step"
            print(f"{means} of {len(its)} answers{gap}")


def _interval(values: list[float]) -> str:
    middle = sum(values) / len(values)
    low, high = stats.t.interval(0.95, len(values) - 1, middle, stats.sem(values))
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()

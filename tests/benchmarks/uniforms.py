"""What u is worth to a shallow drafter: ``python -m tests.benchmarks.uniforms DATA``.

DATA are stored completions of prompts that no drafter was trained on; ``--drafter`` and
``--control`` are folders of drafters and their controls, trained alike from several seeds. On the
same answers and places it compares the leading right drafts of the drafters, of the controls, and
of the drafters fed uniforms that did not pick the text, and prints a table as CSV. Values are means
of answers, each the mean of the seeds; differences are paired by answer, with a 95 % t-interval.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from bench.plan.sources import resolve
from decoders.core.adapter.draft_pass import short_head
from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.types import NO_UNIFORM
from training.adapters import build_job
from training.heads.recipe import HeadsRecipe
from training.recipe import RECIPES, read_recipe, with_settings
from training.reporter import Reporter
from training.run import JobContext
from training.text.data import Row


class _Strangers(ParallelLayers):
    """The same weights, with uniforms of another text."""

    @classmethod
    def of(cls, drafter: ParallelLayers) -> _Strangers:
        """Return a drafter's weights in this form."""
        strangers = cls(drafter.config)
        strangers.load_state_dict(drafter.state_dict())
        return strangers

    def embedded(self, u: Any) -> Any:
        other = torch.rand(u.shape, dtype=u.dtype, generator=torch.Generator().manual_seed(7))
        return super().embedded(torch.where(u == NO_UNIFORM, u, other))


def main() -> None:
    """Print a row for each temperature and drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--drafter", nargs="+", required=True)
    parser.add_argument("--control", nargs="+", required=True)
    parser.add_argument("--rows", type=int, default=240)
    given = parser.parse_args()
    drafters = [ParallelLayers.load(each) for each in given.drafter]
    groups: dict[str, Sequence[ParallelLayers]] = {
        "u": drafters,
        "control": [ParallelLayers.load(each) for each in given.control],
        "another": [_Strangers.of(each) for each in drafters],
    }
    job = _job(drafters[0].config, given.data, given.rows)
    found: dict[tuple[float, str], list[list[Tensor]]] = defaultdict(list)
    for number, row in enumerate(job.source.rows(0)):
        for name, members in groups.items():
            its = [_leading(job, each, row, number) for each in members]
            found[row.temperature or 0.0, name].append(its)
        job._kept.clear()
    columns = "temperature,drafter,tokens_per_step,answers,seeds_low,seeds_high"
    print(f"{columns},over_control,over_control_low,over_control_high,accepted")
    for temperature, name in itertools.product(sorted({each for each, _ in found}), groups):
        answers, control = found[temperature, name], found[temperature, "control"]
        means, base = (
            np.array([[float(each.float().mean()) for each in its] for its in side])
            for side in (answers, control)
        )
        seeds = 1 + means.mean(0)
        gap = "" if name == "control" else _interval(means.mean(1) - base.mean(1))
        runs = torch.cat([each for its in answers for each in its])
        depths = range(job.heads.config.num_slots + 1)
        survived = [float((runs >= depth).float().mean()) for depth in depths]
        pairs = itertools.pairwise(survived)
        conditional = "/".join(f"{b / a:.3f}" if a else "" for a, b in pairs)
        print(
            f"{temperature:g},{name},{seeds.mean():.3f},{len(means)},{seeds.min():.3f},"
            f"{seeds.max():.3f},{gap or ',,'},{conditional}"
        )


def _job(config: Any, data: str, num: int) -> Any:
    names = "rank", "bias_rank", "num_layers", "num_slots"
    sizes = {name: getattr(config, name) for name in names}
    settings = [f"data.path={data}", f"data.rows_per_step={num}", "data.max_tokens=1160"]
    settings += [f"drafter.{name}={size}" for name, size in sizes.items()]
    tables = with_settings(read_recipe(RECIPES / "smollm2-drafter.toml"), settings)
    silent = Reporter("none", "heads", None)
    return build_job(
        HeadsRecipe.of(tables), JobContext(Path(), torch.device("cpu"), silent, resolve)
    )


@torch.no_grad()
def _leading(job: Any, heads: ParallelLayers, row: Row, number: int) -> Tensor:
    """Return the leading right drafts at places of an answer, the same ones for all drafters."""
    job.heads = heads
    job._head = short_head(job._whole_head, heads.words)  # of one drafter's words
    job.__dict__.pop("_frozen", None)
    job._generator.manual_seed(number)
    slots = job._slots([row])
    picks = F.linear(slots.features, job._rows).argmax(-1)
    right = (picks == job._indices(slots.label)) & slots.inside
    return right.long().cumprod(-1).sum(-1)[slots.inside[..., 0]]


def _interval(values: np.ndarray) -> str:
    middle = values.mean()
    low, high = stats.t.interval(0.95, len(values) - 1, middle, stats.sem(values))
    return f"{middle:.3f},{low:.3f},{high:.3f}"


if __name__ == "__main__":
    main()

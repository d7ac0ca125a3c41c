"""How often the printed 95 % intervals cover the truth, by simulation.

Populations: log-normal ratios, and the prompts of stored runs (results/reference/sessions), drawn
with replacement, alone or with their conversation. `pytest -m slow -s
tests/bench/stats/test_coverage.py` prints the figures; what they mean stands in docs/metrics.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.stats.intervals import Estimate, geometric_mean
from bench.stats.speedups import Speedups, speedups
from bench.stats.times import Unit

STORED = Path(__file__).parents[3] / "results" / "reference" / "sessions"
SIZES = (8, 40, 80)
TRIALS = 3000
Conversation = Sequence[tuple[float, float, float]]
"""Per turn: tokens, and both sides' seconds per token."""


def stored(file: str, decoder: str) -> list[Conversation]:
    frame = pd.read_csv(STORED / f"{file}.csv")
    rows = frame[frame["decoder"] == decoder]
    columns = ["tokens", "ar_time_per_token_s", "time_per_token_s"]
    return [
        [tuple(turn) for turn in group[columns].to_numpy().tolist()]
        for _, group in rows.groupby("conversation")
    ]


def log_normal(num: int, rng: np.random.Generator) -> list[Conversation]:
    """Ratios around 2 that spread as ptp's do on the zoo."""
    return [[(60, 0.002 * math.exp(x), 0.001)] for x in rng.normal(0, 0.35, num)]


def drawn(population: list[Conversation], num: int, rng: np.random.Generator) -> list[Conversation]:
    """So many conversations, drawn with replacement."""
    return [population[i] for i in rng.integers(len(population), size=num)]


def t_interval(conversations: Sequence[Conversation]) -> Estimate:
    turns = [(str(i), turn) for i, turns in enumerate(conversations) for turn in turns]
    logs = [math.log(base / mine) for _, (_, base, mine) in turns]
    return geometric_mean(logs, [name for name, _ in turns])


def estimators(conversations: Sequence[Conversation]) -> Speedups:
    def side(place: int) -> list[Unit]:
        return [
            Unit(
                key=f"{i}#{j}",
                cluster=str(i),
                family="qa",
                repeat=0,
                ok=True,
                tokens=int(turn[0]),
                seconds=turn[0] * turn[place],
            )
            for i, turns in enumerate(conversations)
            for j, turn in enumerate(turns)
        ]

    return speedups(side(1), side(2))


def covers(estimate: Estimate, truth: float) -> bool:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


def told(what: str, share: float, trials: int) -> None:
    error = math.sqrt(share * (1 - share) / trials)
    sys.stdout.write(f"{what:58s} {share:.1%} ± {error:.1%}\n")


POPULATIONS = {
    "log-normal": None,
    "spec, 17:30": ("20261121-1730", "spec"),
    "spec, 17:38": ("20261121-1738", "spec"),
    "spec, 20:44": ("20261121-2044", "spec"),
    "ptp, 20:44": ("20261121-2044", "ptp"),
}


def source(
    name: str, *, whole: bool
) -> tuple[Callable[[int, np.random.Generator], list[Conversation]], Speedups]:
    """How to draw from a population (`whole`: conversations, else prompts), and its true values."""
    place = POPULATIONS[name]
    if place is None:
        return log_normal, Speedups(
            geometric=Estimate(value=2.0),
            totals=Estimate(value=2.0 * math.exp(0.35**2 / 2)),
            specbench=Estimate(value=2.0 * math.exp(-(0.35**2) / 2)),
            more_prompts=None,
        )
    population = stored(*place)
    if not whole:
        population = [[turn] for turns in population for turn in turns]
    return (lambda num, rng: drawn(population, num, rng)), estimators(population)


def share_covered(name: str, num: int, *, whole: bool) -> float:
    draw, truth = source(name, whole=whole)
    rng, value = np.random.default_rng(num), truth.geometric.value
    assert value is not None
    return sum(covers(t_interval(draw(num, rng)), value) for _ in range(TRIALS)) / TRIALS


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize("num", SIZES)
def test_the_headlines_interval_covers_the_truth_95_times_in_100(name: str, num: int) -> None:
    share = share_covered(name, num, whole=False)
    told(f"geometric mean, t, {name}, {num} prompts", share, TRIALS)
    assert 0.93 <= share <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, place in POPULATIONS.items() if place])
@pytest.mark.parametrize(("num", "least"), [(8, 0.90), (34, 0.93), (69, 0.93)])
def test_the_interval_of_few_conversations_of_unequal_length_covers_the_truth_less_often(
    name: str, num: int, least: float
) -> None:
    """Two-turn conversations weigh double; where they are the slow ones, few of them skew it."""
    share = share_covered(name, num, whole=True)
    told(f"geometric mean, t, {name}, {num} conversations", share, TRIALS)
    assert least <= share <= 0.975


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log-normal", "spec, 20:44", "ptp, 20:44"])
@pytest.mark.parametrize("num", SIZES)
def test_jackknife_intervals_cover_the_truth_nearly_as_often(name: str, num: int) -> None:
    draw, truth = source(name, whole=False)
    rng, trials = np.random.default_rng(num), TRIALS
    hits = dict.fromkeys(("totals", "specbench"), 0)
    for _ in range(trials):
        found = estimators(draw(num, rng))
        for kind in hits:
            hits[kind] += covers(getattr(found, kind), getattr(truth, kind).value)
    for kind, count in hits.items():
        told(f"{kind}, jackknife, {name}, {num} prompts", count / trials, trials)
        assert 0.90 <= count / trials <= 0.99


def test_the_stored_sessions_disagree_by_more_than_their_intervals_say() -> None:
    """The reason for the sentence beside every interval: prompts are not all that varies."""
    early, late = (t_interval(stored(file, "spec")) for file in ("20261121-1730", "20261121-1738"))
    assert early.low is not None
    assert late.high is not None
    assert late.value is not None
    assert early.value is not None
    assert not covers(early, late.value)
    assert not covers(late, early.value)

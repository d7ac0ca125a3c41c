"""Held-out figures of masks: the closed form against a coin, and against rounds by chance of depth.

Letters: N the stride, C_k the chance that the first k specs of a stride stand.
"""

from __future__ import annotations

import json
import random

import pytest
import torch

from tests.training.adapter.test_report import LENGTH, judged_windows
from training.adapter.report import HeldOutReport, SlotTally, tokens_per_call


def simulated(chances: list[float], num_rounds: int = 200_000) -> float:
    """Tokens per round where spec k of a stride stands with its chance once those before stood."""
    rng, tokens, specs = random.Random(1), 0, False
    for _ in range(num_rounds):
        stood = 0
        while specs and stood < len(chances) and rng.random() < chances[stood]:
            stood += 1
        tokens += stood + 1
        specs = not specs or stood == len(chances)
    return tokens / num_rounds


@pytest.mark.parametrize(
    ("stride", "chance", "known"),
    [(2, 0.5, 1.33), (4, 0.9, 2.92), (5, 0.7, 2.01), (8, 0.9, 4.09), (8, 0.95, 5.40)],
)
def test_the_closed_form_gives_the_published_tokens_per_call(
    stride: int, chance: float, known: float
) -> None:
    survival = [chance**k for k in range(1, 8)]
    assert tokens_per_call(survival, stride) == pytest.approx(known, abs=0.006)


def test_the_closed_form_equals_simulated_rounds_with_acceptance_that_varies_by_depth() -> None:
    chances, survival, product = [0.9, 0.6, 0.8], [], 1.0
    for chance in chances:
        product *= chance
        survival.append(product)
    assert tokens_per_call(survival, 4) == pytest.approx(simulated(chances), rel=0.01)
    assert tokens_per_call([1.0] * 3, 4) == 4
    assert tokens_per_call([0.0] * 3, 4) == 1
    assert tokens_per_call(survival, 5) is None


def test_a_slot_counts_by_its_probability_of_being_right() -> None:
    tally = SlotTally(LENGTH)
    outcome, judged = judged_windows([[[True] * 3, [True] * 2]])
    chances = [0.5, 0.8, 0.1, 0.25, 0.4]
    tally.add(outcome, (torch.tensor(chances), *judged[1:]))
    mean = (0.5 + 0.25) / 2
    both = 0.5 * 0.8 + 0.25 * 0.4
    assert tally.accuracy()[:3] == pytest.approx([mean, 0.6, 0.1], abs=1e-5)
    assert tally.survival()[:2] == pytest.approx([mean, both / 2], abs=1e-5)
    # the third slot is reached by the first window alone, as often as its specs stood
    assert tally.survival()[2] == pytest.approx(both / 2 * 0.1, abs=1e-5)


def tally_of(*windows: list[bool]) -> SlotTally:
    tally = SlotTally(LENGTH)
    tally.add(*judged_windows([list(windows)]))
    return tally


def test_a_report_of_strides_survives_json_and_shows_tokens_per_call() -> None:
    sampled, greedy = tally_of([True, False, True], [True] * 3), tally_of([True] * LENGTH)
    report = HeldOutReport.of(sampled, greedy, strides=True)
    values = json.loads(json.dumps(report.measured(), allow_nan=False))
    assert values["tokens_per_call"] == {"4": {"sampled": 2.333, "greedy": 4.0}}
    assert report.accuracy[:3] == [1.0, 0.5, 1.0]
    assert report.greedy_survival == [1.0] * LENGTH
    assert report.summary() == (
        "overlap by depth 1.00 0.50 1.00; tokens per call: N = 4: sampled 2.33, greedy 4.00"
    )

"""Held-out figures: survival against a slow Kaplan-Meier loop, calibration, the report as JSON.

Letters: B rows, Q slots of a row, M slots that count, W windows, G slots of a window.
"""

from __future__ import annotations

import json
import random

import pytest
import torch

from training.adapter.objectives import Judgement, Outcome
from training.adapter.report import HeldOutReport, SlotTally
from training.adapter.windows import Windows

LENGTH = 6

Window = list[bool]
"""Whether each slot that is looked at is right; a window may end early, or be empty."""


def judged_windows(
    rows: list[list[Window]], *, depth: int = 0, counts: bool = True
) -> tuple[Outcome, Judgement]:
    """Windows of G slots each, of which the first ``len(window)`` count.

    `depth` is the first slot's; `counts` False turns every slot after them from one that is not
    usable into one that is usable, judged right, but does not count.
    """
    num_slots = max(len(row) for row in rows) * LENGTH + 2  # and two of padding
    shape = (len(rows), num_slots)
    number, depths = torch.full(shape, -1), torch.zeros(shape, dtype=torch.int64)
    usable, right, counting = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    for b, row in enumerate(rows):
        for n, window in enumerate(row):
            for j in range(LENGTH):
                q, there = n * LENGTH + j, j < len(window)
                number[b, q], depths[b, q] = n, depth + j
                usable[b, q], counting[b, q] = there or not counts, there
                right[b, q] = window[j] if there else True
    windows = Windows(
        ids=torch.zeros(len(rows), 3, dtype=torch.int64),
        index=depths + 1,
        depth=depths,
        number=number,
        warp=torch.ones(*shape, 2),
        greedy=torch.zeros(shape, dtype=torch.bool),
        noise=torch.full(shape, 0.5, dtype=torch.float64),
    )
    num = int(usable.sum())
    outcome = Outcome(
        windows=windows,
        usable=usable,
        logits=torch.zeros(num, 2),
        target=torch.zeros(num, dtype=torch.int64),
        teacher=torch.zeros(len(rows), 3, 4),
    )
    return outcome, (right[usable], torch.full((num,), 0.5), counting[usable])


def random_rows(rng: random.Random, num_rows: int) -> list[list[Window]]:
    return [
        [
            [rng.random() < 0.9 - 0.1 * j for j in range(rng.randint(0, LENGTH))]
            for _ in range(rng.randint(1, 5))
        ]
        for _ in range(num_rows)
    ]


def kaplan_meier(windows: list[Window]) -> list[float]:
    """Slot by slot: of the windows right so far that reach the slot, the share right there."""
    found, product = [], 1.0
    for slot in range(LENGTH):
        at_risk = [w for w in windows if len(w) > slot and all(w[:slot])]
        product *= sum(w[slot] for w in at_risk) / len(at_risk) if at_risk else 0.0
        found.append(product)
    return found


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_survival_and_accuracy_equal_those_of_slow_reference_loops(
    seed: int, counts: bool, depth: int
) -> None:
    rng, tally = random.Random(seed), SlotTally(LENGTH)
    batches = [random_rows(rng, 8) for _ in range(3)]
    for rows in batches:
        tally.add(*judged_windows(rows, depth=depth, counts=counts))
    windows = [window for rows in batches for row in rows for window in row]
    assert any(len(window) < LENGTH and all(window) for window in windows)  # censored
    assert tally.num_windows == sum(bool(window) for window in windows)
    assert tally.survival() == pytest.approx(kaplan_meier(windows), abs=2e-4)
    for slot, got in enumerate(tally.accuracy()):
        there = [window[slot] for window in windows if len(window) > slot]
        assert got == pytest.approx(sum(there) / len(there), abs=1e-5)
    assert len(torch.cat(tally.rights)) == sum(map(len, windows))


def test_windows_that_end_early_do_not_pull_survival_down() -> None:
    tally = SlotTally(LENGTH)
    tally.add(*judged_windows([[[True] * LENGTH, [True, True], [True]]]))
    assert tally.survival() == [1.0] * LENGTH
    tally.add(*judged_windows([[[False] * LENGTH]]))
    assert tally.survival() == [0.75] * LENGTH
    assert tally.accuracy() == [0.75, pytest.approx(2 / 3, abs=1e-4), 0.5, 0.5, 0.5, 0.5]


def test_a_slot_that_no_window_reaches_has_a_survival_of_zero() -> None:
    tally = SlotTally(LENGTH)
    tally.add(*judged_windows([[[True, True]]]))
    assert tally.survival() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert tally.accuracy() == [1.0, 1.0, None, None, None, None]


def test_leading_is_the_expected_number_of_leading_right_slots() -> None:
    rng = random.Random(5)
    whole = [[rng.random() < 0.8 for _ in range(LENGTH)] for _ in range(300)]
    tally = SlotTally(LENGTH)
    tally.add(*judged_windows([whole]))
    mean = sum([*window, False].index(False) for window in whole) / 300
    assert HeldOutReport.of(tally).leading_16 == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (0.6, -0.8), (1.7, 0.9)])
def test_calibration_recovers_the_chance_of_being_right(slope: float, offset: float) -> None:
    generator, tally = torch.Generator().manual_seed(3), SlotTally(1)
    c = torch.rand(40_000, generator=generator, dtype=torch.float64)
    chance = torch.sigmoid(slope * torch.logit(c) + offset)
    right = torch.rand(len(c), generator=generator) < chance
    tally.confidences, tally.rights = (
        [c[:1000].float(), c[1000:].float()],
        [right[:1000], right[1000:]],
    )
    got = tally.calibration()
    assert got[0] == pytest.approx(slope, rel=0.1)
    assert got[1] == pytest.approx(offset, rel=0.1, abs=0.05)


def test_calibration_stays_finite_for_certain_confidences_and_identical_outcomes() -> None:
    tally = SlotTally(1)
    tally.confidences, tally.rights = [torch.tensor([0.0, 0.3, 1.0])], [torch.ones(3).bool()]
    slope, offset = tally.calibration()
    assert abs(slope) < 100
    assert 0 < offset < 100


@pytest.mark.parametrize("rows", [None, [[[]]], [[[], []], [[]]]])
def test_a_tally_without_counted_slots_gives_default_figures(
    rows: list[list[Window]] | None,
) -> None:
    tally = SlotTally(LENGTH)
    if rows is not None:
        tally.add(*judged_windows(rows))
        tally.add(*judged_windows(rows, counts=False))
    assert tally.num_windows == 0
    assert tally.survival() == [0.0] * LENGTH
    assert tally.accuracy() == [None] * LENGTH
    assert tally.calibration() == (1.0, 0.0)
    report = HeldOutReport.of(tally, None)
    assert report.leading_16 == 0
    assert "leading correct of 16: 0.00" in report.summary()


def test_a_report_survives_json() -> None:
    sampled, greedy = SlotTally(LENGTH), SlotTally(LENGTH)
    sampled.add(*judged_windows([[[True, False, True], [True] * LENGTH]]))
    greedy.add(*judged_windows([[[True] * 4]]))
    report = HeldOutReport.of(sampled, greedy)
    text = json.dumps(report.measured(), allow_nan=False)
    values = json.loads(text)
    for name in ("calibration", "greedy_calibration"):
        values[name] = tuple(values[name])
    assert HeldOutReport(**values) == report
    assert (report.windows, report.leading_16) == (2, round(sum(sampled.survival()), 3))
    assert report.greedy_survival == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert HeldOutReport.of(sampled, None).greedy_survival is None


def test_the_summary_gives_the_leading_length_of_sampled_and_of_greedy_windows() -> None:
    sampled, greedy = SlotTally(LENGTH), SlotTally(LENGTH)
    sampled.add(*judged_windows([[[True, False, True]]]))
    greedy.add(*judged_windows([[[True] * 4]]))
    assert HeldOutReport.of(sampled, greedy).summary() == (
        "leading correct of 16: 1.00, greedy 4.00; accuracy of slots 1, 2, … 1.00 0.00 1.00"
    )
    assert "greedy" not in HeldOutReport.of(sampled, None).summary()

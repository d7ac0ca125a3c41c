"""Growth with training is fitted as it was made, and what is no log is one line."""

import json
import math
from pathlib import Path

import pytest

from tests.command_line import bench
from training.plots import read_growth


def log_of(path: Path, key: str, values: dict[int, float]) -> Path:
    lines = [
        {"held_out": {key: value}, "step": step, "tokens": seen}
        for step, (seen, value) in enumerate(values.items())
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_a_line_over_the_logarithm_is_found_and_goes_on(tmp_path: Path) -> None:
    values = {10**power: 0.25 * power - 1 for power in range(4, 8)}
    (growth,) = read_growth(log_of(tmp_path / "log.jsonl", "leading_16", values), "isd")
    assert growth.kind == "sampled"
    assert growth.line.slope == pytest.approx(0.25)
    assert growth.at(1e8) == pytest.approx((1.0, 1.0, 1.0))


def test_the_interval_is_that_of_a_further_evaluation(tmp_path: Path) -> None:
    values = {10: 1.0, 100: 2.5, 1000: 2.5, 10_000: 4.0}  # 0.75 + 0.9 log10, by hand
    (growth,) = read_growth(log_of(tmp_path / "log.jsonl", "drafts_that_stand", values), "draft")
    value, low, high = growth.at(100_000)
    assert value == pytest.approx(0.25 + 0.9 * 5)
    spread = math.sqrt((0.15**2 + 0.45**2 + 0.45**2 + 0.15**2) / 2)
    margin = 4.302653 * spread * math.sqrt(1 + 1 / 4 + 2.5**2 / 5)
    assert (low, high) == pytest.approx((value - margin, value + margin))


def test_the_command_draws_and_says_what_ten_times_more_gives(tmp_path: Path) -> None:
    values = {10**power: 0.25 * power - 1 for power in range(4, 8)}
    folder = tmp_path / "isd"
    folder.mkdir()
    log_of(folder / "training_log.jsonl", "greedy_leading_16", values)
    done = bench("train", "curve", folder, "-o", tmp_path / "curve.png")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == (
        "isd, greedy: 0.75 accepted after 10.00 million; ten times as many give +0.25 "
        "(standard error 0.00): 1.00 [1.00, 1.00]"
    )
    assert (tmp_path / "curve.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "cannot read the training log"),
        ("no json", "cannot read the training log"),
        ('{"loss": 1.0, "step": 1, "tokens": 5}', "has no evaluations of an adapter or a draft"),
        (
            '{"held_out": {"leading_16": 1.0}, "step": 1, "tokens": 5}',
            "was evaluated 1 times; a fit needs 4",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(
    tmp_path: Path, text: str | None, line: str
) -> None:
    log = tmp_path / "log.jsonl"
    if text is not None:
        log.write_text(text, encoding="utf-8")
    refused = bench("train", "curve", log, "-o", tmp_path / "curve.png")
    assert refused.code == 2
    assert line in refused.err
    assert len(refused.err.splitlines()) == 1
    assert not (tmp_path / "curve.png").exists()

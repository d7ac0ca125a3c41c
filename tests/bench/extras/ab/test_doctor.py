"""`bench doctor`: what is wrong with a machine is said with advice; noise decides the margin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.extras.ab import doctor
from bench.extras.ab.doctor import baseline_noise, supported_margin
from bench.records.record import SampleRecord
from bench.stats.intervals import cluster_mean


def ratios(sd: float, num: int = 200) -> list[float]:
    drawn = np.random.default_rng(0).normal(0, sd, num // 2)
    return [*drawn, *-drawn]  # nothing differs: the middle is 0


# ---------------------------------------------------------------- the machine


def test_more_threads_than_processors_are_advised_against() -> None:
    assert doctor.threads(2, 2, None).good
    assert doctor.threads(8, 8, 8.0).good
    assert doctor.threads(8, 2, None).advice == "run with --threads 2"
    assert doctor.threads(8, 8, 1.5).advice == "run with --threads 1"
    assert doctor.threads(2, None, None).good


@pytest.mark.parametrize(
    ("check", "good"),
    [
        (doctor.governor(None), True),
        (doctor.governor("performance"), True),
        (doctor.governor("powersave"), False),
        (doctor.other_load(None), True),
        (doctor.other_load(0.4), True),
        (doctor.other_load(1.2), False),
        (doctor.throttling(None), True),
        (doctor.throttling("CPU thermal"), False),
        (doctor.clock(None), True),
        (doctor.clock(SimpleNamespace(current=2400.0, max=0.0)), True),
    ],
)
def test_each_check_is_rated_good_or_bad(check: doctor.Check, good: bool) -> None:
    assert check.good is good
    assert check.seen


def test_a_shared_or_throttled_gpu_is_reported() -> None:
    facts = {"name": "A", "sm_clock_mhz": 1, "sm_clock_max_mhz": 2, "temperature_c": 40}
    assert all(check.good for check in doctor.gpu(facts, None, 0))
    slowed = doctor.gpu(facts, "hardware thermal", 2)
    assert [check.good for check in slowed] == [True, False, False]
    assert slowed[2].seen == "2 other processes"
    assert doctor.gpu(facts, None, None)[2].good


def test_unknown_facts_of_a_gpu_are_left_out() -> None:
    seen = [check.seen for check in doctor.gpu({"name": "A", "memory_bytes": 1}, None, None)]
    assert seen == ["A", "no slow-down seen", "unknown"]
    facts = {"name": "A", "sm_clock_mhz": 1, "sm_clock_max_mhz": 2, "temperature_c": 40}
    assert doctor.gpu(facts, None, None)[0].seen == "A, 1 MHz, at most 2 MHz, 40 °C"


def test_the_examination_looks_at_everything() -> None:
    checks = doctor.examine(look_s=0.05)
    names = [check.name for check in checks]
    assert names[:7] == [
        *("processor", "threads", "waiting threads", "governor", "clock"),
        *("other load", "throttling"),
    ]


# ---------------------------------------------------------------- A/A


@pytest.mark.parametrize(("prompts", "repeats"), [(12, 1), (24, 3), (96, 5)])
def test_an_unchanged_decoder_passes_the_supported_margin_as_often_as_promised(
    prompts: int, repeats: int
) -> None:
    pool = ratios(0.05, 2000)
    margin = supported_margin(pool, prompts, repeats)
    rng = np.random.default_rng(5)
    passed = 0
    for _ in range(400):
        logs = np.median(rng.choice(pool, size=(prompts, repeats)), axis=1)
        estimate = cluster_mean(list(logs), [str(i) for i in range(prompts)])
        assert estimate.high is not None
        passed += estimate.high <= np.log1p(margin)
    assert 0.72 <= passed / 400 <= 0.88


def test_more_prompts_more_repeats_and_less_noise_support_a_smaller_margin() -> None:
    pool = ratios(0.05)
    margin = supported_margin(pool, 24, 3)
    assert supported_margin(pool, 96, 3) < margin < supported_margin(pool, 24, 1)
    assert supported_margin(ratios(0.01), 24, 3) < margin


def test_noise_is_read_from_the_two_arms_of_the_baseline(
    record: Callable[..., SampleRecord],
) -> None:
    rng = np.random.default_rng(0)
    arms: list[SampleRecord] = []
    for i in range(40):
        for arm in ("ar", "ar@aa"):
            place: dict[str, Any] = {"conversation": f"c{i}", "prompt_hash": f"h{i}"}
            seconds = float(np.exp(rng.normal(0, 0.02)))
            arms.append(record(arm, total_s=seconds, **place))
    noise = baseline_noise(arms)
    assert noise is not None
    assert noise.num_pairs == 40
    assert noise.pair_sd == pytest.approx(0.02 * 2**0.5, rel=0.4)
    assert noise.floor.value == pytest.approx(1, abs=0.02)
    sizes = [size for size, margin in noise.margins.items() if margin <= 0.03]
    prompts, repeats = min(sizes, key=lambda size: size[0] * size[1])
    lines = doctor.noise_lines(noise, 0.03)
    assert lines[-1].endswith(f"--limit {prompts} --repeats {repeats}")
    assert "for a margin of 0.01 %: too noisy" in doctor.noise_lines(noise, 0.0001)[-1]


@pytest.mark.parametrize("failed", ["ar", "ar@aa"])
def test_the_scatter_counts_only_pairs_that_both_arms_finished(
    failed: str, record: Callable[..., SampleRecord]
) -> None:
    arms = []
    for i, seconds in enumerate((1.0, 1.1, 1.3, 9.0)):
        place: dict[str, Any] = {"conversation": f"c{i}", "prompt_hash": f"h{i}"}
        for arm, total_s in (("ar", 1.0), ("ar@aa", seconds)):
            arms.append(record(arm, total_s=total_s, **place))
            if i == 3 and arm == failed:
                arms[-1] = replace(arms[-1], error="Boom: no time counts")
    noise = baseline_noise(arms)
    assert noise is not None
    assert noise.num_pairs == 3
    assert noise.pair_sd == pytest.approx(stdev(map(log, (1.0, 1.1, 1.3))))


def test_a_single_pair_gives_no_estimate_of_the_noise(record: Callable[..., SampleRecord]) -> None:
    assert baseline_noise([record("ar"), record("ar@aa")]) is None

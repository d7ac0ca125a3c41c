"""Baselines of the hot paths: small, without facts of the machine, in units of a calibration.

A stored baseline was timed on another machine, or in another hour. So each time that it holds is
scaled by how much slower `test_calibration` is here, before pytest-benchmark compares.
"""

from __future__ import annotations

import timeit
from statistics import fmean
from typing import Any

CALIBRATION = "test_calibration"
_KEPT = ("min", "median", "ops", "rounds", "iterations")
_COLUMNS = ("max", "mean", "stddev", "iqr", "q1", "q3", "total", "ld15iqr", "hd15iqr")


def pytest_benchmark_update_json(config: Any, benchmarks: Any, output_json: dict[str, Any]) -> None:
    """Keep what a comparison reads: no machine, no commit, no options."""
    output_json["benchmarks"] = [
        {
            **{key: each[key] for key in ("group", "name", "fullname")},
            "stats": {key: each["stats"][key] for key in _KEPT},
        }
        for each in output_json["benchmarks"]
    ]
    for key in ("machine_info", "commit_info"):
        output_json[key] = {}
    output_json.pop("datetime", None)


def pytest_benchmark_compare_machine_info(
    config: Any, benchmarksession: Any, machine_info: Any, compared_benchmark: dict[str, Any]
) -> None:
    """Scale the times of a baseline to this machine's speed, once."""
    factor = None if "scaled" in compared_benchmark else slower_than(compared_benchmark)
    if factor is None:
        return
    compared_benchmark |= {"scaled": factor, "machine_info": machine_info}  # nothing to warn of
    timed = compared_benchmark["benchmarks"]  # the yardstick itself is not compared
    compared_benchmark["benchmarks"] = [each for each in timed if each["name"] != CALIBRATION]
    for each in compared_benchmark["benchmarks"]:
        known = each["stats"]
        for key in ("min", "median"):
            known[key] *= factor
        known["ops"] /= factor
        others = dict.fromkeys(_COLUMNS, known["median"]) | {"outliers": "0;0"}
        each["stats"] = others | known
    benchmarksession.logger.info(f"this machine is {factor:.2f} times as slow as the baseline's")


def slower_than(baseline: dict[str, Any]) -> float | None:
    """How much slower the calibration is here than in a baseline; None if that has none.

    By the fastest round (the machine) and by the mean (its load); the larger counts.
    """
    known = {each["name"]: each["stats"] for each in baseline["benchmarks"]}.get(CALIBRATION)
    if known is None:
        return None
    from tests.benchmarks.test_hot_paths import calibration

    times = timeit.repeat(calibration(), number=1, repeat=400)
    return float(max(min(times) / known["min"], fmean(times) * known["ops"]))

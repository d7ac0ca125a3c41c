"""Stored times of the hot paths: all are there, nothing of the machine is, and they are scaled."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks import conftest, test_hot_paths

STORED = Path(__file__).with_name("hot_paths.json")


def stored() -> dict[str, Any]:
    return dict(json.loads(STORED.read_text()))


def test_every_hot_path_has_a_stored_time_and_the_file_holds_no_machine_info() -> None:
    names = {each["name"].partition("[")[0] for each in stored()["benchmarks"]}
    assert names == {name for name in vars(test_hot_paths) if name.startswith("test_")}
    assert stored()["machine_info"] == stored()["commit_info"] == {}
    assert STORED.stat().st_size < 20_000


def compared(baseline: dict[str, Any]) -> dict[str, Any]:
    session = SimpleNamespace(logger=SimpleNamespace(info=lambda _: None))
    conftest.pytest_benchmark_compare_machine_info(None, session, {"here": 1}, baseline)
    return baseline


def test_times_are_scaled_by_the_calibration_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = next(each for each in stored()["benchmarks"] if each["name"] == conftest.CALIBRATION)
    seconds = [3 * known["stats"]["min"]] * 400
    monkeypatch.setattr("tests.benchmarks.conftest.timeit.repeat", lambda *_, **__: seconds)
    factor = max(3.0, seconds[0] * known["stats"]["ops"])
    scaled = compared(stored())
    timed = [each for each in stored()["benchmarks"] if each["name"] != conftest.CALIBRATION]
    for before, after in zip(timed, scaled["benchmarks"], strict=True):
        for key in ("min", "median"):
            assert after["stats"][key] == pytest.approx(factor * before["stats"][key])
    assert scaled["machine_info"] == {"here": 1}, "so that pytest-benchmark warns of nothing"
    again = compared(copy.deepcopy(scaled))
    assert again == scaled


def test_a_load_on_the_machine_scales_times_by_the_mean_calibration_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = next(each for each in stored()["benchmarks"] if each["name"] == conftest.CALIBRATION)
    least, mean = known["stats"]["min"], 1 / known["stats"]["ops"]
    seconds = [least] * 200 + [16 * mean - least] * 200
    monkeypatch.setattr("tests.benchmarks.conftest.timeit.repeat", lambda *_, **__: seconds)
    assert conftest.slower_than(stored()) == pytest.approx(8)


def test_a_baseline_without_a_calibration_is_used_unchanged() -> None:
    plain = stored()
    plain["benchmarks"] = [b for b in plain["benchmarks"] if b["name"] != conftest.CALIBRATION]
    assert compared(copy.deepcopy(plain)) == plain


def test_a_saved_file_holds_only_the_fields_that_a_comparison_reads() -> None:
    timed = {"min": 1.0, "median": 2.0, "ops": 0.5, "rounds": 5, "iterations": 1, "data": [1.0]}
    each = {"group": None, "name": "a", "fullname": "f::a", "params": None, "stats": timed}
    saved = {"machine_info": {"node": "host"}, "commit_info": {"id": "x"}, "datetime": "now"}
    saved["benchmarks"] = [each]  # type: ignore[assignment, list-item]
    conftest.pytest_benchmark_update_json(None, None, saved)
    kept = {key: timed[key] for key in ("min", "median", "ops", "rounds", "iterations")}
    assert saved == {
        "machine_info": {},
        "commit_info": {},
        "benchmarks": [{"group": None, "name": "a", "fullname": "f::a", "stats": kept}],
    }

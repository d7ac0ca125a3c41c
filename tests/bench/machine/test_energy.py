"""Energy of timed regions: what a meter reads, and that an unknown energy is never zero."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.machine.gpu import EnergyMeter
from bench.records.record import SampleRecord
from bench.stats.counters import energy_per_token_j

Make = Callable[..., SampleRecord]


class NVMLError(Exception):
    pass


def nvml(monkeypatch: pytest.MonkeyPatch, readings: list[float | None]) -> None:
    """A GPU whose total energy reads so many millijoules; None: it has no counter."""

    def total(handle: object) -> float:
        reading = readings.pop(0)
        if reading is None:
            raise NVMLError
        return reading

    fake = SimpleNamespace(nvmlDeviceGetTotalEnergyConsumption=total, NVMLError=NVMLError)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr("bench.machine.gpu.gpu_handle", lambda device: "handle")


def rapl(folder: Path, monkeypatch: pytest.MonkeyPatch, **joules: float) -> None:
    for name, value in joules.items():
        place = folder / name.replace("_", ":").replace("rapl", "intel-rapl")
        place.mkdir(exist_ok=True)
        (place / "energy_uj").write_text(f"{round(1e6 * value)}\n")
    monkeypatch.setattr("bench.machine.gpu._RAPL", folder)


def test_a_gpus_energy_is_the_growth_of_nvmls_total(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, [5000.0, 7500.0, 7600.0])
    meter = EnergyMeter("cuda:0")
    assert [meter.lap(), meter.lap()] == pytest.approx([2.5, 0.1])


def test_a_gpu_without_a_counter_has_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, [None, None, 10.0, 2010.0])
    meter = EnergyMeter("cuda:0")
    assert [meter.lap(), meter.lap()] == [None, None]
    assert meter.lap() == pytest.approx(2.0)


def test_a_gpu_without_nvml_does_not_take_the_cpus_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl(tmp_path, monkeypatch, rapl_0=1.0)
    monkeypatch.setattr("bench.machine.gpu.gpu_handle", lambda device: None)
    assert EnergyMeter("cuda:0").lap() is None


def test_a_cpus_energy_is_that_of_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl(tmp_path, monkeypatch, rapl_0=1.0, rapl_1=10.0, rapl_0_0=0.5)
    meter = EnergyMeter("cpu")
    rapl(tmp_path, monkeypatch, rapl_0=3.0, rapl_1=11.5, rapl_0_0=2.0)  # a part of package 0
    assert meter.lap() == pytest.approx(3.5)
    rapl(tmp_path, monkeypatch, rapl_0=0.1)  # it began anew
    assert meter.lap() is None


def test_a_cpu_without_a_readable_counter_has_no_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.machine.gpu._RAPL", tmp_path)
    assert EnergyMeter("cpu").lap() is None
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir(parents=True)  # as unreadable as to a user
    assert EnergyMeter("cpu").lap() is None


def test_energy_per_token_is_pooled_and_unknown_without_a_counter(record: Make) -> None:
    rows = [record("ar", (1,) * 4, energy_j=2.0), record("ar", (1, 3, 4), energy_j=4.0)]
    assert energy_per_token_j(rows) == 0.5
    quality = dataclasses.replace(rows[0], kind="quality", energy_j=None)
    assert energy_per_token_j([*rows, quality, record("ar", (1,) * 9)]) == 0.5
    assert energy_per_token_j([record("ar", (1,) * 4)]) is None
    assert SampleRecord.from_dict(_older(rows[0])).energy_j is None


def _older(record: SampleRecord) -> dict[str, Any]:
    import json

    data: dict[str, Any] = json.loads(record.to_json())
    del data["energy_j"]
    return data

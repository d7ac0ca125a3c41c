"""The environment: what is captured, what must never be, and what makes times comparable."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.machine import env as environment
from bench.machine import usage
from bench.machine.env import (
    ROOT,
    capture,
    comparability_key,
    git_state,
    peak_rss_bytes,
    source_hash,
)
from bench.machine.gpu import gpu_facts, gpu_handle, slowdown
from bench.machine.usage import LoadWatch
from bench.records.environment import Environment, GitState, ModelFacts, TorchSettings


@pytest.fixture(scope="module")
def captured() -> Environment:
    return capture(device="cpu", dtype="float32", models=ModelFacts(target={"layers": 2}))


def test_the_environment_records_the_machine_packages_and_models(captured: Environment) -> None:
    assert captured.machine.cpu
    assert (captured.machine.memory_bytes or 0) > 0
    assert (captured.torch.threads or 0) >= 1
    assert (captured.packages["torch"] or "").startswith("2.")
    assert captured.models.target == {"layers": 2}
    assert captured.gpu is None
    assert len(captured.comparability_key or "") == 12


def test_cpu_families_that_share_a_masked_model_name_are_different_machines(
    captured: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(text: str) -> Environment:
        monkeypatch.setattr(environment, "_lines", lambda path: text.splitlines())
        cpu = environment._cpu_model()
        return replace(captured, machine=replace(captured.machine, cpu=cpu))

    masked = "cpu family\t: {}\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
    older, newer = seen(2 * masked.format(25)), seen(2 * masked.format(26))
    assert newer.machine.cpu == "AMD EPYC (family 26, model 2)"
    assert comparability_key(older) != comparability_key(newer)
    assert seen("model name : Cortex-A76").machine.cpu == "Cortex-A76"


def test_vector_instructions_of_the_processor_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(*lines: str) -> tuple[str, ...] | None:
        monkeypatch.setattr(environment, "_lines", lambda path: list(lines))
        return environment._machine().instructions

    flags = "flags\t\t: fpu avx512f avx512_bf16 avx2 avx512_bitalg"
    assert seen(flags, flags) == ("avx2", "avx512f", "avx512_bf16")
    assert environment.has_bfloat16()
    assert seen("flags : fpu avx2 avx512f") == ("avx2", "avx512f")
    assert not environment.has_bfloat16()
    assert seen("Features\t: fp asimd bf16") == ("bf16",)
    assert seen("flags : fpu") == ()
    assert seen("model name : x") is None
    monkeypatch.setattr(environment, "_lines", lambda path: None)  # no /proc
    assert environment._instructions() is None
    assert not environment.has_bfloat16()


def test_the_environment_contains_no_host_name_path_or_secret(
    captured: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    text = json.dumps(captured.to_json())
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
    assert "secret-token" not in json.dumps(
        capture(device="cpu", dtype="float32", models=ModelFacts()).to_json()
    )
    values = [value for value in _leaves(captured.to_json()) if isinstance(value, str)]
    assert not [value for value in values if value.startswith("/")]
    assert socket.gethostname() not in values


def _leaves(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in _leaves(value)]
    if isinstance(data, list | tuple):
        return [leaf for item in data for leaf in _leaves(item)]
    return [data]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"dtype": "bfloat16"}, False),
        ({"device": "cuda:0"}, False),
        ({"torch": TorchSettings(threads=99)}, False),
        ({"gpu": {"name": "other"}}, False),
        ({"git": GitState(commit="abc")}, True),
        ({"environment": {"OMP_NUM_THREADS": "7"}}, True),
    ],
)
def test_times_are_comparable_where_the_key_is_equal(
    captured: Environment, change: dict[str, Any], same: bool
) -> None:
    assert (comparability_key(replace(captured, **change)) == captured.comparability_key) is same


def test_load_does_not_enter_the_key(captured: Environment) -> None:
    machine = replace(captured.machine, load_average=(99.0, 0.0, 0.0), governor="other")
    assert comparability_key(replace(captured, machine=machine)) == captured.comparability_key


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", folder, *name, *arguments], check=True, capture_output=True)


def test_the_commit_and_the_dirty_flag_are_those_of_the_checkout(tmp_path: Path) -> None:
    assert git_state(tmp_path) == GitState()
    git(tmp_path, "init", "--initial-branch", "mine")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "x")
    state = git_state(tmp_path.resolve())
    assert len(state.commit or "") == 40
    assert (state.branch, state.dirty) == ("mine", False)
    (tmp_path / "a").write_text("2")
    git(tmp_path, "checkout", "--detach")
    state = git_state(tmp_path.resolve())
    assert (state.branch, state.dirty) == (None, True)
    (tmp_path / "inner").mkdir()
    assert git_state(tmp_path.resolve() / "inner") == GitState()


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_git", lambda *_: None)
    assert git_state(ROOT) == GitState()


def test_the_source_hash_is_of_contents(tmp_path: Path) -> None:
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    for file in files:
        file.write_text("x")
    first = source_hash(files)
    assert source_hash(files) == first
    files[1].write_text("y")
    assert source_hash(files) != first


def test_the_peak_memory_of_the_process_is_in_bytes() -> None:
    assert peak_rss_bytes() > 20 * 2**20


def test_on_a_cpu_there_is_no_gpu_to_ask() -> None:
    assert gpu_handle("cpu") is None
    assert gpu_facts(None, "cpu") is None
    assert slowdown(None) is None


def test_the_load_watch_sees_another_process_and_not_its_own() -> None:
    watch = LoadWatch()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = os.times()
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass
        load = watch.lap()
        own = sum(os.times()[:2]) - sum(before[:2])
    finally:
        busy.kill()
        busy.wait()
    assert own > 0
    assert load.other_cores is not None
    assert load.other_cores > 0.05


def test_the_load_counts_only_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of this one or its workers; a number that is given again is that of a new process."""
    now_s, used_s = [0.0], {(os.getpid(), 0.0): 50.0, (7, 0.0): 10.0, (8, 0.0): 3.0}

    def processes() -> Iterator[Any]:
        for (pid, began_s), seconds in used_s.items():
            times = SimpleNamespace(user=seconds / 4, system=3 * seconds / 4)
            read = (began_s.__float__, lambda times=times: times)
            yield SimpleNamespace(pid=pid, create_time=read[0], cpu_times=read[1])

    def load(*more: tuple[tuple[int, float], float]) -> float | None:
        now_s[0] += 4.0
        used_s.update([*more, ((os.getpid(), 0.0), 50.0 + now_s[0])])
        return watch.lap().other_cores

    monkeypatch.setattr("psutil.process_iter", processes)
    monkeypatch.setattr(usage, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    watch = LoadWatch()
    assert load(((7, 0.0), 12.0), ((8, 0.0), 4.0)) == 0.75
    watch.ignore([8])
    assert load(((7, 0.0), 13.0), ((8, 0.0), 8.0)) == 0.25
    del used_s[7, 0.0]
    assert load(((7, 9.0), 2.0)) == 0.5


def test_cpu_throttling_since_the_previous_reading_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_CPUS", tmp_path)
    assert LoadWatch().lap().throttled is None
    count = tmp_path / "cpu0" / "thermal_throttle" / "core_throttle_count"
    count.parent.mkdir(parents=True)
    count.write_text("3\n")
    watch = LoadWatch()
    assert watch.lap().throttled is None
    count.write_text("4\n")
    assert [watch.lap().throttled for _ in range(2)] == ["CPU thermal", None]


@pytest.mark.parametrize(
    ("reasons", "line"),
    [
        (0, None),
        (0x1 | 0x4, None),  # idle, and the limit of power: as usual
        (0x4 | 0x20, "software thermal"),
        (0x8 | 0x40, "hardware slow-down, hardware thermal"),
    ],
)
def test_a_throttled_gpu_is_reported_with_the_reasons(
    reasons: int, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "nvmlDeviceGetCurrentClocksThrottleReasons"
    driver = SimpleNamespace(**{name: lambda _: reasons}, NVMLError=OSError)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert slowdown("handle") == line
    monkeypatch.setattr(usage, "gpu_handle", lambda _: "handle")
    assert LoadWatch("cuda:0").lap().throttled == line


def test_facts_from_the_driver_are_added_for_a_gpu_with_a_handle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetTemperature"]
    names += ["nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetCurrentClocksThrottleReasons"]
    driver: dict[str, Any] = {name: lambda *_: 7 for name in names}
    driver |= {"nvmlSystemGetDriverVersion": lambda: "570", "NVMLError": OSError}
    driver |= {"NVML_CLOCK_SM": 0, "NVML_CLOCK_MEM": 1}
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**driver))
    card = SimpleNamespace(name="H100", total_memory=8)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: card)
    facts = {"name": "H100", "memory_bytes": 8}
    assert gpu_facts(None, "cuda:0") == facts
    known = gpu_facts("handle", "cuda:0") or {}
    assert known.items() >= {**facts, "driver": "570", "sm_clock_mhz": 7}.items()


def test_available_memory_is_capped_by_the_limit_of_the_control_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=100))
    for limit, available in ((None, 100), (40, 40), (400, 100)):
        monkeypatch.setattr(usage, "cgroup_memory_bytes", lambda limit=limit: limit)
        assert usage.available_bytes("cpu") == available


def test_attention_kernels_are_recorded_only_on_a_gpu(
    captured: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert captured.torch.attention is None
    monkeypatch.setattr("torch.backends.cuda.cudnn_sdp_enabled", lambda: False)
    monkeypatch.setattr(environment, "gpu_facts", lambda gpu, device: {})
    on_gpu = capture(device="cuda:0", dtype="bfloat16", models=ModelFacts())
    assert on_gpu.torch.attention == ("flash", "mem_efficient", "math")

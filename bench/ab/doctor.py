"""`bench doctor`: is this machine fit to measure on, and how small a difference can it show.

It looks and never changes anything. Unknown is None and no complaint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench.ab.noise import Noise, noise_of
from bench.errors import BenchError
from bench.machine import env as environment
from bench.machine.gpu import gpu_facts, gpu_handle, slowdown
from bench.machine.load import LoadWatch
from bench.machine.openmp import spinning
from bench.stats.validity import MAX_OTHER_CORES

_LOOK_S = 1.0
"""How long other processes are watched."""
_LOW_MEMORY = 0.1
AA_PROMPTS, AA_REPEATS, AA_TOKENS = 12, 5, 48
_BOOST = Path("/sys/devices/system/cpu/cpufreq/boost")
_NO_TURBO = Path("/sys/devices/system/cpu/intel_pstate/no_turbo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding: what was looked at, what was seen, and advice where it is not good."""

    name: str
    seen: str
    advice: str | None = None

    @property
    def good(self) -> bool:
        """Whether there is nothing to do about it."""
        return self.advice is None


def examine(look_s: float = _LOOK_S) -> list[Check]:
    """Threads, clocks, load, memory and GPU, each with what to do where it is not good."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    handle = gpu_handle(device)
    env = environment.capture(device=device, dtype="float32", models={}, gpu=handle)
    watch = LoadWatch(handle)
    time.sleep(look_s)
    load = watch.lap()
    machine, ram = env.machine, psutil.virtual_memory()
    checks = [
        Check(name="processor", seen=str(machine.cpu)),
        threads(torch.get_num_threads(), machine.affinity, machine.cgroup_cpus),
        waiting_threads(),
        governor(machine.governor),
        clock(psutil.cpu_freq(), _boost()),
        others(load.other_cores),
        throttling(load.throttled),
        memory(ram.available, ram.total),
    ]
    if device == "cuda":
        checks += gpu(gpu_facts(handle, device) or {}, slowdown(handle), _sharers(handle))
    return checks


def threads(num: int, affinity: int | None, quota: float | None) -> Check:
    """More threads than processors wait for each other."""
    allowed = min(n for n in (affinity, quota, num) if n is not None)
    seen = f"{num} threads; {affinity or 'unknown'} processors"
    seen += "" if quota is None else f", of which a quota grants {quota:g}"
    if num > allowed:
        return Check(name="threads", seen=seen, advice=f"run with --threads {max(1, int(allowed))}")
    return Check(name="threads", seen=seen)


def waiting_threads() -> Check:
    """How threads wait for each other (`bench.machine.openmp`)."""
    seen, advice = spinning()
    return Check(name="waiting threads", seen=seen, advice=advice)


def governor(name: str | None) -> Check:
    """Only a fixed governor keeps clocks where they are."""
    seen = name or "unknown (virtual machine or no access)"
    if name in (None, "performance"):
        return Check(name="governor", seen=seen)
    return Check(name="governor", seen=seen, advice="cpupower frequency-set -g performance")


def clock(frequency: Any, boosts: bool | None) -> Check:
    """What the clock is, and whether it may rise above its nominal value by itself."""
    if frequency is None or not frequency.current:
        return Check(name="clock", seen="unknown")
    seen = f"{frequency.current:.0f} MHz"
    seen += f" of at most {frequency.max:.0f}" if frequency.max else ""
    if boosts:
        seen += ", boost on (times depend on temperature; runs are interleaved for that)"
    return Check(name="clock", seen=seen)


def others(cores: float | None) -> Check:
    """Processor time of everything else."""
    if cores is None:
        return Check(name="other load", seen="unknown")
    seen = f"{cores:.2f} cores used by other processes"
    if cores <= MAX_OTHER_CORES:
        return Check(name="other load", seen=seen)
    return Check(name="other load", seen=seen, advice="stop what else runs, or take counters only")


def throttling(reason: str | None) -> Check:
    """Whether the processor was slowed down meanwhile."""
    if reason is None:
        return Check(name="throttling", seen="none seen")
    return Check(name="throttling", seen=reason, advice="let it cool down; look after its fans")


def memory(available: int, total: int) -> Check:
    """Free memory."""
    seen = f"{available / 1e9:.1f} of {total / 1e9:.1f} GB free"
    if available >= _LOW_MEMORY * total:
        return Check(name="memory", seen=seen)
    return Check(name="memory", seen=seen, advice="free some: swapping ruins every time")


def gpu(facts: dict[str, Any], reason: str | None, num_others: int | None) -> list[Check]:
    """Clocks, slow-down reasons and other users of the GPU."""
    clocks = f"{facts.get('sm_clock_mhz')} of at most {facts.get('sm_clock_max_mhz')} MHz"
    return [
        Check(name="GPU", seen=f"{facts.get('name')}, {clocks}, {facts.get('temperature_c')} °C"),
        Check(
            name="GPU clocks",
            seen=reason or "not slowed down",
            advice=reason and "let it cool down, or lower the power of what else runs",
        ),
        Check(
            name="GPU users",
            seen="unknown" if num_others is None else f"{num_others} other processes",
            advice="measure alone on a GPU" if num_others else None,
        ),
    ]


def _sharers(handle: object) -> int | None:
    """Other processes computing on the GPU (None: unknown)."""
    if handle is None:
        return None
    import pynvml

    try:
        running = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError:
        return None
    return len(set(running) - {os.getpid()})


def _boost() -> bool | None:
    """Whether clocks may rise above their nominal value (None: unknown)."""
    for file, on in ((_BOOST, "1"), (_NO_TURBO, "0")):
        try:
            return file.read_text().strip() == on
        except OSError:
            continue
    return None


# ---------------------------------------------------------------- A/A


def measure_noise(num_prompts: int = AA_PROMPTS, num_repeats: int = AA_REPEATS) -> Noise:
    """A short A/A measurement of `ar` on the zoo.

    Raises:
        BenchError: exit 5 without a zoo.
    """
    from bench.measure.timing import Runner
    from bench.plan.make import make_plan
    from bench.plan.select import choose_decoders
    from bench.plan.setup import open_setup
    from bench.progress import Silent
    from bench.records.files import SampleWriter
    from bench.records.plan import write_plan
    from bench.records.run_folder import load_records
    from bench.settings.config import load_config

    values = {"decoders": "ar", "limit": num_prompts, "repeats": num_repeats, "quality_limit": 0}
    config = load_config(None, {**values, "max_new_tokens": AA_TOKENS})
    shown = Silent()
    setup = open_setup(choose_decoders(config, shown.note))
    plan, prompts = make_plan(setup, "aa", shown)
    watch = LoadWatch(gpu_handle(str(setup.models.target.device)))
    with TemporaryDirectory(prefix="bench-aa-") as scratch:
        folder = Path(scratch)
        write_plan(folder, plan)
        with SampleWriter(folder) as writer:
            Runner(setup, prompts, writer, shown, attempt=0, lap=watch.lap).run(plan.blocks)
        noise = noise_of(load_records(folder))
    if noise is None:
        raise BenchError("ar failed on every prompt of the zoo: no noise could be measured")
    return noise


def to_json(checks: Iterable[Check], noise: Noise | None) -> dict[str, Any]:
    """Everything as JSON data."""
    listed = [{**asdict(check), "good": check.good} for check in checks]
    return {"checks": listed, "noise": None if noise is None else asdict(noise)}


def noise_lines(noise: Noise, margin: float) -> list[str]:
    """An A/A measurement in words, and what to run for a margin."""
    floor = noise.floor
    interval = "" if floor.low is None else f" [{floor.low:.3f}, {floor.high:.3f}]"
    lines = [
        f"ar against itself: {floor.value:.3f}x{interval}; one pair scatters by "
        f"{noise.pair_sd:.1%} ({noise.num_pairs} pairs)",
        "margin that an unchanged decoder passes (80 %), by prompts and repeats:",
    ]
    for prompts in dict.fromkeys(support.prompts for support in noise.supports):
        row = [s for s in noise.supports if s.prompts == prompts]
        margins = "   ".join(f"x{s.repeats}: {s.margin:.1%}" for s in row)
        lines.append(f"  {prompts:3d} prompts   {margins}")
    wanted = noise.wanted(margin)
    advice = f"for a margin of {margin:.0%}: "
    if wanted is None:
        return [*lines, advice + "too noisy; gate counters only, or quieten the machine"]
    return [*lines, advice + f"--limit {wanted.prompts} --repeats {wanted.repeats}"]

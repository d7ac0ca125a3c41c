"""Check a machine's fitness to measure (`bench doctor`), and which differences it can show.

Checks change nothing. Unknown facts are None and never lead to advice. An A/A measurement runs one
decoder twice in a row on every prompt. The log ratios of its times are pure noise; resampling them
gives the reach of an interval over P prompts with R repeats.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from scipy import stats

from bench.errors import BenchError
from bench.machine.env import capture
from bench.machine.gpu import gpu_facts, gpu_handle, nvml_reading, slowdown
from bench.machine.openmp import SHORT_SPIN, SPIN_COUNT, WAIT_POLICY
from bench.machine.usage import LoadWatch
from bench.records.environment import ModelFacts
from bench.records.plan import baseline_arms
from bench.records.record import SampleRecord
from bench.stats import times
from bench.stats.intervals import CONFIDENCE, Estimate, t_ppf
from bench.stats.validity import MAX_OTHER_CORES
from bench.stats.workers import noise_floor

POWER = 0.8
PROMPTS = (12, 24, 48, 96)
REPEATS = (1, 3, 5)
DRAWS = 4000
AA_PROMPTS, AA_REPEATS, AA_TOKENS = 12, 5, 48


@dataclass(frozen=True, slots=True)
class Check:
    """Hold one check: its subject, the observation, and advice if the observation is not good."""

    name: str
    seen: str
    advice: str | None = None

    @property
    def good(self) -> bool:
        """Return whether there is no advice."""
        return self.advice is None


def examine(look_s: float = 1.0) -> list[Check]:
    """Check threads, clocks, GPU, and other processes' load during `look_s` seconds."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    env = capture(device=device, dtype="float32", models=ModelFacts())
    watch = LoadWatch(device)
    time.sleep(look_s)
    load = watch.lap()
    machine = env.machine
    checks = [
        Check("processor", str(machine.cpu)),
        threads(torch.get_num_threads(), machine.affinity, machine.cgroup_cpus),
        waiting_threads(),
        governor(machine.governor),
        clock(psutil.cpu_freq()),
        other_load(load.other_cores),
        throttling(load.throttled),
    ]
    if device == "cuda":
        handle = gpu_handle(device)
        running = nvml_reading(handle, lambda n, gpu: n.nvmlDeviceGetComputeRunningProcesses(gpu))
        checks += gpu(
            gpu_facts(handle, device) or {},
            slowdown(handle),
            None if running is None else len({each.pid for each in running} - {os.getpid()}),
        )
    return checks


def threads(num: int, affinity: int | None, quota: float | None) -> Check:
    """Advise against more threads than processors, which would wait for each other.

    Args:
        num: torch's threads.
        affinity: processors that the process may use, if known.
        quota: processors' worth of time that a cgroup grants, if it limits them.
    """
    allowed = min(n for n in (affinity, quota, num) if n is not None)
    seen = f"{num} threads; {affinity or 'unknown'} processors"
    seen += "" if quota is None else f", of which a quota grants {quota:g}"
    advice = f"run with --threads {max(1, int(allowed))}" if num > allowed else None
    return Check("threads", seen, advice)


def waiting_threads() -> Check:
    """Advise a short spin of waiting OpenMP threads (`bench.machine.openmp`)."""
    policy, count = os.environ.get(WAIT_POLICY), os.environ.get(SPIN_COUNT)
    name = "waiting threads"
    if policy is not None:
        advice = f"unset {WAIT_POLICY}: each call of a small model waits for threads to wake"
        is_slow = policy.lower() == "passive"
        return Check(name, f"{WAIT_POLICY}={policy}", advice if is_slow else None)
    if count is not None:
        return Check(name, f"{SPIN_COUNT}={count}")
    advice = f"export {SPIN_COUNT}={SHORT_SPIN}: spinning threads slow calls under other load"
    return Check(name, "spin for as long as the OpenMP runtime lets them", advice)


def governor(name: str | None) -> Check:
    """Advise the performance governor, which keeps clocks fixed."""
    fixed = name in (None, "performance")
    seen = name or "unknown (virtual machine or no access)"
    return Check("governor", seen, None if fixed else "cpupower frequency-set -g performance")


def clock(frequency: Any) -> Check:
    """Report the clock."""
    if frequency is None or not frequency.current:
        return Check("clock", "unknown")
    seen = f"{frequency.current:.0f} MHz"
    seen += f" of at most {frequency.max:.0f}" if frequency.max else ""
    return Check("clock", seen)


def other_load(cores: float | None) -> Check:
    """Advise against load by other processes."""
    seen = "unknown" if cores is None else f"{cores:.2f} cores used by other processes"
    busy = (cores or 0) > MAX_OTHER_CORES
    return Check("other load", seen, "stop other programs, or use only counters" if busy else None)


def throttling(reason: str | None) -> Check:
    """Advise cooling if the processor was slowed down."""
    return Check("throttling", reason or "none seen", reason and "let it cool down; check its fans")


def gpu(facts: dict[str, Any], reason: str | None, num_others: int | None) -> list[Check]:
    """Check clocks, slow-down reasons and other users of the GPU."""
    texts = {"name": "{}", "sm_clock_mhz": "{} MHz", "sm_clock_max_mhz": "at most {} MHz"}
    texts |= {"temperature_c": "{} °C"}
    seen = [text.format(facts[key]) for key, text in texts.items() if facts.get(key) is not None]
    cooler = reason and "let it cool down, or lower the load of other programs"
    users = "unknown" if num_others is None else f"{num_others} other processes"
    return [
        Check("GPU", ", ".join(seen)),
        Check("GPU clocks", reason or "no slow-down seen", cooler),
        Check("GPU users", users, "measure on a GPU without other users" if num_others else None),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Hold an A/A measurement: noise floor, sd of a pair's log ratio, and supported margins.

    `margins` has the margin that an unchanged decoder passes (power 80 %), by numbers of prompts
    and repeats. A slow-down of twice the margin is detected with the same power.
    """

    floor: Estimate
    pair_sd: float
    num_pairs: int
    margins: Mapping[tuple[int, int], float]


def baseline_noise(records: Sequence[SampleRecord]) -> Noise | None:
    """Return the noise of a run's two baseline arms, or None without two shared answers."""
    first, second = (
        times.timed_units([r for r in records if r.decoder == arm])
        for arm in baseline_arms(record.decoder for record in records)
    )
    pairs = [
        (one.time_per_token, other.time_per_token)
        for one, other in times.matched(first, second)
        if one.ok and other.ok
    ]
    ratios = [float(np.log(other / one)) for one, other in pairs if one and other]
    if len(ratios) < 2:
        return None
    return Noise(
        floor=noise_floor(records),
        pair_sd=float(np.std(ratios, ddof=1)),
        num_pairs=len(ratios),
        margins={
            (num, repeats): supported_margin(ratios, num, repeats)
            for num in PROMPTS
            for repeats in REPEATS
        },
    )


def supported_margin(ratios: Sequence[float], num_prompts: int, num_repeats: int) -> float:
    """Return the margin that an unchanged decoder passes with probability `POWER`.

    It is exp((t + z) sd / sqrt(P)) - 1, for the sd of the median of R resampled ratios, Student's t
    of the interval, and the normal quantile z of the power.
    """
    rng = np.random.default_rng([0, num_prompts, num_repeats])
    samples = rng.choice(np.asarray(ratios), size=(DRAWS, num_repeats))
    spread = float(np.median(samples, axis=1).std(ddof=1))
    reach = t_ppf((1 + CONFIDENCE) / 2, num_prompts - 1) + stats.norm.ppf(POWER)
    return float(np.expm1(reach * spread / np.sqrt(num_prompts)))


def measure_noise() -> Noise:
    """Measure `ar` against itself on the zoo (exit 5 without a zoo)."""
    from bench.progress import Progress
    from bench.records.run_folder import load_records
    from bench.runs import run
    from bench.settings.config import load_config

    values = {"decoders": "ar", "limit": AA_PROMPTS, "repeats": AA_REPEATS, "quality_limit": 0}
    values |= {"max_new_tokens": AA_TOKENS, "phase_limit": 0, "compile": False}
    with TemporaryDirectory(prefix="bench-aa-") as scratch:
        ended = run(load_config(None, values), Path(scratch), Progress(), report=None)
        noise = baseline_noise(load_records(ended.run_dir))
    if noise is None:
        raise BenchError("ar failed on every prompt of the zoo: no noise could be measured")
    return noise


def noise_lines(noise: Noise, margin: float) -> list[str]:
    """Describe an A/A measurement, and the options that a margin needs."""
    floor = noise.floor
    interval = "" if floor.low is None else f" [{floor.low:.3f}, {floor.high:.3f}]"
    lines = [
        f"ar against itself: {floor.value:.3f}x{interval}; one pair scatters by "
        f"{noise.pair_sd:.1%} ({noise.num_pairs} pairs)",
        "margin that an unchanged decoder passes with probability 80 %, by prompts and repeats:",
    ]
    for num in PROMPTS:
        margins = "   ".join(f"x{each}: {noise.margins[num, each]:.1%}" for each in REPEATS)
        lines.append(f"  {num:3d} prompts   {margins}")
    enough = [size for size, supported in noise.margins.items() if supported <= margin]
    advice = "too noisy; gate only counters, or quieten the machine"
    if enough:  # the option with the fewest answers
        num, repeats = min(enough, key=lambda size: (size[0] * size[1], size))
        advice = f"--limit {num} --repeats {repeats}"
    return [*lines, f"for a margin of {100 * margin:.3g} %: {advice}"]

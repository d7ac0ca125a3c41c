"""Collect facts of the machine and the source code (`Environment`), and key comparable times.

Times of two runs may be compared if their `comparability_key` is equal: same processor or GPU,
threads, device, dtype, Python and torch. The key ignores current clocks, load and temperature. No
host name, path or environment variable outside an allow-list is recorded. Unknown values are None.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import psutil

from bench.machine.gpu import gpu_facts, gpu_handle
from bench.machine.openmp import SPIN_COUNT, WAIT_POLICY
from bench.records.environment import Environment, GitState, Machine, ModelFacts, TorchSettings
from bench.records.files import SCHEMA

ROOT = Path(str(files("bench"))).resolve().parent
"""Folder of the packages and the zoo: the source tree, or the place of an installed wheel."""

PACKAGES = (
    "decoding-bench", "torch", "transformers", "tokenizers", "safetensors", "datasets", "numpy",
    "scipy", "pandas", "pyarrow", "pydantic", "sacrebleu", "rouge-score", "psutil", "nvidia-ml-py",
)  # fmt: skip
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "NVIDIA_TF32_OVERRIDE",
    "TORCH_COMPILE_DISABLE", WAIT_POLICY, SPIN_COUNT,
)  # fmt: skip
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve", "bf16")
_ATTENTION = ("flash", "mem_efficient", "cudnn", "math")
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def capture(*, device: str, dtype: str, models: ModelFacts) -> Environment:
    """Return the content of env.json without `peak_rss_bytes`, which are known at a run's end."""
    import torch

    allowed = {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _ATTENTION}
    attention = tuple(n for n in allowed if allowed[n]) if device.startswith("cuda") else None
    packages: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    env = Environment(
        schema=SCHEMA,
        device=device,
        dtype=dtype,
        machine=_machine(),
        gpu=gpu_facts(gpu_handle(device), device),
        python=platform.python_version(),
        packages=packages,
        torch=TorchSettings(
            threads=torch.get_num_threads(),
            interop_threads=torch.get_num_interop_threads(),
            deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
            matmul_precision=torch.get_float32_matmul_precision(),
            cuda=torch.version.cuda,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            attention=attention,
        ),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        git=git_state(ROOT),
        models=models,
    )
    return replace(env, comparability_key=comparability_key(env))


def comparability_key(env: Environment) -> str:
    """Hash all facts that must be equal for comparable times, as twelve hexadecimal digits."""
    parts = {
        "cpu": env.machine.cpu,
        "affinity": env.machine.affinity,
        "cgroup_cpus": env.machine.cgroup_cpus,
        "threads": env.torch.threads,
        "gpu": env.gpu_name,
        "driver": env.gpu_driver,
        "device": env.device,
        "dtype": env.dtype,
        "python": (env.python or "").rpartition(".")[0],
        "torch": env.packages.get("torch"),
    }
    target = env.models.target or {}
    for how in ("compiled", "quantized", "placed", "tile", "padded"):
        if target.get(how):  # so that the keys of plain runs stay unchanged
            parts[how] = target[how]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process up to now, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _machine() -> Machine:
    quota, _, period = (_first_line("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if not period:
        quota = _first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
        period = _first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    allowed_us, period_us = _number(quota), _number(period)
    return Machine(
        system=platform.system(),
        release=platform.release(),
        architecture=platform.machine(),
        cpu=_cpu_model(),
        instructions=_instructions(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(logical=True),
        affinity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        governor=_first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_average=tuple(round(load, 2) for load in os.getloadavg()),
        memory_bytes=psutil.virtual_memory().total,
        cgroup_cpus=allowed_us / period_us if allowed_us and period_us and allowed_us > 0 else None,
        cgroup_memory_bytes=cgroup_memory_bytes(),
    )


def _cpu_model() -> str | None:
    """Return the processor's name, on x86 with family and model because clouds mask the name."""
    lines = _lines("/proc/cpuinfo")
    if lines is None:
        return platform.processor() or None
    facts = {key.strip(): value.strip() for key, _, value in (s.partition(":") for s in lines)}
    name = facts.get("model name", platform.machine())
    family = facts.get("cpu family")
    return name if family is None else f"{name} (family {family}, model {facts.get('model')})"


def _instructions() -> tuple[str, ...] | None:
    """Return the names in `_INSTRUCTIONS` that this CPU reports (clouds may mask some)."""
    lines = _lines("/proc/cpuinfo") or ()
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), None)
    return None if flags is None else tuple(name for name in _INSTRUCTIONS if name in flags)


def has_bfloat16() -> bool:
    """Return whether this CPU has bfloat16 instructions, without which float32 is faster."""
    return any(name.endswith("bf16") for name in _instructions() or ())


def cgroup_memory_bytes() -> int | None:
    """Return the memory limit of the cgroup, or None without a limit."""
    return _number(_first_line("/sys/fs/cgroup/memory.max"))


def _lines(path: str) -> list[str] | None:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None


def _first_line(path: str) -> str | None:
    lines = _lines(path)
    return lines[0].strip() if lines else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None


def git_state(root: Path, files: Sequence[Path] | None = None) -> GitState:
    """Return a checkout's commit, branch and dirty flag, each None outside a checkout.

    An untracked file makes a checkout dirty; with `files`, only if it is one of them.
    """
    if repository_root(root) != root:
        return GitState()
    untracked = "normal" if files is None else "no"
    status = _git(root, "status", "--porcelain", f"--untracked-files={untracked}")
    new = files and _git(root, "ls-files", "--error-unmatch", "--", *map(str, files)) is None
    return GitState(
        commit=_git(root, "rev-parse", "--verify", "HEAD"),
        branch=_git(root, "symbolic-ref", "--quiet", "--short", "HEAD") or None,
        dirty=None if status is None else bool(status or new),
    )


def repository_root(folder: Path) -> Path | None:
    """Return the root of the git repository around a folder, or None if there is none."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    return None if top is None else Path(top)


def is_installed(path: Path) -> bool:
    """Return whether a path belongs to this Python or its installed packages."""
    return any(path.is_relative_to(place) for place in _places())


@cache
def _places() -> frozenset[Path]:
    return frozenset(Path(sysconfig.get_path(name)) for name in _INSTALLED)


def source_hash(files: Sequence[Path]) -> str:
    """Return the SHA-256 of the contents of source files, in the given order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

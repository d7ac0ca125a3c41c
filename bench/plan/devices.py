"""Devices of a run (one, or several under ``--device-map``), and their default dtype."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from bench.errors import UnavailableError, UsageError
from bench.machine.env import has_bfloat16
from bench.settings import protocol
from bench.settings.config import RunConfig
from decoders.core.hf.checkpoint import count_weights

_HALF_FROM = 50_000_000
"""Models with more weights run in bfloat16 if the CPU has instructions for it."""
_EXAMPLE = '{"model.embed_tokens": 0, "model.layers.0": "cpu", …}'


def open_device(name: str | None) -> torch.device:
    """Return the device, CUDA by default (`UsageError`, `UnavailableError` if it is missing)."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"{name!r} is not a device; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported; use cpu or cuda")
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        line = f"device {name!r} is missing; CUDA devices found: {num_gpus}; use --device cpu"
        raise UnavailableError(line)
    return device


def prepare_process(device: torch.device, threads: int | None = None) -> None:
    """Set the process's threads and kernels of attention for models on a device."""
    from decoders.core.hf.attention import leave_out_cudnn

    if threads is not None:
        torch.set_num_threads(threads)
    leave_out_cudnn(device)


def check_devices(config: RunConfig) -> None:
    """Raise `UsageError` if an option does not go with several devices."""
    options = {"--compile": config.compile, "--quantize": config.quantize}
    for option in (name for name in options if options[name] and config.device_map):
        raise UsageError(f"{option} cannot be combined with --device-map; leave one of them out")


def device_map(name: str) -> str | dict[str, str | int]:
    """Return the device map of a name, or of a JSON file (`UsageError`)."""
    if not name.endswith(".json"):
        return name
    try:
        placed = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        line = f"--device-map {name}: {error.strerror}; give a name or an existing file"
        raise UsageError(line) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--device-map {name} is not JSON ({error}); write {_EXAMPLE}") from error
    kinds = {type(device) for device in placed.values()} if isinstance(placed, dict) else {None}
    if not placed or not kinds <= {str, int}:
        raise UsageError(f"--device-map {name} maps no parts to devices; write {_EXAMPLE}")
    return dict(placed)


def usual_dtype(config: RunConfig, device: str, source: str) -> str:
    """Return the default dtype of a target at `source` on a device type (``cpu``, ``cuda``)."""
    if device == "cuda":
        return protocol.DTYPE if config.protocol == "specbench" else "bfloat16"
    return usual_on_cpu(count_weights(source) if has_bfloat16() else None)


def usual_on_cpu(num_weights: int | None) -> str:
    """Return the default dtype on a CPU of a model with `num_weights` weights (None: unknown)."""
    return "bfloat16" if (num_weights or 0) > _HALF_FROM and has_bfloat16() else "float32"


def computed_in(requested: RunConfig, resolved: RunConfig) -> str:
    """Say how a run computes, ``computed in float32 on cpu``, and why if that is the default.

    Args:
        requested: configuration before the models were opened; a `dtype` of None means the default.
        resolved: configuration of the setup.
    """
    device = str(resolved.device)
    text = f"computed in {resolved.dtype} on {device}"
    if resolved.quantize:
        text = f"weights of {resolved.quantize}, {text}"
    if resolved.tile:
        text += f", row-invariant in tiles of {resolved.tile}"
    if device == "cpu" and resolved.threads:
        text += f", {resolved.threads} thread{'s' * (resolved.threads > 1)}"
    text += ", calls compiled" * bool(resolved.compile)
    if requested.dtype is not None or resolved.dtype == "float32":
        return text
    why = f"above {_HALF_FROM // 10**6}M weights on a CPU with {resolved.dtype} instructions"
    if device != "cpu":
        why = f"of the protocol {resolved.protocol}" if resolved.protocol else "on a GPU"
    return f"{text}: the default {why} (--dtype float32 overrides it)"

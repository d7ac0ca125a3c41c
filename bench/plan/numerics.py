"""Choose the devices, dtype and row-invariant numerics of a run.

A run uses one device, or several under ``--device-map``. Some cells may compute in row-invariant
numerics (`decoders.core.hf.tiles`). Unless the user gives a tile size, the fastest one on calls of
usual widths is taken. The model is then checked bit for bit: its rows must not depend on the other
rows of a call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from bench.errors import UnavailableError, UsageError, as_error
from bench.machine.env import has_bfloat16
from bench.plan.select import ResolvedRun
from bench.settings import protocol
from bench.settings.config import INVARIANT, RunConfig
from decoders.core.engine.models import Models
from decoders.core.hf import tiles
from decoders.core.hf.checkpoint import count_weights

if TYPE_CHECKING:
    from decoders.core.hf.model import HFModel

_HALF_FROM = 50_000_000
"""Models with more weights run in bfloat16 if the CPU has instructions for it."""
TILES = (8, 16, 32)
_ROWS = (1, 5, 9, 17)
"""Widths of usual calls, with equal weights: AR's calls, and verifying calls."""
_TRIED = 10
"""Number of rows compared bit for bit: calls of five rows then also cross the ends of blocks."""
_TIMED = 5
_PADDED, _PRICE = 16, 0.1


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
    """Set the process's threads, GPU and kernels of attention for models on a device."""
    from decoders.core.products import leave_out_cudnn

    if threads is not None:
        torch.set_num_threads(threads)
    if device.index:  # graphs are captured, and Triton kernels run, on the current device
        torch.cuda.set_device(device)
    leave_out_cudnn(device)


def default_dtype(config: RunConfig, device: str, source: str) -> str:
    """Return the default dtype of the target at `source` on a device type (``cpu``, ``cuda``)."""
    if device == "cuda":
        return protocol.DTYPE if config.protocol == "specbench" else "bfloat16"
    return default_cpu_dtype(count_weights(source) if has_bfloat16() else None)


def default_cpu_dtype(num_weights: int | None) -> str:
    """Return the default dtype on a CPU of a model with `num_weights` weights (None: unknown)."""
    return "bfloat16" if (num_weights or 0) > _HALF_FROM and has_bfloat16() else "float32"


def describe_numerics(requested: RunConfig, resolved: RunConfig) -> str:
    """Describe a run's numerics (``computed in float32 on cpu``), and tell whether by default.

    Args:
        requested: configuration before the models were opened; a `dtype` of None means the default.
        resolved: configuration of the setup.
    """
    device = str(resolved.device)
    text = f"computed in {resolved.dtype} on {device}"
    if resolved.quantize:
        text = f"weights of {resolved.quantize}, {text}"
    partly = "partly " * (resolved.numerics != INVARIANT)
    text += f", {partly}row-invariant in tiles of {resolved.tile}" * bool(resolved.tile)
    if device == "cpu" and resolved.threads:
        text += f", {resolved.threads} thread{'s' * (resolved.threads > 1)}"
    text += ", calls compiled" * bool(resolved.compile)
    if requested.dtype is not None or resolved.dtype == "float32":
        return text
    return f"{text}: the default for this model and device (--dtype float32 overrides it)"


def uses_tiles(run: ResolvedRun) -> bool:
    """Return whether any cell of the run computes in tiles (`UsageError`: not possible)."""
    config = run.config
    if INVARIANT not in (config.numerics, *map(run.numerics, run.decoders)):
        if config.tile is not None:
            line = f"--tile {config.tile} is for row-invariant numerics; add --numerics invariant"
            raise UsageError(line)
        return False
    if config.compile:
        line = "--compile compiles a graph per shape, and each may round differently"
        raise UsageError(f"{line}: leave it out, or use --numerics fast")
    return True


def in_tiles(models: Models, tile: int | None) -> tuple[Models, int]:
    """Return tiled models and the tile (None: the fastest). `UnavailableError`: rows differ."""
    roles: dict[str, Any] = {**models.roles}
    with as_error(UnavailableError):
        if tile is None:
            seconds = {tile: _seconds(roles["target"].in_tiles(tile)) for tile in TILES}
            tile = min(TILES, key=lambda tile: seconds[tile])
        tiled = {role: model.in_tiles(tile) for role, model in roles.items()}
        failed = next((model for model in tiled.values() if not holds(model)), None)
    if failed is not None:
        raise UnavailableError(
            f"rows of {type(failed.module).__name__} in {failed.facts['dtype']} are not computed "
            f"identically in tiles of {tile} rows here; try another --tile, or --numerics fast"
        )
    return Models.of(tiled), tile


def pad_rows(model: HFModel, rows: int | None, batch_size: int) -> tuple[int, float | None]:
    """Set the minimum rows of a model's captured calls, so that calls of few rows share a graph.

    A row then has the same bits in `ar`'s calls and in calls that verify drafts.

    Args:
        model: the target, on a GPU.
        rows: the minimum; None: `_PADDED` if this costs one row at most `_PRICE` more, else 1.
        batch_size: sequences of the calls whose time decides.

    Returns:
        The minimum and, if timed, the extra cost of a padded call, in calls of one row.
    """
    price = None
    if rows is None:
        times_s: dict[int, list[float]] = {1: [], _PADDED: []}
        for _ in range(_TIMED):
            for model.min_rows, seconds in times_s.items():
                seconds.append(_seconds(model, (1,), batch_size))
        price = max(0.0, min(times_s[_PADDED]) / min(times_s[1]) - 1)
        rows = _PADDED if price <= _PRICE else 1
    model.min_rows = rows
    return rows, price


def holds(model: HFModel) -> bool:
    """Return whether rows have the same bits in calls of one row, of five and of all rows."""
    text = max(1, min(tiles.BLOCK + _TRIED - 3, model.max_length) - _TRIED)
    ids = [(7919 * n + 3) % model.vocab_size for n in range(text + _TRIED)]
    one = _read(model, ids, [text, *[1] * _TRIED])
    cuts = ([text + _TRIED], [text, *[5] * (_TRIED // 5)])
    return all(torch.equal(one, _read(model, ids, cut)) for cut in cuts)


def _read(model: HFModel, ids: list[int], cut: list[int]) -> torch.Tensor:
    """Return logits ``[_TRIED, V]`` of the last rows, with calls of the row counts in `cut`."""
    Models(target=model).ensure(1, len(ids))
    with closing(model.open()) as session:
        start, parts = 0, []
        for num in cut:
            call = session.call(ids[start : start + num], output="logits", read=range(num))
            parts.append(model.forward([call]))
            start += num
        return torch.cat(parts)[-_TRIED:]


def _seconds(model: HFModel, widths: Sequence[int] = _ROWS, batch_size: int = 1) -> float:
    """Return the summed median times of one call of each width."""
    Models(target=model).ensure(batch_size, sum(widths) * _TIMED)
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(model.open())) for _ in range(batch_size)]
        total = 0.0
        for rows in widths:
            times = []
            for _ in range(_TIMED):
                start = time.perf_counter()
                calls = [each.call([1] * rows, output="logits") for each in sessions]
                model.forward(calls).argmax().item()
                times.append(time.perf_counter() - start)
            total += median(times[1:])
        return total

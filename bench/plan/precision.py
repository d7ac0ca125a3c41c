"""The default dtype of a model, and the line that says so."""

from __future__ import annotations

from bench.machine.env import has_bfloat16
from bench.settings import protocol
from bench.settings.config import RunConfig
from decoders.core.hf.checkpoint import count_weights

_HALF_FROM = 50_000_000
"""Models with more weights run in bfloat16 where the CPU has instructions for it."""


def usual_dtype(config: RunConfig, device: str, source: str) -> str:
    """Return the default dtype of a target at `source` on a kind of device (``cpu``, ``cuda``)."""
    if device == "cuda":
        return protocol.DTYPE if config.protocol == "specbench" else "bfloat16"
    return usual_on_cpu(count_weights(source) if has_bfloat16() else None)


def usual_on_cpu(num_weights: int | None) -> str:
    """Return the default dtype of a model of so many weights (None: unknown) on a CPU."""
    halved = (num_weights or 0) > _HALF_FROM and has_bfloat16()
    return "bfloat16" if halved else "float32"


def computed_in(asked: RunConfig, opened: RunConfig) -> str:
    """Return how a run computes, and why where nobody chose: ``computed in float32 on cpu``.

    Args:
        asked: the configuration before the models were opened; `dtype` None: by default.
        opened: the one that the setup holds.
    """
    device = str(opened.device)
    text = f"computed in {opened.dtype} on {device}"
    if opened.quantize:
        text = f"weights of {opened.quantize}, {text}"
    if opened.tile:
        text += f", row-invariant in tiles of {opened.tile}"
    if device == "cpu" and opened.threads:
        text += f", {opened.threads} thread{'s' * (opened.threads > 1)}"
    text += ", calls compiled" * bool(opened.compile)
    if asked.dtype is not None or opened.dtype == "float32":
        return text
    why = f"above {_HALF_FROM // 10**6}M weights on a CPU with {opened.dtype} instructions"
    if device != "cpu":
        why = f"of the protocol {opened.protocol}" if opened.protocol else "on a GPU"
    return f"{text}: the default {why} (--dtype float32 overrides it)"

"""Open the subject of `bench cost`: a model, or a shape with random weights, and the probes."""

from __future__ import annotations

from typing import Any

import torch

from bench.errors import UnavailableError, UsageError, as_error, room_for
from bench.extras.cost.measure import CostSubject, Sequences
from bench.extras.cost.probes import make_probes
from bench.extras.cost.records import CallWork, CostCell, CostFacts, Grid
from bench.machine.clock import Clock
from bench.machine.env import ROOT, capture
from bench.machine.usage import LoadWatch, available_bytes
from bench.plan.compiling import open_compiled
from bench.plan.labels import Note
from bench.plan.numerics import default_cpu_dtype, default_dtype, open_device, prepare_process
from bench.plan.select import ResolvedRun
from bench.plan.sources import checkpoint
from bench.records.environment import ModelFacts
from bench.settings.config import ZOO, RunConfig
from decoders.core.hf.model import HFModel
from decoders.core.hf.quantized import packed_layers, read_bytes, weights_read

_SMALLER = "use a smaller --dtype (bfloat16) or shape, or another --device"


def open_subject(
    config: RunConfig, grid: Grid, note: Note, *, shape: str | None = None
) -> CostSubject:
    """Load a model, or make one with random weights, as a `CostSubject`.

    Calls are compiled as in a run (`bench.plan.compiling`).

    Args:
        config: names the model, unless there is a `shape`, and the machine's settings.
        grid: the cells to measure, only recorded here.
        note: called with lines about compiling.
        shape: a name of `decoders.core.hf.shapes.SHAPES`, ``zoo``, or a folder with a config.json.

    Raises:
        BenchError: no such model or device (exit 5), no such shape (2), or too little memory (1).
    """
    device = open_device(config.device)
    prepare_process(device, config.threads)

    def open_model(run: ResolvedRun) -> HFModel:
        model = _make_model(run.config, device, shape)
        cells = [CostCell(sequences=1, context=2, rows=rows) for rows in (1, 2)]
        if model.facts["compiled"]:  # test now whether graphs can be made
            with Sequences(model, cells) as sequences:
                for cell in cells:
                    model.forward(sequences.calls(cell))
        return model

    model = open_compiled(ResolvedRun(config=config, decoders={}), open_model, note)
    facts = {**model.facts, "random_weights": shape is not None}
    dtype = str(facts["dtype"])
    work = count_work(model)
    room = float(available_bytes(str(device)))
    return CostSubject(
        model=model,
        facts=CostFacts(name=shape or config.model, target=facts, work=work, grid=grid),
        env=capture(device=str(device), dtype=dtype, models=ModelFacts(target=facts)),
        clock=Clock.for_device(str(device)),
        probes=make_probes(work.weight_bytes, dtype=model.dtype, device=device, room_bytes=room),
        room_bytes=room,
        lap=LoadWatch(str(device)).lap,
    )


def _make_model(config: RunConfig, device: torch.device, shape: str | None) -> HFModel:
    """Load the model of a configuration, or make a random one if there is a shape."""
    how: Any = {"device": device, "compile": bool(config.compile), "quantized": config.quantize}
    if not shape:
        source = checkpoint(config.model)
        dtype = config.dtype or default_dtype(config, device.type, source)
        room = room_for(f"the weights of {source} in {dtype} on {device}", _SMALLER)
        with as_error(UnavailableError), room:
            return HFModel.load(source, dtype=getattr(torch, dtype), **how)
    from decoders.core.hf import shapes

    with as_error(UsageError):
        shaped = shapes.shape_config(ROOT / ZOO / "target" if shape == ZOO else shape)
    on_cpu = device.type == "cpu"
    usual = default_cpu_dtype(shapes.count_weights(shaped)) if on_cpu else "bfloat16"
    dtype = config.dtype or usual
    with room_for(f"the weights of {shape} in {dtype} on {device}", _SMALLER):
        return shapes.random_model(shaped, dtype=getattr(torch, dtype), **how)


def count_work(model: HFModel) -> CallWork:
    """Count what a model's call reads and computes, from the weights and the cache."""
    module: Any = model.module
    read = [*weights_read(module), *(layer.weight for layer in packed_layers(module))]
    config = module.config.get_text_config()
    planes = model.architecture.planes
    return CallWork(
        weight_bytes=read_bytes(module),
        token_bytes=sum(heads * width for heads, width in planes) * model.dtype.itemsize,
        row_flops=2 * sum(w.numel() for w in read if w.ndim > 1),
        # scores, and the weighted sum of values: each head takes two products of its width
        pair_flops=sum(2 * config.num_attention_heads * width for _, width in planes),
    )

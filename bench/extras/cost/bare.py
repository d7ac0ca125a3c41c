"""Time models with random weights: ``python -m bench.extras.cost.bare PART --shape SHAPE``.

It needs only torch, transformers and numpy. Every result is a line of JSON, on disk once it is
measured. Times cover everything after the first tokens, in the scheduler; CUDA calls are graphs.

* ``ar``: time of a step of `ar`, and the minimal share of it that reads weights and cache.
* ``ways``: the same step for each way to compute calls (`device.Switches`), and as a mere replay.
* ``profile``: the kernels of a token of `ar`.
* ``scripted``: `spec`, `ptp`, `eagle` with k drafts, accepted with given chances (`Scripted`).
* ``invariant``: cost of row-invariant numerics, and whether answers are equal under them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from bench.extras.cost.probes import make_probes
from bench.extras.cost.scripted import Scripted
from bench.machine.clock import Clock
from bench.machine.gpu import EnergyMeter
from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.device import Switches, switches
from decoders.core.engine.forward import forward
from decoders.core.engine.models import Models
from decoders.core.engine.readout import read_out
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf import shapes
from decoders.core.hf.model import HFModel
from decoders.core.hf.quantized import read_bytes
from decoders.core.hf.self_check import self_check
from decoders.core.products import leave_out_cudnn
from decoders.core.registry import build, parse_spec
from decoders.core.types import Generation, Sampling

ROOT = Path(__file__).resolve().parents[3]
SPECS = {
    "spec": "spec:k={k}",
    "ptp": "ptp:slots={slots}:row_cost=0",
    "eagle": "eagle:nodes={k}:width=1:depth={k}",
}
"""Decoders of k drafts a step; `ptp` has one more slot, for the token that its call's row gives."""
WAYS: dict[str, dict[str, Any]] = {
    "our kernels, calls begun early": {},
    "our kernels": {"ahead": False},
    "torch's": {"kernels": False, "ahead": False},
}
"""Changes to `device.switches`."""
_MAX_K, _DRAFT_SHARE, _RANK, _TILE = 16, 8, 64, 16
_FIRST_KS, _NAME = 2, 120
_RUNS = 2
_PROBE_ROOM = 8e9
_METERED_S = 1.0
"""Shorter regions report no energy: a GPU's counter is updated about ten times a second."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Hold answers, and the median seconds of everything after their first tokens."""

    answers: Sequence[Generation]
    seconds: float
    joules: float | None

    @property
    def tokens(self) -> int:
        """Number of tokens after the first steps, which the timed seconds cover."""
        return sum(len(step.tokens) for each in self.answers for step in each.steps[1:])

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens

    @property
    def num_steps(self) -> int:
        """Maximum number of steps of an answer after the first step."""
        return max(len(answer.steps) for answer in self.answers) - 1


@dataclass(kw_only=True)
class Bench:
    """Hold models of a shape, a clock, an energy meter, and the cases, the most valuable first.

    The draft model has an eighth of the target's layers; `compile` runs calls as graphs.
    """

    shape: str
    device: torch.device
    dtype: torch.dtype
    contexts: Sequence[int]
    batches: Sequence[int]
    ks: Sequence[int]
    chances: Sequence[float]
    num_tokens: int
    compile: bool

    def __post_init__(self) -> None:
        if self.device.index:  # the device on which kernels run
            torch.cuda.set_device(self.device)
        leave_out_cudnn(self.device)
        self.clock = Clock.for_device(str(self.device))
        self.meter = EnergyMeter(str(self.device))
        self.forward = forward
        self.sampling = Sampling(max_new_tokens=self.num_tokens + 1)
        target = self._random_model()
        layers = max(1, target.module.config.num_hidden_layers // _DRAFT_SHARE)
        self.models = Models(target=target, draft=self._random_model(num_hidden_layers=layers))
        self.notes = self_check(target)  # kernels that fail on this GPU are switched off

    def attach(self) -> None:
        """Attach fresh slots and a fresh draft layer to the target."""
        target: Any = self.models.target
        config = target.module.config
        width: int = config.hidden_size
        layers = layer_shapes(target.module, 0)
        sizes: Any = {"rank": _RANK, "num_slots": _MAX_K + 1, "greedy": True}
        target.attach("ptp", SlotAdapter(AdapterConfig(layers=layers, width=width, **sizes)))
        sizes = {"rank": config.intermediate_size, "num_heads": config.num_attention_heads}
        layer = AdapterConfig(
            variant=DraftLayer.variant, code="constant", layers={}, width=width, **sizes
        )
        target.attach("eagle", DraftLayer(layer))

    def _random_model(self, **changes: Any) -> HFModel:
        name = ROOT / "zoo" / "target" if self.shape == "zoo" else self.shape
        return shapes.random_model(
            shapes.shape_config(name, **changes),
            dtype=self.dtype,
            device=self.device,
            compile=self.compile,
            backend="inductor" if self.device.type == "cuda" else "eager",
        )

    def time(
        self,
        spec: str,
        context: int,
        batch: int,
        *,
        models: Models | None = None,
        reading: Callable[..., Any] = read_out,
    ) -> Timing:
        """Time a decoder after all graphs are made, and return the run nearest to the median.

        Args:
            spec: the decoder as typed, e.g. ``spec:k=4``.
            context: tokens of each prompt.
            batch: number of prompts, answered at once.
            models: None: those of the shape.
            reading: turns logits into results, as `read_out` does.
        """
        used = models or self.models
        before, timings = -1, list[Timing]()
        while len(timings) <= _RUNS:  # the first run warms up
            timings.append(self.once(spec, used, context, batch, reading))
            if used.num_graphs != before:
                before, timings = used.num_graphs, timings[-1:]
        middle = median(each.seconds for each in timings[1:])
        return min(timings[1:], key=lambda each: abs(each.seconds - middle))

    def once(
        self,
        spec: str,
        models: Models,
        context: int,
        batch: int,
        reading: Callable[..., Any] = read_out,
    ) -> Timing:
        """Answer the prompts once.

        Args:
            spec: the decoder as typed.
            models: the models that answer.
            context: tokens of each prompt.
            batch: number of prompts, answered at once.
            reading: turns logits into results, as `read_out` does.
        """
        num_words = models.target.vocab_size
        prompts = [
            [(7 + 31 * place + 101 * row) % num_words for place in range(context)]
            for row in range(batch)
        ]
        clock, firsts = self.clock, list[float]()

        def on_emit(_index: int, number: int) -> None:
            if number == 0:
                self.meter.lap()
                firsts.append(clock.glance())

        scheduler = Scheduler(
            build(parse_spec(spec)),
            models,
            self.sampling,
            len(prompts),
            forward=self.forward,
            read_out=reading,
        )
        outcomes = scheduler.run(prompts, on_emit=on_emit)
        end_s, joules = clock.now(), self.meter.lap()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        answers = [each for each in outcomes if isinstance(each, Generation)]
        seconds = end_s - max(firsts)
        return Timing(answers, seconds, joules if seconds > _METERED_S else None)


Lines = Iterator[dict[str, Any]]


def time_ar(bench: Bench) -> Lines:
    """Time `ar`, and compare it with the measured bandwidth of reading many matrices."""
    target: Any = bench.models.target
    weights = read_bytes(target.module)
    planes = target.architecture.planes
    token_bytes = sum(heads * width for heads, width in planes) * target.dtype.itemsize
    room = 1e8 if bench.device.type == "cpu" else float(torch.cuda.mem_get_info(bench.device)[0])
    probe = make_probes(
        weights, dtype=bench.dtype, device=bench.device, room_bytes=min(room, _PROBE_ROOM)
    )[0]
    bandwidth = median(probe.per_second(bench.clock) for _ in range(3))
    for context, batch in product(bench.contexts, bench.batches):
        timing = bench.time("ar", context, batch)
        read = weights + batch * (context + bench.num_tokens / 2) * token_bytes
        step_s = timing.seconds / timing.num_steps
        yield {
            **_facts(timing, context, batch),
            "step_s": step_s,
            "limit_s": read / bandwidth,
            "share_of_limit": read / bandwidth / step_s,
            "bandwidth_bytes_per_s": bandwidth,
            "read_bytes_per_s": read / step_s,
        }


def _facts(timing: Timing, context: int, batch: int) -> dict[str, Any]:
    joules = None if timing.joules is None else timing.joules / timing.tokens
    where = {"context": context, "sequences": batch, "tokens_per_s": timing.tokens / timing.seconds}
    return {**where, "energy_per_token_j": joules}


def time_ways(bench: Bench) -> Lines:
    """Time a step of `ar` in each of `WAYS`, in the scheduler and as a replay without the host."""
    target: Any = bench.models.target
    context, usual = bench.contexts[0], dict[int, Sequence[Sequence[int]]]()
    before = asdict(switches)
    ways = WAYS if switches.kernels else {"torch's": before}
    for (name, way), batch in product(ways.items(), bench.batches):
        _switch(way)
        target.reserve(1, 1)  # graphs are made again in another cache
        timing = bench.time("ar", context, batch)
        usual.setdefault(batch, [each.tokens for each in timing.answers])
        target.reserve(batch, context + 2)
        sessions = [target.open() for _ in range(batch)]
        target.forward([each.call([7] * context, read=()) for each in sessions])
        replay = target.replay([each.call([7], read=[0], output="logits") for each in sessions])
        times_s = []
        for _ in range(bench.num_tokens):
            start_s = bench.clock.now()
            replay()
            times_s.append(bench.clock.now() - start_s)
        for each in sessions:
            each.close()
        yield {
            "way": name,
            "context": context,
            "sequences": batch,
            "step_s": timing.seconds / timing.num_steps,
            "replay_s": median(times_s),
            "same_answers": [each.tokens for each in timing.answers] == usual[batch],
        }
    _switch(before)


def _switch(way: dict[str, Any]) -> None:
    for name, value in {**asdict(Switches()), **way}.items():
        setattr(switches, name, value)


def time_scripted(bench: Bench) -> Lines:
    """Time decoders whose drafts are accepted with each of the chances, relative to `ar`."""
    bench.attach()
    bases = dict[tuple[int, int], Timing]()
    cases = list(product(bench.chances, bench.ks, SPECS))
    first = _FIRST_KS * len(SPECS)  # these chances in every cell, then the others
    parts = cases[:first], cases[first:]
    for part, context, batch in product(parts, bench.contexts, bench.batches):
        cell = context, batch
        if part and cell not in bases:
            bases[cell] = bench.time("ar", context, batch)
        for chance, k, name in part:
            spec = SPECS[name].format(k=k, slots=k + 1)
            timing = bench.time(spec, context, batch, reading=Scripted([chance]))
            steps = [step for answer in timing.answers for step in answer.steps[1:]]
            yield {
                **_facts(timing, context, batch),
                "decoder": name,
                "k": k,
                "chance": chance,
                "tokens_per_step": timing.tokens / len(steps),
                "target_calls": sum(step.target_calls for step in steps),
                "draft_calls": sum(step.draft_calls for step in steps),
                "speedup": bases[cell].token_s / timing.token_s,
            }


def time_invariant(bench: Bench) -> Lines:
    """Time `ar` with and without tiles, and compare answers of `spec` and of batches with ar's."""
    models = bench.models
    assert isinstance(models.target, HFModel)
    assert isinstance(models.draft, HFModel)
    tiled = Models(target=models.target.in_tiles(_TILE), draft=models.draft.in_tiles(_TILE))
    context, batch = bench.contexts[0], min(4, max(bench.batches))
    fast_s = bench.time("ar", context, 1).token_s
    for numerics, used in (("fast", models), ("invariant", tiled)):
        alone = bench.time("ar", context, 1, models=used)
        timings = {
            f"ar, {batch} at once": bench.time("ar", context, batch, models=used),
            "spec, k = 4": bench.time("spec:k=4", context, 1, models=used),
        }
        first = alone.answers[0].tokens
        same = {name: each.answers[0].tokens == first for name, each in timings.items()}
        yield {"numerics": numerics, "relative_time": alone.token_s / fast_s, "identical": same}


def profile_ar(bench: Bench) -> Lines:
    """List the kernels (on a CPU, operations) of a token of `ar`, the slowest first."""
    context, activity = bench.contexts[0], torch.profiler.ProfilerActivity
    bench.time("ar", context, 1)  # this run makes the graphs
    on_gpu = bench.device.type == "cuda"
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profile:
        timing = bench.once("ar", bench.models, context, 1)
    of_device = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    num = sum(len(answer.tokens) for answer in timing.answers)
    for event in sorted(profile.key_averages(), key=lambda each: -getattr(each, of_device)):
        if time_us := getattr(event, of_device):
            cost = {"us_per_token": time_us / num, "per_token": event.count / num}
            yield {"kernel": event.key[:_NAME], **cost}


PARTS: dict[str, Callable[[Bench], Lines]] = {
    "ar": time_ar,
    "ways": time_ways,
    "profile": profile_ar,
    "scripted": time_scripted,
    "invariant": time_invariant,
}


def write_lines(lines: Lines, output: Path | None) -> None:
    """Print lines, and write each line to disk before the next is measured."""
    with (output or Path(os.devnull)).open("a", encoding="utf-8") as file:
        for line in lines:
            text = json.dumps(line) + "\n"
            sys.stdout.write(text)
            file.write(text)
            file.flush()
            if output is not None:
                os.fsync(file.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one part."""
    parser = argparse.ArgumentParser(prog="python -m bench.extras.cost.bare", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--shape", default="zoo", help=f"zoo, {', '.join(shapes.SHAPES)}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--output", type=Path, help="file that the lines are appended to")
    parser.add_argument("--small", action="store_true", help="few and short, to rehearse")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    machine = {
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    bench = Bench(
        shape=options.shape,
        device=device,
        dtype=getattr(torch, options.dtype),
        contexts=(16,) if options.small else (512, 4096) if device.type == "cuda" else (128,),
        batches=(1, 2) if options.small else (1, 4, 16, 64) if device.type == "cuda" else (1,),
        ks=(1, 4) if options.small else (4, 8, 1, 2, 16),
        chances=(0.8,) if options.small else (0.8, 0.6, 0.9),
        num_tokens=12 if options.small else 64,
        compile=device.type == "cuda" or options.small,
    )
    machine["notes"] = "; ".join(bench.notes) or None
    write_lines(iter([{"machine": machine}]), options.output)
    write_lines(PARTS[options.part](bench), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

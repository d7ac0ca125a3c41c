"""Run attached heads and draft layers, as graphs where a model's calls are."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from decoders.core.adapter.draft_layer import DraftCache, DraftPass, Inputs
from decoders.core.adapter.parallel_layers import SlotCache, SlotPass
from decoders.core.hf.compiled import Graphs, Outputs, tensors_of
from decoders.core.hf.runner import COMPILED_ROWS, Runner


class DraftRunner:
    """The passes of an attached adapter, and the caches that texts use one after another."""

    def __init__(self, work: DraftPass, runner: Runner) -> None:
        """Compile passes as `runner` compiles calls."""
        self._work, self._runner = work, runner
        self._like = next(work.layers.parameters())
        self.graphs: Graphs | None = None
        if runner.graphs is not None:
            backend = runner.graphs.backend
            self.graphs = Graphs(work, self._held, device=self._like.device, backend=backend)
        self._capacity, self._free = 0, list[Sequence[Tensor]]()

    def begin(self, capacity: int) -> DraftCache | SlotCache:
        """Begin a text of at most `capacity` rows; its planes are free again when it is gone."""
        if capacity != self._capacity:
            self._capacity, self._free = capacity, []
            if self.graphs is not None:
                self.graphs.forget()
        planes = self._free.pop() if self._free else self._work.planes(capacity)
        fixed = self.graphs is not None and self.graphs.fixed
        cache: DraftCache | SlotCache
        if isinstance(self._work, SlotPass):
            slots = self._work.layers.config.num_slots
            cache = SlotCache(self.run, planes, num_slots=slots, fixed=fixed)
        else:
            cache = DraftCache(self.run, planes, fixed=fixed)
        weakref.finalize(cache, self._free.append, planes)
        return cache

    def run(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Outputs:
        """Run a pass; of many rows it is no graph."""
        graphs = self.graphs if self._runner.compiling else None
        if graphs is None or inputs["states"].shape[1] > COMPILED_ROWS:
            return self._work(name, inputs, planes)
        out = graphs(name, inputs, planes)
        return [each.clone() for each in out] if graphs.fixed else out

    def _held(self, name: Any) -> tuple[str, Mapping[str, Tensor]]:
        config = replace(self._work.layers.config, base={}, measured={})
        text = f"{config.variant}, {config.width} wide, {self._like.dtype}"
        return f"{text}\n{config}", tensors_of(self._work)

"""Run attached heads and draft layers, as graphs if the model's calls run as graphs."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from decoders.core.adapter.draft_layer import DraftCache, DraftPass, Inputs, ShortHead
from decoders.core.adapter.parallel_layers import SlotCache, SlotPass
from decoders.core.hf.compiled import COMPILED_ROWS, Graphs, Outputs, collect_tensors
from decoders.core.hf.runner import ModuleRunner


class DraftRunner:
    """Runs the passes of an attached adapter, and lends cache planes to one text after another."""

    def __init__(self, work: DraftPass, runner: ModuleRunner) -> None:
        """Compile passes as `runner` compiles calls."""
        self._work, self._runner = work, runner
        self._like = next(work.layers.parameters())
        head = work.head
        self._words = head.words.tolist() if isinstance(head, ShortHead) else None
        self.graphs: Graphs | None = None
        if runner.graphs is not None:
            backend = runner.graphs.backend
            self.graphs = Graphs(work, self._facts, device=self._like.device, backend=backend)
        self.forget()

    def forget(self) -> None:
        """Drop all planes (running texts keep theirs), and graphs that hold their addresses."""
        self._capacity, self._planes, self._free = 0, list[Sequence[Tensor]](), list[int]()
        if self.graphs is not None:
            self.graphs.forget()

    @property
    def num_bytes(self) -> int:
        """Bytes of all planes, of embedded uniforms, and of a `ShortHead`."""
        levels = [self._work.levels] if isinstance(self._work, SlotPass) else []
        short = [self._work.head.weight] if isinstance(self._work.head, ShortHead) else []
        return sum(each.nbytes for each in [*levels, *short, *itertools.chain(*self._planes)])

    def begin(self, capacity: int) -> DraftCache | SlotCache:
        """Begin a text of at most `capacity` rows.

        Dropping the returned cache frees its planes, which are reused: graphs hold their addresses.
        """
        if capacity != self._capacity:
            self.forget()
            self._capacity = capacity
        if not self._free:
            self._free.append(len(self._planes))
            self._planes.append(self._work.planes(capacity))
        number = min(self._free)
        self._free.remove(number)
        bucketed = COMPILED_ROWS if self.graphs is not None and self.graphs.fixed else 0
        kind = SlotCache if isinstance(self._work, SlotPass) else DraftCache
        cache = kind(self.run, self._planes[number], bucketed=bucketed, words=self._words)
        weakref.finalize(cache, self._free.append, number)
        return cache

    def run(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Outputs:
        """Run a pass as a graph, or without a graph if it has many rows or graphs are off."""
        graphs = self.graphs if self._runner.compiling else None
        num_rows = inputs["states"].shape[1]
        is_long = graphs is not None and graphs.fixed and num_rows > COMPILED_ROWS
        if graphs is None or is_long or not graphs.serve(num_rows):
            return self._work(name, inputs, planes)
        return graphs(name, inputs, planes)

    def _facts(self, name: Any) -> tuple[str, Mapping[str, Tensor]]:
        config = replace(self._work.layers.config, base={}, measured={})
        text = f"{config.variant}, {config.width} wide, {self._like.dtype}"
        about, _ = self._runner.facts(None)  # embedding and head belong to the model
        return f"{text}\n{config}\n{about}", collect_tensors(self._work)

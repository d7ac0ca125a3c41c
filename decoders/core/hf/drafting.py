"""Run attached heads and draft layers, as graphs if the model's calls run as graphs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from decoders.core.adapter.draft_pass import DraftPass, Inputs, Texts
from decoders.core.graph_size import first_rows
from decoders.core.hf.compiled import COMPILED_ROWS, Graphs, Outputs, collect_tensors
from decoders.core.hf.runner import ModuleRunner
from decoders.core.model import DraftCall
from decoders.core.types import CallResult


class DraftRunner:
    """Runs the passes of an attached adapter, with a row of cache planes for each sequence."""

    def __init__(self, work: DraftPass, runner: ModuleRunner, storages: Collection[int]) -> None:
        """Compile passes as `runner` compiles calls, beside the model's weights in `storages`."""
        self._work, self._runner, self._storages = work, runner, storages
        self.layers, self._like = work.layers, cast(Tensor, runner.tokens.weight)
        self.config = self.layers.config
        self._planes: list[Tensor] = []
        backend = runner.graphs.backend
        self.graphs = Graphs(work, self._facts, device=self._like.device, backend=backend)

    def forget(self) -> None:
        """Drop all planes, and graphs that hold their addresses."""
        self._planes = []
        self.graphs.forget()

    @torch.inference_mode()
    def move_row(self, source: int, row: int) -> None:
        """Copy the planes of row `source` to `row`."""
        for plane in self._planes:
            plane[row] = plane[source]

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights that the model lacks, of what the pass computed, and of planes."""
        new = [
            each
            for each in (*self.layers.parameters(), *self.layers.buffers())
            if each.is_floating_point() and each.untyped_storage().data_ptr() not in self._storages
        ]
        return self._work.num_bytes + sum(int(each.nbytes) for each in (*new, *self._planes))

    def draft(
        self, calls: Sequence[DraftCall], num_rows: int, capacity: int, size: int
    ) -> Sequence[CallResult]:
        """Draft for some of `num_rows` sequences with `capacity` entries and `size` ids."""
        if not self._planes:
            self._planes = self._work.planes(num_rows, capacity)
        by_row = {call.session.row: call for call in calls}
        rows: Sequence[int] = sorted(by_row)
        if self._planes and len(rows) > 1:  # planes of consecutive rows, of few numbers of them
            rows = first_rows(rows, num_rows)
        ordered = [by_row.get(row) for row in rows]
        planes = [plane.narrow(0, rows[0], len(rows)) for plane in self._planes]
        bucketed = COMPILED_ROWS if self.graphs.fixed else 0
        results = self._work.draft(Texts.of(ordered, planes, bucketed), self.run, size)
        by_sequence = dict(zip(sorted(by_row), results, strict=True))
        return [by_sequence[call.session.row] for call in calls]

    def run(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Outputs:
        """Run a pass as a graph, or without a graph if it has many rows or graphs are off."""
        graphs, num_rows = self.graphs, inputs["states"].shape[1]
        is_long = graphs.fixed and num_rows > COMPILED_ROWS
        as_graph = self._runner.compiling and graphs.serve(num_rows) and not is_long
        return (graphs if as_graph else self._work)(name, inputs, planes)

    def _facts(self, name: Any) -> tuple[str, Mapping[str, Tensor]]:
        config = replace(self.config, base={}, measured={})
        text = f"{config.variant}, {config.width} wide, {self._like.dtype}"
        about, _ = self._runner.facts(None)  # embedding and head belong to the model
        return f"{text}\n{config}\n{about}", collect_tensors(self._work)

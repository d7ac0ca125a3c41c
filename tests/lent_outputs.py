"""Outputs of graphs that the next run overwrites, as all graphs of a GPU share their memory.

On a CPU each run returns new tensors, so a result that is read too late would pass all tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core.device import fetched
from decoders.core.hf import runner
from decoders.core.hf.compiled import Graphs

torch.fx.config.do_not_emit_stack_traces = True  # no test reads where a node was traced


@pytest.fixture(autouse=True)
def lent_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spoil the outputs that a graph of fixed shapes only lent, whenever any such graph runs."""
    run, lent = Graphs.__call__, list[Tensor]()

    def spoiling(
        self: Graphs, name: Any, inputs: Any, planes: Any, num_brief: int = 0
    ) -> Sequence[Tensor]:
        if not self.fixed or self._on_gpu:  # a pretended GPU counts what runs there
            return run(self, name, inputs, planes, num_brief)
        copied = {key: each.clone() for key, each in inputs.items()}  # before the replay, as there
        for each in lent:
            with torch.inference_mode(each.is_inference()):
                each.fill_(torch.nan if each.is_floating_point() else 1 << 40)
        outputs = run(self, name, copied, planes, num_brief)
        lent[:] = outputs[:num_brief]
        return outputs

    monkeypatch.setattr(Graphs, "__call__", spoiling)
    monkeypatch.setattr(
        runner, "fetched", lambda each: fetched(each if each.is_cuda else each.clone())
    )

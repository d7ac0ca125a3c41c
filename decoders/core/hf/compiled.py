"""A module through `torch.compile`: a graph of its own for every shape of call, without guards.

Everything that a graph was specialised on must follow from the shape's name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

_WARM_ON_GPU = 3
"""Calls until a CUDA graph is replayed: one compiles, one records."""


class CompiledModule:
    """Graphs of a module by shape, made when a shape first comes; `num_graphs` were made so far."""

    def __init__(
        self, run: Callable[..., Tensor], *, device: torch.device, backend: str = "inductor"
    ) -> None:
        """Compile `run` of keyword arguments later; it returns one tensor."""
        self._run, self.backend = run, backend
        self._on_gpu = device.type == "cuda"
        self._graphs: dict[Hashable, Callable[..., Tensor]] = {}
        self.num_graphs = 0

    def __call__(self, shape: Hashable, fed: Mapping[str, Any]) -> Tensor:
        """Run a call of a shape, compiled when it is new; on a GPU the next call overwrites it."""
        graph = self._graphs.get(shape)
        if graph is None:
            graph = self._graphs[shape] = self._made(fed)
            self.num_graphs += 1
        self._begin()
        return graph(**fed)

    def forget(self) -> None:
        """Drop all graphs: their tensors are no longer there."""
        self._graphs.clear()

    def _begin(self) -> None:
        if self._on_gpu:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def _made(self, fed: Mapping[str, Any]) -> Callable[..., Tensor]:
        options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        if self._on_gpu and self.backend == "inductor":
            options["triton.cudagraphs"] = True

        def run(**fed: Any) -> Tensor:
            return self._run(**fed)

        # torch keeps graphs by code object and, told to check nothing, takes any that it has
        alone = FunctionType(run.__code__.replace(), run.__globals__, closure=run.__closure__)
        graph: Callable[..., Tensor] = torch.compile(
            alone, fullgraph=True, dynamic=False, backend=self.backend, options=options
        )
        try:
            # never the plain module under a graph's name
            with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                for _ in range(_WARM_ON_GPU if self._on_gpu else 1):
                    self._begin()
                    graph(**fed)
        except torch._dynamo.exc.TorchDynamoException as error:
            why = " ".join(str(error).strip().splitlines()[:2])
            line = f"torch.compile makes no graph of this model: {why}; leave out --compile"
            raise ValueError(line) from error
        return graph

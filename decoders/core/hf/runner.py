"""Run laid-out calls through a module, with the adapter, graph and head that they need.

Letters: B sequences of a pass, N rows, R rows read, D hidden width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Self

from torch import Tensor, nn

from decoders.core.adapter.gating import Forward, GatedModule, text_model
from decoders.core.adapter.mid_layer_slots import LateSlotHooks
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter.runtime import AttachedAdapter
from decoders.core.adapter.weights import graph_size
from decoders.core.hf import tiles
from decoders.core.hf.architecture import Architecture
from decoders.core.hf.cache import PlaneCache
from decoders.core.hf.compiled import Backend, Graphs, Inputs, Outputs, capture, collect_tensors
from decoders.core.hf.layout import Layout, Pass
from decoders.core.model import Call
from decoders.core.upload import upload


class ModuleRunner:
    """Runs the forward passes of a module, with `adapters` attached by name."""

    def __init__(self, module: Any, architecture: Architecture, backend: Backend | None) -> None:
        """Run calls of few rows as graphs of a `backend` (None: without graphs)."""
        self.head: nn.Module = module.get_output_embeddings()
        self.tokens: nn.Module = module.get_input_embeddings()
        self.gated: GatedModule | None = None
        self.adapters: dict[str, AttachedAdapter] = {}
        self.tile: int | None = None
        self.num_padded_rows = 0
        self._module, self._device = module, architecture.device
        self._reads_hidden = architecture.reads_hidden
        self._body: Any = text_model(module) if self._reads_hidden else module
        self._late_slots = LateSlotHooks(module)
        self._configs: list[Any] = []
        self.compiling = True
        self.graphs: Graphs | None = None
        if backend is not None:
            self.graphs = Graphs(self._computed, self.facts, device=self._device, backend=backend)

    def in_tiles(self, rows: int) -> Self:
        """Return an uncompiled, row-invariant runner of this module, or raise `ValueError`."""
        configs = tiles.prepare(self._module)
        self._gate()
        twin = copy.copy(self)
        twin.tile, twin._configs, twin.graphs, twin.adapters = rows, configs, None, {}
        twin.num_padded_rows = 0
        return twin

    def attach(self, name: str, adapter: SlotAdapter, *, merged: bool) -> None:
        """Make an adapter, which must fit, available to calls whose slots name it."""
        self._late_slots.open(adapter.config.enter)
        self.adapters[name] = AttachedAdapter(
            adapter,
            self._gate(),
            self.tokens,
            dtype=self._module.dtype,
            device=self._device,
            merged=merged,
        )

    def detach(self, name: str) -> None:
        """Drop an adapter, if there is one of that name, and the graphs that hold its tensors."""
        self.adapters.pop(name, None)
        if self.graphs is not None:
            self.graphs.drop(name)

    def run(self, layout: Layout, calls: Sequence[Call]) -> tuple[Tensor, Tensor | None]:
        """Run calls in one pass and return float32 logits ``[R, V]`` and `hidden` rows' states."""
        if self.tile is not None:
            return self._run_tiled(layout, calls, self.tile)
        graphs = self.graphs if self.compiling else None
        num_rows = max(call.num_rows for call in calls)
        if graphs is not None and graphs.serve(num_rows, len(calls)):
            return self._run_graph(layout.framed(calls), graphs)
        if len(calls) == 1 and layout.fits_views(calls[0]):
            return self._run_lone(layout, layout.lone(calls[0]))
        return self._run_merged(layout, layout.merged(calls))

    def _run_lone(self, layout: Layout, rows: Pass) -> tuple[Tensor, Tensor | None]:
        (call,) = rows.calls
        if call.slots is None:
            return self._logits(layout, {"input_ids": rows.ids}, rows)
        row, start = call.session.row, call.session.length
        adapter = self._shared_adapter([call])
        embedded, gate = adapter.one(call.slots, self.tokens(rows.ids))
        self._late_slots.begin(
            adapter.late_slots(rows.calls, rows.firsts, embedded),
            lambda all_rows: layout.store.at(
                row, start, start + (call.num_rows if all_rows else len(call.tokens))
            ),
        )
        return self._logits(layout, {"inputs_embeds": embedded}, rows, gate)

    def _run_merged(self, layout: Layout, rows: Pass) -> tuple[Tensor, Tensor | None]:
        self.num_padded_rows += rows.ids.numel() - sum(call.num_rows for call in rows.calls)
        if all(call.slots is None for call in rows.calls):
            return self._logits(layout, {"input_ids": rows.ids}, rows)
        adapter, embedded = self._shared_adapter(rows.calls), self.tokens(rows.ids)
        fixed = rows.packed is not None
        embedded, gate = adapter.merged(rows.calls, rows.firsts, embedded, bucketed=fixed)
        self._late_slots.begin(adapter.late_slots(rows.calls, rows.firsts, embedded))
        return self._logits(layout, {"inputs_embeds": embedded}, rows, gate)

    def _run_graph(self, rows: Pass, graphs: Graphs) -> tuple[Tensor, Tensor | None]:
        self.num_padded_rows += rows.ids.numel() - sum(call.num_rows for call in rows.calls)
        outputs = graphs(*self._inputs(rows, graphs))
        logits, *out = outputs
        states = self._select(out[0], rows.hidden) if out else None
        return logits[: len(rows.read or ())], states

    def replay(self, layout: Layout, calls: Sequence[Call]) -> Callable[[], Outputs]:
        """Return a function that reruns calls as a graph, until the cache is reallocated."""
        graphs = self.graphs or Graphs(self._computed, self.facts, device=self._device)
        rows = layout.framed(calls)
        inputs, num_read = self._inputs(rows, graphs), len(rows.read or ())
        on_gpu = self._device.type == "cuda"
        work = capture(lambda: self._computed(*inputs)) if on_gpu else graphs.bound(*inputs)
        return lambda: [each[:num_read] for each in work()]

    def _inputs(self, rows: Pass, graphs: Graphs) -> tuple[str | None, Inputs, Sequence[Tensor]]:
        """Return the adapter's name (or None), a graph's inputs by name, and its planes."""
        assert rows.entries is not None
        assert rows.read is not None
        masks = rows.masks if isinstance(rows.masks, dict) else {"": rows.masks}
        inputs = {f"mask.{kind}": mask for kind, mask in masks.items() if mask is not None}
        inputs |= {"positions": rows.positions, "entries": rows.entries}
        name = next((call.slots.adapter for call in rows.calls if call.slots is not None), None)
        if name is None:
            inputs["ids"] = rows.ids
        else:
            adapter = self._shared_adapter(rows.calls)
            inputs |= adapter.inputs(
                rows.calls, rows.firsts, self.tokens(rows.ids), bucketed=graphs.fixed
            )
        lone = rows.ids.numel() == 1
        missing = (1 if lone else graph_size(len(rows.read), graphs.fixed)) - len(rows.read)
        inputs["read"] = upload([*rows.read, *[0] * missing], self._device)
        return name, inputs, rows.planes

    def _computed(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Outputs:
        """Compute a pass from tensors only, so that a graph can capture it.

        `name` is the adapter's name, or None. Returns logits of the read rows and, if the module
        shows hidden states, the states of all rows.
        """
        masks = {each[5:]: part for each, part in inputs.items() if each.startswith("mask.")}
        seen = next(iter(masks.values())).shape[-1]
        cache = PlaneCache(planes, inputs["entries"], seen)
        fed: dict[str, Any] = {
            "position_ids": inputs["positions"],
            "attention_mask": masks.get("", masks),
            "past_key_values": cache,
            "use_cache": True,
        }
        active: Any = nullcontext()
        if "ids" in inputs:
            fed["input_ids"] = inputs["ids"]
        else:
            assert self.gated is not None
            adapter = self.adapters[name]
            fed["inputs_embeds"] = inputs["embeds"]
            active = self.gated.active(adapter.through(inputs))
            if (late := adapter.late(inputs)) is not None:
                write = None if late.tokens is None else partial(cache.write, late.tokens)
                self._late_slots.begin(late, write)
        try:
            with active:
                out = self._output(**fed).flatten(0, 1)
        finally:
            self._late_slots.begin(None)
        rows_read = out.index_select(0, inputs["read"])
        if not self._reads_hidden:
            return (rows_read.float(),)
        return self.head(rows_read).to(self._device).float(), out

    def facts(self, name: Any) -> tuple[str, Mapping[str, Tensor]]:
        """Return what `_computed` uses besides its inputs: a description, and tensors by name."""
        adapter = self.adapters.get(name)
        used: dict[str, Any] = {"module": self._module, "gated": self.gated}
        config = None
        if adapter is not None:  # without its tables of embedded uniforms, one per warp
            used |= {"weights": adapter.weights, "adapter": adapter.module}
            config = adapter.config
        sizes = self._module.config.get_text_config()
        model = f"{type(self._module).__name__} {sizes.num_hidden_layers} x {sizes.hidden_size}"
        text = f"{model}, {self._module.dtype}\n{self._module.config.to_json_string()} {config}"
        return text, collect_tensors(used)

    def _run_tiled(
        self, layout: Layout, calls: Sequence[Call], tile: int
    ) -> tuple[Tensor, Tensor | None]:
        rows = layout.tiled(calls, tile)
        assert rows.packed is not None
        assert rows.read is not None
        touched = sorted({row // tile for row in rows.read})
        whole = [first * tile + row for first in touched for row in range(tile)]
        with tiles.running(self._configs, tile, rows.packed.blocks):
            logits, hidden = self._run_merged(layout, rows._replace(read=whole))
        index = {row: number for number, row in enumerate(whole)}
        return self._select(logits, [index[row] for row in rows.read]), hidden

    def _logits(
        self, layout: Layout, inputs: Mapping[str, Tensor], rows: Pass, gate: Forward | None = None
    ) -> tuple[Tensor, Tensor | None]:
        fed: dict[str, Any] = {
            **inputs,
            "position_ids": rows.positions,
            "attention_mask": rows.masks,
            "past_key_values": layout.store,
            "use_cache": True,
        }
        active: Any = nullcontext()
        if gate is not None:
            assert self.gated is not None
            active = self.gated.active(gate)
        try:
            with active:
                if self._reads_hidden:
                    out = self._output(**fed)
                else:
                    return self._logits_of_columns(fed, rows), None
        finally:  # an exit runs the same layers without slots
            self._late_slots.begin(None)
        out = out.flatten(0, 1)
        rows_read = self._select(out, rows.read)
        if not self._reads_hidden:
            return rows_read.float(), None
        logits: Tensor = self.head(rows_read).to(self._device)
        return logits.float(), self._select(out, rows.hidden)

    def _logits_of_columns(self, fed: Mapping[str, Any], rows: Pass) -> Tensor:
        """Run a model that applies its head itself, on all rows of the columns that are read."""
        width = rows.positions.shape[1]
        read = range(width) if rows.read is None else rows.read
        columns = sorted({row % width for row in read}) or [0]
        kept = upload(columns, self._device)
        out = self._output(**fed, logits_to_keep=kept).flatten(0, 1)
        index = {column: number for number, column in enumerate(columns)}
        flat = [row // width * len(columns) + index[row % width] for row in read]
        return self._select(out, flat).float()

    def _output(self, **fed: Any) -> Tensor:
        out = self._body(**fed)
        states: Tensor = out.last_hidden_state if self._reads_hidden else out.logits
        return states.to(self._device)  # a copy only if the module spans several devices

    def _select(self, values: Tensor, rows: Sequence[int] | None) -> Tensor:
        if rows is None:
            return values
        first = rows[0] if rows else 0
        if tuple(rows) == tuple(range(first, first + len(rows))):
            return values.narrow(0, first, len(rows))
        return values.index_select(0, upload(rows, self._device))

    def _shared_adapter(self, calls: Sequence[Call]) -> AttachedAdapter:
        names = {call.slots.adapter for call in calls if call.slots is not None}
        assert len(names) == 1, f"calls of several adapters in one pass: {sorted(names)}"
        return self.adapters[names.pop()]

    def _gate(self) -> GatedModule:
        if self.gated is None:
            self.gated = GatedModule(self._module)
        return self.gated

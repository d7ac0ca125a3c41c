"""Run laid-out calls through a model, with the adapter, graph and head that they need.

The models of `hf.llama` run by its function, all others through transformers' modules. Attached
networks run as graphs if the model's calls do.
Letters: B sequences of a pass, N rows, R rows read, D hidden width, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from decoders.core.adapter.draft_pass import DraftPass, Texts
from decoders.core.adapter.gating import GatedModule, cache_argument, layer_deltas, text_model
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter.runtime import AttachedAdapter
from decoders.core.device import fetched, first_rows, padded, staged, switches, upload
from decoders.core.hf import llama, tiles
from decoders.core.hf.ahead import Launch, chain_length, chain_results, with_chain
from decoders.core.hf.architecture import Architecture
from decoders.core.hf.cache import PlaneCache
from decoders.core.hf.compiled import Backend, Graphs, Inputs, Outputs, capture, collect_tensors
from decoders.core.hf.layout import Frame, Layout, Masks, MergedRows, Pass
from decoders.core.model import MERGED_ROWS, Call, DraftCall
from decoders.core.outputs import forms, launches_next
from decoders.core.products import merging, product
from decoders.core.token_reads import FORMS, Ahead, TokenRead, TokenReads
from decoders.core.types import CallResult

Results = tuple[Tensor, dict[int, Tensor], Ahead, Sequence[CallResult]]
"""Float32 logits ``[R, V]``, states ``[H, D]`` of `hidden` rows by number of the layer, reads, and
the results of calls that ran with their chains."""

Layers = tuple[int, ...]
"""Numbers of the lower layers whose states a pass returns."""
_MAX_VALUES = 1 << 22
"""Most numbers that a graph of other work than calls reads from buffers, 17 MB of float32."""


class Head:
    """A model's output layer, which maps hidden states ``[…, D]`` to logits ``[…, V]``."""

    def __init__(self, module: Any) -> None:
        """Take a layer, which may be wrapped later for others (`tiles.prepare`)."""
        self.module = module
        self._is_plain = type(module) is nn.Linear and "forward" not in vars(module)

    def __call__(self, states: Tensor, sequences: int = 1) -> Tensor:
        """Return logits by `product` if the layer is nothing else and was not wrapped."""
        if self._is_plain:
            return product(states, self.module.weight, self.module.bias, sequences)
        logits: Tensor = self.module(states)
        return logits


class GraphName(NamedTuple):
    """Names a graph by its slots' adapter, and by the lower `layers` whose states it returns.

    A graph with a `frame` takes its inputs apart itself.
    """

    adapter: str | None = None
    layers: Layers = ()
    frame: Frame | None = None

    def __str__(self) -> str:
        of = f" of {self.adapter}" if self.adapter else ""
        return f"{of} with states of layers {[*self.layers]}" if self.layers else of


class ModuleRunner:
    """Runs the forward passes of a model, with `adapters` attached by name."""

    def __init__(
        self, module: Any, architecture: Architecture, backend: Backend | None, *, in_place: bool
    ) -> None:
        """Take a transformers module, whose weights `hf.llama` joins `in_place` if it can run it.

        Calls of few rows run as graphs of a `backend` (None: without graphs).
        """
        self.tokens: Any = module.get_input_embeddings()
        joins = in_place and architecture.reads_hidden
        self.weights = llama.join_weights(module) if joins else None
        self.adapters: dict[str, AttachedAdapter] = {}
        self.tile: int | None = None
        self.num_padded_rows = 0
        self.launch: Launch | None = None
        self._module, self._device = module, architecture.device
        config = module.config.get_text_config()  # takes 50 µs, too long for each call
        self._layers_take_ids = bool(getattr(config, "hidden_size_per_layer_input", 0))  # Gemma 3n
        self.head = Head(module.get_output_embeddings())
        self._reads_hidden = architecture.reads_hidden
        self.num_layers = int(config.num_hidden_layers)
        self._body: Any = text_model(module) if self._reads_hidden else module
        self._cache_argument = cache_argument(self._body)
        self._configs: list[Any] = []
        self.compiling = True
        self.graphs = self._graphs(backend)

    def _graphs(self, backend: Backend | None) -> Graphs:
        return Graphs(self._computed, self.facts, device=self._device, backend=backend)

    def in_tiles(self, rows: int) -> Self:
        """Return an uncompiled, row-invariant runner of this module, or raise `ValueError`."""
        configs = tiles.prepare(self._module)
        twin = copy.copy(self)
        twin._gated = self._gated  # one wrapper of the module's layers
        twin.tile, twin._configs, twin.adapters = rows, configs, {}
        twin.weights, twin.graphs, twin.head = None, twin._graphs(None), Head(self.head.module)
        return twin

    @torch.no_grad()
    def attach(self, name: str, adapter: SlotAdapter) -> None:
        """Make an adapter, which must fit, available to calls whose slots name it."""
        parts = adapter.to(self._device).deltas(torch.float32)
        deltas: Sequence[Any]
        if self.weights is not None:
            deltas = llama.joined_changes(self.weights, parts)
        else:
            deltas = layer_deltas(self._gated.layers, parts)
        num_bytes = sum(each.nbytes for each in collect_tensors(deltas).values())
        self.adapters[name] = AttachedAdapter(adapter, self.tokens, deltas, num_bytes)

    def detach(self, name: str) -> None:
        """Drop an adapter, if there is one of that name, and the graphs that hold its tensors."""
        self.adapters.pop(name, None)
        self.graphs.drop(lambda graph: getattr(graph, "adapter", None) == name)

    def run(
        self, layout: Layout, calls: Sequence[Call], reads: TokenReads, min_rows: int = 1
    ) -> Results:
        """Run calls in one pass, as a graph if there is one.

        Args:
            layout: lays calls out in the cache.
            calls: calls of different sequences.
            reads: reads that a graph may do.
            min_rows: fewest rows of each call in a graph of fixed shapes.
        """
        layers = {number for call in calls for number in call.hidden_layers} - {self.num_layers}
        lower, sizes = tuple(sorted(layers - {0})), [call.num_rows for call in calls]
        last = max([call.session.row for call in calls]) if self.graphs.fixed else len(calls) - 1
        if self.compiling and self.graphs.serve(max(sizes), 1 + last):  # a fixed shape has all rows
            graph = self._run_graph(layout, calls, reads, min_rows, lower)
            rows, logits, states, ahead, chained = graph
        else:
            self.launch, ahead, chained = None, {}, ()
            rows = layout.plain(calls)
            logits, *states = self._run_plain(rows, lower)
        self.num_padded_rows += rows.num_rows - sum(sizes)
        if not rows.hidden:
            return logits, {}, ahead, chained
        shown = (self.num_layers, *lower) if self._reads_hidden else lower
        places = range(len(rows.hidden)) if rows.numbers else rows.hidden  # as a frame has them
        by_layer = zip(shown, states, strict=True)
        hidden = {n: self._select(each.to(self._device), places) for n, each in by_layer}
        if 0 in layers:
            hidden[0] = self._select(self._embed(rows).flatten(0, 1), rows.hidden)
        return logits, hidden, ahead, chained

    def _run_graph(
        self, layout: Layout, calls: Sequence[Call], reads: TokenReads, min_rows: int, lower: Layers
    ) -> tuple[Pass, Tensor, Outputs, Ahead, Sequence[CallResult]]:
        """Run calls as a graph, or take the outputs of the launch if it was of these calls.

        Returns the pass, logits, states, what was read, and results of calls with their chains.
        """
        launch, self.launch = self.launch, None
        num, steps = len(reads), chain_length(calls, reads, layout)
        sources = [each for call in calls for each in (call, call.slots) if each]
        lends = reads and FORMS.issuperset([form for s in sources for form in forms(s.output)])
        if launch is not None and launch.serves(calls, reads):
            rows, outputs = launch.rows, launch.outputs
            self.num_padded_rows -= rows.num_rows  # it was no padding
        else:
            launch, rows = None, layout.framed(calls, min_rows, steps)
            if steps:
                rows = with_chain(rows, calls, steps, reads, layout.store.scrap)
            inputs = self._inputs(layout, rows, lower, reads)
            outputs = self.graphs(*inputs, num_brief=num + 1 if lends else 0)
        logits, left = outputs[num][: len(rows.read or ())], iter(outputs[num + 1 :])
        if steps:
            chained = chain_results(calls, outputs[0], [*left])
            used = sum([len(each.picks) - 1 for each in chained])
            self.num_padded_rows += steps * len(calls) - used
            return rows, logits, (), {}, chained
        ahead = dict[str, Any]()
        for (read, (places, _)), numbers in zip(reads.items(), outputs[:num], strict=True):
            probs = next(left)[: len(places)] if read.form == "probs" else None
            ahead[read.form] = numbers[..., : len(places)], probs
        picks_alone = switches.ahead and lends and [*ahead] == ["picks"]
        if picks_alone and launches_next(calls):
            if launch is None:  # else its outputs are copies
                logits = logits.clone()  # before the next run overwrites it
            ahead["picks"] = self._launched(layout, rows, calls, reads, ahead["picks"][0]), None
        return rows, logits, [*left], ahead, ()

    def _launched(
        self, layout: Layout, rows: Pass, calls: Sequence[Call], reads: TokenReads, picks: Tensor
    ) -> Tensor:
        """Return the `picks` ``[B]`` of calls on the host, after the calls that feed them began."""
        read_back, following = fetched(picks), layout.following(rows)
        if following is None:
            return read_back()
        # behind the uniforms of a pass are those of the calls that follow it
        reads = {read: (at, [*uniforms][len(at) :]) for read, (at, uniforms) in reads.items()}
        name, inputs, planes = self._inputs(layout, following, reads=reads)
        packed = inputs["packed"].to(self._device, non_blocking=True)
        num_words, frame = len(self.tokens.weight), cast(Frame, name.frame)
        fields = frame.fields(packed)
        ids = picks.clamp(max=num_words - 1)  # V, which marks NaN, may be no index
        fields["ids"].index_copy_(0, fields["read"][: len(picks)], ids)
        outputs = self.graphs(name, {**inputs, "packed": packed}, planes)  # another may run first
        numbers = read_back()
        pairs = zip(calls, numbers.tolist(), strict=True)
        expected = [(call.session, call.session.length + 1, (pick,)) for call, pick in pairs]
        self.launch = Launch(expected, reads, following, outputs)
        self.num_padded_rows += following.num_rows  # until its calls come
        return numbers

    def as_graph(self, work: Callable[..., Tensor], inputs: Inputs) -> Tensor:
        """Return ``work(inputs)`` (`Model.as_graph`), which is good until the next run."""
        is_small = sum(each.numel() for each in inputs.values()) <= _MAX_VALUES
        if not (self.compiling and self.graphs.fixed and is_small):
            return work(inputs)
        return self.graphs(work, inputs, (), num_brief=1)[0]

    def _embed(self, rows: Pass) -> Tensor:
        """Embed a pass's ids ``[B, N]``, with vectors in the places of slots that are vectors."""
        ids = rows.ids
        if rows.numbers:
            ids = upload(rows.numbers["ids"], self._device).view(len(rows.calls), -1)
        embedded: Tensor = self.tokens(ids)
        for first, call in zip(rows.firsts, rows.calls, strict=True):
            if call.slots is not None and call.slots.vectors is not None:
                place = embedded.flatten(0, 1)[first + len(call.tokens) : first + call.num_rows]
                if place.shape != call.slots.vectors.shape:
                    shapes = (list(each.shape) for each in (call.slots.vectors, place))
                    raise ValueError("vectors are {}; this model reads {}".format(*shapes))
                place.copy_(call.slots.vectors)
        return embedded

    def _run_plain(self, rows: Pass, layers: Layers) -> Outputs:
        """Run a pass without a graph, its head on whole tiles, for its `_outputs`."""
        name, inputs = self._slots(rows, bucketed=None)
        cache = PlaneCache(rows.planes, rows.entries, rows.seen, rows.cache_rows)
        fed = name, inputs, rows.masks, cache, layers
        if self.tile is None:
            return self._outputs(rows.read, *fed)
        tile, read = self.tile, rows.read or ()
        whole = [
            n * tile + row for n in sorted({row // tile for row in read}) for row in range(tile)
        ]
        with tiles.running(self._configs, tile, rows.contexts):
            logits, *states = self._outputs(whole, *fed)
        index = {row: number for number, row in enumerate(whole)}
        return self._select(logits, [index[row] for row in read]), *states

    def _outputs(self, read: Sequence[int] | Tensor | None, *fed: Any) -> Outputs:
        """Return logits of flat rows `read` (None: all), then the states of all rows.

        `fed` are the arguments of `_states`. States are those after the last layer, if the model
        shows them, and those after lower layers.
        """
        positions = fed[1]["positions"]
        if self._reads_hidden:
            out, *lower = self._states(*fed)
            logits = self.head(self._select(out, read), len(positions))
            return logits.to(self._device).float(), out, *lower
        options = dict[str, Any]()
        if read is not None and not isinstance(read, Tensor):
            # the model applies its head itself, here on all rows of the columns that are read
            width = positions.shape[1]
            columns = sorted({row % width for row in read}) or [0]
            options["logits_to_keep"] = upload(columns, self._device)
            index = {column: number for number, column in enumerate(columns)}
            read = [row // width * len(columns) + index[row % width] for row in read]
        out, *lower = self._states(*fed, **options)
        return self._select(out, read).float(), *lower

    def replay(self, layout: Layout, calls: Sequence[Call], min_rows: int) -> Callable[[], Outputs]:
        """Return a function that reruns calls as a graph, until the cache is reallocated."""
        graphs = self.graphs if self.graphs.backend else self._graphs("inductor")
        rows = layout.framed(calls, min_rows)
        (name, inputs, planes), num_read = self._inputs(layout, rows), len(rows.read or ())
        if self._device.type == "cuda":
            inputs = {kind: each.to(self._device) for kind, each in inputs.items()}
            work = capture(lambda: self._computed(name, inputs, planes), self._device)
        else:
            work = graphs.bound(name, inputs, planes)
        return lambda: [each[:num_read] for each in work()]

    def _adapter_name(self, rows: Pass) -> str | None:
        names = {call.slots.adapter for call in rows.calls if call.slots is not None}
        assert len(names) <= 1, f"calls of several adapters in one pass: {sorted(names)}"
        if names and self._layers_take_ids:
            why = "embeds ids in its layers too, and slots have none"
            raise ValueError(f"{type(self._module).__name__} {why}; use a decoder without slots")
        return names.pop() if names else None

    def _slots(self, rows: Pass, bucketed: bool | None) -> tuple[str | None, dict[str, Tensor]]:
        """Return the adapter's name (or None), and ids or embedded slots by name."""
        name, inputs = self._adapter_name(rows), {"positions": rows.positions}
        if (merged := rows.merged) is not None:
            inputs |= {f"merged.{part.name}": getattr(merged, part.name) for part in fields(merged)}
        if name is None:
            return None, {**inputs, "ids": rows.ids}
        if not name:
            return None, {**inputs, "embeds": self._embed(rows)}
        adapter, sizes = self.adapters[name], (rows.firsts, rows.num_rows)
        numbers, warps = adapter.numbers(rows.calls, *sizes, bucketed=bucketed)
        uploaded = {kind: upload(each, self._device) for kind, each in numbers.items()}
        return name, inputs | adapter.inputs(uploaded, self._embed(rows), warps)

    def _inputs(
        self, layout: Layout, rows: Pass, layers: Layers = (), reads: TokenReads | None = None
    ) -> tuple[GraphName, Inputs, Sequence[Tensor]]:
        """Return a graph's name, its inputs by name, and its planes.

        Those of a pass with numbers are one buffer, beside vectors of slots.
        """
        assert rows.read is not None
        if rows.numbers:
            name, inputs, warps = self._adapter_name(rows), dict[str, Tensor](), list[Any]()
            reads = reads or {}
            numbers = {**rows.numbers, **_pack_reads(reads, len(rows.read))}
            if name:
                sizes = rows.firsts, rows.num_rows
                added, warps = self.adapters[name].numbers(rows.calls, *sizes, bucketed=True)
                numbers |= added
            elif name is not None:
                inputs["embeds"] = self._embed(rows)
            frame, packed = layout.pack(rows._replace(numbers=numbers), warps, tuple(reads))
            inputs["packed"] = staged(packed, self._device)
            return GraphName(name or None, layers, frame), inputs, rows.planes
        assert isinstance(rows.entries, Tensor)
        inputs = {f"mask.{kind}": mask for kind, mask in rows.masks.items() if mask is not None}
        name, slots = self._slots(rows, bucketed=False)
        inputs |= {**slots, "entries": rows.entries}
        if rows.cache_rows is not None:
            inputs["cache_rows"] = rows.cache_rows
        missing = (1 if rows.ids.numel() == 1 else max(2, len(rows.read))) - len(rows.read)
        inputs["read"] = upload([*rows.read, *[0] * missing], self._device)
        return GraphName(name, layers), inputs, rows.planes

    def _computed(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Outputs:
        """Compute a graph's outputs from tensors only: those of a function, or `_outputs` of calls.

        In a frame, the numbers of its reads come first and their distributions after the logits,
        and states are of `hidden` rows.
        """
        if not isinstance(name, GraphName):
            return (name(inputs),)
        if (frame := name.frame) is None:
            masks: Masks = {n[5:]: each for n, each in inputs.items() if n[:5] == "mask."}
            seen = next(iter(masks.values())).shape[-1]
        else:
            numbers, masks = frame.layout.unpack(frame, inputs["packed"])
            seen, inputs = frame.size[2], {**inputs, **numbers}
            if name.adapter is not None:
                embedded, adapter = self.tokens(inputs["ids"]), self.adapters[name.adapter]
                inputs = {**inputs, **adapter.inputs(numbers, embedded, frame.warps)}
        cache = PlaneCache(planes, inputs["entries"], seen, inputs.get("cache_rows"))
        fed = name.adapter, inputs, masks, cache, name.layers
        with merging("merged.order" in inputs):
            logits, *states = self._outputs(inputs["read"], *fed)
        if frame is None:
            return logits, *states
        picks, laws = _run_reads(frame.reads, logits, inputs)
        if "chain.order" in inputs:
            return self._chained(frame, inputs, planes, logits, picks[0], *laws)
        hidden = inputs["hidden"]
        states = [each.index_select(0, hidden) for each in states] if len(hidden) else []
        return *picks, logits, *laws, *states

    def _chained(
        self, frame: Frame, inputs: Inputs, planes: Sequence[Tensor], logits: Tensor, *first: Tensor
    ) -> Outputs:
        """Run the calls that follow the first one's numbers and any distributions.

        Returns numbers, the first calls' logits, and distributions of all: see `chain_results`.
        """
        layout, (read,), (batch, _, seen) = frame.layout, frame.reads, frame.size
        entries = inputs["chain.entries"].view(-1, batch)
        positions, bits = inputs["chain.positions"].view(-1, batch), inputs.get("chain.uniforms")
        uniforms: Any = [None] * len(entries)
        if bits is not None:
            uniforms = bits.view(torch.float64).view(-1, batch)
        order = inputs["chain.order"]
        numbers = [first[0].index_select(-1, order)]
        laws = [part.index_select(0, order) for part in first[1:]]
        num_words = len(self.tokens.weight)
        for entry, position, u in zip(entries, positions, uniforms, strict=True):
            picks = numbers[-1] if read.form == "picks" else numbers[-1][0]
            ids = picks.long().clamp(max=num_words - 1)  # V, which marks NaN, may be no index
            visible = layout.masks.visible(None, entry, 1, seen)
            masks = layout.masks.windowed(visible, visible, visible)
            fed = {"ids": ids[:, None], "positions": layout.existing(position[:, None], seen)}
            cache = PlaneCache(planes, entry[:, None], seen)
            later, *_ = self._outputs(None, None, fed, masks, cache, ())
            each, probs = read(later, u, sync=False)
            numbers.append(each)
            laws += [] if probs is None else [probs]
        return torch.stack(numbers), logits, *([torch.stack(laws, 1)] if laws else [])

    def _states(
        self, name: Any, inputs: Inputs, masks: Masks, cache: Any, layers: Any, **options: Any
    ) -> list[Tensor]:
        """Return flat states ``[B N, D]``, or logits ``[B N, V]`` of a model that hides them.

        The states of lower `layers` follow. `name` is the adapter of the slots, `inputs` are
        `positions`, and `ids`, `embeds` or what `AttachedAdapter.inputs` returns; `options` are
        further arguments of the module.
        """
        adapter = self.adapters[name] if name is not None else None
        late = adapter.late(inputs) if adapter is not None else None
        if self.weights is not None:
            gate = None if adapter is None else llama.SlotGate(adapter.deltas, inputs["gate"])
            lower: dict[int, Any] = dict.fromkeys(layers)
            parts = {n[7:]: each for n, each in inputs.items() if n[:7] == "merged."}
            merged = MergedRows(**parts) if parts else None
            extra: Any = {"gate": gate, "late": late, "merged": merged, "states": lower}
            fed = inputs["positions"], masks, cache
            embeds = inputs["embeds"] if "embeds" in inputs else self.tokens(inputs["ids"])
            states = llama.forward(self.weights, embeds, *fed, **extra)
            return [each.flatten(0, 1) for each in (states, *lower.values())]
        kind = "inputs_embeds" if "embeds" in inputs else "input_ids"
        options |= {"output_hidden_states": True} if layers else {}
        with ExitStack() as stack:
            if adapter is not None:
                stack.enter_context(self._gated.gated(adapter.deltas, inputs["gate"]))
            if late is not None:
                stack.enter_context(late.enter(self._module))
            out = self._body(
                **{kind: inputs["embeds" if "embeds" in inputs else "ids"]},
                **options,
                position_ids=inputs["positions"],
                attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
                use_cache=True,
                **{self._cache_argument: cache},
            )
        states = out.last_hidden_state if self._reads_hidden else out.logits
        every = states.to(self._device), *(out.hidden_states[number] for number in layers)
        return [each.flatten(0, 1) for each in every]  # a copy only on several devices

    def facts(self, name: GraphName) -> tuple[str, Mapping[str, Tensor]]:
        """Return what `_computed` uses besides its inputs: a description, and tensors by name."""
        adapter = self.adapters.get(name.adapter or "")
        used: dict[str, Any] = {"module": self._module, "weights": self.weights}
        if adapter is not None:  # without its tables of embedded uniforms, one per warp
            used |= {"deltas": adapter.deltas, "adapter": adapter.module}
        sizes = self._module.config.get_text_config()
        config = None if adapter is None else adapter.config
        model = f"{type(self._module).__name__} {sizes.num_hidden_layers} x {sizes.hidden_size}"
        text = f"{model}, {self._module.dtype}\n{self._module.config.to_json_string()} {config}"
        return text, collect_tensors(used)

    def _select(self, values: Tensor, rows: Sequence[int] | Tensor | None) -> Tensor:
        if rows is None:
            return values
        if isinstance(rows, Tensor):
            return values.index_select(0, rows)
        first = rows[0] if rows else 0
        if tuple(rows) == tuple(range(first, first + len(rows))):
            return values.narrow(0, first, len(rows))
        return values.index_select(0, upload(rows, self._device))

    @cached_property
    def _gated(self) -> GatedModule:
        return GatedModule(self._module)


def _pack_reads(reads: TokenReads, num_read: int) -> dict[str, list[int]]:
    """Return the rows (unless all) and uniforms, padded to a power of two, by name."""
    numbers = dict[str, list[int]]()
    for read, (rows, uniforms) in reads.items():
        if len(rows) < num_read:
            numbers[f"{read.form}.rows"] = padded(rows)
        if read.draws:
            bits = torch.tensor(padded(uniforms[: len(rows)]), dtype=torch.float64)
            numbers[f"{read.form}.uniforms"] = bits.view(torch.int64).tolist()
    return numbers


def _run_reads(
    reads: Sequence[TokenRead], logits: Tensor, numbers: Mapping[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Do reads by numbers of `_pack_reads`, for the numbers of each and the distributions of some.

    None waits for the device, so that a graph can hold them.
    """
    results, laws = list[Tensor](), list[Tensor]()
    for read in reads:
        places, bits = (numbers.get(f"{read.form}.{part}") for part in ("rows", "uniforms"))
        rows = logits if places is None else logits.index_select(0, places)
        uniforms = None if bits is None else bits.view(torch.float64)
        each, probs = read(rows, uniforms, sync=False)
        results.append(each)
        laws += [] if probs is None else [probs]
    return results, laws


class DraftRunner:
    """Runs the passes of an attached adapter, with a row of cache planes for each sequence."""

    def __init__(self, work: DraftPass, runner: ModuleRunner, storages: Collection[int]) -> None:
        """Compile passes as `runner` compiles calls, beside the model's weights in `storages`."""
        self._work, self._runner, self._storages = work, runner, storages
        self.layers, self._like = work.layers, runner.tokens.weight
        self.config = self.layers.config
        self.planes: list[Tensor] = []
        backend = runner.graphs.backend
        self.graphs = Graphs(work, self._facts, device=self._like.device, backend=backend)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights that the model lacks, of what the pass computed, and of planes."""
        new = [
            each
            for each in (*self.layers.parameters(), *self.layers.buffers())
            if each.is_floating_point() and each.untyped_storage().data_ptr() not in self._storages
        ]
        return self._work.num_bytes + sum(int(each.nbytes) for each in (*new, *self.planes))

    def draft(
        self, calls: Sequence[DraftCall], shape: tuple[int, int], size: int
    ) -> Sequence[CallResult]:
        """Draft for sequences of a cache of a `shape` (rows, entries), with `size` ids."""
        if not self.planes:
            self.planes = self._work.planes(*shape)
        by_row = {call.session.row: call for call in calls}
        rows: Sequence[int] = sorted(by_row)
        if self.planes and len(rows) > 1:  # planes of consecutive rows, of few numbers of them
            rows = first_rows(rows, shape[0])
        ordered = [by_row.get(row) for row in rows]
        planes = [plane.narrow(0, rows[0], len(rows)) for plane in self.planes]
        bucketed = MERGED_ROWS if self.graphs.fixed else 0
        texts = Texts.of(ordered, planes, bucketed)
        # levels behind a long text would need graphs for each of its lengths
        run = self._work if bucketed and texts.seen is not None else self.run
        results = self._work.draft(texts, run, size)
        by_sequence = dict(zip(sorted(by_row), results, strict=True))
        return [by_sequence[call.session.row] for call in calls]

    def run(self, name: Any, inputs: Inputs, planes: Sequence[Tensor]) -> Outputs:
        """Run a pass as a graph, or without a graph if it has many rows or graphs are off."""
        num_rows = 1 if "packed" in inputs else inputs["states"].shape[1]
        if self._runner.compiling and self.graphs.serve(num_rows):
            return self.graphs(name, inputs, planes, self._work.num_brief)
        return self._work(name, inputs, planes)

    def _facts(self, name: Any) -> tuple[str, Mapping[str, Tensor]]:
        text = f"{self.config.variant}, {self.config.width} wide, {self._like.dtype}"
        about, _ = self._runner.facts(GraphName())  # embedding and head belong to the model
        files = [inspect.getfile(type(each)) for each in (self.layers, self._work)]
        code = sha256(b"".join([Path(file).read_bytes() for file in files]))  # not all of the core
        text = f"{text}\n{code.hexdigest()}\n{self.config}\n{about}"
        return text, collect_tensors(vars(self._work))

"""`HFModel`: any transformers causal LM as a `Model`. The only one here to import transformers.

The module runs as it is; ours are the cache (`KVStore`), the masks and the positions. Three things
make a call cheap: states are written in place and read as views; one sequence needs no mask
tensor, or a view of a ready one; the head runs on the rows that are read, where that is exact.

Masks are additive floats: a boolean one is silently wrong under eager attention. A ready mask
bypasses a model's sliding window, so windows are folded in here, one mask per kind of layer.

Slots of a call follow its tokens, enter as embeddings and run through an attached adapter
(`gating`); their keys and values are written behind the tokens' and overwritten by the next call.

Letters: B sequences of a call, N rows (of the widest call), R rows read, T cache entries seen,
C capacity, D hidden width, H heads of an adapter, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicCache
from transformers.distributed.configuration_utils import DistributedConfig

from decoders.core.adapter.config import AdapterConfig
from decoders.core.adapter.draft_layer import DraftCache, DraftLayer
from decoders.core.adapter.exit_block import ExitBlock
from decoders.core.adapter.gating import Forward, GatedModule, text_model
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter.hidden import HiddenAdapter
from decoders.core.adapter.mid_layer_slots import LateSlotHooks
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter.runtime import AttachedAdapter
from decoders.core.adapter.weights import GroupedWeights, power_of_two
from decoders.core.hf import tiles
from decoders.core.hf.architecture import Architecture, main_device, token_ids
from decoders.core.hf.attention import MaskBuilder, Masks
from decoders.core.hf.cache import KVStore
from decoders.core.hf.checkpoint import (
    MERGE_IT,
    check_heads,
    find_checkpoint,
    is_of_memory,
    unavailable,
)
from decoders.core.hf.compiled import CompiledModule
from decoders.core.hf.early import early_exit
from decoders.core.hf.grouped_attention import group_attention, own_attention
from decoders.core.hf.library import library_copy
from decoders.core.hf.local_layers import is_local, take_masks
from decoders.core.hf.notes import notes_of
from decoders.core.hf.quantized import Width, packed_bytes, quantize
from decoders.core.hf.quiet import no_bars
from decoders.core.model import Session
from decoders.core.types import Call

Attention = Literal["sdpa", "eager"]

COMPILED_ROWS = 64
"""Wider calls (prompts) are not compiled: their time is arithmetic, and their shapes are many."""
_LENGTH_BUCKET = 128
"""Compiled graphs see cache lengths in multiples of this, rows and sequences in powers of two."""

_MERGED_BYTES = 32 * 2**20
"""A model with more bytes of weights has none merged beside them on a CPU: they are read from
memory in every call, and that is what the call costs (docs/log.md)."""


class HFModel:
    """A transformers causal LM with a preallocated KV cache shared by its sessions.

    Implements `decoders.core.model.Model`. `module` is the wrapped model, in eval mode.
    `num_forwards` counts merged passes and `num_padded_rows` the rows that only filled them up.
    """

    def __init__(
        self,
        module: Any,
        *,
        compile: bool = False,
        backend: str = "inductor",
        grouped: bool | None = None,
        quantized: Width | None = None,
    ) -> None:
        """Wrap a loaded module and learn its shapes from two forwards of two tokens.

        Args:
            module: a causal LM of transformers on its device, of its dtype.
            compile: run calls of up to `COMPILED_ROWS` rows through `torch.compile`, those with
                slots too, in bucketed shapes; wider ones (prompts) run as they are.
            backend: of `torch.compile`.
            grouped: lay the weights of layers that share an input side by side, and run each group
                as one product (`weights.GroupedWeights`); None: on a CPU, where it is faster.
            quantized: pack the weights of linear layers and head (`quantized`); nothing is grouped
                or merged then.

        Raises:
            ValueError: for an architecture whose cache or masks this class cannot provide, or whose
                layers cannot be packed.
        """
        self.module = module.eval().requires_grad_(False)
        self.num_parameters = sum(parameter.numel() for parameter in module.parameters())
        """How many weights, tied ones counted once."""
        self._quantized = quantized
        if quantized is not None:
            quantize(module, quantized)
        if is_local(module):
            take_masks(module)
        self.architecture = Architecture.of(module, DynamicCache())
        self.vocab_size = self.architecture.vocab_size
        self.max_length = self.architecture.max_length
        self.device = main_device(module)
        self.dtype: torch.dtype = module.dtype
        self.num_forwards = 0
        self.num_padded_rows = 0
        windows = self.architecture.windows.values()
        self._window = min((window for window in windows if window is not None), default=0)
        self._head: nn.Module = module.get_output_embeddings()
        self._tokens: nn.Module = module.get_input_embeddings()
        self._plain: Any = text_model(module) if self.architecture.reads_hidden else module
        self._compiled: CompiledModule | None = None
        self._backend = backend
        self._compiling = True
        if compile:
            self._compiled = CompiledModule(self._output, device=self.device, backend=backend)
        self._store: KVStore | None = None
        self._cache = _StoreCache()
        self._open: list[Session] = []
        self._capacity = 0
        self._library: Any = None
        self._gated: GatedModule | None = None
        if grouped is None:
            grouped = self.device.type == "cpu" and quantized is None
        assert not (grouped and quantized), "packed weights do not stand side by side"
        if grouped or quantized is not None:
            group_attention(module)
        if grouped:
            self._gated = GatedModule(module, side_by_side=True)
            self._gated.rest(GroupedWeights.base(self._gated).everywhere)
        self._adapters: dict[str, AttachedAdapter] = {}
        self._heads: dict[str, HiddenAdapter] = {}
        self._exits: dict[str, HFModel] = {}
        self._late_slots = LateSlotHooks(module)
        self.tile: int | None = None
        """Rows of a tile in row-invariant numerics (`tiles`); None: calls run as they come."""
        self._configs: list[Any] = []

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        attn_implementation: Attention | None = None,
        compile: bool = False,
        quantized: Width | None = None,
        shards: int = 1,
        device_map: str | Mapping[str, str | int] | None = None,
    ) -> Self:
        """Load a checkpoint folder or a hub model in an explicit dtype.

        Weights are read from safetensors only, never from a pickle, and no code that lies beside
        them is run.

        Attention None is sdpa where the architecture has it, else eager; `facts` says which. Above
        one, `shards` processes cut the weights among them (`decoders.core.hf.sharded`). With a
        `device_map`, transformers' own, `device` is not used (`decoders.core.hf.placed`).

        Raises:
            ValueError: in one line for a checkpoint that is missing, damaged or lacks weights, or
                an unknown attention.
        """
        if attn_implementation not in (None, "sdpa", "eager"):
            raise ValueError(f"attention {attn_implementation!r} is not one of sdpa, eager")
        source = find_checkpoint(path_or_id, "model", "config.json")
        cut: dict[str, Any] = {}
        if shards > 1:
            check_heads(source, shards)
            cut["distributed_config"] = DistributedConfig(tp_size=shards, tp_plan="auto")
        if device_map is not None:
            cut["device_map"] = device_map
        try:
            with no_bars():  # the terminal belongs to the caller
                both: Any = AutoModelForCausalLM.from_pretrained(
                    source,
                    dtype=dtype,
                    attn_implementation=attn_implementation,
                    use_safetensors=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                    **cut,
                )
                module, loaded = both
            if getattr(module, "_hf_peft_config_loaded", False):
                raise ValueError(f"it has an adapter of PEFT; {MERGE_IT}")
        except Exception as error:  # of a damaged folder the library raises whatever comes of it
            if is_of_memory(error):
                raise
            raise unavailable(path_or_id, "model", error) from error
        if lacking := sorted(loaded["missing_keys"]):  # else they would be random
            missing = f"{lacking[0]} and {len(lacking) - 1} more" if lacking[1:] else lacking[0]
            raise ValueError(
                f"model {str(path_or_id)!r} lacks weights of its architecture ({missing}); give a "
                "whole folder of save_pretrained"
            )
        return cls(
            module if device_map is not None else module.to(device),
            compile=compile,
            grouped=False if cut else None,
            quantized=quantized,
        )

    def in_tiles(self, rows: int) -> Self:
        """The same weights in row-invariant numerics (`tiles`), with its own cache and adapters.

        Raises:
            ValueError: in one line where the architecture has none.
        """
        configs = tiles.prepare(self.module)
        if self._gated is None:
            self._gated = GatedModule(self.module)
        twin = copy.copy(self)
        twin.tile, twin._configs, twin._compiled = rows, configs, None
        twin._store, twin._cache, twin._open, twin._capacity = None, _StoreCache(), [], 0
        twin._adapters, twin._heads, twin._exits = {}, {}, {}
        twin.num_forwards = twin.num_padded_rows = 0
        return twin

    @property
    def adapters(self) -> Mapping[str, AdapterConfig]:
        """Configurations of the attached adapters by name."""
        with_slots = {name: adapter.config for name, adapter in self._adapters.items()}
        return with_slots | {name: heads.config for name, heads in self._heads.items()}

    def attach(
        self, name: str, adapter: SlotAdapter | HiddenAdapter, *, merged: bool | None = None
    ) -> None:
        """Make an adapter available under `name`: to calls with slots, or to what it drafts for.

        Args:
            name: what `Slots.adapter` says.
            adapter: made for this model.
            merged: lay merged weights beside the base's (`adapter.weights`); None: on a CPU, if
                the model is small enough for its cache, where it is the faster way.

        Raises:
            ValueError: where the adapter was made for a model of other shapes, or is to be merged
                into packed weights.
        """
        if isinstance(adapter, HiddenAdapter):
            self._attach_heads(name, adapter)
            return
        adapter.check_fits(self.module)
        if self._gated is None:
            self._gated = GatedModule(self.module)
        if merged is None:
            small = self.weight_bytes <= _MERGED_BYTES and self._quantized is None
            merged = self.device.type == "cpu" and small and self.tile is None
        if merged and self._quantized is not None:
            raise ValueError(
                f"weights of {self._quantized} take no merged adapter; attach it with merged=False"
            )
        self._late_slots.open(adapter.config.enter)
        self._adapters[name] = AttachedAdapter(
            adapter,
            self._gated,
            self._tokens,
            dtype=self.dtype,
            device=self.device,
            merged=merged,
        )

    def _attach_heads(self, name: str, heads: HiddenAdapter) -> None:
        if not self.architecture.reads_hidden:
            raise ValueError(self._no_hidden)
        heads.check_fits(int(self.module.get_output_embeddings().weight.shape[1]))
        self._heads[name] = copy.deepcopy(heads).to(self.device, self.dtype)
        if isinstance(heads, ExitBlock):
            module = early_exit(self.module, heads.config.exit_layer, self._heads[name])
            early = HFModel(
                module, compile=self._compiled is not None, backend=self._backend, grouped=False
            )
            early._gated = self._gated  # its layers are these, and wrapped already
            self._exits[name] = early if self.tile is None else early.in_tiles(self.tile)

    @property
    def _no_hidden(self) -> str:
        return (
            f"{type(self.module).__name__} does more with its last hidden state than its head, "
            "and shows none; use a decoder without heads"
        )

    @torch.inference_mode()
    def own_logits(self, tokens: Sequence[int], num_rows: int) -> Tensor:
        """Float32 logits ``[num_rows, V]`` of the last rows, by transformers' own forward alone.

        No cache, mask or position is given to it, and none of our layers stands in place of its
        own.
        """
        plain = nullcontext() if self._gated is None else self._gated.plain()
        takes = inspect.signature(self.module.forward).parameters
        kept = {"logits_to_keep": num_rows} if "logits_to_keep" in takes else {}
        with plain, own_attention(self.module):
            out = self.module(self._to_device([list(tokens)]), use_cache=False, **kept)
        logits: Tensor = out.logits[0, -num_rows:].to(self.device)
        return logits.float()

    def adapter_bytes(self, name: str) -> int:
        """Bytes that an attached adapter holds, merged weights and an exit's cache included."""
        if name in self._exits:
            return self._heads[name].weight_bytes + self._exits[name].cache_bytes()
        heads = self._heads.get(name)
        return self._adapters[name].num_bytes if heads is None else heads.weight_bytes

    @torch.inference_mode()
    def propose(self, name: str, hidden: Tensor) -> Tensor:
        """See `Model.propose`."""
        heads = self._heads[name]
        assert isinstance(heads, DraftHeads), f"{name!r} is no adapter of heads"
        logits: Tensor = self._head(heads(hidden))
        return logits.float()

    def drafter(self, name: str, capacity: int) -> DraftCache:
        """See `Model.drafter`."""
        layer = self._heads[name]
        assert isinstance(layer, DraftLayer), f"{name!r} is no draft layer"
        return DraftCache(layer, self._tokens, self._head, capacity)

    def early(self, name: str) -> HFModel:
        """See `Model.early`."""
        return self._exits[name]

    @property
    def library_module(self) -> Any:
        """The module as transformers made it; on a CPU it holds linear layers of its own."""
        if self._library is None:
            self._library = library_copy(self.module)
        return self._library

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, tied ones counted once, packed ones as they are."""
        plain: int = sum(parameter.nbytes for parameter in self.module.parameters())
        return plain + packed_bytes(self.module)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an answer by the model's generation config (see also `stop_ids`)."""
        generation = getattr(self.module, "generation_config", None)
        declared = (getattr(c, "eos_token_id", None) for c in (generation, self._config))
        return frozenset().union(*map(token_ids, declared))

    @property
    def _config(self) -> Any:
        return self.module.config.get_text_config()

    @property
    def facts(self) -> dict[str, str | int]:
        """What a run records of the model: architecture, sizes, dtype, attention, if compiled."""
        compiled = {} if self._compiled is None else {"compiled": True}
        quantized = {} if self._quantized is None else {"quantized": self._quantized}
        tile = {} if self.tile is None else {"tile": self.tile}
        return {
            **tile,
            **compiled,
            **quantized,
            "architecture": type(self.module).__name__,
            "layers": len(self.architecture.planes) // 2,
            "hidden_size": int(self._config.hidden_size),
            "vocab_size": self.vocab_size,
            "max_length": self.max_length,
            "parameters": self.num_parameters,
            "dtype": str(self.dtype).removeprefix("torch."),
            "attention": str(self._config._attn_implementation),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of its answers, a line each."""
        return notes_of(self.module)

    @property
    def num_graphs(self) -> int:
        """How many graphs `torch.compile` has made so far."""
        own = 0 if self._compiled is None else self._compiled.num_graphs
        return own + sum(early.num_graphs for early in self._exits.values())

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """While inside, every call runs the plain module and no graph is made."""
        models = (self, *self._exits.values())
        before = [model._compiling for model in models]
        try:
            for model in models:
                model._compiling = False
            yield
        finally:
            for model, was in zip(models, before, strict=True):
                model._compiling = was

    def cache_bytes(self) -> int:
        """Bytes of the preallocated KV cache (0 before `reserve`)."""
        return 0 if self._store is None else self._store.num_bytes

    def holds(self, num_rows: int, capacity: int) -> bool:
        """Whether the allocated cache has room for `num_rows` sequences of `capacity` tokens."""
        store = self._store
        own = store is not None and num_rows <= store.num_rows and capacity <= self._capacity
        return own and all(early.holds(num_rows, capacity) for early in self._exits.values())

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Allocate a zeroed cache of `num_rows` x `capacity` (no-op if exactly that is there).

        `capacity` may exceed `max_length` by what drafts overshoot it.
        """
        assert not self._open, f"{len(self._open)} sessions are open; close them first"
        for early in self._exits.values():
            early.reserve(num_rows, capacity)
        if self._store is not None and (self._store.num_rows, self._capacity) == (
            num_rows,
            capacity,
        ):
            return
        self._store = None  # free the old one first
        bucketed = self._compiled is not None
        step = _LENGTH_BUCKET if bucketed else 1 if self.tile is None else tiles.BLOCK
        entries = _round_up(capacity + 1, step) - 1
        store = KVStore(
            self.architecture.planes,
            num_rows,
            entries,
            dtype=self.dtype,
            device=self.device,
            devices=self.architecture.devices,
            separate=bucketed,
        )
        if self._compiled is not None:
            self._compiled.forget()
        self._store = self._cache.store = store
        self._capacity = capacity
        with torch.inference_mode(False):
            self._places = self._existing(
                torch.arange(capacity, device=self.device)[None], capacity
            )
            shape = (num_rows, entries + 1)
            self._placed = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._masks = MaskBuilder(
            self.architecture.windows, capacity, dtype=self.dtype, device=self.device
        )

    def open(self) -> Session:
        """Start an empty sequence in the lowest free cache row."""
        assert self._store is not None, "reserve a cache before opening a session"
        assert len(self._open) < self._store.num_rows, f"all {len(self._open)} rows are taken"
        session = Session(self, len(self._open), self._capacity)
        self._open.append(session)
        return session

    def close(self, session: Session) -> None:
        """Give a session's row back; the session in the last open row moves there."""
        assert self._owns(session), "closing a session that is not open here"
        assert self._store is not None
        last = self._open.pop()
        if last is not session:
            self._store.move_row(last.row, session.row, last.length)
            self._placed[session.row] = self._placed[last.row]
            self._open[session.row] = last
            last.row = session.row
        session.row = -1

    def gather(self, session: Session, sources: Sequence[int], start: int) -> None:
        """Copy entries `sources` (ascending) of a session's row to `start`, `start` + 1 and on."""
        assert self._store is not None
        self._store.gather(session.row, sources, start)
        if self._window:
            line = self._placed[session.row]
            line[start : start + len(sources)] = line[list(sources)]

    @torch.inference_mode()
    def forward(self, calls: Sequence[Call]) -> Tensor:
        """Run calls of distinct sessions as one pass; commit them.

        Returns:
            float32 ``[sum R, V]``: the read rows of the first call, then of the second, …
        """
        compiled = self._compiled is not None and self._compiling
        if self.tile is not None:
            logits, hidden = self._forward_tiled(calls, self.tile)
        elif compiled and max(call.num_rows for call in calls) <= COMPILED_ROWS:
            logits, hidden = self._forward_merged(calls, bucketed=True)
        elif len(calls) == 1 and self._is_plain(calls[0]):
            logits, hidden = self._forward_one(calls[0])
        else:
            logits, hidden = self._forward_merged(calls)
        first = 0
        for call in calls:
            shown = None
            if call.hidden:
                if hidden is None:
                    raise ValueError(self._no_hidden)
                shown = hidden[first : first + len(call.read)]
            call.session.committed(call, shown)
            first += len(_read_rows(call))
        self.num_forwards += 1
        return logits

    def _existing(self, positions: Tensor, stop: int) -> Tensor:
        """Clamp positions, all below `stop`, to the last there is: drafts may overshoot it.

        A table of positions has no row beyond, and rope of changing frequencies would give those of
        a longer text to every row of the call.
        """
        return positions if stop <= self.max_length else positions.clamp(max=self.max_length - 1)

    def _owns(self, session: Session) -> bool:
        return 0 <= session.row < len(self._open) and self._open[session.row] is session

    def _is_plain(self, call: Call) -> bool:
        """True where no sliding window can matter: positions continue and none reaches it."""
        if not self._window:
            return True
        reach = call.session.length + call.num_rows
        return call.positions is None and reach <= self._window

    # One sequence: views of the cache, and no mask or a ready one.

    def _forward_one(self, call: Call) -> tuple[Tensor, Tensor | None]:
        session, store = call.session, self._store
        assert self._owns(session), "a call of a session that is not open here"
        assert store is not None
        start = session.length
        num_rows = call.num_rows
        stop = start + num_rows
        ids = self._to_device([call.tokens])
        if call.positions is None and call.slots is None:
            positions = self._places[:, start:stop]
        else:
            positions = self._existing(self._to_device([call.row_positions()]), stop)
        mask = None
        if num_rows > 1 and (start or call.mask is not None or not self.architecture.sdpa):
            mask = self._masks.after(start, num_rows, call.mask)
        if self._window:
            self._placed[session.row, start:stop] = positions[0]
        store.at(session.row, start, stop)
        rows = None if len(call.read) == num_rows else _read_rows(call)
        masks = self._masks.per_kind(mask)
        if call.slots is None:
            return self._logits({"input_ids": ids}, positions, masks, rows)
        adapter = self._adapter_of([call])
        embedded, gate = adapter.one(call.slots, self._tokens(ids))
        self._late_slots.begin(
            adapter.late_slots([call], embedded),
            len(call.tokens),
            lambda count: store.at(session.row, start, start + count),
        )
        return self._logits({"inputs_embeds": embedded}, positions, masks, rows, gate)

    def _to_device(self, numbers: Sequence[Any]) -> Tensor:
        """Int64 numbers in one asynchronous copy."""
        if self.device.type == "cpu":
            return torch.tensor(numbers, dtype=torch.int64)
        pinned = torch.tensor(numbers, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        return pinned.to(self.device, non_blocking=True)

    # Several sequences: padded to the widest, states scattered, one mask built for all. For a
    # compiled graph the shape is rounded up: rows, sequences and entries seen.

    def _forward_merged(
        self, calls: Sequence[Call], *, bucketed: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        store = self._store
        assert store is not None
        ordered = sorted(calls, key=lambda call: call.session.row)
        rows = [call.session.row for call in ordered]
        assert all(map(self._owns, (call.session for call in ordered))), "a session is not open"
        assert len(set(rows)) == len(rows), f"rows {rows}: two calls of one session"
        width = max(call.num_rows for call in ordered)
        seen = max(call.session.length + call.num_rows for call in ordered)
        if bucketed:
            width, seen = power_of_two(width), _round_up(seen, _LENGTH_BUCKET)
            ordered = self._filled_up(ordered)
            rows = [call.session.row for call in ordered]
        packed: list[int] = []
        for call in ordered:
            start, num_rows = call.session.length, call.num_rows
            padding = width - num_rows
            self.num_padded_rows += padding
            packed += (*call.tokens, *[0] * (width - len(call.tokens)))
            packed += (*call.row_positions(), *[0] * padding)
            packed += (*range(start, start + num_rows), *[store.scrap] * padding)
            packed += (call.session.row, start)
        numbers = self._to_device(packed).view(len(rows), 3 * width + 2)
        ids, positions = numbers[:, :width], numbers[:, width : 2 * width]
        entries, row_index, starts = numbers[:, 2 * width : -2], numbers[:, -2], numbers[:, -1]
        positions = self._existing(positions, seen)
        if self._window:
            lines = row_index[:, None] * self._placed.shape[1] + entries
            self._placed.view(-1)[lines] = positions
        first = rows[0] if rows[-1] - rows[0] + 1 == len(rows) else None
        store.scattered(row_index, entries, seen, first, late=bucketed)
        visible = self._masks.visible(ordered, starts, width, seen)
        placed = self._placed.index_select(0, row_index)[:, :seen] if self._window else visible
        added = self._masks.windowed(visible, positions, placed)
        line = {id(call): number * width for number, call in enumerate(ordered)}
        read = [line[id(call)] + row for call in calls for row in _read_rows(call)]
        shape = _shape_of(ordered, width, seen) if bucketed else None
        if all(call.slots is None for call in ordered):
            return self._logits({"input_ids": ids}, positions, added, read, shape=shape)
        adapter = self._adapter_of(ordered)
        embedded, gate = adapter.merged(ordered, self._tokens(ids), bucketed=bucketed)
        self._late_slots.begin(adapter.late_slots(ordered, embedded, bucketed=bucketed))
        return self._logits({"inputs_embeds": embedded}, positions, added, read, gate, shape)

    # In tiles: all rows behind one another, whatever their sequence, padded to whole tiles.

    def _forward_tiled(self, calls: Sequence[Call], tile: int) -> tuple[Tensor, Tensor | None]:
        store = self._store
        assert store is not None
        assert all(map(self._owns, (call.session for call in calls))), "a session is not open"
        packed = tiles.pack(calls, tile)
        padding = packed.num_rows - sum(call.num_rows for call in calls)
        self.num_padded_rows += padding
        rows: list[tuple[int, int, int, int]] = []  # id, position, row of the cache, entry
        for call in calls:
            tokens = (*call.tokens, *[0] * (call.num_rows - len(call.tokens)))
            for number, position in enumerate(call.row_positions()):
                entry = call.session.length + number
                rows.append((tokens[number], position, call.session.row, entry))
        numbers = self._to_device(
            list(zip(*rows, *[(0, 0, 0, store.scrap)] * padding, strict=True))
        )
        ids, positions, row_index, entries = numbers
        positions = self._existing(positions, 1 + max(position for _, position, _, _ in rows))
        if self._window:
            self._placed[row_index, entries] = positions
        store.packed(row_index, entries)
        masks = self._tiled_masks(packed, positions.view(-1, tile))
        read = [
            first + row
            for first, call in zip(packed.firsts, calls, strict=True)
            for row in _read_rows(call)
        ]
        whole = [t * tile + n for t in sorted({row // tile for row in read}) for n in range(tile)]
        gate, fed = None, {"input_ids": ids[None]}
        if any(call.slots is not None for call in calls):
            adapter = self._adapter_of(calls)
            embedded = self._tokens(ids[None])
            embedded, gate = adapter.merged(calls, embedded, bucketed=True, firsts=packed.firsts)
            late = adapter.late_slots(calls, embedded, firsts=packed.firsts)
            self._late_slots.begin(late)
            fed = {"inputs_embeds": embedded}
        with tiles.running(self._configs, tile, packed.blocks):
            logits, hidden = self._logits(fed, positions[None], masks, whole, gate)
        place = {row: number for number, row in enumerate(whole)}
        chosen = [place[row] for row in read]
        return self._select(logits, chosen), None if hidden is None else self._select(
            hidden, chosen
        )

    def _tiled_masks(self, packed: tiles.Packed, positions: Tensor) -> Masks:
        """Which entries rows ``[tiles, N]`` of a position see, windows included, block by block."""
        seen = self._to_device([block.seen for block in packed.blocks])
        visible = torch.arange(tiles.BLOCK, device=self.device) < seen[:, :, None]
        if not self._window:
            return self._masks.windowed(visible, positions, visible)
        placed = torch.stack(
            [block.of(self._placed[:, None, :, None]).flatten() for block in packed.blocks]
        )
        of_tile = self._to_device([block.tile for block in packed.blocks])
        return self._masks.windowed(visible, positions[of_tile], placed)

    def _filled_up(self, ordered: Sequence[Call]) -> list[Call]:
        """Calls for cache rows 0, 1, … up to a power of two; empty ones where there is none."""
        assert self._store is not None
        by_row = {call.session.row: call for call in ordered}
        count = min(power_of_two(max(by_row) + 1), self._store.num_rows)
        return [by_row.get(row) or _empty_call(self, row) for row in range(count)]

    def _adapter_of(self, calls: Sequence[Call]) -> AttachedAdapter:
        names = {call.slots.adapter for call in calls if call.slots is not None}
        assert len(names) == 1, f"calls of several adapters in one pass: {sorted(names)}"
        return self._adapters[names.pop()]

    def _logits(
        self,
        inputs: Mapping[str, Tensor],
        positions: Tensor,
        mask: Masks,
        read: Sequence[int] | None,
        gate: Forward | None = None,
        shape: Hashable = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the module; logits ``[R, V]`` of the flat rows ``b * N + row`` in `read`.

        Beside them what the head read, ``[R, D]``; None where it is not known. A call of a `shape`
        runs the compiled graph of that shape.
        """
        fed: dict[str, Any] = {
            **inputs,
            "position_ids": positions,
            "attention_mask": mask,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        active: Any = nullcontext()
        if gate is not None:
            assert self._gated is not None
            active = self._gated.active(gate)
        try:
            with active:
                if shape is not None:
                    assert self._compiled is not None
                    out = self._compiled(shape, fed)
                elif self.architecture.reads_hidden:
                    out = self._output(**fed)
                else:
                    return self._logits_of_columns(fed, read, positions.shape[1])
        finally:  # an exit runs the same layers, and has no slots
            self._late_slots.begin(None)
        chosen = self._select(out.flatten(0, 1), read)
        if not self.architecture.reads_hidden:
            return chosen.float(), None
        logits: Tensor = self._head(chosen).to(self.device)
        if shape is not None and self.device.type == "cuda":  # the next call writes over it
            chosen = chosen.clone()
        return logits.float(), chosen

    def _logits_of_columns(
        self, fed: Mapping[str, Any], read: Sequence[int] | None, width: int
    ) -> tuple[Tensor, None]:
        """As `_logits`, of a model that runs its head itself: on all rows of the columns read."""
        wanted = range(width) if read is None else read
        columns = sorted({row % width for row in wanted}) or [0]
        out = self._output(**fed, logits_to_keep=self._to_device(columns)).flatten(0, 1)
        place = {column: number for number, column in enumerate(columns)}
        rows = [row // width * len(columns) + place[row % width] for row in wanted]
        return self._select(out, rows).float(), None

    def _output(self, **fed: Any) -> Tensor:
        """Last hidden states ``[B, N, D]``, or logits where the head cannot be run apart."""
        out = self._plain(**fed)
        states: Tensor = out.last_hidden_state if self.architecture.reads_hidden else out.logits
        return states.to(self.device)  # where it is, unless parts of the module are placed apart

    def _select(self, values: Tensor, rows: Sequence[int] | None) -> Tensor:
        """Some rows of ``[M, …]``: a view where they follow one another, else a copy."""
        if rows is None:
            return values
        first = rows[0] if rows else 0
        if tuple(rows) == tuple(range(first, first + len(rows))):
            return values.narrow(0, first, len(rows))
        return values.index_select(0, self._to_device(rows))


class _StoreCache(Cache):
    """A `KVStore` in the shape transformers expects of a cache.

    The sizes are those of the running call: transformers reads them when it is given no mask.
    """

    store: KVStore

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return self.store.update(key_states, value_states, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.store.start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.store.start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.store.stop, 0


def load_tokenizer(path_or_id: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint folder or a hub model.

    Raises:
        ValueError: in one line where there is none.
    """
    source = find_checkpoint(path_or_id, "tokenizer", "tokenizer_config.json", "tokenizer.json")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, trust_remote_code=False
        )
    except Exception as error:  # of a damaged tokenizer.json the library raises just that
        raise unavailable(path_or_id, "tokenizer", error) from error
    return tokenizer


def stop_ids(model: HFModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that end an answer, by the model's configs and its tokenizer."""
    return model.stop_ids | token_ids(tokenizer.eos_token_id)


def _read_rows(call: Call) -> Sequence[int]:
    """The rows of a call whose logits are wanted: read tokens, then read slots."""
    if call.slots is None:
        return call.read
    return (*call.read, *(len(call.tokens) + slot for slot in call.slots.read))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _empty_call(model: HFModel, row: int) -> Call:
    """A call without rows, for a cache row that a graph computes and nobody asked for."""
    return Call(session=Session(model, row, 0), tokens=(), read=(), output="logits")


def _shape_of(calls: Sequence[Call], width: int, seen: int) -> Hashable:
    """What a graph of calls filled up to one shape depends on."""
    slots = [call.slots for call in calls if call.slots is not None]
    if not slots:
        return len(calls), width, seen
    num_slots = sum(len(each.uniforms) for each in slots)
    num_paired = max(num_slots, len(calls) * width - num_slots)
    gate = (slots[0].adapter, power_of_two(num_slots), power_of_two(num_paired))
    return len(calls), width, seen, gate

"""`HFModel`: a transformers causal LM as a `Model`, with our KV cache, masks and positions.

Masks are additive floats, because boolean masks are silently wrong under eager attention. A given
mask bypasses a model's sliding window, so each kind of layer has a mask that includes its window.
Letters: R rows read, D hidden width, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from decoders.core import masks
from decoders.core.adapter.draft_pass import short_head
from decoders.core.adapter.module import HiddenAdapter, SlotAdapter, TargetParts
from decoders.core.adapter_config import AdapterConfig, Variant
from decoders.core.device import has_kernels, upload
from decoders.core.hf.architecture import Architecture, generation_notes, model_settings
from decoders.core.hf.checkpoint import is_of_memory, masked_form, tensor_files
from decoders.core.hf.compiled import Backend
from decoders.core.hf.layout import Layout, MaskBuilder
from decoders.core.hf.loading import DeviceMap, has_tokenizer, library_copy, load_module, placement
from decoders.core.hf.loading import load_tokenizer as load_tokenizer
from decoders.core.hf.quantized import Width, packed_bytes, quantize, read_bytes
from decoders.core.hf.runner import DraftRunner, Head, ModuleRunner
from decoders.core.model import Call, DraftCall, Model, Session
from decoders.core.own_weights import weight_storages
from decoders.core.plugins import network
from decoders.core.token_reads import Ahead, TokenReads
from decoders.core.types import CallResult


class HFModel(Model):
    """A transformers causal LM (`module`) with a preallocated KV cache shared by its sessions.

    `num_forwards` counts forward passes over batches of calls.
    """

    is_placed: bool = False
    """The model's parts are placed on several devices."""
    min_rows = 1
    """Fewest rows of each sequence in calls that run as graphs of fixed shapes."""
    unread: tuple[str, ...] = ()
    """Notes on weights of the files that the model does not take."""
    tensors: Mapping[str, Any] = {}
    """Tensors by name in place of those of its files, for tests."""

    def __init__(
        self,
        module: Any,
        *,
        compile: bool = False,
        backend: Backend = "inductor",
        in_place: bool = True,
        quantized: Width | None = None,
    ) -> None:
        """Wrap a loaded module and learn its shapes from two forward passes of two tokens.

        Args:
            module: a transformers causal LM, already on its device and in its dtype.
            compile: run calls as graphs, except those of many rows (`compiled.Graphs.serve`).
            backend: compiler backend of the graphs.
            in_place: join weights that share an input, where `hf.llama` has the architecture;
                False: leave the module's weights where they are, and run its modules.
            quantized: width of packed linear layers and head.

        Raises:
            ValueError: the architecture needs another cache or other masks, or cannot be packed.
        """
        self.module = module.eval().requires_grad_(False)
        self.num_parameters = sum(parameter.numel() for parameter in module.parameters())
        self._quantized = quantized
        if quantized is not None:
            quantize(module, quantized)
        self.architecture = Architecture.of(module)
        self.vocab_size = self.architecture.vocab_size
        self.max_length = self.architecture.max_length
        self.device, self.dtype = self.architecture.device, self.architecture.dtype
        self.masked = masked_form(module.config.to_dict())
        used = backend if compile else None
        self._runner = ModuleRunner(module, self.architecture, used, in_place=in_place)
        self.num_layers = self._runner.num_layers
        self._reset()

    def _reset(self) -> None:
        super().__init__()
        self._layout: Layout | None = None
        self._drafts: dict[str, DraftRunner] = {}
        self._ahead: tuple[Tensor | None, Ahead] = None, {}
        self.num_forwards = 0

    @classmethod
    def load(
        cls,
        path_or_id: str | Path,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        compile: bool = False,
        quantized: Width | None = None,
        device_map: DeviceMap | None = None,
    ) -> Self:
        """Load a checkpoint, or raise a `ValueError` of one line.

        Args:
            path_or_id: a folder, or the id of a hub model.
            dtype: of the weights, whatever the files have.
            device: of the weights, unless there is a map.
            compile: see `__init__`.
            quantized: see `__init__`.
            device_map: transformers' map of parts. Layers run in turn on its devices; parts stored
                elsewhere are moved to a device in every call.
        """
        module, unread = load_module(path_or_id, dtype=dtype, device_map=device_map)
        placed = device_map is not None
        options: Any = {"compile": compile, "in_place": not placed, "quantized": quantized}
        model = cls(module if placed else module.to(device), **options)
        model.unread, model.is_placed = unread, placed
        if model.masked is not None and model.masked.mask_id is None and has_tokenizer(path_or_id):
            mask_id = load_tokenizer(path_or_id).mask_token_id
            model.masked = dataclasses.replace(model.masked, mask_id=mask_id)
        return model

    def in_tiles(self, rows: int) -> Self:
        """Return a row-invariant model that shares the weights, with its own cache and adapters."""
        twin = copy.copy(self)
        twin._runner = self._runner.in_tiles(rows)
        twin._reset()
        return twin

    def share_vocabulary(self, size: int) -> None:
        """Draft for a target of `size` ids and the same tokenizer.

        Ids of only one are never drafted: logits that the target lacks are dropped, those that this
        model lacks are -inf. Text with such an id is fed as this model's last id.
        """
        self.vocab_size = size

    @property
    def tile(self) -> int | None:
        """Rows of a tile in row-invariant numerics (None: calls are not tiled)."""
        return self._runner.tile

    @property
    def num_padded_rows(self) -> int:
        """Number of padding rows in batched passes so far."""
        return self._runner.num_padded_rows

    @property
    def adapters(self) -> Mapping[str, AdapterConfig]:
        """Configurations of the attached adapters by name."""
        return {name: each.config for name, each in self._attached.items()}

    @property
    def _attached(self) -> dict[str, Any]:
        return {**self._runner.adapters, **self._drafts}

    def attach(self, name: str, adapter: SlotAdapter | HiddenAdapter) -> None:
        """Make an adapter available as `name`, for calls with slots or for drafting.

        It replaces an adapter of that name. `ValueError` if the adapter does not fit the model.
        """
        self._refuse_placed()
        if isinstance(adapter, HiddenAdapter):
            self._attach_heads(name, copy.deepcopy(adapter).to(self.device, self.dtype))
            return
        adapter.check_fits(self.module)
        self._runner.detach(name)
        self._drafts.pop(name, None)
        self._runner.attach(name, adapter)

    def _refuse_placed(self) -> None:
        if self.is_placed:
            raise ValueError(
                "adapters do not work on a model that is placed on several devices; leave out "
                "--device-map, or the decoder"
            )

    def _attach_heads(self, name: str, heads: HiddenAdapter) -> None:
        if not self.architecture.reads_hidden:
            raise ValueError(self._no_hidden)
        heads.check_width(int(self.module.get_output_embeddings().weight.shape[1]))
        self._runner.detach(name)
        head: Any = self._runner.head
        if heads.config.num_words:
            head = Head(short_head(head.module, heads.get_buffer("words")))
        try:
            work = heads.work(heads, self._runner.tokens, head)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{heads.config.variant} has no pass to attach ({error})") from error
        self._drafts[name] = DraftRunner(work, self._runner, weight_storages(self))

    def open_network(self, variant: Variant) -> None:
        """Build a decoder's network from this model, unless it has one (`ValueError`)."""
        kind, present = network(variant), self._drafts.get(variant)
        if present is not None and type(present.layers) is kind:
            return
        self._refuse_placed()
        try:
            files = self.tensors or tensor_files(self.module.config.name_or_path)
            parts = TargetParts.of(self.module, self.architecture.planes, files)
            built = kind.build(parts).eval().requires_grad_(False)
        except Exception as error:  # a network of another package may raise anything
            if is_of_memory(error):
                raise
            line = " ".join(str(error).split())
            raise ValueError(f"network {variant!r} cannot be built: {line}") from error
        self._attach_heads(variant, built)

    @property
    def _no_hidden(self) -> str:
        return (
            f"{type(self.module).__name__} computes its logits by more than its head, so "
            "its hidden states cannot be read; use a decoder without heads"
        )

    @torch.inference_mode()
    def own_logits(
        self, tokens: Sequence[int], num_rows: int, beside: Sequence[Sequence[int]] = ()
    ) -> Tensor:
        """Return float32 logits ``[num_rows, V]`` of the last rows from transformers' forward.

        `beside` are texts of the same length that share the batch. The attention of a masked model
        is causal, too, as in a call without a mask.
        """
        takes = inspect.signature(self.module.forward).parameters
        kept: dict[str, Any] = {"logits_to_keep": num_rows} if "logits_to_keep" in takes else {}
        ids = torch.tensor([list(tokens), *map(list, beside)], device=self.device)
        ids = ids.clamp(max=self.architecture.vocab_size - 1)
        if self.masked is not None:
            mask = MaskBuilder(self.architecture, 0).additive(masks.causal(len(tokens)))
            kept["attention_mask"] = mask.expand(len(ids), 1, -1, -1)
        out = self.module(ids, use_cache=False, **kept)
        logits: Tensor = out.logits[0, -num_rows:].to(self.device)
        return self._predicted(logits.float())

    def _predicted(self, logits: Tensor) -> Tensor:
        """Return the logits of the shared vocabulary: a masked model never predicts masks."""
        if self.masked is not None and self.masked.mask_id is not None:
            mask_id = upload([self.masked.mask_id], logits.device)
            logits = logits.index_fill(-1, mask_id, -torch.inf)
        missing = self.vocab_size - logits.shape[-1]  # below 0: so many are cut off
        return pad(logits, (0, missing), value=-torch.inf) if missing else logits

    def adapter_bytes(self, name: str) -> int:
        """Count `Model.adapter_bytes`, with caches of draft layers."""
        return int(self._attached[name].num_bytes)

    @torch.inference_mode()
    def as_graph(self, work: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
        """See `Model.as_graph`."""
        return self._runner.as_graph(work, inputs)

    @torch.inference_mode()
    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        """See `Model.draft`."""
        return self._drafts[calls[0].name].draft(calls, self._size, self.vocab_size)

    @cached_property
    def library_module(self) -> Any:
        """The module as transformers made it, with contiguous copies of linear weights."""
        return self.module if self.is_placed else library_copy(self.module)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, with tied weights counted once and packed weights as packed."""
        plain: int = sum(parameter.nbytes for parameter in self.module.parameters())
        return plain + packed_bytes(self.module)

    @property
    def facts(self) -> dict[str, str | int]:
        """Facts that a run records: architecture, sizes, dtype, attention, compiled or not."""
        in_family, config = self._runner.weights is not None, self.module.config.get_text_config()
        facts: dict[str, Any] = {
            "tile": self.tile,
            "padded": self.min_rows if self.min_rows > 1 else None,
            "compiled": self._runner.graphs.backend is not None,
            "quantized": self._quantized,
            "kernels": "own" if in_family and has_kernels(self.device) else None,
            "architecture": type(self.module).__name__,
            "forward": "own" if in_family else "transformers",
            "layers": len(self.architecture.planes) // 2,
            "hidden_size": int(config.hidden_size),
            "vocab_size": self.vocab_size,
            "max_length": self.max_length,
            "parameters": self.num_parameters,
            "read_bytes": read_bytes(self.module),
            "dtype": str(self.dtype).removeprefix("torch."),
            "attention": str(config._attn_implementation),
            "placed": placement(self.module) if self.is_placed else None,
            "generation": model_settings(self.module) or None,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the model's answers for readers, one line each."""
        return (*self.unread, *generation_notes(self.module))

    @property
    def num_graphs(self) -> int:
        """Number of graphs made so far."""
        drafts = sum(each.graphs.num_graphs for each in self._drafts.values())
        return self._runner.graphs.num_graphs + drafts

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Run every call uncompiled inside the context."""
        before = self._runner.compiling
        try:
            self._runner.compiling = False
            yield
        finally:
            self._runner.compiling = before

    def cache_bytes(self) -> int:
        """Return the bytes of the preallocated KV cache (0 before `reserve`)."""
        planes = [] if self._layout is None else self._layout.store.planes
        return sum(plane.nbytes for plane in planes)

    def reserve(self, num_rows: int, capacity: int) -> None:
        """Reserve as `Model.reserve`, even beyond `max_length`, because drafts may overshoot."""
        there = self._size == (num_rows, capacity)
        super().reserve(num_rows, capacity)
        self._runner.launch = None
        if there:
            return
        self._layout, self._size = None, (0, 0)  # free the old cache first; there may be no room
        self._runner.graphs.forget()
        for drafts in self._drafts.values():
            drafts.planes = []
            drafts.graphs.forget()
        bucketed, is_plain = self._runner.graphs.fixed, self._runner.weights is None
        self.merges = not (bucketed or is_plain) and self.device.type == "cpu"
        ways: Any = {"bucketed": bucketed, "merges": self.merges, "tile": self.tile}
        self._layout = Layout(self.architecture, num_rows, capacity, **ways)
        self._size = num_rows, capacity

    @torch.inference_mode()
    def wipe(self, row: int) -> None:
        """See `Model.wipe`."""
        stores: list[Any] = [self._layout.store] if self._layout is not None else []
        for plane in [each for store in (*stores, *self._drafts.values()) for each in store.planes]:
            plane[row] = 0

    @torch.inference_mode()
    def copy_row(self, source: int, row: int, length: int) -> None:
        """See `Model.copy_row`."""
        assert self._layout is not None
        self._runner.launch = None  # their entries are beyond `length`
        self._layout.store.move_row(source, row, length)
        for plane in [plane for drafts in self._drafts.values() for plane in drafts.planes]:
            plane[row] = plane[source]

    def gather(self, session: Session, sources: Sequence[int], start: int) -> None:
        """See `Model.gather`."""
        assert self._layout is not None
        self._layout.store.gather(session.row, sources, start)

    @property
    def reads_ahead(self) -> bool:  # type: ignore[override]
        """True if graphs have fixed shapes, and logits are the model's for its own vocabulary."""
        as_read = self.masked is None and self.vocab_size == self.architecture.vocab_size
        return self._runner.graphs.fixed and as_read

    def ahead(self, logits: Tensor) -> Ahead:
        """See `Model.ahead`."""
        of, read = self._ahead
        return read if of is logits else {}

    def forward(self, calls: Sequence[Call]) -> Tensor:
        """See `Model.forward`."""
        return self.forward_reading(calls, {})

    @torch.inference_mode()
    def forward_reading(self, calls: Sequence[Call], reads: TokenReads) -> Tensor:
        """See `Model.forward_reading`."""
        layout = self._layout
        assert layout is not None
        assert {call.session for call in calls} <= {*self._open}, "a session is not open here"
        size = self.architecture.vocab_size
        fed = [*calls]
        if self.vocab_size > size:  # feed ids that this model lacks as its last id
            texts = [tuple(min(token, size - 1) for token in call.tokens) for call in calls]
            both = zip(calls, texts, strict=True)
            fed = [dataclasses.replace(call, tokens=text) for call, text in both]
        logits, hidden, ahead, chained = self._runner.run(layout, fed, reads, self.min_rows)
        logits = self._predicted(logits)
        first = 0
        for call, result in zip_longest(calls, chained):
            states, layers = None, call.hidden_layers or (self.num_layers,)
            if call.hidden:
                if not hidden.keys() >= {*layers}:
                    raise ValueError(self._no_hidden)
                each = [hidden[layer][first : first + len(call.hidden)] for layer in layers]
                states = torch.stack(each, 1) if call.hidden_layers else each[0]
                first += len(call.hidden)
            call.session.committed(call, states, () if result is None else result.picks[:-1])
            call.session.chained = result
        self.num_forwards += 1
        self._ahead = logits, ahead
        return logits

    @torch.inference_mode()
    def replay(self, calls: Sequence[Call]) -> Callable[[], Sequence[Tensor]]:
        """Return a function that reruns calls as a graph, until the cache is reallocated."""
        assert self._layout is not None
        return self._runner.replay(self._layout, calls, self.min_rows)


def stop_ids(model: HFModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids that end an answer, from the model's configs and its tokenizer."""
    module = model.module
    sources = getattr(module, "generation_config", None), module.config.get_text_config(), tokenizer
    ends = [getattr(source, "eos_token_id", None) for source in sources]  # an id, several or None
    return frozenset([i for end in ends for i in ([end] if isinstance(end, int) else end or ())])

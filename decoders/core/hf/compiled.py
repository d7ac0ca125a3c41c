"""Graphs of a function of tensors, which run without the function's Python code.

On a CPU a graph is machine code (`torch.export`, then AOTInductor) for all sizes, but a size of one
needs a separate graph, and so does each number of padded sequences. `graph_files` stores the code.
On a GPU a graph is a CUDA graph of fixed shapes, captured from the plain function (`capture`).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx.experimental import _config as _untyped_config

from decoders.core.hf import graph_children, graph_files
from decoders.core.hf.graph_children import NoGraphError as NoGraphError
from decoders.core.model import MERGED_ROWS

Inputs = Mapping[str, Tensor]
Outputs = Sequence[Tensor]
Function = Callable[[Any, Inputs, Sequence[Tensor]], Outputs]
"""Maps a name, inputs and the planes of a cache to outputs, and writes to the planes."""
Facts = Callable[[Any], tuple[str, Mapping[str, Tensor]]]
"""Returns what the function uses besides its arguments, for a name: a description, whose first line
is for readers, and all tensors by name."""
Backend = Literal["inductor", "export", "eager"]
"""`inductor`: machine code. For tests, `export` interprets the traced graph, and `eager` runs the
plain function in the shapes of a CUDA graph."""
Key = tuple[Hashable, ...]
"""A name, and what tells graphs of a name apart."""
Run = Callable[[list[Tensor]], Outputs]
_Result = TypeVar("_Result")
_config: Any = _untyped_config
DIMS = {
    **dict.fromkeys(("ids", "positions", "entries"), "BN"),
    **dict.fromkeys(("embeds", "states", "uniforms"), "BND"),
    "read": "R",
    "gate": "BN1",
    **dict.fromkeys(("late.rows", "late.before", "late.number"), "L"),
    "late.embedded": "LD",
    "late.tokens": "U",
    **dict.fromkeys(("behind", "levels"), "BK"),
    "sees": "B1KT",
    **dict.fromkeys(("last", "warmth"), "1"),
    "cache_rows": "1F",
    "merged.places": "SN",
    "merged.order": "F",
}
"""Dimensions of a graph's inputs: R rows read, L late slots, U late tokens.

K is the number of drafts in one pass, which is fixed in a graph. Merged calls of any number S of
sequences have F rows in one line.
"""
_MASK, _PLANE = "B1NT", "BHCD"
_SIZES = {"N": 11, "T": 53, "C": 97, "R": 13, "L": 23, "U": 29, "F": 37, "S": 5}
"""Sizes of the traced example."""
_WARM = 3
"""Runs before a capture, which choose kernels and allocate workspaces."""
COMPILED_PROMPT = 1024
"""Most rows of a call that runs as a graph alone; beside those of other sequences: `MERGED_ROWS`.

Our products are measured up to as many rows (`products.ROWS`). A CUDA graph has one size, so
calls are padded to powers of two.
"""
MAX_CAPTURED = 512
"""Most CUDA graphs of a function; beyond, the one that was not used for the longest is dropped."""


class Graphs:
    """The `num_graphs` graphs of a function, each made at the first call of its kind."""

    def __init__(
        self, function: Function, facts: Facts, *, device: torch.device, backend: Backend | None
    ) -> None:
        """Take a function and its facts (`fixed`: graphs serve only one set of input shapes).

        Without a `backend` no call runs as a graph.
        """
        self._function, self._facts = function, facts
        self.backend = backend
        self._device, self._on_gpu = device, device.type == "cuda"
        self.fixed = backend == "eager" or (self._on_gpu and backend is not None)
        self._graphs: dict[Key, Run] = {}
        self.num_graphs = 0

    def serve(self, num_rows: int, num_sequences: int = 1) -> bool:
        """Tell whether calls of up to `num_rows` rows run as graphs."""
        limit = COMPILED_PROMPT if num_sequences == 1 else MERGED_ROWS
        return self.backend is not None and num_rows <= limit

    def __call__(
        self, name: Hashable, inputs: Inputs, planes: Sequence[Tensor], num_brief: int = 0
    ) -> Outputs:
        """Run the graph for a name and these shapes.

        The first `num_brief` outputs are good until the next run.

        Raises:
            NoGraphError: no graph can be made of the function.
        """
        outputs = self.bound(name, inputs, planes)()
        if not self.fixed:
            return outputs
        return [*outputs[:num_brief], *map(Tensor.clone, outputs[num_brief:])]

    def bound(
        self, name: Hashable, inputs: Inputs, planes: Sequence[Tensor]
    ) -> Callable[[], Outputs]:
        """Return the run of a graph as a function for repeated calls, with errors of `__call__`."""
        places, parts = [plane.data_ptr() for plane in planes[:1] if self.fixed], inputs.values()
        kinds = [
            (e.shape, e.dtype) if self.fixed else tuple([n == 1 for n in e.shape]) for e in parts
        ]
        key = (name, 0 if self.fixed else len(_rows(inputs)), tuple(kinds), *places)  # places last
        graph = self._graphs.pop(key, None)
        if graph is None:
            graph = self._make(key, inputs, planes)
            if graph is None:
                return partial(self._function, name, inputs, planes)
            self.num_graphs += 1
            while self.fixed and len(self._graphs) >= MAX_CAPTURED:
                self._graphs.pop(next(iter(self._graphs)))
        self._graphs[key] = graph  # the newest is the last
        # machine code assumes contiguous inputs
        return partial(graph, [*map(Tensor.contiguous, inputs.values()), *planes])

    def forget(self) -> None:
        """Drop graphs that hold addresses of planes, because these are reallocated."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if not key[3:]}

    def drop(self, matches: Callable[[Any], bool]) -> None:
        """Drop the graphs whose names match, because their tensors are replaced."""
        self._graphs = {key: graph for key, graph in self._graphs.items() if not matches(key[0])}

    def _make(self, key: Key, inputs: Inputs, planes: Sequence[Tensor]) -> Run | None:
        """Return a new graph, or None while another process makes it."""
        function, name, names = self._function, key[0], list(inputs)

        def flat(*tensors: Tensor) -> Outputs:
            return function(name, dict(zip(names, tensors, strict=False)), tensors[len(names) :])

        if self.backend == "eager":
            return lambda tensors: flat(*tensors)
        tensors = [*inputs.values(), *planes]
        try:
            if self._on_gpu:
                return _capture(flat, tensors, len(names), self._device)
            with warnings.catch_warnings(action="ignore"):  # warnings of compilers
                return self._compiled(flat, inputs, tensors, key)
        except NoGraphError:
            raise
        except Exception as error:  # compilers raise anything
            why = " ".join(str(error).strip().splitlines()[:2]) or type(error).__name__
            raise NoGraphError(f"this model cannot be compiled: {why}") from error

    def _compiled(
        self, flat: Callable[..., Outputs], inputs: Inputs, tensors: Sequence[Tensor], key: Key
    ) -> Run | None:
        names = list(inputs)
        if self.backend == "export":
            module = _export(flat, names, tensors).module()
            return lambda tensors: module(*tensors)
        (name, sequences, *_), few = key, graph_files.load_products()
        text, constants = self._facts(name)
        file = graph_files.graph_file(f"{key} {names} {few} {text}", tensors, constants)

        def make() -> None:
            program = _export(flat, names, tensors)
            rows = "one row" if _rows(inputs).shape[1] == 1 else "rows"
            number = "several" if "merged.order" in inputs else sequences
            kind = f"{number} x {rows}{name or ''}"
            about = {"model": text.partition("\n")[0], "kind": kind}
            graph_files.compile_graph(file, program, constants, about)

        if graph_files.sealed(file) is None:
            if graph_children.current.compiles and (why := graph_files.why_none()):
                raise NoGraphError(why)
            if graph_children.current.have(file, make):
                return None
            graph_children.apart(make)
            if graph_files.sealed(file) is None:
                line = f"{file} is damaged again after it was compiled; is its disk full?"
                raise NoGraphError(line)
        return graph_files.load_graph(file, constants)


def _rows(inputs: Inputs) -> Tensor:
    """Return an input whose first sizes are those of the pass, ``[B, N, …]``, or all in one."""
    return inputs[next(filter(inputs.__contains__, ("positions", "states", "packed")))]


def _export(flat: Callable[..., Outputs], names: Sequence[str], tensors: Sequence[Tensor]) -> Any:
    """Trace a function of tensors for any sizes of `_SIZES`, and any values of held tensors.

    All sizes of the example differ, because a trace may treat equal sizes as one.
    """
    if strange := [name for name in names if name not in DIMS and not name.startswith("mask.")]:
        raise ValueError(f"no graph has an input {strange[0]!r}, only {', '.join(DIMS)}")
    letters = [DIMS.get(name, _MASK) for name in names]
    letters += [_PLANE] * (len(tensors) - len(names))
    if "merged.order" in names:
        is_line = [each.startswith("BN") for each in letters]
        letters = [
            each.replace(*("BN", "1F") if line else ("B", "S"))
            for each, line in zip(letters, is_line, strict=True)
        ]
    fixed = torch.export.Dim.STATIC
    # a named size for all planes; with AUTO, each plane would have its own size and its own index
    free = dict.fromkeys(_SIZES, torch.export.Dim.AUTO)
    free |= {size: torch.export.Dim(size, min=2) for size in "CS"}
    example: list[Tensor] = []
    dynamic: list[dict[int, Any]] = []
    with torch.inference_mode(False), torch.no_grad():
        for tensor, dims in zip(tensors, letters, strict=True):
            pairs = list(zip(dims, tensor.shape, strict=True))
            shape = [size if size == 1 else _SIZES.get(dim, size) for dim, size in pairs]
            example.append(torch.zeros(shape, dtype=tensor.dtype, device=tensor.device))
            sizes = [fixed if size == 1 else free.get(dim, fixed) for dim, size in pairs]
            dynamic.append(dict(enumerate(sizes)))
        module: Any = nn.Module()
        module.forward = flat
        shapes = {"tensors": tuple(dynamic)}  # by the name of the parameter
        with _config.patch(use_duck_shape=False):
            program = torch.export.export(
                module, tuple(example), dynamic_shapes=shapes, strict=False
            )
    _check_sizes(program, letters)
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.CONSTANT_TENSOR:  # a buffer keeps its name
            assert spec.target is not None
            spec.kind, spec.persistent = InputKind.BUFFER, True
            program.state_dict[spec.target] = program.constants.pop(spec.target)
    return program


def _check_sizes(program: Any, letters: Sequence[str]) -> None:
    """Raise `ValueError` if a graph does not serve all sizes, or treats two sizes as one."""
    inputs = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    by_dim: dict[str, set[str]] = {}
    for name, dims in zip(program.graph_signature.user_inputs, letters, strict=True):
        for dim, size in zip(dims, inputs[name].shape, strict=True):
            if dim in _SIZES and str(size) != "1":
                by_dim.setdefault(dim, set()).add(str(size))
    symbols = [symbol for each in by_dim.values() for symbol in each]
    if not len(by_dim) == len(symbols) == len({*symbols}) or any(map(str.isdigit, symbols)):
        sizes = ", ".join(f"{dim}: {'/'.join(sorted(each))}" for dim, each in by_dim.items())
        raise ValueError(f"its graph would not serve calls of all sizes ({sizes})")


def _capture(
    flat: Callable[..., Outputs], tensors: Sequence[Tensor], num_inputs: int, device: torch.device
) -> Run:
    """Capture a graph that reads inputs from buffers, and planes in place.

    Inputs on the host are copied to their buffers, too, without a wait if they are pinned.
    All such graphs share the memory of their intermediate results, because they run in turn and
    their outputs are copied.
    """
    inputs = tensors[:num_inputs]
    buffers = [torch.empty_like(each, device=device).copy_(each) for each in inputs]
    fixed = [*buffers, *tensors[num_inputs:]]
    pool = next(iter(_pools), None) or _Pool()  # that of the graphs that exist
    _pools.add(pool)
    replay = capture(lambda: flat(*fixed), device, pool.handle)

    def run(tensors: list[Tensor], _kept: object = pool) -> Outputs:
        for buffer, each in zip(buffers, tensors, strict=False):
            buffer.copy_(each, non_blocking=True)
        return replay()

    return run


class _Pool:
    """A memory pool of graphs, which CUDA does not let others join once all are dropped."""

    def __init__(self) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()


_pools = weakref.WeakSet[_Pool]()
_sides: dict[torch.device, Any] = {}
"""A GPU's stream for captures: each stream costs a workspace of cuBLAS, on an H100 32 MiB."""


def capture(work: Callable[[], _Result], device: Any, pool: Any = None) -> Callable[[], _Result]:
    """Capture work on a GPU's tensors at fixed addresses, and return its CUDA graph's replay.

    Every replay overwrites and returns the same tensors. The function keeps `work`, and thus its
    tensors, alive, because the graph holds only addresses.
    """
    with torch.cuda.device(device):  # of which the streams are
        if device not in _sides:
            _sides[device] = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side = _sides[device]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            result = work()

    def replay(_kept: object = work) -> _Result:
        graph.replay()
        return result

    return replay


def collect_tensors(thing: Any, name: str = "", seen: set[int] | None = None) -> dict[str, Tensor]:
    """Return all tensors, by path, that a module or an object of this project refers to."""
    seen = set() if seen is None else seen
    if isinstance(thing, Tensor):
        return {name: thing}
    if id(thing) in seen:
        return {}
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        pairs = [*thing.named_parameters(name, remove_duplicate=False)]
        return dict([*pairs, *thing.named_buffers(name, remove_duplicate=False)])
    parts: Iterable[tuple[object, Any]] = ()
    if isinstance(thing, Mapping):
        parts = thing.items()
    elif isinstance(thing, list | tuple):
        parts = enumerate(thing)
    elif type(thing).__module__.startswith("decoders."):
        names = getattr(thing, "__slots__", None) or vars(thing)
        parts = [(each, getattr(thing, each)) for each in names]
    tensors: dict[str, Tensor] = {}
    for part, value in parts:
        tensors |= collect_tensors(value, f"{name}.{part}", seen)
    return tensors

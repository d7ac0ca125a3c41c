"""Graphs of a function of tensors, which run without the Python that computes it.

On a CPU a graph is machine code (`torch.export`, then AOTInductor) for one number of sequences. It
serves all other sizes, but a size of one is a graph of its own. `graph_files` keeps the code.
On a GPU it is a CUDA graph of exactly these shapes, captured from the plain function (`capture`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx.experimental import _config as _untyped_config

from decoders.core.hf import graph_children, graph_files, products

Inputs = Mapping[str, Tensor]
Outputs = Sequence[Tensor]
Function = Callable[[Any, Inputs, Sequence[Tensor]], Outputs]
"""Computes from a name, inputs, and the planes of a cache, which it writes to."""
Held = Callable[[Any], tuple[str, Mapping[str, Tensor]]]
"""Says what a function of a name holds beside its arguments: in words, whose first line is for
readers, and all tensors by name."""
Backend = Literal["inductor", "export", "eager"]
"""Machine code; for tests: the traced graph, interpreted, and the plain function in the shapes of a
CUDA graph."""


class NoGraphError(ValueError):
    """No graph can be made of a model's calls."""


_Result = TypeVar("_Result")
_config: Any = _untyped_config
DIMS = {
    **dict.fromkeys(("ids", "positions", "entries"), "BN"),
    **dict.fromkeys(("embeds", "states"), "BND"),
    "read": "R",
    "gate": "BN1",
    "gate.base": "P",
    "gate.slots": "S",
    "gate.back": "BN",
    **dict.fromkeys(("late.rows", "late.before", "late.number"), "L"),
    "late.embedded": "LD",
    **dict.fromkeys(("behind", "levels"), "BK"),
    "sees": "B1KT",
    **dict.fromkeys(("last", "warmth"), "1"),
}
"""Dimensions of a graph's inputs: R rows are read, P are base rows, S slots and L late slots.

Drafts in one pass are K, of one number in a graph.
"""
_MASK, _PLANE = "B1NT", "BHCD"
_SIZES = {"N": 11, "T": 53, "C": 97, "R": 13, "P": 17, "S": 19, "L": 23}
"""Sizes to trace by."""
_WARM = 3
"""Runs before a capture: kernels are chosen and workspaces allocated in them."""
COMPILED_ROWS, COMPILED_PROMPT = 64, 512
"""Most rows of a call in a graph, and of a lone sequence's call in machine code.

Longer prompts run plainly: their time is arithmetic, and attention without a mask is faster. CUDA
graphs would need one for each length.
"""


class Graphs:
    """Graphs of a function by kind, made when a kind first comes; `num_graphs` were made so far."""

    def __init__(
        self,
        function: Function,
        held: Held,
        *,
        device: torch.device,
        backend: Backend = "inductor",
    ) -> None:
        """Take a function and what it holds; `fixed`: a graph is of one size of its inputs."""
        self._function, self._held = function, held
        self.backend = backend
        self._on_gpu = device.type == "cuda"
        self.fixed = self._on_gpu or backend == "eager"
        self._graphs: dict[Hashable, Callable[[list[Tensor]], Outputs]] = {}
        self.num_graphs = 0

    def serve(self, num_rows: int, num_sequences: int = 1) -> bool:
        """Tell whether calls of up to `num_rows` rows run as graphs."""
        lone = num_sequences == 1 and not self.fixed
        return num_rows <= (COMPILED_PROMPT if lone else COMPILED_ROWS)

    def __call__(self, name: Hashable, inputs: Inputs, planes: Sequence[Tensor]) -> Outputs:
        """Run the graph of a name and of these shapes.

        Raises:
            NoGraphError: none can be made of the function.
        """
        outputs = self.bound(name, inputs, planes)()
        return [each.clone() for each in outputs] if self.fixed else outputs  # replays overwrite

    def bound(
        self, name: Hashable, inputs: Inputs, planes: Sequence[Tensor]
    ) -> Callable[[], Outputs]:
        """Return the same as a function, which may run again and again (raises as a call)."""
        places = [plane.data_ptr() for plane in planes[:1] if self.fixed]
        key = (name, len(_rows(inputs)), tuple(map(self._kind, inputs.values())), *places)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._made(name, key, inputs, planes)
            if graph is None:
                return partial(self._function, name, inputs, planes)
            self._graphs[key] = graph
            self.num_graphs += 1
        # machine code takes its inputs for contiguous
        return partial(graph, [*(each.contiguous() for each in inputs.values()), *planes])

    def forget(self) -> None:
        """Drop graphs that hold addresses: the planes are allocated anew."""
        if self.fixed:
            self._graphs.clear()

    def _kind(self, tensor: Tensor) -> tuple[object, ...]:
        return tuple(tensor.shape) if self.fixed else tuple(size == 1 for size in tensor.shape)

    def _made(
        self, name: Hashable, key: Hashable, inputs: Inputs, planes: Sequence[Tensor]
    ) -> Callable[[list[Tensor]], Outputs] | None:
        """Return a new graph; None while another process makes it."""
        function, names = self._function, list(inputs)

        def flat(*given: Tensor) -> Outputs:
            return function(name, dict(zip(names, given, strict=False)), given[len(names) :])

        if self.backend == "eager":
            return lambda given: flat(*given)
        given = [*inputs.values(), *planes]
        sequences, num_rows = _rows(inputs).shape[:2]
        rows = "one row" if num_rows == 1 else "rows"
        kind = f"{sequences} x {rows}{f' of {name}' if name else ''}"
        try:
            if self._on_gpu:
                return _captured(flat, given, len(names))
            with warnings.catch_warnings(action="ignore"):  # of the compilers' own code
                return self._compiled(flat, names, given, f"{key}", kind, *self._held(name))
        except Exception as error:  # compilers raise anything
            why = " ".join(str(error).strip().splitlines()[:2]) or type(error).__name__
            raise NoGraphError(f"no graph can be made of this model: {why}") from error

    def _compiled(
        self,
        flat: Callable[..., Outputs],
        names: Sequence[str],
        given: Sequence[Tensor],
        key: str,
        kind: str,
        text: str,
        constants: Mapping[str, Tensor],
    ) -> Callable[[list[Tensor]], Outputs] | None:
        if self.backend == "export":
            module = _exported(flat, names, given).module()
            return lambda given: module(*given)
        few = graph_files.load_products()
        package = graph_files.Package.of(f"{key} {names} {few} {text}", given, constants)

        def make() -> None:
            program = _exported(flat, names, given)
            products.use_in(program, few)
            package.make(program, constants, {"model": text.partition("\n")[0], "kind": kind})

        if graph_children.current.have(package.path, make):
            return None
        if not package.exists:
            make()
        return package.load(constants)


def _rows(inputs: Inputs) -> Tensor:
    """Return an input ``[B, N, …]`` that has as many rows as the others."""
    return inputs["positions"] if "positions" in inputs else inputs["states"]


class _Flat(nn.Module):
    def __init__(self, flat: Callable[..., Outputs]) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, *given: Tensor) -> Outputs:
        return self.flat(*given)


def _exported(flat: Callable[..., Outputs], names: Sequence[str], given: Sequence[Tensor]) -> Any:
    """Trace a function of tensors for all sizes of `_SIZES`, and for all that it holds.

    The example has sizes that all differ: a trace may take equal ones for one size.
    """
    letters = [_MASK if name.startswith("mask.") else DIMS[name] for name in names]
    letters += [_PLANE] * (len(given) - len(names))
    fixed = torch.export.Dim.STATIC
    # one size for all planes by name: found, each would have its own, and an index of its own
    free = {**dict.fromkeys(_SIZES, torch.export.Dim.AUTO), "C": torch.export.Dim("C", min=2)}
    example: list[Tensor] = []
    dynamic: list[dict[int, Any]] = []
    with torch.inference_mode(False), torch.no_grad():
        for tensor, dims in zip(given, letters, strict=True):
            pairs = list(zip(dims, tensor.shape, strict=True))
            shape = [size if size == 1 else _SIZES.get(dim, size) for dim, size in pairs]
            example.append(torch.zeros(shape, dtype=tensor.dtype, device=tensor.device))
            sizes = [fixed if size == 1 else free.get(dim, fixed) for dim, size in pairs]
            dynamic.append(dict(enumerate(sizes)))
        with _config.patch(use_duck_shape=False):
            program = torch.export.export(
                _Flat(flat), tuple(example), dynamic_shapes={"given": tuple(dynamic)}, strict=False
            )
    _check_sizes(program, letters)
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.CONSTANT_TENSOR:  # as a buffer it keeps its name
            assert spec.target is not None
            spec.kind, spec.persistent = InputKind.BUFFER, True
            program.state_dict[spec.target] = program.constants.pop(spec.target)
    return program


def _check_sizes(program: Any, letters: Sequence[str]) -> None:
    """Raise `ValueError` where a graph would not serve all sizes, or take two for one."""
    inputs = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    found: dict[str, set[str]] = {}
    for name, dims in zip(program.graph_signature.user_inputs, letters, strict=True):
        for dim, size in zip(dims, inputs[name].shape, strict=True):
            if dim in _SIZES and str(size) != "1":
                found.setdefault(dim, set()).add(str(size))
    symbols = [symbol for each in found.values() for symbol in each]
    one_each = all(len(each) == 1 for each in found.values())
    if not one_each or len(set(symbols)) < len(symbols) or any(map(str.isdigit, symbols)):
        sizes = ", ".join(f"{dim}: {'/'.join(sorted(each))}" for dim, each in found.items())
        raise ValueError(f"its graph would not serve calls of all sizes ({sizes})")


def _captured(
    flat: Callable[..., Outputs], given: Sequence[Tensor], num_inputs: int
) -> Callable[[list[Tensor]], Outputs]:
    """Capture a graph that reads inputs from buffers, and planes where they are."""
    buffers = [each.clone() for each in given[:num_inputs]]
    fixed = [*buffers, *given[num_inputs:]]
    replay = capture(lambda: flat(*fixed))

    def run(given: list[Tensor]) -> Outputs:
        for buffer, each in zip(buffers, given, strict=False):
            buffer.copy_(each, non_blocking=True)
        return replay()

    return run


def capture(work: Callable[[], _Result]) -> Callable[[], _Result]:
    """Capture work on tensors that stay where they are as a CUDA graph; return its replay.

    Every replay returns the same tensors, written anew. It keeps the work, and so its tensors: the
    graph knows their addresses alone.
    """
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay(_kept: object = work) -> _Result:
        graph.replay()
        return result

    return replay


def tensors_of(thing: Any, name: str = "", seen: set[int] | None = None) -> dict[str, Tensor]:
    """Return the tensors by path that a thing of this project, or a module, leads to."""
    seen = set() if seen is None else seen
    if isinstance(thing, Tensor):
        return {name: thing}
    if id(thing) in seen:
        return {}
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        own = [*thing.named_parameters(name, remove_duplicate=False)]
        return dict([*own, *thing.named_buffers(name, remove_duplicate=False)])
    parts: Iterable[tuple[object, Any]] = ()
    if isinstance(thing, Mapping):
        parts = thing.items()
    elif isinstance(thing, list | tuple):
        parts = enumerate(thing)
    elif isinstance(thing, MethodType):
        parts = [("self", thing.__self__)]
    elif type(thing).__module__.startswith("decoders."):
        names = getattr(thing, "__slots__", None) or vars(thing)
        parts = [(each, getattr(thing, each)) for each in names]
    found: dict[str, Tensor] = {}
    for part, value in parts:
        found |= tensors_of(value, f"{name}.{part}", seen)
    return found

"""A pretended CUDA device: tensors that live on the CPU and say that they are on ``cuda:0``.

Inside a `PretendedCuda` block every torch function sees which of its tensors are on the pretended
device. Faults of GPU code show without a GPU: tensors of both devices in one function, which raises
as CUDA would; reads or writes that make the host wait for the device; and operations that the host
launches one by one, outside a graph's replay. The last two are counted by call site. `captures` are
graphs whose replays run the captured work again, and in which no wait and no upload is allowed; a
replay spoils what the last one of its memory pool returned.
Streams are not pretended; no time is measured.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.core import device
from decoders.core.hf import compiled, runner

CUDA = torch.device("cuda", 0)
_SOURCES = ("/decoders/", "/bench/", "/training/", "/transformers/")

_FACTORIES = {
    "tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "randint",
    "eye", "linspace", "tril_indices", "triu_indices", "zeros_like", "ones_like", "empty_like",
    "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_empty", "new_full",
    "new_tensor",
}  # fmt: skip
_FROM_HOST = {"tensor", "as_tensor", "new_tensor"}
_READS = {
    "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "is_nonzero",
    "equal", "allclose", "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select",
    "bincount", "repeat_interleave",
}  # fmt: skip
"""Functions whose result, or its shape, the host waits for."""


_OF_A_LEAF = {"requires_grad_", "retain_grad", "register_hook", "__set__", "__delete__"}
"""Functions of the tensor itself: gradients gather in it, and not in a view of its memory."""


class OnCuda(Tensor):
    """A CPU tensor that says it is on the pretended device."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    get_device = lambda self: 0  # noqa: E731


def place(tensor: Tensor) -> OnCuda:
    """Return the tensor as one on the pretended device; memory is shared."""
    with torch._C.DisableTorchFunction():
        return tensor if isinstance(tensor, OnCuda) else tensor.as_subclass(OnCuda)


def place_module(module: nn.Module) -> nn.Module:
    """Put a module's parameters and buffers on the pretended device, tied ones together."""
    made: dict[int, Any] = {}
    for part in module.modules():
        held: dict[str, Any]
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = made.setdefault(id(tensor), place(tensor.detach()))
    return module


class PretendedCuda(TorchFunctionMode):
    """While entered, follow tensors of the pretended device.

    Attributes:
        waits: how often the host waited for the device, by line of code and kind.
        uploads: copies from pinned memory that nothing waited for, likewise.
        launches: operations on the device and replays of graphs, likewise; with the waits and the
            uploads they are all that the host issues.
    """

    _graphs: ClassVar[dict[Any, weakref.WeakSet[Any]]] = {}
    """The graphs of each memory pool of the process."""
    _lent: ClassVar[dict[Any, Any]] = {}
    """What the last replay of each pool returned, which the next one of another graph spoils."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self._in_graph = False

    def __enter__(self) -> Any:
        self._triton, device._has_triton = device._has_triton, False  # it needs real memory
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        device._has_triton = self._triton
        super().__exit__(*raised)

    def clear(self) -> None:
        """Forget all counts."""
        for counter in (self.waits, self.uploads, self.launches):
            counter.clear()

    @property
    def num_issued(self) -> int:
        """All that the host issued: operations, replays, uploads and reads."""
        return sum(map(Counter.total, (self.waits, self.uploads, self.launches)))

    @contextmanager
    def captures(self) -> Iterator[None]:
        """Let the models of this block make graphs of calls, as on a GPU."""
        with pytest.MonkeyPatch.context() as patch, self:
            patch.setattr(compiled, "capture", self._capture)
            patch.setattr(runner, "capture", self._capture)
            patch.setattr(torch.cuda, "graph_pool_handle", object)
            patch.setattr(torch.cuda, "Event", _Event)
            yield

    def _capture(
        self, work: Callable[[], Any], device: torch.device, pool: Any = None
    ) -> Callable[[], Any]:
        assert _is_cuda(device)
        graphs = self._graphs.get(pool)
        if graphs is None or pool is None:
            graphs = self._graphs[pool] = weakref.WeakSet()
        elif not graphs:
            raise RuntimeError("all graphs of this memory pool were dropped: no other can join it")
        work()  # what is made once is made before the capture
        results = self._as_graph(work)

        def replay() -> Any:
            self._count(self.launches, "replay")
            lent, self._lent[pool] = self._lent.get(pool), results if pool is not None else None
            for each in [_plain(each) for each in lent or () if lent is not results]:
                with torch.inference_mode(each.is_inference()):
                    each.fill_(torch.nan if each.is_floating_point() else 1 << 40)
            for result, new in zip(results, self._as_graph(work), strict=True):
                assert result.shape == new.shape, f"{result.shape} is now {new.shape}"
                _plain(result).copy_(_plain(new))
            return results

        graphs.add(replay)
        return replay

    def _as_graph(self, work: Callable[[], Any]) -> Any:
        self._in_graph = True
        try:
            return work()
        finally:
            self._in_graph = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        pinned = given.pop("pin_memory", False)
        target = given.pop("device", None)
        if name == "pin_memory":
            self._allow("pin_memory")
            made = args[0].clone()
            made._pinned = True
            return made
        if name in {"to", "cuda", "cpu"}:
            return self._moved(func, name, target, args, given)
        if target is not None and not _is_cuda(target):
            given["device"] = target
        leaves = _leaves((args, given))
        first = leaves[0] if leaves else None
        if name in _FACTORIES:
            like = name.endswith("_like") or name.startswith("new_")
            on_cuda = _is_cuda(target) if target is not None else like and isinstance(first, OnCuda)
            if name == "as_tensor" and target is None:
                on_cuda = isinstance(first, OnCuda)
            run = self._launched if on_cuda and name not in _FROM_HOST else self._run
            made = run(func, args, given)
            if on_cuda and name in _FROM_HOST and not isinstance(first, OnCuda):
                self._count(self.waits, f"{name} of host numbers")
            if pinned:
                made._pinned = True
            return place(made) if on_cuda else made
        if not any(isinstance(leaf, OnCuda) for leaf in leaves):
            made = func(*args, **given)
            return place(made) if target is not None and _is_cuda(target) else made
        return self._computed(func, name, args, given, leaves)

    def _computed(
        self, func: Any, name: str, args: tuple[Any, ...], given: Any, leaves: list[Any]
    ) -> Any:
        if name == "_has_compatible_shallow_copy_type":
            return False
        if name == "__deepcopy__":
            tensor, memo = args
            memo[id(tensor)] = copied = _copied(tensor)
            return copied
        if name in _OF_A_LEAF:
            return func(args[0], *map(_plain, args[1:]), **_mapped(_plain, given))
        if name == "__get__":
            return _mapped(_placed, func(args[0]))
        run = self._launched
        if name in _READS and not (name == "repeat_interleave" and "output_size" in given):
            self._count(self.waits, name)
            run = self._run
        elif name in {"__getitem__", "__setitem__", "index_put_", "index_put"}:
            self._indexed(name, args)
        elif name == "copy_" and isinstance(args[0], OnCuda) != isinstance(args[1], OnCuda):
            self._crossed(args[1], name, non_blocking=given.get("non_blocking", False))
            run = self._run
        elif name != "set_data":
            for leaf in leaves:
                if isinstance(leaf, Tensor) and not isinstance(leaf, OnCuda) and leaf.ndim:
                    raise RuntimeError(f"{name} of tensors on cuda:0 and cpu at {_site()}")
        made = run(func, args, given)
        if name == "scaled_dot_product_attention" and given.get("attn_mask") is not None:
            # CUDA's kernel with a mask puts heads side by side
            made = made.transpose(1, 2).contiguous().transpose(1, 2)
        if name.endswith("_") and not name.endswith("__"):
            return args[0]
        if "out" in given:
            return given["out"]
        if name == "__getitem__" and not isinstance(args[0], OnCuda):
            return made
        return _mapped(_placed, made)

    def _indexed(self, name: str, args: tuple[Any, ...]) -> None:
        tensor, index = args[0], args[1]
        for each in index if isinstance(index, tuple) else (index,):
            if isinstance(each, (list, range)):
                self._count(self.waits, f"{name} by a list")
            elif isinstance(each, Tensor):
                if isinstance(each, OnCuda) and not isinstance(tensor, OnCuda) and each.ndim:
                    raise RuntimeError(f"{name}: a cpu tensor by a cuda index at {_site()}")
                if each.dtype == torch.bool and each.ndim:
                    self._count(self.waits, f"{name} by a mask")
                elif isinstance(each, OnCuda) and not each.ndim:
                    self._count(self.waits, f"{name} by a number on the device")
                elif not isinstance(each, OnCuda) and each.ndim:
                    self._count(self.waits, f"{name} by a host tensor")
        value = args[2] if len(args) > 2 else None
        crosses = isinstance(value, OnCuda) != isinstance(tensor, OnCuda)
        if crosses and isinstance(value, Tensor) and value.ndim:
            self._count(self.waits, f"{name} across devices")

    def _moved(self, func: Any, name: str, target: Any, args: tuple[Any, ...], given: Any) -> Any:
        source, *rest = args
        if not isinstance(source, Tensor):
            return func(*args, **given, **({} if target is None else {"device": target}))
        for each in rest:
            if isinstance(each, Tensor):
                target = each.device
            elif isinstance(each, (str, torch.device)):
                target = each
        target = {"cuda": CUDA, "cpu": "cpu"}.get(name, target)
        on_cuda = isinstance(source, OnCuda) if target is None else _is_cuda(target)
        dtypes = [each.dtype if isinstance(each, Tensor) else each for each in rest]
        dtypes = [each for each in dtypes if isinstance(each, torch.dtype)]
        kept = {key: value for key, value in given.items() if key != "non_blocking"}
        made = _plain(source)
        if name == "to" and (dtypes or kept):
            run = self._launched if isinstance(source, OnCuda) else self._run
            made = run(torch.Tensor.to, (made, *dtypes), kept)
        if on_cuda != isinstance(source, OnCuda):
            self._crossed(source, name, non_blocking=given.get("non_blocking", False))
            made = made.clone()
        return place(made) if on_cuda else made

    def _crossed(self, source: Tensor, name: str, *, non_blocking: bool) -> None:
        """Count a copy between the devices."""
        if isinstance(source, OnCuda):
            self._count(self.waits, f"{name} to the host")
        elif non_blocking and getattr(source, "_pinned", False):
            self._count(self.uploads, f"{name} from pinned memory")
        else:
            self._count(self.waits, f"{name} from pageable memory")

    @staticmethod
    def _run(func: Any, args: Any, given: Any) -> Any:
        return func(*_mapped(_plain, args), **_mapped(_plain, given))

    def _launched(self, func: Any, args: Any, given: Any) -> Any:
        """Run a function of tensors on the device, and count its operations outside graphs."""
        if self._in_graph:
            return self._run(func, args, given)
        with _Operations() as operations:
            made = self._run(func, args, given)
        if operations.count:
            self.launches[f"{_site()}: {getattr(func, '__name__', func)}"] += operations.count
        return made

    def _allow(self, kind: str) -> None:
        if self._in_graph:
            raise RuntimeError(f"{kind} at {_site()} while a graph is captured")

    def _count(self, counter: Counter[str], kind: str) -> None:
        self._allow(kind)
        counter[f"{_site()}: {kind}"] += 1


class _Event:
    """Marks a copy whose wait has been counted where it was queued."""

    def record(self) -> None:
        """Follow the queued work."""

    def synchronize(self) -> None:
        """Wait for it."""


class _Operations(TorchDispatchMode):
    """Counts operations that are kernels or copies on a GPU: neither views nor allocations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or "empty" in func.__name__)
        return func(*args, **(kwargs or {}))


def _leaves(value: Any) -> list[Any]:
    """List what a function's arguments contain (torch's own walk takes most of a test's time)."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a function's arguments or results with `function` of their leaves."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        made = [_mapped(function, each) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {key: _mapped(function, each) for key, each in value.items()}
    return function(value)


def _copied(tensor: OnCuda) -> Tensor:
    made = place(_plain(tensor).detach().clone()).requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        made._is_param = True  # type: ignore[attr-defined]
    return made


def _placed(value: Any) -> Any:
    return place(value) if isinstance(value, Tensor) else value


def _plain(value: Any) -> Any:
    if not isinstance(value, OnCuda):
        return value
    with torch._C.DisableTorchFunction():
        return value.as_subclass(Tensor)


def _is_cuda(device: Any) -> bool:
    return isinstance(device, int) or torch.device(device).type == "cuda"


def _site() -> str:
    """Return the innermost line of the source that called torch."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        for part in _SOURCES:
            if part in file:
                return f"{file[file.index(part) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"

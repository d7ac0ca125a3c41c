"""Products of few rows with weights, and attention, by our own C++ code, in graphs on a CPU.

The libraries read weights at half the bandwidth of some memories and caches (docs/log.md), but some
multiply many rows faster. The most rows for our code are measured once per machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_suffix(".cpp")
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ROUNDS, _MATRICES, _SHAPE = 7, 8, (2048, 1024)
_aten = torch.ops.aten


def make(library: Path) -> None:
    """Compile the code."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:  # torch's builder takes no folder with a space
        source, options = shlex.quote(str(_SOURCE)), CppTorchOptions(vec_isa=pick_vec_isa())
        builder = CppBuilder(library.stem, source, options, output_dir=scratch)
        builder.build()
        partial = library.with_suffix(f".{os.getpid()}")
        shutil.copyfile(builder.get_target_file_path(), partial)
        partial.replace(library)


def load(library: Path) -> dict[torch.dtype, int]:
    """Load the code and return its row limits by dtype, which are measured once and stored."""
    if not hasattr(torch.ops.decoders, "product"):
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        torch.library.register_fake("decoders::product", _unfilled)
        torch.library.register_fake("decoders::gated_product", _unfilled)
        torch.library.register_fake("decoders::attend", lambda q, *_: q.new_empty(q.shape))
    measured = library.with_suffix(".rows")
    try:
        half, whole = map(int, measured.read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # not measured yet, or damaged
        half, whole = map(_measure_few, (torch.bfloat16, torch.float32))
        partial = measured.with_suffix(f".{os.getpid()}")
        partial.write_text(f"{half} {whole}", encoding="utf-8")
        partial.replace(measured)
    return {torch.bfloat16: half, torch.float16: min(half, 256), torch.float32: whole}


def _unfilled(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def _measure_few(dtype: torch.dtype) -> int:
    """Return the number of rows up to which this code is faster than the library's."""
    few = 0
    weights = torch.ones(_MATRICES, *_SHAPE, dtype=dtype)  # larger than a core's cache
    if dtype == torch.float32:  # stored as in `gating.laid_out`
        weights = weights.mT.contiguous().mT
    for num_rows in ROWS:
        x = torch.ones(num_rows, _SHAPE[1], dtype=dtype)
        times_s: dict[int, list[float]] = {0: [], num_rows: []}  # by limit; 0: the library
        for _, (limit, call) in product(range(_ROUNDS), times_s.items()):
            start_s = time.perf_counter()
            for weight in weights:
                torch.ops.decoders.product(x, weight, limit)
            call.append(time.perf_counter() - start_s)
        if median(times_s[num_rows]) > median(times_s[0]):
            break
        few = num_rows
    return few


def use_in(program: Any, few: Mapping[torch.dtype, int]) -> None:
    """Replace products with weights and attention in an exported program (`few`: see `load`)."""
    for node in list(program.graph.nodes):
        _gated_product(node, few)
    for node in list(program.graph.nodes):
        with program.graph.inserting_before(node):
            result = _product(node, few) or _attention(node)
        if result is not None:
            result.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(result)
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _product(node: Any, few: Mapping[torch.dtype, int]) -> Any:
    """Insert our product if a node computes one with a weight."""
    is_linear = node.target == _aten.linear.default
    if not is_linear and node.target not in (_aten.matmul.default, _aten.mm.default):
        return None
    call = node.graph.call_function
    x, weight, *bias = node.args
    value = weight.meta["val"]
    if not (max_rows := few.get(value.dtype, 0)) or value.dim() != 2:
        return None
    if not is_linear:
        weight = call(_aten.t.default, (weight,))
    result = call(torch.ops.decoders.product.default, (x, weight, max_rows))
    if bias and bias[0] is not None:
        result = call(_aten.add.Tensor, (result, bias[0]))
    return result


def _gated_product(node: Any, few: Mapping[torch.dtype, int]) -> None:
    """Insert our product with a low-rank delta if a node adds one, as `AddedWeights.through` does.

    The node adds ``matmul(matmul(rows, low), high) * gate`` to a view of ``matmul(x, weight)``.
    """
    total = _chain(node, _aten.add_.Tensor, _aten.view.default, _aten.matmul.default)
    delta = _chain(node.args[1], _aten.mul.Tensor, *[_aten.matmul.default] * 2) if total else []
    if not delta:
        return
    (_, view, base), (scaled, high, low) = total, delta
    x, weight = base.args
    if (value := weight.meta["val"]).dtype != torch.bfloat16 or value.dtype not in few:
        return
    call = node.graph.call_function
    with node.graph.inserting_before(node):
        columns = [call(_aten.t.default, (part,)) for part in (weight, low.args[1], high.args[1])]
        operands = (x, *columns, scaled.args[1].args[0], few[value.dtype])
        result = call(torch.ops.decoders.gated_product.default, operands)
    result.meta["val"] = base.meta["val"]
    node.graph.erase_node(node)
    node.graph.erase_node(view)
    base.replace_all_uses_with(result)
    for part in (scaled, high, low, base):
        node.graph.erase_node(part)


def _chain(node: Any, *targets: Any) -> list[Any]:
    """Return nodes of these targets, each the first argument of the one before, or none."""
    nodes = []
    for target in targets:
        if getattr(node, "target", None) != target:
            return []
        nodes.append(node)
        node = node.args[0] if node.args else None
    return nodes


def _attention(node: Any) -> Any:
    """Insert our attention if a node computes it in bfloat16, with one mask for all heads."""
    if node.target != _aten.scaled_dot_product_attention.default:
        return None
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    operands: list[Any] = [arguments.get(name) for name in names[:4]]
    if None in operands or arguments.get("dropout_p") or arguments.get("is_causal"):
        return None
    query, key, value, mask = (each.meta["val"] for each in operands)
    is_grouped = query.shape[:2] == key.shape[:2] and query.shape[3] == value.shape[3]
    is_shared = mask.dim() == 4 and mask.shape[1] == 1
    is_half = query.dtype == torch.bfloat16 and mask.dtype in (torch.bfloat16, torch.bool)
    if not (is_grouped and is_shared and is_half):
        return None
    if operands[3].target == _aten.repeat.default:  # once for each query head that shares keys
        operands[3] = operands[3].args[0]
    scale = arguments.get("scale") or query.shape[3] ** -0.5
    return node.graph.call_function(torch.ops.decoders.attend.default, (*operands, float(scale)))

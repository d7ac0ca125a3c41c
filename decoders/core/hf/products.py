"""Products of few rows with half-precision weights, by code of our own, in a CPU's graphs.

The libraries' products read such weights at half of what some memories give (docs/log.md), and
multiply many rows faster. How many rows are few is measured once on a machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
_SOURCE = Path(__file__).with_suffix(".cpp")
ROWS = (1, 2, 4, 8, 16, 32, 64)
_ROUNDS, _MATRICES, _SHAPE = 7, 8, (2048, 1024)
_aten = torch.ops.aten


def load(library: Path) -> int:
    """Load the compiled code, and return how many rows are few; both are made once.

    Called again, it returns the number of the file beside `library`.
    """
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            options = CppTorchOptions(vec_isa=pick_vec_isa())
            builder = CppBuilder(library.stem, str(_SOURCE), options, output_dir=scratch)
            builder.build()
            Path(builder.get_target_file_path()).replace(library)
    if not hasattr(torch.ops.decoders, "product"):
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        torch.library.register_fake("decoders::product", _unfilled)
    measured = library.with_suffix(".rows")
    if not measured.exists():
        partial = measured.with_suffix(f".{os.getpid()}")
        partial.write_text(f"{_measure_few()}\n", encoding="utf-8")
        partial.replace(measured)
    return int(measured.read_text(encoding="utf-8"))


def _unfilled(x: Tensor, weight: Tensor, few: int) -> Tensor:
    del few
    return x.new_empty(*x.shape[:-1], len(weight))


def _measure_few() -> int:
    """Return the number of rows up to which this code is faster than the library's."""
    few = 0
    weights = torch.ones(_MATRICES, *_SHAPE, dtype=torch.bfloat16)  # more than a core's cache
    for num_rows in ROWS:
        x = torch.ones(num_rows, _SHAPE[1], dtype=torch.bfloat16)
        times_s: dict[int, list[float]] = {0: [], num_rows: []}  # by the limit: none are few, all
        for _, (limit, own) in product(range(_ROUNDS), times_s.items()):
            start_s = time.perf_counter()
            for weight in weights:
                torch.ops.decoders.product(x, weight, limit)
            own.append(time.perf_counter() - start_s)
        if median(times_s[num_rows]) > median(times_s[0]):
            break
        few = num_rows
    return few


def use_in(program: Any, few: int) -> None:
    """Replace products with half-precision weights in an exported program; `few` is `load`'s."""
    graph = program.graph
    for node in list(graph.nodes):
        is_linear = node.target == _aten.linear.default
        if not is_linear and node.target not in (_aten.matmul.default, _aten.mm.default):
            continue
        x, weight, *bias = node.args
        held = weight.meta["val"]
        if held.dtype not in HALF or held.dim() != 2:
            continue
        with graph.inserting_before(node):
            if not is_linear:
                weight = graph.call_function(_aten.t.default, (weight,))
            made = graph.call_function(torch.ops.decoders.product.default, (x, weight, few))
            if bias and bias[0] is not None:
                made = graph.call_function(_aten.add.Tensor, (made, bias[0]))
        made.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    program.graph_module.recompile()

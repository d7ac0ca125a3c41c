"""Products of few rows with half-precision weights, by code of our own, in a CPU's graphs.

The libraries' products read such weights at half of what memory gives (docs/log.md).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
_SOURCE = Path(__file__).with_suffix(".cpp")
_aten = torch.ops.aten


def load(library: Path) -> None:
    """Load the compiled code, which is compiled first if it is not there."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if hasattr(torch.ops.decoders, "product"):
        return
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            options = CppTorchOptions(vec_isa=pick_vec_isa())
            builder = CppBuilder(library.stem, str(_SOURCE), options, output_dir=scratch)
            builder.build()
            Path(builder.get_target_file_path()).replace(library)
    torch.ops.load_library(library)  # type: ignore[no-untyped-call]

    torch.library.register_fake("decoders::product", _unfilled)


def _unfilled(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def use_in(program: Any) -> None:
    """Replace products with half-precision weights in an exported program; needs `load`."""
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
            made = graph.call_function(torch.ops.decoders.product.default, (x, weight))
            if bias and bias[0] is not None:
                made = graph.call_function(_aten.add.Tensor, (made, bias[0]))
        made.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    program.graph_module.recompile()

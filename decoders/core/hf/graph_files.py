"""Compiled graphs on disk: a graph of a model's shape is compiled once per machine.

A package holds only machine code. The weights stay in place, and are passed to the code by name.
Damaged files end a process that loads them, so the hash of each file is checked first.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from decoders.core import products
from decoders.core.hf.checkpoint import graphs_folder
from decoders.core.hf.graph_children import NoGraphError

_SOURCES = ("*.py", "../adapter/*.py", "../products.*")
"""Source files that may affect a graph."""
_NAMES, _VALUES, _PACKED = "constants", "values", "aot_inductor.package_constants_in_so"
_HASH = "sha256"
_ROOM = 64 * 2**20
"""Free bytes that making a graph needs: more than a large model's graph and its C++ code take."""


def missing_compiler() -> str | None:
    """Explain why no machine code can be made here (None if it can)."""
    compiler = os.environ.get("CXX")
    compilers = (compiler,) if compiler else ("g++", "clang++", "c++")
    if any(shutil.which(name) for name in compilers):
        return None
    return f"no C++ compiler ({', '.join(compilers)}) is found; install one (g++)"


def why_none() -> str | None:
    """Explain why no file can be made here: no compiler or no room (None if one can)."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    if missing := missing_compiler():
        return missing
    for folder, option in ((graphs_folder(), "DECODING_BENCH_CACHE"), (cache_dir(), "TMPDIR")):
        there = next(each for each in (Path(folder), *Path(folder).parents) if each.exists())
        free = shutil.disk_usage(there).free
        if free < _ROOM:
            return (
                f"{folder} has {free / 1e6:.1f} MB of room, and compiling needs "
                f"{_ROOM / 1e6:.0f} MB; make room, or set {option} to another folder"
            )
    return None


def seal(file: Path, facts: Mapping[str, Any]) -> None:
    """Write facts about a file into a JSON file beside it, with the hash of both."""
    text = json.dumps({**facts, _HASH: _hash(file, facts)})
    file.with_suffix(".json").write_text(text, encoding="utf-8")


def sealed(file: Path) -> dict[str, Any] | None:
    """Return the facts about a file, or None unless both are as they were sealed."""
    try:
        facts: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        return facts if facts.pop(_HASH) == _hash(file, facts) else None
    except (OSError, ValueError, TypeError, KeyError):  # missing or damaged
        return None


def _hash(file: Path, facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(file.read_bytes() + json.dumps(facts).encode()).hexdigest()


def graph_file(key: str, tensors: Sequence[Tensor], constants: Mapping[str, Tensor]) -> Path:
    """Return this machine's file for a key and for inputs and constants of these kinds."""
    digest = hashlib.sha256(_machine().encode())
    digest.update(key.encode())
    for each in tensors:
        digest.update(f"{each.dtype} {each.dim()}".encode())
    for name, each in constants.items():
        digest.update(f"{name} {each.dtype} {tuple(each.shape)} {each.stride()}".encode())
    return graphs_folder() / f"{digest.hexdigest()[:32]}.pt2"


def compile_graph(
    path: Path, program: Any, constants: Mapping[str, Tensor], about: Mapping[str, str]
) -> None:
    """Compile an exported program into a file.

    An interrupted compilation leaves no files.

    Args:
        path: the file (`graph_file`), beside which its facts are written.
        program: an exported program, whose signature names each tensor that it holds.
        constants: by name, the tensors that the code reads in place (`load_graph`).
        about: facts that describe the graph in listings.

    Raises:
        ValueError: the program holds a tensor that is not among the constants; the code would
            fix the values of such a tensor.
    """
    state = {**program.state_dict, **program.constants}
    state = {name: each for name, each in state.items() if isinstance(each, Tensor)}
    keys = {_place(each): name for name, each in constants.items()}
    names = {name: keys[_place(each)] for name, each in state.items() if _place(each) in keys}
    rest = {name: each for name, each in state.items() if name not in names}
    large = [f"{name} {tuple(each.shape)}" for name, each in rest.items() if each.numel() > 1]
    if large:
        raise ValueError(f"the graph would fix tensors that it is not given: {large[:3]}")
    values = {n: [str(each.dtype)[6:], list(each.shape), each.item()] for n, each in rest.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        file = Path(scratch) / path.name
        # fused operations then round like separate ones: a row has the same bits in all graphs
        is_half = any(each.dtype.itemsize == 2 for each in constants.values())
        options = {_PACKED: False, "emulate_precision_casts": is_half, **products.VECTORS}
        for _ in range(3):  # again while a process beside this one writes a file of both
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(file), inductor_configs=options
            )
            if all(each.file_size for each in zipfile.ZipFile(file).infolist()):
                break
        seal(file, {**about, _NAMES: names, _VALUES: values})
        for suffix in (".json", path.suffix):
            file.with_suffix(suffix).replace(path.with_suffix(suffix))


def load_graph(
    path: Path, constants: Mapping[str, Tensor]
) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """Load the code and pass it the constants without copying them."""
    facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    graph = torch._inductor.aoti_load_package(str(path), run_single_threaded=True)
    values = {name: constants[source] for name, source in facts[_NAMES].items()}
    for name, (dtype, shape, value) in facts[_VALUES].items():
        values[name] = torch.full(shape, value, dtype=getattr(torch, dtype))
    weights = {name: values[name].detach() for name in graph.get_constant_fqns()}
    graph.load_constants(weights, check_full_update=True, user_managed=True)

    def run(inputs: list[Tensor], _kept: object = weights) -> Sequence[Tensor]:
        out: list[Tensor] = graph.loader.run(inputs)
        return out  # the code only points to its constants, which live as long as `run`

    return run


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _library() -> Path:
    return graphs_folder() / f"{hashlib.sha256(_machine().encode()).hexdigest()[:32]}.so"


def has_products() -> bool:
    """Tell whether `products` (graphs or none beside it) is compiled for this machine."""
    return sealed(_library()) is not None


def load_products() -> dict[torch.dtype, int]:
    """Load `products`, and return the numbers of `products.load`.

    Raises:
        NoGraphError: the library is missing or damaged, and `why_none`.
    """
    library = _library()
    if not has_products():
        if why := why_none():
            raise NoGraphError(why)
        products.make(library)
        seal(library, {})
    return products.load(library)


@functools.cache
def _machine() -> str:
    here = Path(__file__).parent
    sources = sorted(path for pattern in _SOURCES for path in here.glob(pattern))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    processor = (platform.machine(), _cpu_flags(), torch.get_num_threads())
    return repr((torch.__version__, transformers.__version__, code, processor))


def _cpu_flags() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((line for line in lines if line.startswith("flags")), platform.processor())

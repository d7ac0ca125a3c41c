"""Loops for `generate(custom_generate=…)`: a folder as on the hub, or a function in a file.

transformers prepares the arguments of a function, but a folder's code replaces `generate`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationMixin

from decoders.core.registry import import_file

_FILE = Path("custom_generate") / "generate.py"
Loop = Callable[..., Any]
"""Takes a module, and the arguments of `generate` by name."""


def load_custom(path: str, function: str) -> Loop:
    """Load the loop of a folder or file, again if it changed, or raise `ValueError`."""
    file = Path(path) / _FILE if Path(path).is_dir() else Path(path)
    return _load(path, function, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.cache
def _load(path: str, function: str, _changed_ns: int) -> Loop:
    file, is_folder = Path(path), Path(path).is_dir()
    if is_folder and not (file / _FILE).is_file():
        raise ValueError(f"custom loop {path!r} has no {_FILE.as_posix()}")
    if not is_folder and (file.suffix != ".py" or not file.is_file()):
        raise ValueError(
            f"custom loop {path!r} is neither a Python file nor a folder with {_FILE.as_posix()}"
        )
    load: Any = GenerationMixin.load_custom_generate  # also checks requirements.txt
    try:
        if is_folder:
            alone = load(None, str(file.resolve()), trust_remote_code=True)
            return functools.partial(_run_alone, alone)
        loop = getattr(import_file(file, f"bench_custom_{file.stem}"), function, None)
    except (Exception, SystemExit) as error:  # user code may raise anything
        line = f"custom loop {path!r} cannot be loaded: {type(error).__name__}: {error}"
        raise ValueError(line) from error
    if not callable(loop):
        raise ValueError(f"custom loop {path!r} has no function {function!r}; name one: function=…")
    return lambda module, **arguments: module.generate(**arguments, custom_generate=loop)


def _run_alone(loop: Loop, module: Any, **arguments: Any) -> Any:
    """Run a loop instead of `generate`, with the arguments and defaults of `generate`."""
    parameters = inspect.signature(GenerationMixin.generate).parameters.values()
    usual = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
    for name in ("self", "custom_generate"):
        usual.pop(name, None)
    with torch.no_grad():
        return loop(model=module, **{**usual, **arguments})

"""Loops for `generate(custom_generate=…)`: a folder as on the hub, or a function of a file.

transformers prepares arguments for a function, and lets a folder's code replace `generate`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationMixin

from decoders.core.registry import import_file

_FILE = Path("custom_generate") / "generate.py"


@dataclass(frozen=True, slots=True)
class CustomLoop:
    """A loaded custom loop; `prepared` if `generate` prepares its arguments."""

    function: Callable[..., Any]
    prepared: bool

    def run(self, module: Any, **given: Any) -> Any:
        """Run as ``module.generate(**given, custom_generate=…)`` does."""
        if self.prepared:
            return module.generate(**given, custom_generate=self.function)
        known = inspect.signature(GenerationMixin.generate).parameters.values()
        left_out = ("self", "custom_generate")
        usual = {p.name: p.default for p in known if p.kind is not p.VAR_KEYWORD}
        usual = {name: value for name, value in usual.items() if name not in left_out}
        with torch.no_grad():
            return self.function(model=module, **{**usual, **given})


def load_custom(path: str, function: str) -> CustomLoop:
    """Load the loop of a folder or Python file, anew where it changed; or `ValueError`."""
    file = Path(path) / _FILE if Path(path).is_dir() else Path(path)
    return _load(path, function, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.cache
def _load(path: str, function: str, _changed_ns: int) -> CustomLoop:
    file = Path(path)
    if file.is_dir():
        if not (file / _FILE).is_file():
            raise ValueError(f"custom loop {path!r} has no {_FILE.as_posix()}")
        return CustomLoop(_loaded(path, lambda: _of_folder(file)), prepared=False)
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(
            f"custom loop {path!r} is neither a Python file nor a folder with {_FILE.as_posix()}"
        )
    loop = _loaded(
        path, lambda: getattr(import_file(file, f"bench_custom_{file.stem}"), function, None)
    )
    if not callable(loop):
        raise ValueError(f"custom loop {path!r} has no function {function!r}; name one: function=…")
    return CustomLoop(loop, prepared=True)


def _loaded(path: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:  # the file is somebody's: it may raise anything
        line = f"custom loop {path!r} cannot be loaded: {type(error).__name__}: {error}"
        raise ValueError(line) from error


def _of_folder(folder: Path) -> Callable[..., Any]:
    load: Any = GenerationMixin.load_custom_generate
    loaded: Callable[..., Any] = load(None, str(folder.resolve()), trust_remote_code=True)
    return loaded

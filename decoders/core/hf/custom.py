"""Loops for `generate(custom_generate=…)`: a folder as on the hub, or a function of a file.

Both are code that the user names. transformers calls them differently: a function after it has
prepared inputs, cache, processors and criteria, what a folder holds in the place of `generate`.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationMixin

_FILE = Path("custom_generate") / "generate.py"


@dataclass(frozen=True, slots=True)
class CustomLoop:
    """A custom loop, loaded.

    Attributes:
        function: what runs.
        prepared: whether `generate` prepares its arguments.
    """

    function: Callable[..., Any]
    prepared: bool

    def run(self, module: Any, **given: Any) -> Any:
        """Run as ``module.generate(**given, custom_generate=…)`` does, loaded already."""
        if self.prepared:
            return module.generate(**given, custom_generate=self.function)
        known = inspect.signature(GenerationMixin.generate).parameters.values()
        left_out = ("self", "custom_generate")
        usual = {p.name: p.default for p in known if p.kind is not p.VAR_KEYWORD}
        usual = {name: value for name, value in usual.items() if name not in left_out}
        with torch.no_grad():
            return self.function(model=module, **{**usual, **given})


def load_custom(path: str, function: str) -> CustomLoop:
    """The loop at `path`: a folder that holds ``custom_generate/generate.py``, or a Python file.

    It is loaded once, and again where the file has changed.

    Args:
        path: of a folder or a file here; nothing is fetched.
        function: its name in the file.

    Raises:
        ValueError: in one line where there is none, or it cannot be loaded.
    """
    file = Path(path) / _FILE if Path(path).is_dir() else Path(path)
    return _load(path, function, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.cache
def _load(path: str, function: str, _changed_ns: int) -> CustomLoop:
    place = Path(path)
    if place.is_dir():
        if not (place / _FILE).is_file():
            raise ValueError(f"custom loop {path!r} has no {_FILE.as_posix()}")
        return CustomLoop(_loaded(path, lambda: _of_folder(place)), prepared=False)
    if place.suffix != ".py" or not place.is_file():
        raise ValueError(
            f"custom loop {path!r} is neither a Python file nor a folder with {_FILE.as_posix()}"
        )
    loop = _loaded(path, lambda: _of_file(place, function))
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
    """By transformers' own loader, which also checks ``requirements.txt``."""
    load: Any = GenerationMixin.load_custom_generate
    loaded: Callable[..., Any] = load(None, str(folder.resolve()), trust_remote_code=True)
    return loaded


def _of_file(file: Path, function: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"bench_custom_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function, None)

"""A decoder's own code: the files that decide what it does, and the state of their repository."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

from bench.machine.env import ROOT, git_state, is_installed, repository_root, source_hash
from bench.records.environment import GitState
from decoders.core.decoder import Decoder

_CORE, _SHARED = "decoders.core.", "decoders.core.drafting"


def own_files(decoder: Decoder) -> list[Path]:
    """Return the file of a decoder's class and of what it imports from its package or folder.

    The core, which all decoders share, is left out, except its building blocks of drafting.
    """
    pending = [type(decoder).__module__]
    first = _file(sys.modules.get(pending[0]))
    files: dict[str, Path] = {}
    while first is not None and pending:
        module = sys.modules.get(name := pending.pop())
        file = _file(module)
        if module is not None and file is not None and name not in files and _near(file, first):
            files[name] = file
            pending += sorted(_imported(file.read_bytes(), module.__package__ or ""))
    return [*(files[name] for name in sorted(files)), *map(Path, decoder.sources)]


def code_hash(decoder: Decoder) -> str | None:
    """Return the SHA-256 of the contents of a decoder's own files, or None if it has none."""
    files = own_files(decoder)
    return source_hash(files) if files else None


def repository_state(decoders: Iterable[Decoder]) -> GitState | None:
    """Return the state of the git repository of decoders that are neither built in nor installed.

    None if all are, or if there is no repository; of several repositories, the first counts.
    """
    files = [
        file
        for decoder in decoders
        for file in own_files(decoder)
        if not (file.is_relative_to(ROOT) or is_installed(file))
    ]
    root = next(filter(None, (repository_root(file.parent) for file in files)), None)
    if root is None:
        return None
    return git_state(root, [file for file in files if file.is_relative_to(root)])


@functools.cache
def _imported(source: bytes, package: str) -> frozenset[str]:
    """Return the names of modules that a source may import, also inside of functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _file(module: ModuleType | None) -> Path | None:
    """Return the source file of a module, unless the module belongs to the shared core."""
    name, file = (getattr(module, key, None) for key in ("__name__", "__file__"))
    if not (isinstance(name, str) and isinstance(file, str) and file.endswith(".py")):
        return None
    return None if f"{name}.".startswith(_CORE) and not name.startswith(_SHARED) else Path(file)


def _near(file: Path, first: Path) -> bool:
    """Tell whether a file is in the outermost package, or the folder, of the first."""
    folder = first.parent
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return file.is_relative_to(folder) and is_installed(file) == is_installed(first)

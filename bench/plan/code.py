"""Handle a decoder's own code: permission to run, the files that decide, their repository.

A decoder's file runs if the command line names the file. Code that only a configuration names is
refused: a configuration is data, and may come with a stranger's run folder. Decoders that are built
in or installed need no permission.
"""

from __future__ import annotations

import ast
import functools
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.errors import UsageError
from bench.machine.env import ROOT, git_state, is_installed, repository_root, source_hash
from bench.records.environment import GitState
from bench.settings.config import RunConfig
from decoders.core.decoder import Decoder
from decoders.core.registry import import_file, innermost_place, named_code
from decoders.core.types import Law

_CORE, _SHARED = "decoders.core.", "decoders.core.drafting"


def law_file(text: str) -> str:
    """Return the file of a law ``FILE.py:NAME`` (`UsageError` for a text of another form)."""
    path, colon, name = text.rpartition(":")
    if not (colon and path.endswith(".py") and name.isidentifier()):
        raise UsageError(f"--law {text!r} is not FILE.py:NAME, e.g. grammar.py:Grammar")
    return path


def load_law(text: str, tokenizer: Any) -> Law:
    """Make the law ``FILE.py:NAME``, such as a grammar, by calling NAME with the tokenizer.

    Raises:
        UsageError: there is no such file or name, or the code fails.
    """
    file, name = Path(law_file(text)), text.rpartition(":")[2]
    try:
        make: Any = getattr(import_file(file, _law_module(text)), name)
        law: Law = make(tokenizer)
    except (Exception, SystemExit) as error:  # code of other packages may raise anything
        line = f"--law {text} fails: {type(error).__name__}: {error}"
        place = innermost_place(error, {str(file.absolute())})
        raise UsageError(f"{line} ({place})" if place else line) from error
    if not callable(law):
        raise UsageError(f"--law {text}: {name}(tokenizer) gives no function of answer and logits")
    return law


def _law_module(text: str) -> str:
    return f"bench_law_{Path(law_file(text)).stem}"


def code_paths(configs: Iterable[RunConfig]) -> list[str]:
    """Return the files and folders of code that decoders and laws name, without any import."""
    paths = list[str]()
    for config in configs:
        paths += [path for spec in config.specs for path in named_code(spec)]
        paths += [] if config.law is None else [law_file(config.law)]
    return list(dict.fromkeys(paths))


def without_code(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return a configuration without code that the user's own `values` name: the file's part."""
    named = [name for name in ("decoders", "law") if values.get(name) is not None]
    return config.with_values(**dict.fromkeys(named))


def resume_command(run_dir: Path, config: RunConfig) -> str:
    """Return the command that resumes a run, and allows the code that its configuration names."""
    return " ".join(["bench resume", shlex.quote(str(run_dir)), *_flags([config])])


def check_code(
    configs: Sequence[RunConfig], source: Path, allowed: Sequence[str], command: str | None = None
) -> None:
    """Refuse code that a file names and the command line does not, before anything is imported.

    Args:
        configs: configurations of the file.
        source: the file.
        allowed: paths that the command line names.
        command: the command to type, with ``--allow``; None: not shown.

    Raises:
        UsageError: code is not among the `allowed` paths.
    """
    named, trusted = code_paths(configs), {*map(_real, allowed)}
    if not {*map(_real, named)} <= trusted:
        then = f"add {' '.join(_flags(configs))}" if command is None else f"type: {command}"
        line = f"{source} names code, which runs only if the command line names it too"
        raise UsageError(f"{line}: read {', '.join(named)}, then {then}")


def _flags(configs: Iterable[RunConfig]) -> list[str]:
    return [f"--allow {shlex.quote(path)}" for path in code_paths(configs)]


def _real(path: str) -> str:
    return os.path.realpath(path) if path.isprintable() else path


def own_files(decoder: Decoder) -> list[Path]:
    """Return the files of a decoder's class and of its imports from the same package or folder.

    The core, which all decoders share, is left out, except the parts for drafting. The decoder's
    parts and the code that its options name count, too.
    """
    modules = dict.fromkeys(type(each).__module__ for each in (decoder, *decoder.parts))
    files = [file for name in modules for file in _module_files(name)]
    for path in map(Path, decoder.code_in({k: str(v) for k, v in vars(decoder).items()})):
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path.resolve()]
    return list(dict.fromkeys(files))


def law_files(law: str | None) -> list[Path]:
    """Return the files of a loaded law and of its imports, as for a decoder."""
    return [] if law is None else _module_files(_law_module(law))


def _module_files(name: str) -> list[Path]:
    """Return the files of a module and of what it imports from its outermost package or folder."""
    pending, first = [name], _file(sys.modules.get(name))
    if first is None:
        return []
    files: dict[str, Path] = {}
    folder = first.parent
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    while pending:
        module = sys.modules.get(name := pending.pop())
        file = _file(module)
        if module is None or file is None or name in files or not file.is_relative_to(folder):
            continue
        if is_installed(file) == is_installed(first):
            files[name] = file
            pending += sorted(_imported(file.read_bytes(), module.__package__ or ""))
    return [files[name] for name in sorted(files)]


def code_hash(decoder: Decoder, law: str | None = None) -> str | None:
    """Return the SHA-256 of the files of a decoder and a law, or None without files."""
    files = [*own_files(decoder), *law_files(law)]
    return source_hash(files) if files else None


def repository_state(decoders: Iterable[Decoder]) -> GitState | None:
    """Return the git state of the repository of decoders that are neither built in nor installed.

    None without such decoders; no commit outside a repository; of several, the first counts.
    """
    files = [
        file
        for decoder in decoders
        for file in own_files(decoder)
        if not (file.is_relative_to(ROOT) or is_installed(file))
    ]
    root = next(filter(None, (repository_root(file.parent) for file in files)), None)
    if root is None:
        return GitState() if files else None
    return git_state(root, [file for file in files if file.is_relative_to(root)])


@functools.cache
def _imported(source: bytes, package: str) -> frozenset[str]:
    """Return the names of modules that a source may import, also inside functions."""
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

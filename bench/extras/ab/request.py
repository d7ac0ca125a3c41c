"""The request of `bench ab`: the values of a configuration that were set, equal for both sides.

Unset values are left to each side's defaults: an older side knows fewer keys, and a changed default
is a change to judge, unless it makes the sides answer different questions. The path of a decoder's
file in this checkout is relative, so that each side runs its own; any other path is absolute.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError, UsageError
from bench.extras.ab.checkout import Tree
from bench.plan.sources import is_shelf, named
from bench.records.plan import BASELINE
from bench.settings.config import Options, RunConfig
from decoders.core.hf.checkpoint import is_local
from decoders.core.registry import parse_spec
from decoders.core.types import DecoderSpec

Note = Callable[[str], object]

_ANSWERED = (
    *("temperature", "top_p", "top_k", "seed"),
    *("max_new_tokens", "fixed_length", "batch_size"),
)
"""Settings that decide how head answers, regardless of base's plan."""
_PLANNED = ("tasks", "columns", "split", "limit", "quality_limit", "repeats", "overlong")
"""Settings that decide the plan; both sides use base's plan."""


def make_request(config: RunConfig, repository: Path, note: Note) -> dict[str, Any]:
    """Return the values that a configuration sets, in a form that both sides understand.

    Decoders' files in `repository` are relative to its root.

    Raises:
        BenchError: two decoders are the same file (exit 2).
    """
    values = config.model_dump(exclude_unset=True, exclude_none=True)
    understood: dict[str, Callable[[Any], Any]] = {
        "model": _checkpoint,
        "draft": _checkpoint,
        "adapters": lambda paths: {
            name: path if is_shelf(path) else _absolute(path) for name, path in paths.items()
        },
        "tasks": _tasks,
        "decoders": lambda cells: _decoders(cells, repository, note),
    }
    return {k: understood[k](v) if k in understood else v for k, v in values.items()}


def side_request(config: Mapping[str, Any], tree: Tree, trees: Sequence[Tree]) -> dict[str, Any]:
    """Return a request without the decoders whose file only another side has: they are new."""
    kept = {
        cell: options
        for cell, options in config.get("decoders", {}).items()
        if _has(tree, cell) or not any(_has(other, cell) for other in trees)
    }
    return {**config, "decoders": kept or {BASELINE: {}}} if "decoders" in config else dict(config)


def _has(tree: Tree, cell: str) -> bool:
    path, is_file, _ = parse_spec(cell).name.rpartition(":")
    return not is_file or (tree.folder / path).is_file()


def check_defaults(base: str, head: str, note: Note) -> None:
    """Refuse (exit 5) two TOML configurations whose defaults make head answer differently.

    `note` receives a line for each default of head that base's plan overrides.
    """
    values, new = tomllib.loads(base), tomllib.loads(head)
    for key in (*_ANSWERED, *_PLANNED):
        if key not in values or key not in new or values[key] == new[key]:
            continue
        line = f"the default of {key} is {values[key]} in base and {new[key]} in head"
        if key in _ANSWERED:
            raise UnavailableError(f"{line}; set it, here or in --config")
        note(f"{line}: base plans for both")


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _checkpoint(name: str) -> str:
    """Make a folder's path absolute, but keep hub ids and the names of embedded models."""
    is_folder = not is_shelf(name) and named(name) is None and is_local(name)
    return _absolute(name) if is_folder else name


def _tasks(text: str) -> str:
    source, _, value = text.strip().partition("=")
    local = source in ("jsonl", "specbench") or Path(value).expanduser().exists()
    return f"{source}={_absolute(value)}" if value and local else text


def _decoders(cells: Mapping[str, Options], root: Path, note: Note) -> dict[str, Options]:
    decoders = {_cell(cell, root, note): options for cell, options in cells.items()}
    if len(decoders) < len(cells):
        raise UsageError(f"two of {', '.join(cells)} are the same; give one a label")
    return decoders


def _cell(cell: str, root: Path, note: Note) -> str:
    spec = parse_spec(cell)
    path, is_file, class_name = spec.name.rpartition(":")
    if not is_file:
        return cell
    file = Path(path).resolve()
    if file.is_relative_to(root):
        path = file.relative_to(root).as_posix()
    else:
        path = str(file)
        note(f"{file} lies outside of {root.name}: both sides run the same file")
    return DecoderSpec(name=f"{path}:{class_name}", label=spec.label).cell

"""What `bench ab` asks of both sides: the values that somebody set, which mean the same to each.

What nobody set is left to each side's defaults: an older side knows fewer keys, and a changed
default is a change to judge, unless the sides would then answer different questions.

Each side works in the folder of its checkout. A decoder's file that lies in this checkout is named
relative to it, so that each side runs its own; any other path is absolute, one file for both.
No torch here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError, UsageError
from bench.machine.env import ROOT
from bench.plan.adapters import is_shelf
from bench.plan.named_models import named
from bench.settings.config import Options, RunConfig
from decoders.core.hf.checkpoint import is_local
from decoders.core.registry import parse_spec
from decoders.core.types import DecoderSpec

Note = Callable[[str], object]

_ANSWERED = (
    *("temperature", "top_p", "top_k", "seed"),
    *("max_new_tokens", "fixed_length", "batch_size"),
)
"""What decides how head answers, whatever base planned."""
_PLANNED = ("tasks", "columns", "limit", "quality_limit", "repeats", "overlong")
"""What decides the plan, which is base's for both."""


def request_of(config: RunConfig, note: Note) -> dict[str, Any]:
    """The values of a configuration that were set, as both sides understand them.

    Raises:
        BenchError: exit 2 where one file is named twice.
    """
    values = config.model_dump(exclude_unset=True, exclude_none=True)
    for key in ("model", "draft"):
        if key in values:
            values[key] = _checkpoint(values[key])
    if "adapters" in values:
        given: Mapping[str, str] = values["adapters"]
        values["adapters"] = {
            name: source if is_shelf(source) else _absolute(source)
            for name, source in given.items()
        }
    if "tasks" in values:
        values["tasks"] = _tasks(values["tasks"])
    if "decoders" in values:
        values["decoders"] = _decoders(values["decoders"], note)
    return values


def check_asked(base: str, head: str, note: Note) -> None:
    """See that both sides, each with its own defaults, are to do the same.

    Args:
        base: its resolved configuration, as TOML.
        head: likewise.
        note: told of defaults of head that base's plan overrules.

    Raises:
        BenchError: exit 5 where head would answer under another distribution.
    """
    ours, theirs = tomllib.loads(base), tomllib.loads(head)
    for key in (*_ANSWERED, *_PLANNED):
        if key not in ours or key not in theirs or ours[key] == theirs[key]:
            continue
        line = f"the default of {key} is {ours[key]} in base and {theirs[key]} in head"
        if key in _ANSWERED:
            raise UnavailableError(f"{line}; set it, here or in --config")
        note(f"{line}: base plans for both")


# ---------------------------------------------------------------- paths


def _absolute(given: str) -> str:
    return str(Path(given).expanduser().absolute())


def _checkpoint(given: str) -> str:
    """A folder as an absolute path; what is embedded, each side's own, and a hub id as they are."""
    here = not is_shelf(given) and named(given) is None and is_local(given)
    return _absolute(given) if here else given


def _tasks(given: str) -> str:
    source, _, value = given.strip().partition("=")
    local = source in ("jsonl", "specbench") or Path(value).expanduser().exists()
    return f"{source}={_absolute(value)}" if value and local else given


def _decoders(given: Mapping[str, Options], note: Note) -> dict[str, Options]:
    cells = {_cell(cell, note): options for cell, options in given.items()}
    if len(cells) < len(given):
        raise UsageError(f"two of {', '.join(given)} are one; give one a label")
    return cells


def _cell(cell: str, note: Note) -> str:
    """The name of a decoder with its file, where it has one, relative to a side or absolute."""
    spec = parse_spec(cell)
    path, is_file, class_name = spec.name.rpartition(":")
    if not is_file:
        return cell
    file = Path(path).resolve()
    if file.is_relative_to(ROOT):
        place = file.relative_to(ROOT).as_posix()
    else:
        place = str(file)
        note(f"{file} lies outside of this checkout: both sides run the same file")
    return DecoderSpec(name=f"{place}:{class_name}", label=spec.label).cell

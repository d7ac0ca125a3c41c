"""Declare the option of a configuration's field, and parse values from texts.

The options of `WorkerConfig` decide where blocks are measured, not which blocks. They are not part
of `RunConfig`, so a run may be resumed with another executor.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from bench.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

PANELS = (
    *("What is compared", "How much is measured", "Sampling", "Precision and devices"),
    "Plan, progress and results",
)
"""Headings of `bench run --help`, in order."""
Kind = Literal["local", "ray", "submitit"]
"""Values of ``--executor``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Describe the option that sets a field, with the field's name unless `name` is set.

    The help lists the option under the heading `panel`, in the order of the fields; None: only a
    file sets the field. `parse` makes a field's value of an option that may be repeated.
    """

    help: str
    short: str = ""
    panel: str | None = None
    name: str = ""
    parse: Callable[[Sequence[str] | None], Any] | None = None


def setting(default: Any, help: str, short: str = "", **more: Any) -> Any:
    """Declare a field by its default and its `Setting`.

    Args:
        default: the field's default, which the help states if it is a number or a text.
        help: the option's help, with a ``[default: …]`` of its own where that says more.
        short: the option's short name, e.g. ``-d``; empty: none.
        more: further attributes of the `Setting`.
    """
    from pydantic import Field

    if isinstance(default, str | int | float) and not isinstance(default, bool):
        shown = default if isinstance(default, str) else f"{default:g}"
        help = help if "[default: " in help else f"{help} [default: {shown}]"
    about: Any = {"setting": Setting(help=help, short=short, **more)}
    return Field(default, json_schema_extra=about)


def field_settings(config: type[BaseModel]) -> dict[str, Setting]:
    """Return the settings of a configuration's fields."""
    fields: dict[str, Any] = dict(config.model_fields)
    return {name: field.json_schema_extra["setting"] for name, field in fields.items()}


def flag(name: str, setting: Setting) -> str:
    """Return the long name of a field's option, e.g. ``--top-p``."""
    return f"--{setting.name or name.replace('_', '-')}"


def option_type(annotation: Any) -> type:
    """Return the type of an option's text: bool, int or float, else str."""
    if annotation in (bool, int, float):
        return annotation  # type: ignore[no-any-return]
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return type(inner[0])
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return option_type(inner[0])
    return str


def parse_pairs(
    texts: Sequence[str] | None, option: str = "--adapter", form: str = "NAME=PATH"
) -> dict[str, str] | None:
    """Parse the texts of a repeatable option into a table (`UsageError`)."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not (name and value) or " " in name:
            raise UsageError(f"{option} {text!r} is not {form}")
        if name in pairs:
            raise UsageError(f"{option} names {name!r} twice; give one another name")
        pairs[name] = value
    return pairs or None


parse_models = partial(parse_pairs, option="--models")


def parse_arguments(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse ``NAME=VALUE`` texts (TOML values, or else text) into a table (`UsageError`)."""
    arguments: dict[str, Any] = parse_pairs(texts, "--template-args", "NAME=VALUE") or {}
    for name, value in arguments.items():
        with suppress(tomllib.TOMLDecodeError):
            arguments[name] = tomllib.loads(f"x = {value}")["x"]
    return arguments or None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Hold the number of workers, the executor that starts them, and the executor's options.

    Ray takes ``address`` and an actor's options; submitit takes ``folder``, ``cluster`` and the
    options of its ``update_parameters``.
    """

    kind: Kind = "local"
    workers: int = 1
    options: Mapping[str, str] = field(default_factory=dict)


ALONE = WorkerConfig()
"""The run's own process does all measurements."""


def parse_workers(kind: Kind, workers: int, options: Sequence[str] | None) -> WorkerConfig:
    """Parse the command line's values, with ``KEY=VALUE`` texts as `options` (`UsageError`)."""
    if workers < 1:
        raise UsageError(f"--workers {workers} is not allowed; use 1 or more")
    table = parse_pairs(options, "--executor-option", "KEY=VALUE") or {}
    if kind == "local" and table:
        raise UsageError(f"--executor local takes no options, but got {', '.join(table)}")
    return WorkerConfig(kind=kind, workers=workers, options=table)

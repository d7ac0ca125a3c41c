"""Interpret a decoder's label: ``idlm@isd`` is the variant that the tables show.

A label is a name for a row of the tables and sets no option, except for two kinds of labels: a
label of `Decoder.showcase` and a value of the option `mode` choose that variant. Any other label
that reads as an option, a value or another decoder is refused if the options do not agree with the
label: the defaults would run under a wrong name.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping

from bench.errors import UsageError, as_error
from bench.settings.config import Numerics
from decoders.core import registry
from decoders.core.decoder import Decoder
from decoders.core.types import DecoderSpec

Note = Callable[[str], None]


def options_by_label(cell: str, options: Mapping[str, str], note: Note) -> Mapping[str, str]:
    """Return a cell's options, with the options that its label implies (`UsageError`)."""
    spec = registry.parse_spec(cell)
    label = spec.label
    if label is None:
        _note_showcased(spec.name, options, note)
        return options
    with as_error(UsageError, (ValueError, ImportError)):
        cls = registry.resolve(DecoderSpec(name=spec.name))
    modes = typing.get_args(typing.get_type_hints(cls).get("mode"))
    if meaning := ({mode: {"mode": mode} for mode in modes} | dict(cls.showcase)).get(label):
        mode = options.get("mode")
        if mode is None:
            note(f"{cell} is {written(spec.name, {**meaning, **options})}")
            return {**meaning, **options}
        if mode != meaning.get("mode", mode):
            line = f"{cell}:mode={mode} has the name of mode={meaning['mode']}"
            raise UsageError(f"{line}; choose another label")
        if any(options.get(key) != value for key, value in meaning.items()):
            row = written(spec.name, meaning)
            note(f"{written(cell, options)} is not the {cell} of the tables, {row}")
        return options
    if "=" in label or (not options and _reads_as_setting(cls, label)):
        line = f"{cell}: a label sets no option, and {label!r} reads as a setting or a decoder"
        raise UsageError(f"{line}; write {spec.name}@LABEL:option=value, or choose another label")
    return options


def written(name: str, options: Mapping[str, str]) -> str:
    """Return a decoder with options as typed on the command line."""
    return ":".join([name, *(f"{key}={value}" for key, value in options.items())])


def _reads_as_setting(cls: type[Decoder], label: str) -> bool:
    """Return whether a label reads as an option, a value of an option, or a decoder."""
    hints = typing.get_type_hints(cls) | {"numerics": Numerics}
    kinds = {key: hints[key] for key in (*(f.name for f in dataclasses.fields(cls)), "numerics")}
    values = {value for kind in kinds.values() for value in typing.get_args(kind)}
    numeric = [key for key, kind in kinds.items() if {kind, *typing.get_args(kind)} & {int, float}]
    stem = label.rstrip("0123456789._")
    return (
        label in values
        or label.removeprefix("no") in kinds
        or label in registry.names()
        or (bool(stem) and stem != label and any(key.startswith(stem) for key in numeric))
    )


def _note_showcased(name: str, options: Mapping[str, str], note: Note) -> None:
    """Note that the tables' row of the same decoder has other options."""
    if options or name not in registry.built_in():
        return
    for other in registry.resolve(DecoderSpec(name=name)).modes.values():
        cls = registry.resolve(DecoderSpec(name=other))
        for label, meaning in cls.showcase.items():
            rest = {key: value for key, value in meaning.items() if key != "mode"}
            if cls.modes.get(meaning.get("mode", "")) == name and rest:
                default = registry.build(DecoderSpec(name=name))
                now = {key: str(getattr(default, key)) for key in rest}
                row = f"the tables' row {other}@{label} is {written(name, rest)}"
                note(f"{written(name, now)}; {row}")

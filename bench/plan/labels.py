"""Interpret a decoder's label: ``idlm@isd`` is the variant that the tables show.

A label is a name for a row of the tables and sets no option, except for two kinds of labels: a
label of `Decoder.showcase` and a value of the option `mode` choose that variant. Any other label
that reads as an option, a value or another decoder is refused if the options do not agree with the
label: the defaults would run under a wrong name.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Mapping

from bench.errors import UsageError, as_error
from bench.settings.config import Numerics
from decoders.core import registry
from decoders.core.decoder import Decoder
from decoders.core.types import DecoderSpec

Note = Callable[[str], None]
_NUMBERED = re.compile(r"([a-z_]+?)_?(\d+(?:\.\d+)?)")


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
    if "=" in label:
        raise UsageError(
            f"{cell!r} has an option for a label; write {spec.name}:{label}, or "
            f"{spec.name}@LABEL:{label}"
        )
    if not options and (reading := next(_suggested_meanings(cls, spec.name, label), None)):
        raise UsageError(f"{cell}: a label sets no option, and this one reads as {reading}")
    return options


def written(name: str, options: Mapping[str, str]) -> str:
    """Return a decoder with options as typed on the command line."""
    return ":".join([name, *(f"{key}={value}" for key, value in options.items())])


def _suggested_meanings(cls: type[Decoder], name: str, label: str) -> Iterator[str]:
    """Yield the meanings that a label suggests, each with the text to type instead."""
    cell = f"{name}@{label}"
    hints = typing.get_type_hints(cls)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    kinds["numerics"] = Numerics
    for key, kind in kinds.items():
        if label in typing.get_args(kind):
            yield f"{key}={label}; write {cell}:{key}={label}"
        elif label in (key, f"no{key}") and kind is bool:
            yield f"the option {key}; write {cell}:{key}={'false' if label != key else 'true'}"
        elif label == key:
            yield f"the option {key}; write {cell}:{key}=…"
    if parts := _NUMBERED.fullmatch(label):
        exact = [key for key in kinds if key == parts[1]]
        near = exact or [key for key in kinds if key.startswith(parts[1])]
        if near and {kinds[near[0]], *typing.get_args(kinds[near[0]])} & {int, float}:
            yield f"{near[0]}={parts[2]}; write {cell}:{near[0]}={parts[2]}"
    if label != name and label in registry.names():
        yield f"the decoder {label}; write {name},{label} for both, or choose another label"


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

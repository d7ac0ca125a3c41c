"""Find a decoder's class by name when needed: built-in file, entry point, or ``path.py:Class``."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
import typing
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, TypeGuard, TypeVar, Union
from zlib import crc32

from decoders.core.decoder import Decoder
from decoders.core.nearest import nearest
from decoders.core.plugins import import_plugin
from decoders.core.types import DecoderSpec

ENTRY_POINT_GROUP = "bench.decoders"
_MAX_INTEGER = 1_000_000_000
"""Largest number of an option. A larger number is a mistake and would never finish."""
_NEEDS = r"draft|adapter|network|model:[\w.-]+"
_FOLDER = Path(__file__).resolve().parent.parent
D = TypeVar("D", bound=type[Decoder])


def register(name: str) -> Callable[[D], D]:
    """Set a decoder's name, which in a file `name.py` must be `name`."""

    def give_name(cls: D) -> D:
        cls.name = name
        return cls

    return give_name


def names() -> tuple[str, ...]:
    """Return the names of built-in decoders and of decoders in installed packages."""
    built_ins = built_in()
    return (*built_ins, *sorted(point.name for point in _plugins() if point.name not in built_ins))


def built_in() -> tuple[str, ...]:
    """Return the names of built-in decoders, including those of `decoders.extras`."""
    return tuple(sorted(_modules()))


def _modules() -> dict[str, str]:
    """Return the module of each built-in decoder by name, importing none."""
    files = [*_FOLDER.glob("[!_]*.py"), *(_FOLDER / "extras").glob("[!_]*.py")]
    places = (file.relative_to(_FOLDER.parent).with_suffix("") for file in files)
    return {place.stem: ".".join(place.parts) for place in places}


def package(name: str) -> str | None:
    """Return the name and version of the installed package that has a decoder, or None."""
    points = () if name in built_in() else _plugins()
    dist = next((point.dist for point in points if point.name == name), None)
    return None if dist is None else f"{dist.name} {dist.version}"


def parse_specs(text: str) -> tuple[DecoderSpec, ...]:
    """Parse comma-separated specs, e.g. ``ar,spec@k4:k=4``, or raise `ValueError`."""
    return tuple(parse_spec(part) for part in text.split(",") if part.strip())


def parse_spec(text: str) -> DecoderSpec:
    """Parse ``NAME[@LABEL][:option=value]…`` or ``path.py:Class[…]…``."""
    if not text.isprintable():
        raise ValueError(f"{text!r} is not a decoder: it has control characters")
    parts = text.strip().split(":")
    head = parts.pop(0)
    if head.endswith(".py"):
        if not parts or "=" in parts[0]:
            raise ValueError(f"{text!r} names a file without a class; write {head}:ClassName")
        head = f"{head}:{parts.pop(0)}"
    name, _, label = head.partition("@")
    if not name or ("@" in head and not label):
        raise ValueError(f"{text!r} is not a decoder; write NAME[@LABEL][:option=value]…")
    options = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not (key and equals):
            raise ValueError(f"{part!r} in {text!r} is not an option; write option=value")
        if key in options:
            raise ValueError(f"{text!r} gives option {key!r} twice; leave one of them out")
        options[key] = value
    return DecoderSpec(name=name, label=label or None, options=options)


def resolve(spec: DecoderSpec) -> type[Decoder]:
    """Return the class that a spec names, or raise `ValueError` with the nearest name."""
    path, colon, class_name = spec.name.rpartition(":")
    if colon:
        file = Path(path)
        if not file.is_file():
            raise ValueError(f"decoder file {str(file)!r} does not exist; give path.py:Class")
        try:
            module = import_file(file, _module_name(file.resolve()))
        except (Exception, SystemExit) as error:  # foreign code may raise anything
            line = f"decoder file {str(file)!r} cannot be imported: {type(error).__name__}: {error}"
            place = innermost_place(error, {str(file.absolute())})
            line = f"{line} ({place})" if place else line
            if "inherit non-frozen dataclass" in line:
                line += "; write @dataclass(frozen=True, kw_only=True)"
            raise ValueError(line) from error
        return _decoder_class(module, class_name, path)
    if (place := _modules().get(spec.name)) is not None:
        for value in vars(importlib.import_module(place)).values():
            if isinstance(value, type) and issubclass(value, Decoder) and value.name == spec.name:
                return value
        raise ValueError(f"{place} registers no decoder named {spec.name!r}")
    for point in _plugins():
        if point.name == spec.name:
            return _decoder_class(import_plugin(point, "decoder"), point.attr, point.module)
    available = names()
    raise ValueError(
        f"unknown decoder {spec.name!r}; {nearest(spec.name, available)}"
        f"available: {', '.join(available)}, or path.py:Class"
    )


def build(spec: DecoderSpec) -> Decoder:
    """Make the decoder of a spec, converting option texts to the types of the fields."""
    cls = resolve(spec)
    if other := cls.modes.get(spec.options.get("mode", "")):
        cls = resolve(DecoderSpec(name=other))
    _check_class(cls)
    try:
        kinds = typing.get_type_hints(cls)
    except Exception as error:  # a quoted type is code of the file, as any is there
        line = f"class {cls.__name__}: a field's type cannot be read: {error}; import its names"
        raise ValueError(f"{line} outside `if TYPE_CHECKING`") from error
    allowed = [field.name for field in dataclasses.fields(cls)]
    options = {}
    for key, text in spec.options.items():
        if key not in allowed:
            raise ValueError(
                f"unknown option {key!r} of decoder {spec.name!r}; {nearest(key, allowed)}"
                f"allowed: {', '.join(allowed) or 'none'}"
            )
        options[key] = _convert(text, kinds[key], f"option {key!r} of decoder {spec.name!r}")
    try:
        decoder = cls(**options)
    except TypeError as error:
        hint = "; give its field a default" if "required" in str(error) else ""
        raise ValueError(f"decoder {spec.name!r} cannot be made: {error}{hint}") from error
    for key in allowed:  # values of other types cannot be stored and read again
        if not isinstance(value := getattr(decoder, key, None), str | int | float | None):
            kind = f"is a {type(value).__name__}; allowed: bool, int, float, str (also for a path)"
            raise ValueError(f"option {key!r} of decoder {spec.name!r} {kind}")
    _check_needs(decoder, spec.name)
    return decoder


def _check_class(cls: type[Decoder]) -> None:
    """Refuse a class that makes no answers, or whose options only look like fields.

    A class that only inherits its fields needs no decorator of its own.
    """
    annotations = inspect.get_annotations(cls)
    fields = [name for name, kind in annotations.items() if "ClassVar" not in str(kind)]
    inherited = {field.name for field in dataclasses.fields(cls)} - {*fields}
    fields += [name for name in vars(cls) if name in inherited]
    if "__dataclass_fields__" in vars(cls):
        fields = [name for name in fields if name in inherited]
    if fields:
        raise ValueError(
            f"class {cls.__name__}: {fields[0]!r} is no option, because the class lacks "
            f"@dataclass(frozen=True, kw_only=True), or {fields[0]!r} lacks its type; write both"
        )
    names = [name for name in ("answer", "drafter", "steps") if hasattr(cls, name)]
    modules = [getattr(getattr(cls, name), "__module__", "") for name in names]
    if all(module.startswith("decoders.core.") for module in modules):
        raise ValueError(f"class {cls.__name__} makes no answers; it must define {names[0]!r}")


def _check_needs(decoder: Decoder, name: str) -> None:
    """Refuse needs that the runner does not know, because it would open no model for them."""
    needs: object = decoder.needs
    if not isinstance(needs, tuple) or not all(re.fullmatch(_NEEDS, str(each)) for each in needs):
        raise ValueError(
            f"decoder {name!r} needs {needs!r}; allowed: a tuple of draft, adapter, network, "
            'model:NAME, such as needs = ("draft",)'
        )
    remembers: object = decoder.remembers
    if remembers not in (None, "answers"):
        raise ValueError(f'decoder {name!r} remembers {remembers!r}; allowed: "answers", or None')
    named = type(decoder).adapter_name is Decoder.adapter_name  # by the option `adapter`
    if named and "network" in needs and not decoder.variants:
        raise ValueError(f'decoder {name!r} needs a network; name it as in variants = ("mtp",)')
    if named and "adapter" in needs and "adapter" not in vars(decoder):
        raise ValueError(
            f"decoder {name!r} needs an adapter but has no option that names it; "
            f'add `adapter: str = "{decoder.name}"`'
        )


def named_code(spec: DecoderSpec) -> tuple[str, ...]:
    """Return the paths of code that a spec names, importing nothing but installed packages."""
    path, is_file, _ = spec.name.rpartition(":")
    if is_file:
        return (path,)
    try:
        return resolve(spec).code_in(spec.options)
    except (ValueError, ImportError):  # `build` explains what is wrong
        return ()


def _convert(text: str, kind: Any, subject: str) -> Any:
    is_union = typing.get_origin(kind) in (Union, UnionType)  # as a number or one of some words
    kinds = [k for k in (typing.get_args(kind) if is_union else (kind,)) if k is not NoneType]
    literals = [each for each in kinds if typing.get_origin(each) is Literal]
    words = {str(word): word for each in literals for word in typing.get_args(each)}
    truth = {"true": True, "false": False} if bool in kinds else {}
    both, word = truth | words, text.lower() if truth and text not in words else text
    if word in both:
        return both[word]
    for to_number in (numbers := [each for each in (int, float) if each in kinds]):
        try:
            number = to_number(text)
        except ValueError:
            continue
        if not abs(number) <= _MAX_INTEGER:  # also refuses NaN
            raise ValueError(f"{subject} is {text!r}; it must be a number up to {_MAX_INTEGER:,}")
        return number
    if str in kinds or not (both or numbers):
        return text
    if numbers:
        allowed = " or ".join((f"of type {numbers[-1].__name__}", *both))
        raise ValueError(f"{subject} is {text!r}; it must be {allowed}")
    allowed = f"{nearest(text, both)}allowed: {', '.join(both)}"
    allowed += f"; {text!r} is a decoder of its own" * (text in names())
    raise ValueError(f"{subject} is {text!r}; {allowed}")


def _plugins() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def import_file(path: Path, name: str) -> ModuleType:
    """Import a Python file under a name, and let any exception of the file pass."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def innermost_place(error: BaseException, files: Collection[str]) -> str | None:
    """Return ``FILE.py:LINE`` of the innermost frame of an error in one of `files`, or None."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if frame.f_code.co_filename in files:
            return f"{Path(frame.f_code.co_filename).name}:{line}"
    return None


def _module_name(path: Path) -> str:
    """Return the name of a file's module, after importing the package that contains it."""
    alone, outer = f"bench_decoder_{path.stem}_{crc32(os.fsencode(path)):x}", path.parent
    while (outer / "__init__.py").is_file():
        outer = outer.parent
    package = ".".join(path.parent.relative_to(outer).parts)
    if not package or path.parent.is_relative_to(_FOLDER):
        return alone
    sys.path.insert(0, str(outer))
    try:
        module = importlib.import_module(package)
    finally:
        sys.path.remove(str(outer))
    return f"{package}.{path.stem}" if str(path.parent) in module.__path__ else alone


def _decoder_class(module: ModuleType, class_name: str, origin: str) -> type[Decoder]:
    def decodes(value: object) -> TypeGuard[type[Decoder]]:
        is_class = isinstance(value, type) and issubclass(value, Decoder)
        return is_class and not value.__module__.startswith("decoders.core.")  # a base class

    cls = getattr(module, class_name, None)
    if decodes(cls):
        return cls
    names = [name for name, value in vars(module).items() if decodes(value)]
    raise ValueError(
        f"{origin} has no decoder class {class_name!r}; {nearest(class_name, names)}"
        f"it has: {', '.join(names) or 'none'}"
    )

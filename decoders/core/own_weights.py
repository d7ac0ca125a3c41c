"""Find weights that a decoder holds besides the models and adapters that are opened for it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any

from torch import Tensor, nn

from decoders.core.decoder import Decoder
from decoders.core.model import Model

_CONTAINERS = (Mapping, list, tuple, set, frozenset, CellType)


def own_storages(decoder: Decoder) -> dict[int, Tensor]:
    """Return one tensor for each storage that a decoder holds, by the storage's address.

    Fields, attributes, class attributes, globals of the class's file, caches of its functions and
    `Decoder.own_weights` are searched, in containers, modules and objects of that file.
    """
    storages: dict[int, Tensor] = {}
    for part in {id(each): each for each in (decoder, *decoder.parts)}.values():
        places: list[Any] = [vars(part), [*part.own_weights()]]
        for kind in type(part).__mro__:
            if not kind.__module__.startswith("decoders.core.") and kind is not object:
                places += [{**vars(kind)}, {**vars(sys.modules[kind.__module__])}]
        for tensor in _tensors(places, type(part).__module__, set()):
            storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
    return storages


def weight_storages(model: Model) -> set[int]:
    """Return the addresses of the storages of a model's weights."""
    module = getattr(model, "module", None)
    return {each.untyped_storage().data_ptr() for each in _module_tensors(module)}


def _module_tensors(module: Any) -> Iterable[Tensor]:
    return (*module.parameters(), *module.buffers()) if isinstance(module, nn.Module) else ()


def _tensors(thing: Any, file: str, seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors that are reachable from an object through objects of the module `file`."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    kind = type(thing)
    parts: Sequence[Any] = ()
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, nn.Module | Model):
        is_model = isinstance(thing, Model)
        yield from _module_tensors(getattr(thing, "module", None) if is_model else thing)
    elif isinstance(thing, FunctionType):
        parts = thing.__closure__ or ()
    elif isinstance(thing, dict):  # from Python 3.13 on, gc leaves out an object's attributes
        parts = [*dict.values(thing), *gc.get_referents(thing)]
    elif isinstance(thing, _CONTAINERS):
        parts = gc.get_referents(thing)
    elif kind.__module__ == "functools":  # a cache of this file's function, or a partial function
        is_local = getattr(thing, "__module__", None) in (file, "functools")
        parts = gc.get_referents(thing) if is_local else ()
    elif kind.__module__ == file and not isinstance(thing, type):
        parts = [getattr(thing, "__dict__", {})]
    for part in parts:
        yield from _tensors(part, file, seen)

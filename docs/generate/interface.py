"""Tables of a decoder's interface, from the docstrings of its classes."""

from __future__ import annotations

from decoders.core.adapter.module import HiddenAdapter, TargetParts
from decoders.core.model import Session
from decoders.core.types import Emit, Slots
from docs.generate.decoder_pages import described
from docs.generate.tables import code, table


def _fields(documented: object, heading: str) -> str:
    """Return a table of what a docstring says of arguments or attributes."""
    said = described(documented.__doc__ or "")
    rows = [(code(name), text.replace("``", "`").rstrip(".")) for name, text in said.items()]
    return table((heading, "meaning"), rows)


def call_arguments() -> str:
    """Return the arguments of a call."""
    return _fields(Session.call, "argument of a call")


def slot_fields() -> str:
    """Return the fields of the slots of a call."""
    return _fields(Slots, "field of `Slots`")


def emit_fields() -> str:
    """Return the fields of an emit."""
    return _fields(Emit, "field of an emit")


def network_attributes() -> str:
    """Return the attributes of a drafter's network."""
    return _fields(HiddenAdapter, "attribute of a network")


def target_parts() -> str:
    """Return the parts of a target that a network is built from."""
    return _fields(TargetParts, "`target` of `build`")

"""Tables of a decoder's interface, from the docstrings of its classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial

from decoders.core.adapter.module import HiddenAdapter, TargetParts
from decoders.core.decoder import Decoder
from decoders.core.drafting.verification import Rule
from decoders.core.model import Session
from decoders.core.types import CallResult, Emit, Slots
from docs.generate.decoder_pages import described
from docs.generate.tables import code, table


def _fields(documented: object, heading: str) -> str:
    """Return a table of what a docstring says of arguments or attributes."""
    said = described(documented.__doc__ or "")
    rows = [(code(name), text.replace("``", "`").rstrip(".")) for name, text in said.items()]
    return table((heading, "meaning"), rows)


def result_forms() -> str:
    """Return the forms of a call's result, from the list in its docstring."""
    listed = re.findall(r"^\* (.+?)[;.]$", inspect.cleandoc(CallResult.__doc__ or ""), re.M | re.S)
    forms = [form for item in listed for form in item.split(", and topk")]
    forms = [form if form[0] != ":" else f"topk{form}" for form in forms]
    rows = [form.replace("``", "`").split(": ", 1) for form in forms]
    return table(("`output`", "what the result has"), [(code(name), said) for name, said in rows])


def _members(documented: type, heading: str, names: tuple[str, ...]) -> str:
    """Return a table of members, from the class's list of attributes or their own docstrings."""
    said = described(documented.__doc__ or "")
    texts = [said.get(name) or inspect.getdoc(getattr(documented, name)) or "" for name in names]
    rows = [
        (
            code(name),
            " ".join(f"{text[:1].lower()}{text[1:]}".replace("``", "`").split()).rstrip("."),
        )
        for name, text in zip(names, texts, strict=True)
    ]
    return table((heading, "meaning"), rows)


_RULE = ("lossless", "coupled", "draws", "output", "decide", "fresh", "acceptance_rule")
"""What a verification rule declares and defines."""
_CLAIMS = (
    *("lossless", "coupled", "drafts", "needs", "variants", "adapter_of", "remembers"),
    *("sequences", "target_kind", "showcase", "by_default", "check_models", "own_weights"),
)
"""What a decoder's class declares."""
PARTS: dict[str, Callable[[], str]] = {
    "interface-call": partial(_fields, Session.call, "argument of a call"),
    "interface-results": result_forms,
    "interface-rule": partial(_members, Rule, "a `Rule`", _RULE),
    "interface-claims": partial(_members, Decoder, "of a `Decoder`", _CLAIMS),
    "interface-slots": partial(_fields, Slots, "field of `Slots`"),
    "interface-emit": partial(_fields, Emit, "field of an emit"),
    "interface-network": partial(_fields, HiddenAdapter, "attribute of a network"),
    "interface-target": partial(_fields, TargetParts, "`target` of `build`"),
}
"""Parts of the page of the interface, by name."""

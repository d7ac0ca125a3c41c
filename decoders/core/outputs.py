"""What a call may ask of its rows: forms of output, barred ids, states of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PICKING, _VERIFYING = ("picks", "argmax", "draws", "probs"), ("acceptance", "block")
_SLOT_FORMS = (*_PICKING, "entropy")
_FORMS = ("picks", "argmax", "probs", "logits", *_VERIFYING, "entropy")


def forms(output: str | Sequence[str]) -> tuple[str, ...]:
    """Return the forms of an output, each once."""
    return (output,) if isinstance(output, str) else tuple(dict.fromkeys(output))


def demand_readable(call: Any, vocab_size: int) -> None:
    """Raise `ValueError` if a call's rows cannot be read as it asks; it says what to change."""
    outputs, num_drafts = forms(call.output), len(call.drafts)
    _demand_forms(outputs, _FORMS)
    for rows in (call,) if call.slots is None else (call, call.slots):
        _demand_forms(forms(rows.output), _FORMS if rows is call else _SLOT_FORMS)
        barred = sorted(rows.barred)
        if barred and not (0 <= barred[0] <= barred[-1] < vocab_size > len(barred)):
            raise ValueError(f"barred is {barred!s:.60}; bar ids below {vocab_size}, but not all")
    if not {*_VERIFYING}.isdisjoint(outputs) and len(call.read) != num_drafts + 1:
        raise ValueError(
            f"{len(call.read)} rows are read to verify {num_drafts} drafts; read {num_drafts + 1}: "
            "the row before the first draft, and the row of every draft"
        )
    if call.slots is not None and call.slots.vectors is not None:
        shape, num_slots = list(call.slots.vectors.shape), len(call.slots.uniforms)
        if len(shape) != 2 or shape[0] != num_slots:
            raise ValueError(f"vectors are {shape}; give [{num_slots}, width], one for each slot")
    if call.hidden_layers and not call.hidden:
        advice = "give hidden=True or rows (a drafter: hidden above 0)"
        raise ValueError(f"hidden_layers is {call.hidden_layers}, but no row is read; {advice}")


def _demand_forms(outputs: Sequence[str], allowed: Sequence[str]) -> None:
    for form in outputs or ("",):
        name, _, number = form.partition(":")
        if form not in allowed and not (name == "topk" and number.isdecimal() and int(number)):
            names = ", ".join(allowed)
            raise ValueError(f"output is {form!r}; it must be one or several of {names}, topk:N")
    for group in (_PICKING, _VERIFYING, ("topk",)):
        same = [form for form in outputs if form.partition(":")[0] in group]
        if len(same) > 1 and {*same} != {"picks", "probs"}:
            raise ValueError(f"output has {' and '.join(same)}, which fill one field; use one")


def layer_numbers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Count negative numbers of layers from the end: 0 to `num_layers`, else `ValueError`."""
    end = num_layers + 1
    if strange := [layer for layer in layers if not -end <= layer < end]:
        raise ValueError(
            f"hidden_layers has {strange[0]}; this model has 0 (the embedded rows) to {num_layers} "
            f"(after its last layer and norm), or {-end} to -1"
        )
    return tuple(layer % end for layer in layers)

"""Check what a call requests: forms of outputs, barred ids, layers of states, calls to follow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

_PICKING, _VERIFYING = ("picks", "argmax", "draws", "probs"), ("acceptance", "block")
_CHAIN_ROWS = 4
"""Most rows of a call that begins a chain: prompts do not."""
_FORMS = (*_PICKING, "logits", "entropy", *_VERIFYING)


def forms(output: str | Sequence[str]) -> tuple[str, ...]:
    """Return the forms of an output, each once."""
    return (output,) if isinstance(output, str) else tuple(dict.fromkeys(output))


def demand_readable(call: Any) -> None:
    """Raise `ValueError` if a call's rows cannot be read as requested, and say what to change."""
    _demand_forms(forms(call.output), _FORMS)
    barred = sorted(call.barred)
    if call.slots is not None:
        _demand_forms(forms(call.slots.output), _FORMS[:-2])
        barred = sorted(call.barred | call.slots.barred)
    size = call.session.model.vocab_size if barred else 0
    if barred and not (0 <= barred[0] <= barred[-1] < size > len(barred)):
        raise ValueError(f"barred is {barred!s:.60}; bar ids below {size}, but not all")
    num_read, num_drafts = len(call.read), len(call.drafts)
    if num_read != num_drafts + 1 and not {*_VERIFYING}.isdisjoint(forms(call.output)):
        raise ValueError(
            f"{num_read} rows are read to verify {num_drafts} drafts; read {num_drafts + 1}: "
            "the row before the first draft, and the row of every draft"
        )
    if call.hidden_layers and not call.hidden:
        raise ValueError("hidden_layers without rows; give hidden (a drafter: hidden above 0)")


@functools.cache
def _demand_forms(outputs: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    for form in outputs or ("",):
        kind, _, number = form.partition(":")
        if form not in allowed and not (kind == "topk" and number.isdecimal() and int(number)):
            names = ", ".join(allowed)
            raise ValueError(f"output is {form!r}; it must be one or several of {names}, topk:N")
    for group in (_PICKING, _VERIFYING, ("topk",)):
        same = [form for form in outputs if form.partition(":")[0] in group]
        if len(same) > 1 and {*same} != {"picks", "probs"}:
            raise ValueError(f"output has {' and '.join(same)}, which fill one field; use one")


def layer_numbers(layers: Sequence[int], model: Any) -> tuple[int, ...]:
    """Count negative numbers of layers from the end, or raise `ValueError` for one too many."""
    try:
        return tuple(range(model.num_layers + 1)[layer] for layer in layers)
    except IndexError:
        names = f"0 (the embedded rows) to {model.num_layers} (the last, after the norm)"
        line = f"hidden_layers is {tuple(layers)}; this model has {names}, or negative ones"
        raise ValueError(line) from None


def chain_steps(calls: Sequence[Any]) -> int:
    """Return how many calls each of these announces, if a model can guess all but their tokens."""
    steps: int = calls[0].chain
    if steps and all(
        call.chain == steps and call.num_rows <= _CHAIN_ROWS and reads_its_last(call)
        for call in calls
    ):
        return steps
    return 0


def num_announced(calls: Sequence[Any]) -> int:
    """Return how many calls of each of these may run before they come."""
    return chain_steps(calls) or int(launches_next(calls))


def launches_next(calls: Sequence[Any]) -> bool:
    """Tell whether each of these is one row, and announces that its pick alone follows."""
    return all(call.ahead and call.num_rows == 1 and reads_its_last(call) for call in calls)


def reads_its_last(call: Any) -> bool:
    """Tell whether a call reads the last of plain tokens, and nothing else."""
    alone = call.mask is None and call.read == (len(call.tokens) - 1,)
    return alone and not (call.positions or call.slots or call.hidden or call.barred)

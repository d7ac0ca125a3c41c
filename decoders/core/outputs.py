"""Check a call's requests: forms of output, barred ids, layers of states, calls to follow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

VERIFYING = ("acceptance", "block", "tree")
_PICKING = ("picks", "argmax", "draws", "probs")
_CHAIN_ROWS = 4
"""Maximum number of rows of a call that begins a chain; prompts never do."""
_FORMS = (*_PICKING, "logits", "entropy", *VERIFYING)


class Chain(NamedTuple):
    """Announce calls that follow, each feeding only the last pick, with equal output and uniforms.

    `num` calls follow, or none behind a pick whose confidence is below `stop`. On a GPU one graph,
    with room for `size` of them, may run them all: `size` should not vary from call to call.
    """

    num: int
    size: int
    stop: float = 0.0


@functools.cache
def forms(output: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the forms of an output without repetition."""
    return (output,) if isinstance(output, str) else tuple(dict.fromkeys(output))


def demand_readable(call: Any) -> None:
    """Raise `ValueError` with a remedy if a call's rows cannot be read as requested."""
    _demand_forms(forms(call.output), _FORMS)
    barred = sorted(call.barred)
    if call.slots is not None:
        _demand_forms(forms(call.slots.output), _FORMS[:-3])
        barred = sorted(call.barred | call.slots.barred)
    size = call.session.model.vocab_size
    if barred and not (0 <= barred[0] <= barred[-1] < size > len(barred)):
        raise ValueError(f"barred is {barred!s:.60}; bar ids below {size}, but not all")
    num_read, num_drafts = len(call.read), len(call.drafts)
    num_left = call.session.room - call.num_rows
    shapes = [getattr(e, "shape", None) for e in call.draft_probs] if call.draft_probs else None
    if shapes and shapes != [(size,)] * num_drafts:
        line = f"draft_probs of shapes {shapes!s:.80}; give each of the {num_drafts} drafts one"
        raise ValueError(f"{line} distribution of shape [{size}] (probs of the row before it)")
    if num_read != num_drafts + 1 and not {*VERIFYING}.isdisjoint(forms(call.output)):
        raise ValueError(
            f"{num_read} rows are read to verify {num_drafts} drafts; read {num_drafts + 1}: "
            "the row before the first draft, and the row of every draft"
        )
    if call.hidden_layers and not call.hidden:
        raise ValueError("hidden_layers without rows; give hidden (a drafter: hidden above 0)")
    if call.chain is not None:
        fits = call.output in _PICKING[call.chain.stop > 0 :] and reads_its_last(call)
        if not (fits and 0 <= call.chain.num <= min(call.chain.size, num_left)):
            raise ValueError(
                f"{call.chain} behind a call of {call.num_rows} rows; at most its size and the "
                f"cache's room ({num_left}) follow, behind a call that reads the last of its "
                f"tokens alone, in one form of {', '.join(_PICKING)} (with stop: not picks)"
            )


@functools.cache
def _demand_forms(outputs: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    for form in outputs or ("",):
        kind, _, number = form.partition(":")
        if form not in allowed and not (kind == "topk" and number.isdecimal() and int(number)):
            names = ", ".join(allowed)
            raise ValueError(f"output is {form!r}; it must be one or several of {names}, topk:N")
    for group in ((*_PICKING, "tree"), VERIFYING, ("topk",)):
        same = [form for form in outputs if form.partition(":")[0] in group]
        if len(same) > 1 and {*same} != {"picks", "probs"}:
            raise ValueError(f"output has {' and '.join(same)}, which fill one field; use one")


def layer_numbers(layers: Sequence[int], model: Any) -> tuple[int, ...]:
    """Count negative layer numbers from the end, or raise `ValueError` for a missing layer."""
    try:
        return tuple(range(model.num_layers + 1)[layer] for layer in layers)
    except IndexError:
        names = f"0 (the embedded rows) to {model.num_layers} (the last, after the norm)"
        line = f"hidden_layers is {tuple(layers)}; this model has {names}, or negative ones"
        raise ValueError(line) from None


def chain_steps(calls: Sequence[Any]) -> int:
    """Return the size of the chains behind calls if one graph can run all the chains, else 0."""
    size = 0 if calls[0].chain is None else calls[0].chain.size
    for call in calls if size else ():
        if call.chain is None or call.chain.size != size or call.num_rows > _CHAIN_ROWS:
            return 0
    return size


def launches_next(calls: Sequence[Any]) -> bool:
    """Return whether each call has one row and announces a call that feeds only its pick."""
    return all(call.ahead and call.num_rows == 1 and reads_its_last(call) for call in calls)


def reads_its_last(call: Any) -> bool:
    """Return whether a call has only plain tokens and reads only the last."""
    alone = call.mask is None and call.read == (len(call.tokens) - 1,)
    return alone and not (call.positions or call.slots or call.hidden or call.barred)

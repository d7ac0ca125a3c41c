"""Refuse a decoder's wrong coroutines, calls and emitted tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

from decoders.core.decoder import Request, Steps
from decoders.core.model import Call, DraftCall, Model, Session
from decoders.core.types import Generation


def started(begin: Callable[[Request], Steps], request: Request) -> Steps:
    """Start a coroutine, or raise `TypeError` if the object is no coroutine."""
    steps = begin(request)
    if not isinstance(steps, Generator):
        method: Any = begin
        code = method.__code__
        place = f"{method.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        raise TypeError(f"{place} returned {steps!r:.40}; it must `yield` its Calls and Emits")
    return steps


def check_emitted(answer: Generation, target: Model) -> None:
    """Raise `AssertionError` about an emitted mask, `ValueError` about other wrong values."""
    vocab_size = target.vocab_size
    if target.masked and target.masked.mask_id in answer.tokens:
        raise AssertionError("decoder emitted the mask token: a mask that it never decided")
    for token in answer.tokens:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ValueError(_invalid_id("emitted", token, vocab_size))
    for event in answer.steps:
        drafts = (event.drafted, event.max_accepted, event.accepted)
        counts = (*drafts, event.num_leading, event.passes)
        for count in (*counts, *event.decided):
            if type(count) is not int:
                raise ValueError(f"decoder counted {count!r:.40}; counts are integers")
        for number, _ in event.confidences:
            if not 0 <= number <= 1.001:  # rounding may exceed 1
                raise ValueError(f"decoder gave a draft confidence {number!r:.40}; allowed: 0 to 1")
        for token in event.rejected:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise ValueError(_invalid_id("rejected", token, vocab_size))


def check_calls(
    calls: Sequence[Any], roots: Mapping[str, Session], prompt: Sequence[int], vocab_size: int
) -> None:
    """Refuse calls whose sessions belong to another answer, or that cannot run as one pass.

    Args:
        calls: what a decoder yielded.
        roots: the sessions that began the answer, by role.
        prompt: ids of the prompt, for which the decoder is not to blame.
        vocab_size: number of ids.

    Raises:
        TypeError: something is no call.
        ValueError: a call uses another or a closed session, or feeds a number that is no id.
    """
    for call in calls:
        if type(call) is not Call and not isinstance(call, DraftCall):
            raise TypeError(f"decoder yielded {call!r:.60}; yield a Call or an Emit")
        if call.session.root not in roots.values():
            raise ValueError("decoder yielded a call of a session other than its own")
        if call.session.row < 0:
            raise ValueError("decoder yielded a call of a session that it closed")
        fed = (*call.tokens, *(call.drafts if isinstance(call, Call) else ()))
        if fed and not ({*map(type, fed)} == {int} and 0 <= min(fed) <= max(fed) < vocab_size):
            for token in fed:
                fits = isinstance(token, SupportsIndex) and 0 <= token < vocab_size
                if not fits and token not in prompt:
                    raise ValueError(_invalid_id("fed", token, vocab_size))
    if len(calls) == 1:
        return
    if any(isinstance(call, Call) and call.chain for call in calls):
        raise ValueError("decoder yielded a call with a chain among others; yield it alone")
    kinds = {
        (type(call), id(call.session.model), getattr(call, "name", ""), getattr(call, "shape", ()))
        for call in calls
    }
    if len(kinds) != 1 or len({id(call.session) for call in calls}) < len(calls):
        raise ValueError(
            f"decoder yielded {len(calls)} calls together; they must be calls of one model, at "
            "least one, each of another session (`Session.fork`)"
        )


def _invalid_id(did: str, token: object, vocab_size: int) -> str:
    """Make the error about a token that is no id (the vocabulary's size marks a failed draw)."""
    line = f"decoder {did} {token!r:.40}; ids are integers below {vocab_size}"
    if type(token) is int and token == vocab_size:
        line += (
            f", and {token} marks a row without any probability: a mask of the decoder's own "
            "barred every token, or its logits are NaN"
        )
    return line


def as_exception(error: BaseException) -> Exception:
    """Turn a decoder's error into an outcome, so that `sys.exit` ends the answer, not the run."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"decoder raised {error!r}").with_traceback(error.__traceback__)

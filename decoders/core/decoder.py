"""The `Decoder` interface: a coroutine written for one sequence. No torch at import time.

A decoder's options are its dataclass fields and nothing else (numbers, names, paths), so that a
spec of text rebuilds it. It never runs a model: it yields a `Call`, is sent the `CallResult`, and
ends every step with an `Emit`. The scheduler runs calls, merges them over sequences, cuts at EOS
and budget, and counts.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

from decoders.core.model import Session
from decoders.core.types import Call, CallResult, Emit, Sampling

Steps = Generator[Call | Emit, CallResult, None]
Need = Literal["draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a decoder is given for one prompt: ids, sampling, and an empty session per model.

    `draft` is a session of the draft model where the decoder's `needs` names it, else None.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    target: Session
    draft: Session | None = None


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Base of every decoder. Class facts choose the contract checks and what the runner opens.

    Attributes:
        name: set by `@register`.
        lossless: the output law is the target's own (greedy: the very same tokens).
        needs: further models the decoder asks for.
    """

    name: ClassVar[str] = ""
    lossless: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ()

    @property
    def coupled(self) -> bool:
        """True where the same seed gives AR's very tokens at any temperature (not only its law)."""
        return False

    def comparable_to_ar(self, sampling: Sampling) -> bool:
        """Whether "identical to AR" is defined: greedy, or coupled at any temperature."""
        return sampling.greedy or self.coupled

    def steps(self, request: Request) -> Steps:
        """Generate one answer: yield calls and emits, without end (the scheduler cuts)."""
        raise NotImplementedError(f"{type(self).__name__} must define steps(request)")

"""The `Decoder` interface: a coroutine written for one sequence.

A decoder's options are its dataclass fields and nothing else (numbers, names, paths), so that a
spec of text rebuilds it. It never runs a model: it yields a `Call`, is sent the `CallResult`, and
ends every step with an `Emit`. A `SelfDriven` one is the exception: a library's own loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from decoders.core.model import Session
from decoders.core.types import Call, CallResult, Emit, Sampling, demand

if TYPE_CHECKING:
    from decoders.core.adapter.config import AdapterConfig, Variant
    from decoders.core.engine.models import Models
    from decoders.core.sampling import Uniforms

Steps = Generator[Call | Emit, CallResult, None]
Need = Literal["draft", "adapter"]
Role = Literal["target", "draft"]

INTERFACE = 1
"""Version of what a decoder is given and may yield: `Decoder`, `Request`, sessions, calls, emits.

It rises when a decoder written for the version before might not run any more; what is added (a
field with a default, a `output`) raises nothing. docs/adding-a-decoder.md has the promise.
"""
OLDEST_INTERFACE = 1
"""The oldest that still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt for a decoder: ids, sampling, and an empty session per model.

    `draft` and `adapter` are there where the decoder's `needs` names them; `adapters` has those of
    all its parts, by name. `uniforms` are the sequence's own: a decoder may feed the ``draw``
    stream to its slots, and never decides anything by it itself.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    target: Session
    uniforms: Uniforms
    draft: Session | None = None
    adapter: AdapterConfig | None = None
    adapters: Mapping[str, AdapterConfig] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Base of every decoder. Class facts choose the contract checks and what the runner opens.

    Attributes:
        name: set by `@register`.
        adapter_of: the model that its adapter is attached to.
        showcase: options by label: where no decoders are named, NAME@LABEL runs beside NAME.
        by_default: it runs where no decoders are named.
        interface: the version of this interface that it was written for; none means 1.
        renamed: values of options that are spelled otherwise today: by option, old to new.
        modes: decoders that the option ``mode`` names, by its value: files of their own.
    """

    name: ClassVar[str] = ""
    interface: ClassVar[int] = 1
    adapter_of: ClassVar[Role] = "target"
    showcase: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    by_default: ClassVar[bool] = True
    renamed: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    modes: ClassVar[Mapping[str, str]] = {}

    @property
    def needs(self) -> tuple[Need, ...]:
        """A draft model, or the adapter that the option ``adapter`` names."""
        return ()

    @property
    def parts(self) -> tuple[Decoder, ...]:
        """The decoders whose adapters and models it runs: itself alone, as a rule."""
        return (self,)

    @property
    def adapter_name(self) -> str | None:
        """The name of its adapter; None if it needs none."""
        return str(vars(self)["adapter"]) if "adapter" in self.needs else None

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The kinds of adapter it can run, the usual one first; none: any."""
        return ()

    @property
    def lossless(self) -> bool:
        """True if outputs follow the target's own distribution (greedy: the very same tokens)."""
        return True

    @property
    def coupled(self) -> bool:
        """True if the same seed gives AR's very tokens at any temperature."""
        return False

    @property
    def alike_in_batches(self) -> bool:
        """True if a sampled answer is the same alone and in a batch (a greedy one always is)."""
        return True

    def comparable_to_ar(self, sampling: Sampling) -> bool:
        """Tell whether "identical to AR" is defined: greedy, or coupled at any temperature."""
        return sampling.greedy or self.coupled

    def demand(self, holds: bool, option: str, allowed: str) -> None:
        """Raise `ValueError` about an option's value unless `holds`."""
        what = f"option {option!r} of decoder {self.name!r}"
        demand(holds, what, getattr(self, option), allowed)

    def demand_read(self, option: str, reads: Mapping[str, Collection[str]]) -> None:
        """Refuse options (`ValueError`) that the chosen value of `option` does not read.

        `reads` has the options that some values of `option` read and others do not. One that has
        its default does not count as given.
        """
        chosen = getattr(self, option)
        own = reads.get(chosen, ())
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            readers = [f"{option}={by}" for by, names in reads.items() if field.name in names]
            if readers and field.name not in own and value != field.default:
                instead = f", which reads {', '.join(own)}" if own else ""
                raise ValueError(
                    f"option {field.name!r} of decoder {self.name!r} is {value}, but it belongs to "
                    f"{' or '.join(readers)}, not to {option}={chosen}{instead}"
                )

    @property
    def sources(self) -> tuple[str, ...]:
        """Files with code that its options name, and that it runs."""
        return ()

    def check_models(self, models: Models) -> None:
        """Raise `ValueError` where it cannot run on these models, all of which are present."""

    def steps(self, request: Request) -> Steps:
        """Generate one answer: yield calls and emits, without end (the scheduler cuts)."""
        raise NotImplementedError(f"{type(self).__name__} must define steps(request)")


class Answer(Protocol):
    """An answer in the making, as a `SelfDriven` decoder sees it."""

    @property
    def request(self) -> Request:
        """The prompt and its models."""

    @property
    def ended(self) -> bool:
        """True once it met a stop id or its budget: later emits are dropped."""

    def ran(self, role: Role, num_rows: int) -> None:
        """Count a forward pass of one model over `num_rows` rows of this sequence, which begins."""

    def passed(self) -> None:
        """End that pass."""

    def emit(self, emit: Emit) -> None:
        """End a step, as a yielded `Emit` does; its time is that of this call."""


class SelfDriven(Decoder):
    """A decoder that runs its models itself, with a cache of its own, from prompt to end.

    It reports its forward passes and emits as it goes, which the same code as for all others cuts,
    counts and times. `answer` has up to B sequences where it says `batches`, else one at a time.
    """

    @property
    def batches(self) -> bool:
        """True if `answer` takes several sequences at once."""
        return False

    def answer(self, answers: Sequence[Answer]) -> None:
        """Give all answers; returning before EOS or budget is a failure."""
        raise NotImplementedError(f"{type(self).__name__} must define answer(answers)")

    def steps(self, request: Request) -> Steps:
        """Refuse: it runs by itself."""
        raise TypeError(f"{type(self).__name__} runs by itself and has no steps")

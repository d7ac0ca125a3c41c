"""Define the `Decoder` interface: a coroutine that generates one sequence.

A decoder's options are exactly its dataclass fields (numbers, names, paths), so that a text spec
can rebuild it. A decoder never runs a model: it yields a `Call`, receives the `CallResult`, and
ends every step with an `Emit`. Only a `SelfDriven` decoder differs: it wraps a library's own loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from decoders.core.model import Call, DraftCall, Model, Session
from decoders.core.types import CallResult, Emit, Sampling, demand

if TYPE_CHECKING:
    from torch import Tensor, nn

    from decoders.core.adapter_config import AdapterConfig, Variant
    from decoders.core.sampling import Uniforms


class Memory(Protocol):
    """Hold the earlier answers of one scope for a decoder that remembers."""

    def add(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Add an answer that has ended (nothing else may change a memory)."""


class PastAnswers(list[tuple[tuple[int, ...], tuple[int, ...]]]):
    """Remember prompts and their answers, in the order in which the answers ended."""

    def add(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Append an answer."""
        self.append((tuple(prompt), tuple(tokens)))


Steps = Generator[Call | DraftCall | Sequence[Call] | Emit, CallResult, None]
Need = str  # "draft", "adapter", "network" or "model:NAME"
Role = Literal["target", "draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Describe one prompt for a decoder: ids, sampling, and an empty session per model.

    `draft` and `adapter` are set if the decoder needs them; `adapters` maps names to the adapters
    of all its parts, `models` to sessions of named models. `uniforms` belong to the sequence: a
    decoder may feed the ``draw`` stream to slots, but must not base decisions on it. `memory` is
    that of a decoder that remembers; `tokenizer` is the target's, or None.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    target: Session
    uniforms: Uniforms
    draft: Session | None = None
    adapter: AdapterConfig | None = None
    adapters: Mapping[str, AdapterConfig] = dataclasses.field(default_factory=dict)
    memory: Memory | None = None
    models: Mapping[str, Session] = dataclasses.field(default_factory=dict)
    tokenizer: Any = None


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Define a decoder, whose properties select the contract checks and the models to open.

    Attributes:
        name: the name that `@register` sets, else that of the class.
        adapter_of: the model that the decoder's adapter is attached to.
        showcase: options by label; a run that names no decoders also runs NAME@LABEL.
        by_default: run this decoder if a run names no decoders.
        target_kind: ``masked`` if the decoder fills in masks of a diffusion model.
        modes: decoders (each in its own file) that the option ``mode`` selects, by its value.
    """

    name: ClassVar[str] = ""
    adapter_of: ClassVar[Role] = "target"
    showcase: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    by_default: ClassVar[bool] = True
    target_kind: ClassVar[Literal["causal", "masked"]] = "causal"
    modes: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = vars(cls).get("name", cls.__name__)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Parts: ``draft``, ``model:NAME``, ``network`` (of `variants`), or option ``adapter``."""
        return ()

    @property
    def sequences(self) -> int:
        """Maximum number of open sequences of one answer in a model (see `Session.fork`)."""
        return 1

    @property
    def parts(self) -> tuple[Decoder, ...]:
        """Decoders whose adapters and models this decoder runs, usually only itself."""
        return (self,)

    @property
    def adapter_name(self) -> str | None:
        """The name of the decoder's adapter or network, or None if it needs none."""
        if "network" in self.needs:
            return self.variants[0]
        return str(vars(self)["adapter"]) if "adapter" in self.needs else None

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Variants of adapter that the decoder can run, with the default first (empty: any)."""
        return ()

    @property
    def lossless(self) -> bool:
        """True if outputs follow the target's own distribution (greedy: exactly its tokens)."""
        return True

    @property
    def coupled(self) -> bool:
        """True if the same seed gives exactly AR's tokens at any temperature."""
        return False

    @property
    def drafts(self) -> bool:
        """True if steps verify drafts: a run then warns if no draft is made or accepted."""
        return True

    @property
    def alike_in_batches(self) -> bool:
        """True if sampled answers are the same alone and in a batch (greedy answers always are)."""
        return True

    @property
    def remembers(self) -> Literal["answers"] | None:
        """``"answers"`` if drafts may use earlier answers, on which tokens never depend."""
        return None

    def memory(self) -> Memory | None:
        """Make the empty memory of a scope: one cell in one repeat of one pass."""
        return None if self.remembers is None else PastAnswers()

    def comparable_to_ar(self, sampling: Sampling) -> bool:
        """Return whether "identical to AR" is defined: if greedy, or if coupled."""
        return self.target_kind == "causal" and (sampling.greedy or self.coupled)

    def demand(self, holds: bool, option: str, allowed: str) -> None:
        """Raise `ValueError` about an option's value unless `holds`.

        Args:
            holds: true if the value is allowed.
            option: the option's name.
            allowed: the end of the message "it must be …", such as ``1 or above``.
        """
        subject = f"option {option!r} of decoder {self.name!r}"
        demand(holds, subject, getattr(self, option), allowed)

    def demand_read(self, option: str, reads: Mapping[str, Collection[str]]) -> None:
        """Raise `ValueError` about a set option that the value of `option` leaves without effect.

        `reads` maps each value of `option` to the options that only some values read. An option
        with its default value does not count as given.
        """
        allowed = reads.get(setting := getattr(self, option), ())
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            readers = [f"{option}={by}" for by, names in reads.items() if field.name in names]
            if readers and field.name not in allowed and value != field.default:
                instead = f", which reads {', '.join(allowed)}" if allowed else ""
                raise ValueError(
                    f"option {field.name!r} of decoder {self.name!r} is {value}, but it belongs to "
                    f"{' or '.join(readers)}, not to {option}={setting}{instead}"
                )

    @classmethod
    def code_in(cls, options: Mapping[str, str]) -> tuple[str, ...]:
        """Return the files and folders of code that options name, without importing that code."""
        del options
        return ()

    def own_weights(self) -> Iterable[Tensor | nn.Module]:
        """Return weights to count as memory that `decoders.core.own_weights` does not find."""
        return ()

    def check_models(self, target: Model, draft: Model | None) -> None:
        """Raise `ValueError` if the decoder cannot run on these loaded models."""

    def steps(self, request: Request) -> Steps:
        """Generate one answer: yield calls and emits forever (the scheduler cuts the answer)."""
        raise NotImplementedError(f"{type(self).__name__} must define steps(request)")


class Answer(Protocol):
    """Represent an answer in progress for a `SelfDriven` decoder."""

    @property
    def request(self) -> Request:
        """The prompt and its models."""

    @property
    def ended(self) -> bool:
        """True once the answer reached a stop id or its budget, after which emits are dropped."""

    def ran(self, role: Role, num_rows: int) -> None:
        """Count a forward pass that begins: of one model, over `num_rows` rows of this sequence."""

    def emit(self, emit: Emit) -> None:
        """End a step now, as yielding an `Emit` does in other decoders."""


class SelfDriven(Decoder):
    """Define a decoder that runs its models itself, with its own cache, from the prompt to the end.

    It reports its forward passes and emits as they happen; the code that cuts, counts and times
    them is the same for all decoders. `answer` gets up to B sequences if `batches`, else one.
    """

    @property
    def batches(self) -> bool:
        """True if `answer` takes several sequences at once."""
        return False

    def answer(self, answers: Sequence[Answer]) -> None:
        """Generate all answers to EOS or the budget (an earlier return is a failure)."""
        raise NotImplementedError(f"{type(self).__name__} must define answer(answers)")

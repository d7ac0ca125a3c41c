"""Hold the models that decoders run on, and check that they fit a decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from decoders.core.adapter_config import AdapterConfig
from decoders.core.decoder import Decoder
from decoders.core.model import Model
from decoders.core.types import MAX_DRAFTS

_SLACK_ROWS = MAX_DRAFTS + 8  # cache entries beyond prompt and budget, for rejected rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Hold the target and, if decoders need more, the draft model and further models by name.

    `tokenizer` is the target's, if it has one.
    """

    target: Model
    draft: Model | None = None
    named: Mapping[str, Model] = field(default_factory=dict)
    tokenizer: Any = None

    @classmethod
    def of(cls, roles: Mapping[str, Model]) -> Models:
        """Make the models of `roles`."""
        named = {name: roles[f"model:{name}"] for name in model_names(roles)}
        return cls(target=roles["target"], draft=roles.get("draft"), named=named)

    @property
    def roles(self) -> dict[str, Model]:
        """All models by role: ``target``, ``draft``, ``model:NAME``."""
        named = {f"model:{name}": model for name, model in self.named.items()}
        drafts = {} if self.draft is None else {"draft": self.draft}
        return {"target": self.target, **drafts, **named}

    def for_decoder(self, decoder: Decoder) -> Models:
        """Return the target and those other models that a decoder needs."""
        needs = {need for part in decoder.parts for need in part.needs}
        named = {name: each for name, each in self.named.items() if f"model:{name}" in needs}
        return replace(self, draft=self.draft if "draft" in needs else None, named=named)

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Allocate caches for exactly `num_rows` sequences of `num_tokens`."""
        for model in self.roles.values():
            model.reserve(num_rows, num_tokens + _SLACK_ROWS)

    def ensure(self, num_rows: int, num_tokens: int) -> None:
        """Allocate caches for `num_rows` sequences of `num_tokens` if they are too small."""
        for model in self.roles.values():
            if not model.holds(num_rows, num_tokens + _SLACK_ROWS):
                model.reserve(num_rows, num_tokens + _SLACK_ROWS)

    @property
    def num_graphs(self) -> int:
        """Number of graphs compiled from the models so far."""
        return sum(getattr(model, "num_graphs", 0) for model in self.roles.values())

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Run the plain modules of compiled models inside, so that no graph is compiled."""
        with ExitStack() as stack:
            for model in self.roles.values():
                stack.enter_context(getattr(model, "uncompiled", nullcontext)())
            yield


def check_models(decoder: Decoder, models: Models, name: str) -> dict[str, AdapterConfig]:
    """Return a decoder's adapters by name, or raise `ValueError` if the models do not fit it.

    Args:
        decoder: the decoder, all parts of which are checked.
        models: the models that are open.
        name: the decoder's name in the error.
    """
    adapters = {}
    for part in decoder.parts:
        if kind := kind_error(part, models.target.masked is not None):
            raise ValueError(f"decoder {name!r} {kind}")
        for need in part.needs:
            if need == "network":  # test models have it attached
                getattr(models.target, "open_network", str)(part.adapter_name)
            elif need != "adapter":
                _check_model(name, need, models)
        if part.adapter_name is not None:
            adapters[part.adapter_name] = _find_adapter(part, part.adapter_name, models)
        part.check_models(models.target, models.draft)
    return adapters


def model_names(roles: Iterable[str]) -> list[str]:
    """Return the NAME of each ``model:NAME`` among roles or needs."""
    return [role.removeprefix("model:") for role in roles if role.startswith("model:")]


def kind_error(decoder: Decoder, masked: bool) -> str | None:
    """Return an error text if a target is not of the kind that a decoder decodes."""
    if masked == (decoder.target_kind == "masked"):
        return None
    if masked:
        return "needs a causal target, but the model predicts masked tokens; use the decoder dllm"
    return "needs a target that predicts masked tokens, but the model is causal"


def _check_model(name: str, role: str, models: Models) -> None:
    """Raise `ValueError` unless a decoder's model exists and has the target's vocabulary."""
    _, is_named, called = role.partition(":")
    if (model := models.roles.get(role)) is None:
        text, option = "draft model", "--draft"
        if is_named:
            text, option = f"model named {called!r}", f"--models {called}=PATH"
        raise ValueError(f"decoder {name!r} needs a {text}, but none was given; pass {option}")
    noun = f"model {called!r}" if is_named else "draft"
    if model.masked is not None:
        raise ValueError(f"decoder {name!r} needs a {noun} that predicts no masked tokens")
    if model.vocab_size != (size := models.target.vocab_size):
        raise ValueError(
            f"the {noun}'s vocabulary has {model.vocab_size} tokens, the target's {size}, and the "
            f"{noun} has no tokenizer that shows which of them are the same; decoder {name!r} "
            f"needs a {noun} of the same vocabulary: add the tokenizer to its folder"
        )


def _find_adapter(decoder: Decoder, name: str, models: Models) -> AdapterConfig:
    """Return a decoder's adapter, or raise `ValueError` if its model has none of that name."""
    model = models.target if decoder.adapter_of == "target" else models.draft
    attached = {} if model is None else model.adapters
    if name not in attached:
        names = ", ".join(sorted(attached)) or "none"
        raise ValueError(
            f"decoder {decoder.name!r} needs an adapter named {name!r} of the "
            f"{decoder.adapter_of}, which has {names}; pass --adapter {name}=PATH"
        )
    variant, allowed = attached[name].variant, decoder.variants
    if allowed and variant not in allowed:
        raise ValueError(
            f"adapter {name!r} is of variant {variant}; decoder {decoder.name!r} needs "
            f"{' or '.join(allowed)}"
        )
    return attached[name]

"""The models that decoders run on, and checks that they fit a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from decoders.core.adapter_config import AdapterConfig
from decoders.core.decoder import Decoder
from decoders.core.model import Model
from decoders.core.types import MAX_DRAFTS

_SLACK_ROWS = MAX_DRAFTS + 8  # cache entries beyond prompt and budget, for rejected rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The target and, if a decoder needs one, the draft model."""

    target: Model
    draft: Model | None = None

    def reserve(self, num_rows: int, num_tokens: int) -> None:
        """Allocate caches for exactly `num_rows` sequences of `num_tokens`."""
        for model in self._loaded():
            model.reserve(num_rows, num_tokens + _SLACK_ROWS)

    def ensure(self, num_rows: int, num_tokens: int) -> None:
        """Allocate caches for `num_rows` sequences of `num_tokens` if they are too small."""
        for model in self._loaded():
            if not model.holds(num_rows, num_tokens + _SLACK_ROWS):
                model.reserve(num_rows, num_tokens + _SLACK_ROWS)

    def drafting(self, decoder: Decoder) -> Model | None:
        """Return the draft model if a decoder drafts with it."""
        return self.draft if any("draft" in part.needs for part in decoder.parts) else None

    @property
    def num_graphs(self) -> int:
        """Number of graphs compiled from the models so far."""
        return sum(getattr(model, "num_graphs", 0) for model in self._loaded())

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Run the plain modules of compiled models, compiling no graph."""
        with ExitStack() as stack:
            for model in self._loaded():
                stack.enter_context(getattr(model, "uncompiled", nullcontext)())
            yield

    def _loaded(self) -> tuple[Model, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)


def check_models(decoder: Decoder, models: Models, name: str) -> dict[str, AdapterConfig]:
    """Return a decoder's adapters by name, or raise `ValueError` if the models do not fit it."""
    adapters = {}
    for part in decoder.parts:
        if kind := other_kind(part, models.target.masked is not None):
            raise ValueError(f"decoder {name!r} {kind}")
        if "draft" in part.needs:
            check_draft(name, models)
        if "network" in part.needs:  # test models have it attached
            getattr(models.target, "open_network", str)(part.adapter_name)
        if part.adapter_name is not None:
            adapters[part.adapter_name] = find_adapter(part, part.adapter_name, models)
        part.check_models(models.target, models.draft)
    return adapters


def other_kind(decoder: Decoder, masked: bool) -> str | None:
    """Say what is wrong if a target is not of the kind that a decoder decodes."""
    if masked == (decoder.target_kind == "masked"):
        return None
    if masked:
        return "needs a causal target, but the model predicts masked tokens; use the decoder dllm"
    return "needs a target that predicts masked tokens, but the model is causal"


def check_draft(name: str, models: Models) -> None:
    """Raise `ValueError` unless there is a draft model with the target's vocabulary."""
    if models.draft is None:
        raise ValueError(f"decoder {name!r} needs a draft model, but none was given; pass --draft")
    if models.draft.masked is not None:
        raise ValueError(f"decoder {name!r} needs a draft model that predicts no masked tokens")
    if models.draft.vocab_size != models.target.vocab_size:
        raise ValueError(
            f"the draft's vocabulary has {models.draft.vocab_size} tokens, the target's "
            f"{models.target.vocab_size}, and the draft has no tokenizer that shows which of them "
            f"are the same; decoder {name!r} needs a draft of the same vocabulary: add the "
            "tokenizer to its folder"
        )


def find_adapter(decoder: Decoder, name: str, models: Models) -> AdapterConfig:
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

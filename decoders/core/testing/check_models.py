"""Make the models for the contract's checks: tables of known distributions and tiny Llamas.

Words 0 to 5 are tokens, word 6 ends an answer. Adapters are attached under the names that a
decoder's parts use. A `SelfDriven` decoder runs a library's loop on a library's module, so it gets
tiny Llamas in place of tables.
"""

from __future__ import annotations

from typing import Any

import torch

from decoders.core.decoder import Decoder, SelfDriven
from decoders.core.engine.models import Models, model_names
from decoders.core.model import Model
from decoders.core.testing.goodness import Draws
from decoders.core.testing.table_model import TableModel
from decoders.core.types import MaskedForm, Sampling

VOCAB, EOS = 7, 6
_FEW_WORDS, _RARELY = 5, 0.3
"""Vocabulary and agreement of the models from which answers are drawn: many rejections, and
residuals of several words, so that a uniform that is used twice can be detected."""


def tables(decoder: Decoder, agreement: float = 0.6, *, max_length: int = 4096) -> Models:
    """Return a table as target, and further tables and adapters that partly agree with it.

    Args:
        decoder: the decoder, which needs them (a `SelfDriven` one: `llamas`).
        agreement: weight of the target's logits in other tables, and share of right slots or heads.
        max_length: longest sequence of the tables.
    """
    if isinstance(decoder, SelfDriven):
        return llamas(decoder, max_length=max_length, same=agreement == 1)
    target = TableModel(VOCAB, seed=1, scale=1.5, max_length=max_length)
    models = _add_drafts(decoder, target, agreement, scale=1.5)
    _mask(decoder, target)
    return with_adapters(decoder, models, error=1 - agreement)


def _add_drafts(decoder: Decoder, target: TableModel, agreement: float, scale: float) -> Models:
    """Add a draft model and the decoder's named models, which partly agree with a target."""
    options: Any = {"scale": scale, "agree_with": target, "agreement": agreement}
    names = _names(decoder)
    draft, *rest = (TableModel(target.vocab_size, 2 + i, **options) for i in range(1 + len(names)))
    return Models(target=target, draft=draft, named=dict(zip(names, rest, strict=True)))


def _names(decoder: Decoder) -> list[str]:
    """Return the names of the named models that a decoder needs."""
    return model_names(dict.fromkeys(need for part in decoder.parts for need in part.needs))


def _mask(decoder: Decoder, target: Model) -> None:
    """Mark a target as a masked model if the decoder needs one."""
    if decoder.target_kind == "masked":
        target.masked = MaskedForm(mask_id=EOS - 1, block=4)


def llamas(
    decoder: Decoder, vocab_size: int = VOCAB, *, max_length: int = 512, same: bool = False
) -> Models:
    """Return tiny random Llamas as in `tiny_models`, with adapters of random weights.

    Args:
        decoder: the decoder, which needs them.
        vocab_size: V.
        max_length: longest sequence.
        same: the draft model has the target's weights.
    """
    from decoders.core.testing.tiny_llama import attach_random, tiny_models  # loads transformers

    models = tiny_models(vocab_size, max_length, _names(decoder), same=same)
    _mask(decoder, models.target)
    for part in decoder.parts:
        if part.adapter_name is not None and "adapter" in part.needs:
            attach_random(getattr(models, part.adapter_of), part)
    return models


def disjoint_tables(decoder: Decoder) -> Models:
    """Return two tables that never pick the same word, and a target's adapter that always errs."""
    # the draft's adapter agrees with the draft
    error = float(decoder.adapter_of == "target")
    named = {name: _HalfVocabulary(low=False) for name in _names(decoder)}
    models = Models(target=_HalfVocabulary(low=True), draft=_HalfVocabulary(low=False), named=named)
    return with_adapters(decoder, models, error)


def with_adapters(decoder: Decoder, models: Models, error: float) -> Models:
    """Attach adapters to tables and return them.

    Args:
        decoder: the decoder, whose parts need the adapters.
        models: tables.
        error: share of wrong predictions.
    """
    for part in decoder.parts:
        if part.adapter_name is not None:
            model = getattr(models, part.adapter_of)
            model.attach(part.adapter_name, error, *part.variants[:1])
    return models


def table_draws(decoder: Decoder, num_draws: int) -> Draws:
    """Prepare draws of four-token answers from five words: few cells, several steps."""
    if isinstance(decoder, SelfDriven):
        return llama_draws(decoder, num_draws)
    target = TableModel(_FEW_WORDS, seed=1, scale=1.0)
    models = with_adapters(decoder, _add_drafts(decoder, target, _RARELY, 1.0), error=1 - _RARELY)
    return _draws(decoder, models, num_draws)


def llama_draws(decoder: Decoder, num_draws: int) -> Draws:
    """Prepare draws like `table_draws`, from a tiny random Llama."""
    return _draws(decoder, llamas(decoder, _FEW_WORDS), num_draws)


def _draws(decoder: Decoder, models: Models, num_draws: int) -> Draws:
    sampling = Sampling(temperature=0.9, max_new_tokens=4)
    return Draws(decoder, models, [1, 2], sampling, num_draws, beginning=3)


class _HalfVocabulary(TableModel):
    """Make a table that picks only from the lower or only from the upper half of the vocabulary."""

    def __init__(self, *, low: bool) -> None:
        super().__init__(VOCAB, seed=3)
        half = VOCAB // 2
        self._silent = slice(half, None) if low else slice(0, half)

    def logits(self, context: list[int]) -> torch.Tensor:  # type: ignore[override]
        logits = super().logits(context).clone()
        logits[self._silent] = float("-inf")
        return logits

"""What to know of a model's answers before a run: what of its files is not applied here."""

from __future__ import annotations

from typing import Any

from decoders.core.hf.architecture import changed_frequencies

_PROCESSORS = (
    *("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "sequence_bias"),
    *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("min_length", "min_new_tokens", "exponential_decay_length_penalty", "guidance_scale"),
    *("min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "penalty_alpha", "num_beams"),
)
"""Settings of transformers' generation that change logits, or how tokens are chosen, beside the
temperature, top-k and top-p that a run sets itself."""
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, 1.0, [], {})


def notes_of(module: Any) -> tuple[str, ...]:
    """One line each on a causal LM's generation config, and where its rope ends a text."""
    config = module.config.get_text_config()
    notes = []
    generation = getattr(module, "generation_config", None)
    given = {name: getattr(generation, name, None) for name in _PROCESSORS}
    applied = [f"{name}={value}" for name, value in given.items() if value not in _NEUTRAL]
    if applied:
        notes.append(
            f"its generation config asks for {', '.join(applied)}, which no decoder here applies: "
            "answers differ from those of generate() by that"
        )
    length = changed_frequencies(config)
    if length is not None and length < config.max_position_embeddings:
        notes.append(
            f"prompt and answer have {length:,} tokens at most, though the model takes "
            f"{config.max_position_embeddings:,}: beyond, its rope (longrope) has other "
            "frequencies for all tokens, cached ones too"
        )
    return tuple(notes)

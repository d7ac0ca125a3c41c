"""A record of a decoder's answer, as timing writes it, without a run around it."""

from __future__ import annotations

from typing import Any

from bench.records.record import SampleRecord, StepColumns
from decoders.core.types import Generation


def record_of(decoder: str, answer: Generation, **fields: Any) -> SampleRecord:
    """The first answer of a cell to the first prompt; `fields` say more, or otherwise."""
    numbers: dict[str, Any] = dict.fromkeys(("repeat", "seed", "block", "order", "attempt"), 0)
    names = dict.fromkeys(("family", "conversation", "prompt_hash"), "")
    values: dict[str, Any] = {
        "kind": "timing",
        "decoder": decoder,
        **numbers,
        **names,
        "turn": 1,
        "batch_size": 1,
        "num_prompt_tokens": 0,
        "tokens": answer.tokens,
        "steps": StepColumns.of(answer),
        **fields,
    }
    return SampleRecord(**values)

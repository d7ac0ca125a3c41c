"""Records of a decoder's answers, as timing writes them, and a run of them without a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.records.environment import Environment
from bench.records.plan import Plan, RunStatus
from bench.records.record import SampleRecord, StepColumns
from bench.records.run_folder import Run
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


def run_of(records: Iterable[SampleRecord], plan: Plan | None = None, **facts: Any) -> Run:
    """A run of these records; `facts` say more of it."""
    usual: dict[str, Any] = {"config": {}, "env": Environment(), "status": RunStatus()}
    more = usual | {"events": ()} | facts
    return Run(path=Path("run"), plan=plan or Plan(), records=tuple(records), **more)

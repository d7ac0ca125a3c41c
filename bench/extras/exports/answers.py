"""The answers of a run as a table with one row each, without ids, texts and lists."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.records.record import SampleRecord
from bench.stats.counters import Tally

_ASKED = (
    *("decoder", "family", "prompt", "prompt_hash", "repeat", "seed", "batch_size"),
    "num_prompt_tokens",
)
_COUNTED = ("tokens", "target_calls", "target_rows", "draft_calls", "steps", "drafted", "accepted")
_TIMED = ("ttft_s", "total_s", "group_s")


def answers(records: Sequence[SampleRecord]) -> pd.DataFrame:
    """Return one row per answer: the request, its counters, its times and scores."""
    frame = pd.DataFrame([_row(record) for record in records])
    return frame.astype(dict.fromkeys([*_COUNTED, "peak_memory_bytes"], "Int64"))


def _row(record: SampleRecord) -> dict[str, object]:
    tally, steps, seconds = Tally.of(record), record.steps, record.total_s
    counts: dict[str, int] = {}
    if steps is not None:
        sums = (tally.emitted, tally.target_calls, sum(steps.target_rows), sum(steps.draft_calls))
        counted = (*sums, len(steps.emitted), tally.drafted, tally.accepted)
        counts = dict(zip(_COUNTED, counted, strict=True))
    return {
        "pass": record.kind,
        **{name: getattr(record, name) for name in _ASKED},
        **{name: counts.get(name) for name in _COUNTED},
        **{name: getattr(record, name) for name in _TIMED},
        "time_per_token_s": seconds / tally.emitted if seconds and tally.emitted else None,
        **{name: getattr(record, name) for name in ("peak_memory_bytes", "stop", "error")},
        **{f"score_{name}": value for name, value in (record.scores or {}).items()},
    }

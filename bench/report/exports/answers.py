"""The answers of a run as a table, a row each, without ids, texts and lists."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.records.record import SampleRecord
from bench.stats.counters import Tally


def answers(records: Sequence[SampleRecord]) -> pd.DataFrame:
    """One row per answer: what it was, what was counted, what the clock said."""
    rows = []
    for record in records:
        tally, steps = Tally.of(record), record.steps
        done = steps is not None
        seconds = record.total_s
        rows.append(
            {
                "pass": record.kind,
                "decoder": record.decoder,
                "family": record.family,
                "prompt": record.prompt,
                "prompt_hash": record.prompt_hash,
                "repeat": record.repeat,
                "seed": record.seed,
                "batch_size": record.batch_size,
                "num_prompt_tokens": record.num_prompt_tokens,
                "tokens": tally.emitted if done else None,
                "target_calls": tally.target_calls if done else None,
                "target_rows": sum(steps.target_rows) if steps else None,
                "draft_calls": sum(steps.draft_calls) if steps else None,
                "steps": len(steps.emitted) if steps else None,
                "drafted": tally.drafted if done else None,
                "accepted": tally.accepted if done else None,
                "ttft_s": record.ttft_s,
                "total_s": seconds,
                "group_s": record.group_s,
                "time_per_token_s": seconds / tally.emitted if seconds and tally.emitted else None,
                "peak_memory_bytes": record.peak_memory_bytes,
                "stop": record.stop,
                "error": record.error,
                **{f"score_{name}": value for name, value in (record.scores or {}).items()},
            }
        )
    frame = pd.DataFrame(rows)
    whole = ["tokens", "target_calls", "target_rows", "draft_calls", "steps", "drafted", "accepted"]
    return frame.astype(dict.fromkeys([*whole, "peak_memory_bytes"], "Int64"))

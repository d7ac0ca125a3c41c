"""A row of the summary: one decoder in one family. `bench.stats.summary` makes the frame.

Unknown values are None, and so are columns that an older version's summary lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from bench.stats.intervals import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """The columns of the summary, in order; docs/metrics.md defines them.

    Outside readers rely on the columns up to `errors`, in this order.
    """

    decoder: str
    family: str
    prompts: int | None = None
    repeats: int | None = None
    quality_prompts: int | None = None
    tokens_per_call: float | None = None
    tpf: float | None = None
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    rows_per_token: float | None = None
    ttft_s: float | None = None
    time_per_token_s: float | None = None
    tokens_per_s: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_decode: float | None = None
    peak_memory_bytes: int | None = None
    quality: float | None = None
    quality_metric: str | None = None
    identical_to_ar: float | None = None
    errors: int | None = None
    decode_time_per_token_s: float | None = None
    speedup_decode_low: float | None = None
    speedup_decode_high: float | None = None
    quality_low: float | None = None
    quality_high: float | None = None
    acceptance_length_low: float | None = None
    acceptance_length_high: float | None = None
    prompts_needed: int | None = None
    speedup_total: float | None = None
    speedup_total_low: float | None = None
    speedup_total_high: float | None = None
    specbench_compat: float | None = None
    specbench_compat_low: float | None = None
    specbench_compat_high: float | None = None
    aa_speedup: float | None = None
    aa_low: float | None = None
    aa_high: float | None = None
    clusters: int | None = None
    pairs: int | None = None
    pairs_dropped: int | None = None
    tokens: int | None = None
    batch_size: int | None = None
    cold_rounds: float | None = None
    accepted_rounds: float | None = None
    rejected_rounds: float | None = None
    overlap: float | None = None
    alpha_all: float | None = None
    passes_per_block: float | None = None
    passes_per_block_p95: float | None = None
    repetition: float | None = None
    base_nll: float | None = None
    base_agreement: float | None = None
    base_entropy: float | None = None
    pairs_decode: int | None = None
    guarantee: str | None = None
    calls_per_step: float | None = None
    repeated_trigrams: float | None = None
    loops: bool | None = None
    shared_with_ar: float | None = None
    energy_per_token_j: float | None = None
    nll_over_ar: float | None = None
    nll_over_ar_low: float | None = None
    nll_over_ar_high: float | None = None
    distinct_trigrams: float | None = None
    answer_tokens: float | None = None
    quality_tells: bool | None = None
    telling_quality: float | None = None
    telling_quality_low: float | None = None
    telling_quality_high: float | None = None
    checked: str | None = None

    @property
    def floor(self) -> Estimate:
        """Return the A/A noise floor of the row's speed-ups."""
        return Estimate(value=self.aa_speedup, low=self.aa_low, high=self.aa_high)

    def estimate(self, column: str) -> Estimate:
        """Return the value of a column with its interval."""
        value, low, high = (self.value(f"{column}{end}") for end in ("", "_low", "_high"))
        return Estimate(value=value, low=low, high=high)

    def value(self, column: str) -> float | None:
        """Return the number in the column of this name; None if it has no number."""
        entry = getattr(self, column, None)
        return entry if isinstance(entry, int | float) else None


_KINDS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "str": (str, "object"),
    "str | None": (str, "object"),
    "int | None": (int, "Int64"),
    "float | None": (float, "float64"),
    "bool | None": (bool, "boolean"),
}
"""For each field type, its reader and its pandas dtype."""
COLUMNS = {field.name: _KINDS[str(field.type)][1] for field in fields(SummaryRow)}
"""Columns of the summary's frame, with their dtypes."""
_READERS = {field.name: _KINDS[str(field.type)][0] for field in fields(SummaryRow)}


def judged(summary: pd.DataFrame) -> pd.DataFrame:
    """Replace quality in the `all` rows by quality over the families that can show a loss."""
    told = summary["quality_tells"].notna() & summary["family"].eq("all")
    columns = {f"quality{end}": summary[f"telling_quality{end}"] for end in ("", "_low", "_high")}
    return summary.assign(**{name: summary[name].mask(told, c) for name, c in columns.items()})


def rows_of(summary: pd.DataFrame, family: str | None) -> list[SummaryRow]:
    """Read the rows of one family, or all rows (None)."""
    chosen = summary if family is None else summary[summary["family"] == family]
    columns = [name for name in chosen.columns if name in _READERS]
    return [
        SummaryRow(
            **{
                name: _READERS[name](value)
                for name, value in zip(columns, values, strict=True)
                if not pd.isna(value)
            }
        )
        for values in chosen[columns].itertuples(index=False, name=None)
    ]

"""Decoders over the families whose answers are nearly determined, pooled. By hand:

    python -m tests.benchmarks.determined RUN

Each decoder's quality is the mean over these families, beside its share of ar's; `tpf` and the
other counters are pooled over them. What needs the whole answer right is in it, mt_bench is not.
"""

import sys
from dataclasses import replace

import pandas as pd

from bench.records.plan import BASELINE
from bench.records.run_folder import load_run
from bench.stats.summary import ALL, summarise

FAMILIES = ("translation", "math_reasoning", "qa", "rag", "summarization")
COLUMNS = ["decoder", "passes_per_block", "tpf", "tokens_per_call", "rows_per_token", "quality"]


def pooled(path: str) -> pd.DataFrame:
    """A row per decoder of a run."""
    run = load_run(path)
    records = tuple(record for record in run.records if record.family in FAMILIES)
    frame = summarise(replace(run, records=records))
    rows = frame.loc[frame["family"] == ALL, [*COLUMNS, "identical_to_ar"]]
    best = float(rows.loc[rows["decoder"] == BASELINE, "quality"].iloc[0])
    return rows.assign(share_of_ar=rows["quality"] / best)


if __name__ == "__main__":
    print(pooled(sys.argv[1]).to_string(index=False, float_format=lambda x: f"{x:.3f}"))

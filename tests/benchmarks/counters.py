"""The columns of a summary that no clock touches. By hand, for runs on a machine that is busy:

    python -m tests.benchmarks.counters RUN > results/reference/counters/NAME.csv

RUN is a folder with `summary.csv`, of `bench run` or `bench sweep`.
"""

import sys
from pathlib import Path

import pandas as pd

TIMED = ("speedup", "_per_token_s", "ttft_s", "tokens_per_s", "specbench_compat", "aa_", "pairs")
LEFT_OUT = ("prompts_needed", "run", "verdict", "comparability_key", "note")


def of_clocks(column: str) -> bool:
    """Whether a column depends on how fast or how busy the machine was."""
    return any(part in column for part in TIMED)


def counters(folder: Path) -> pd.DataFrame:
    """Return the rows of a run or sweep with their counters, columns without a value left out."""
    frame = pd.read_csv(folder / "summary.csv", dtype=str)
    kept = [name for name in map(str, frame) if not of_clocks(name) and name not in LEFT_OUT]
    return frame[kept].dropna(axis="columns", how="all")


if __name__ == "__main__":
    counters(Path(sys.argv[1])).to_csv(sys.stdout, index=False)

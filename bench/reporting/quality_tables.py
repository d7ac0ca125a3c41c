"""A report's table of quality by family, and where decoders' numbers do not rest on the same.

Made from the summary alone. No torch here.
"""

from __future__ import annotations

import pandas as pd

from bench.metrics import BASELINE
from bench.reporting import tables
from bench.reporting.tables import Table, known, rows_of
from bench.summary import ALL, family_order


def by_families(summary: pd.DataFrame, sizes: str) -> Table | None:
    """Quality of every decoder by family, or None where nothing was scored."""
    scored = summary.dropna(subset=["quality"])
    if scored.empty:
        return None
    metrics = dict(zip(scored["family"], scored["quality_metric"], strict=True))
    named = ", ".join(f"{family}: {metric}" for family, metric in metrics.items())
    note = (
        f"Per cent, from the untimed pass over held-out prompts ({named}); 95 % t-interval over "
        f"conversations. {' '.join([f'{sizes} prompts.', *shortfalls(summary)])}"
    )
    return tables.by_family(summary, "Quality by family", note, tables.quality)


def shortfalls(summary: pd.DataFrame) -> list[str]:
    """Whose quality does not rest on as many prompts as ar's, or is unknown over all families.

    Quality is taken of the answers there are: a decoder that fails on hard prompts seems better.
    """
    scored: dict[str, dict[str, int]] = {}
    for row in rows_of(summary, None):
        of = scored.setdefault(str(row["decoder"]), {})
        if row["family"] != ALL and known(row["quality"]):
            of[str(row["family"])] = int(str(row["quality_prompts"]))
    families = family_order(family for of in scored.values() for family in of)
    baseline = scored.get(BASELINE, {})
    lines = []
    for decoder, of in scored.items():
        missing = [family for family in families if family not in of]
        if missing:
            where = ", ".join(missing)
            lines.append(f"{decoder} has no quality over all families: nothing scored in {where}.")
        counts = [(family, of.get(family, 0), baseline.get(family, 0)) for family in families]
        unequal = [f"{family} {mine} (ar {ars})" for family, mine, ars in counts if mine != ars]
        if unequal and BASELINE in scored:
            line = f"Quality of {decoder} does not rest on as many prompts as ar's"
            lines.append(f"{line}: {', '.join(unequal)}.")
    return lines

"""Tables of a report on decoders that are lossy or draft: rounds, distance from ar, AUP.

Each is None in a run that has nothing to say on it.
"""

from __future__ import annotations

import pandas as pd

from bench.metrics import BASELINE
from bench.parallel import Area, accuracy_under_parallelism, curves, degradation
from bench.plan import WRONG
from bench.reporting.tables import UNKNOWN, Cell, Row, Table, by_family, known, number, rows_of
from bench.summary import ALL

_ROUNDS = {
    "tokens per forward": ("tpf", ".2f", 1),
    "rows per token": ("rows_per_token", ".2f", 1),
    "cold %": ("cold_rounds", ".1f", 100),
    "all stood %": ("accepted_rounds", ".1f", 100),
    "one fell %": ("rejected_rounds", ".1f", 100),
    "overlap": ("overlap", ".3f", 1),
    "alpha": ("alpha_all", ".3f", 1),
    "passes per block": ("passes_per_block", ".2f", 1),
    "p95": ("passes_per_block_p95", ".0f", 1),
}


def rounds(summary: pd.DataFrame) -> Table | None:
    """Rounds, laws and passes over all families, of decoders that have any."""
    rows = [
        row
        for row in rows_of(summary, ALL)
        if known(row["cold_rounds"]) or known(row["passes_per_block"])
    ]
    if not rows:
        return None
    return Table(
        title="Rounds and passes",
        note=(
            "Shares of steps after prefill: nothing was verified, all drafts stood, one fell. "
            "Overlap: mean over tested drafts of the common mass of their law and ar's; alpha: "
            "mean over emitted tokens of min(1, ar / draft). Passes: how often a block was "
            "predicted. '-': not defined for it."
        ),
        headings=("decoder", *_ROUNDS),
        rows=tuple(
            (
                Cell(str(row["decoder"])),
                *(Cell(number(row[c], spec, scale)) for c, spec, scale in _ROUNDS.values()),
            )
            for row in rows
        ),
    )


def lost_quality(summary: pd.DataFrame) -> Table | None:
    """What every decoder loses of ar's quality by family, in points and relatively."""
    baseline = {
        row["family"]: float(str(row["quality"]))
        for row in rows_of(summary, None)
        if row["decoder"] == BASELINE and known(row["quality"])
    }
    others = summary[(summary["decoder"] != BASELINE) & summary["quality"].notna()]
    if not baseline or others.empty:
        return None

    def lost(row: Row) -> Cell:
        if not known(row["quality"]) or row["family"] not in baseline:
            return Cell(UNKNOWN)
        mine, reference = float(str(row["quality"])), baseline[row["family"]]
        relative = degradation(mine, reference)
        text = f"{100 * (mine - reference):+.1f}"
        return Cell(text if relative is None else f"{text} ({0 - relative:+.1f} %)")

    note = "Quality less ar's, in points of per cent, and relative to ar's."
    return by_family(others, "Quality against ar by family", note, lost)


def text(summary: pd.DataFrame) -> Table | None:
    """Likelihood, entropy, repetition and agreement by family, in one cell each."""
    told = summary[summary["base_nll"].notna()]
    if told.empty:
        return None

    def said(row: Row) -> Cell:
        parts = (
            number(row["base_nll"], ".2f"),
            number(row["base_entropy"], ".2f"),
            number(row["repetition"], ".1f", 100),
            number(row["base_agreement"], ".1f", 100),
        )
        return Cell(" / ".join(parts))

    note = (
        "Of the answers of the quality pass: mean negative log-likelihood of a token under the "
        "target / mean entropy of its laws there, both in nats / tokens that repeat the one before "
        "them, % / tokens that are the target's likeliest, %. A loop is likely: read the first "
        "with the third."
    )
    return by_family(told, "What the target says of the answers", note, said)


def area(summary: pd.DataFrame) -> Table | None:
    """Accuracy under parallelism of methods that were run with several settings."""
    scored = summary[
        summary["quality"].notna() & summary["tpf"].notna() & (summary["guarantee"] != WRONG)
    ]
    methods = curves(str(cell) for cell in scored["decoder"].unique())
    if all(len(cells) == 1 for cells in methods.values()):
        return None
    lines: list[dict[str, object]] = []
    for family in scored["family"].unique():
        accuracy = {str(r["decoder"]): _percent(r) for r in rows_of(scored, str(family))}
        rho = {str(r["decoder"]): float(str(r["tpf"])) for r in rows_of(scored, str(family))}
        for method, cells in methods.items():
            points = [(rho[cell], accuracy[cell]) for cell in cells if cell in rho]
            found = None
            if BASELINE in accuracy:
                best = max(accuracy.values())
                found = accuracy_under_parallelism(points, best, accuracy[BASELINE])
            lines.append({"decoder": method, "family": family, "area": found})

    def shown(row: Row) -> Cell:
        found = row["area"]
        if not isinstance(found, Area):
            return Cell(UNKNOWN)
        return Cell(f"{found.value:.1f}" + "*" * bool(found.num_dropped))

    note = (
        "AUP (d3LLM, arXiv 2601.07568): area under quality (per cent) against tokens per forward "
        "over a method's settings, quality below the best of the run discounted by "
        "exp(-3 (1 - quality / best)). Settings are cells whose names differ in the number at "
        "their end. Those that lose over 5 points of ar's quality are left out (*), where d3LLM "
        "takes the slowest setting's; '-': fewer than two are left."
    )
    return by_family(pd.DataFrame(lines), "Accuracy under parallelism", note, shown)


def _percent(row: Row) -> float:
    return 100 * float(str(row["quality"]))

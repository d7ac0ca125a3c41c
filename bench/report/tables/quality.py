"""A report's table of quality by family, and where decoders' numbers do not rest on the same.

Made from the summary alone. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd

from bench.records.plan import BASELINE, WRONG
from bench.report.tables import table as tables
from bench.report.tables.table import Table, TableCell, by_family, is_number, number, of_cells
from bench.stats.intervals import LEVEL
from bench.stats.parallel_counters import (
    LOOP_EXCESS,
    LOOP_SHARE,
    Area,
    accuracy_under_parallelism,
    curves,
    degradation,
)
from bench.stats.summary import ALL, family_order
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import UNKNOWN, change, percent

_bare = partial(percent, unit="")
_ROUNDS: Mapping[str, tuple[str, Callable[[float | None], str]]] = {
    "tokens per forward": ("tpf", number),
    "rows per token": ("rows_per_token", number),
    "cold %": ("cold_rounds", _bare),
    "all accepted %": ("accepted_rounds", _bare),
    "one rejected %": ("rejected_rounds", _bare),
    "overlap": ("overlap", partial(number, spec=".3f")),
    "alpha": ("alpha_all", partial(number, spec=".3f")),
    "passes per block": ("passes_per_block", number),
    "p95": ("passes_per_block_p95", partial(number, spec=".0f")),
}


def by_families(summary: pd.DataFrame, sizes: str) -> Table | None:
    """Quality of every decoder by family, or None where nothing was scored."""
    scored = summary.dropna(subset=["quality"])
    if scored.empty:
        return None
    metrics = dict(zip(scored["family"], scored["quality_metric"], strict=True))
    named = ", ".join(f"{family}: {metric}" for family, metric in metrics.items())
    note = (
        f"Per cent, from the untimed pass over held-out prompts ({named}); {LEVEL} t-interval over "
        f"conversations. {' '.join([f'{sizes} prompts.', *shortfalls(summary)])}"
    )
    return tables.by_family(summary, "Quality by family", note, tables.quality)


def shortfalls(summary: pd.DataFrame) -> list[str]:
    """Whose quality does not rest on as many prompts as ar's, or is unknown over all families.

    Quality is taken of the answers there are: a decoder that fails on hard prompts seems better.
    """
    scored: dict[str, dict[str, int]] = {}
    for row in rows_of(summary, None):
        of = scored.setdefault(row.decoder, {})
        if row.family != ALL and is_number(row.quality):
            of[row.family] = row.quality_prompts or 0
    families = family_order(family for of in scored.values() for family in of)
    baseline = scored.get(BASELINE, {})
    lines = []
    asked = family_order(set(summary["family"]) - {ALL})
    unscored = [family for family in asked if family not in families]
    if unscored and families:
        lines.append(f"No gold answers in {', '.join(unscored)}: agreement with ar says how near.")
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


def rounds(summary: pd.DataFrame) -> Table | None:
    """Rounds, distributions and passes over all families, of decoders that have any."""
    rows = [
        row
        for row in rows_of(summary, ALL)
        if is_number(row.cold_rounds) or is_number(row.passes_per_block)
    ]
    if not rows:
        return None
    return Table(
        title="Rounds and passes",
        note=(
            "Shares of steps after prefill: nothing verified, all drafts accepted, one rejected. "
            "Overlap: mean over tested drafts of the common mass of their distribution and ar's; "
            "alpha: mean over emitted tokens of min(1, ar / draft). Passes: how often a block was "
            "predicted. '-': not defined for it."
        ),
        headings=("decoder", *_ROUNDS),
        rows=tuple(
            (
                TableCell(row.decoder),
                *(TableCell(text(row.value(column))) for column, text in _ROUNDS.values()),
            )
            for row in rows
        ),
    )


def agreement(summary: pd.DataFrame) -> Table | None:
    """How near timed answers are to ar's, where they are not all the same; needs no gold answer."""
    others = summary[(summary["decoder"] != BASELINE) & summary["shared_with_ar"].notna()]
    if others.empty or (others["shared_with_ar"] == 1).all():
        return None

    def near(row: SummaryRow) -> TableCell:
        cells = percent(row.shared_with_ar, ""), percent(row.identical_to_ar, "")
        return TableCell(" / ".join(cells))

    note = (
        "Of the timed answers: ar's tokens before the first difference, % / answers that are "
        "ar's, %. It needs no gold answer. '-': answers are draws of their own (above temperature "
        "0, not coupled to ar's)."
    )
    return by_family(others, "Agreement with ar by family", note, near)


def lost_quality(summary: pd.DataFrame) -> Table | None:
    """What every decoder loses of ar's quality by family, in points and relatively."""
    baseline = {
        row.family: row.quality
        for row in rows_of(summary, None)
        if row.decoder == BASELINE and row.quality is not None
    }
    others = summary[(summary["decoder"] != BASELINE) & summary["quality"].notna()]
    if not baseline or others.empty:
        return None

    def lost(row: SummaryRow) -> TableCell:
        if row.quality is None or row.family not in baseline:
            return TableCell(UNKNOWN)
        mine, reference = row.quality, baseline[row.family]
        relative = degradation(mine, reference)
        text = change(mine - reference, "")
        return TableCell(text if relative is None else f"{text} ({change(0 - relative / 100)})")

    note = "Quality less ar's, in points of per cent, and relative to ar's."
    return by_family(others, "Quality against ar by family", note, lost)


def repetition(summary: pd.DataFrame) -> Table | None:
    """Repeated 3-grams by family, loops in red; None where that was not counted."""
    told = summary[summary["repeated_trigrams"].notna()]
    if told.empty:
        return None

    def share(row: SummaryRow) -> TableCell:
        text = percent(row.repeated_trigrams, "")
        return TableCell(f"{text} (loops)", bad=True) if row.loops else TableCell(text)

    note = (
        "3-grams that stand earlier in the same answer, % of all. Loops: above "
        f"{100 * LOOP_SHARE:.0f} %, or more than {100 * LOOP_EXCESS:.0f} points above ar's."
    )
    return by_family(told, "Repetition by family", note, share)


def looping(summary: pd.DataFrame) -> list[str]:
    """Whose answers repeat themselves so much that what is accepted of them is easy to draft."""
    lines = []
    of_ar = {r.family: r.repeated_trigrams for r in rows_of(summary, None) if r.decoder == BASELINE}
    for row in rows_of(summary, ALL):
        if row.loops and row.repeated_trigrams is not None:
            line = f"{row.decoder} loops: {100 * row.repeated_trigrams:.0f} % of its 3-grams"
            known_of_ar = of_ar.get(ALL)
            beside = "" if known_of_ar is None else f" (ar {100 * known_of_ar:.0f} %)"
            lines.append(f"{line} stand earlier in the same answer{beside}; that is easy to draft.")
    return lines


def text(summary: pd.DataFrame) -> Table | None:
    """Likelihood, entropy, repetition and agreement by family, in one cell each."""
    scored = summary[summary["base_nll"].notna()]
    if scored.empty:
        return None

    def said(row: SummaryRow) -> TableCell:
        parts = (
            number(row.base_nll, ".2f"),
            number(row.base_entropy, ".2f"),
            percent(row.repetition, ""),
            percent(row.base_agreement, ""),
        )
        return TableCell(" / ".join(parts))

    note = (
        "Of the answers of the quality pass: mean negative log-likelihood of a token under the "
        "target / mean entropy of its distributions there, both in nats / tokens that repeat the "
        "one before them, % / tokens that are the target's likeliest, %. A loop is likely: read "
        "the first with the third."
    )
    return by_family(scored, "What the target says of the answers", note, said)


def area(summary: pd.DataFrame) -> Table | None:
    """Accuracy under parallelism of methods that were run with several settings."""
    scored = summary[
        summary["quality"].notna() & summary["tpf"].notna() & (summary["guarantee"] != WRONG)
    ]
    methods = curves(str(cell) for cell in scored["decoder"].unique())
    if all(len(cells) == 1 for cells in methods.values()):
        return None
    areas: dict[tuple[str, str], TableCell] = {}
    for family in scored["family"].unique():
        rows = rows_of(scored, str(family))
        accuracy = {row.decoder: 100 * row.quality for row in rows if row.quality is not None}
        rho = {row.decoder: row.tpf for row in rows if row.tpf is not None}
        for method, cells in methods.items():
            points = [(rho[cell], accuracy[cell]) for cell in cells if cell in rho]
            covered = None
            if BASELINE in accuracy:
                best = max(accuracy.values())
                covered = accuracy_under_parallelism(points, best, accuracy[BASELINE])
            areas[method, str(family)] = _area(covered)

    note = (
        "AUP (d3LLM, arXiv 2601.07568): area under quality (per cent) against tokens per forward "
        "over a method's settings, quality below the best of the run discounted by "
        "exp(-3 (1 - quality / best)). Settings are cells whose names differ in the number at "
        "their end. Those that lose over 5 points of ar's quality are left out (*), where d3LLM "
        "takes the slowest setting's; '-': fewer than two are left."
    )
    return of_cells(areas, "Accuracy under parallelism", note)


def _area(area: Area | None) -> TableCell:
    if area is None:
        return TableCell(UNKNOWN)
    return TableCell(f"{area.value:.1f}" + "*" * bool(area.num_dropped))

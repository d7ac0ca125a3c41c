"""Quality by family: scores, likelihood, repetition, agreement with ar, ceilings, and caveats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from bench.records.plan import BASELINE, WRONG
from bench.records.prompts import read_pieces
from bench.records.record import SampleRecord
from bench.records.run_folder import Run
from bench.report.tables import table as tables
from bench.report.tables.table import (
    Table,
    TableCell,
    by_family,
    from_cells,
    interval,
    is_number,
    number,
    over,
    with_interval,
)
from bench.stats.counters import group_by
from bench.stats.intervals import LEVEL
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.parallel_counters import (
    LOOP_EXCESS,
    LOOP_SHARE,
    accuracy_under_parallelism,
    curves,
)
from bench.stats.quality import FLOOR, answers_to_lists, ceilings_hold, mean_ceiling
from bench.stats.summary import ALL, family_order
from bench.text import UNKNOWN, change, percent
from specbench_tasks.task import LISTS

_NO_CEILING = "none"
"""Text instead of a ceiling, for decoders that keep no unverified parallel prediction."""


def by_families(summary: pd.DataFrame, sizes: str) -> Table | None:
    """Make the table of quality by family, if anything was scored."""
    scored = summary.dropna(subset=["quality"])
    if scored.empty:
        return None
    metrics = dict(zip(scored["family"], scored["quality_metric"], strict=True))
    metrics |= {ALL: "mean of families, without those in brackets"}
    named = ", ".join(f"{family}: {metric}" for family, metric in metrics.items())
    note = (
        f"Per cent, from the untimed pass over held-out prompts ({named}); {LEVEL} t-interval over "
        f"conversations. {' '.join([f'{sizes} prompts.', *shortfalls(summary)])}"
    )
    return by_family(summary, "Quality by family", note, tables.quality)


def shortfalls(summary: pd.DataFrame) -> list[str]:
    """State what limits the quality scores: missing gold or scores, floors, unequal prompts.

    Only existing answers are scored, so a decoder that fails on hard prompts looks better.
    """
    scored: dict[str, dict[str, int]] = {}
    for row in summary_rows(summary[summary["family"] != ALL], None):
        counts = scored.setdefault(row.decoder, {})
        if is_number(row.quality):
            counts[row.family] = row.quality_prompts or 0
    families = family_order(family for counts in scored.values() for family in counts)
    baseline = scored.get(BASELINE, {})
    lines = []
    unscored = [f for f in family_order(set(summary["family"]) - {ALL}) if f not in families]
    if unscored and families:
        lines.append(f"No gold answers in {', '.join(unscored)}: see the agreement with ar.")
    floored = summary[(summary["decoder"] == BASELINE) & summary["quality_tells"].eq(False)]
    if names := ", ".join(floored.loc[floored["family"] != ALL, "family"]):
        lines.append(
            f"Scores of {names} cannot show a loss: ar's are at their floor (below "
            f"{percent(FLOOR)}, or within two standard errors of 0). They are in brackets and in "
            "no mean; see 'Likelihood lost against ar'."
        )
    for decoder, counts in scored.items():
        if missing := ", ".join(family for family in families if family not in counts):
            lines.append(
                f"{decoder} has no quality over all families: nothing scored in {missing}."
            )
        pairs = [(family, counts.get(family, 0), baseline.get(family, 0)) for family in families]
        unequal = [f"{family} {num} (ar {ars})" for family, num, ars in pairs if num != ars]
        if unequal and BASELINE in scored:
            line = f"Quality of {decoder} is from other numbers of prompts than ar's"
            lines.append(f"{line}: {', '.join(unequal)}.")
    return lines


def telling(summary: pd.DataFrame) -> str:
    """Name the families whose mean is the quality over all, unless it is that of all."""
    of_ar = summary[summary["decoder"].eq(BASELINE) & summary["family"].ne(ALL)]
    rows = [row for row in summary_rows(of_ar, None) if row.quality is not None]
    kept = [row.family for row in rows if row.quality_tells is not False]
    if len(kept) == len(rows):
        return ""
    return (
        f"Quality: {', '.join(kept) or 'no family'} only (telling_quality of summary.csv), as "
        f"{BASELINE} itself is at its floor elsewhere; summary.csv's quality is of all families."
    )


def agreement(summary: pd.DataFrame) -> Table | None:
    """Make the table of agreement with ar's answers, unless all agree."""
    rest = summary[(summary["decoder"] != BASELINE) & summary["shared_with_ar"].notna()]
    if (rest["shared_with_ar"] == 1).all():
        return None
    note = (
        "Timed answers: % of ar's tokens before the first difference / % of answers identical to "
        "ar's. Needs no gold answers. '-': the decoder samples independently of ar (temperature "
        "above 0, not coupled)."
    )
    return by_family(
        rest,
        "Agreement with ar by family",
        note,
        lambda r: f"{percent(r.shared_with_ar, '')} / {percent(r.identical_to_ar, '')}",
    )


def lost_quality(summary: pd.DataFrame) -> Table | None:
    """Make the table of the quality lost against ar, in points and relative to ar."""
    rows = summary_rows(summary, None)
    baseline = {
        r.family: r.quality for r in rows if r.decoder == BASELINE and r.quality_tells is not False
    }
    rest = summary[(summary["decoder"] != BASELINE) & summary["quality"].notna()]
    if not any(map(is_number, baseline.values())) or rest.empty:
        return None

    def lost(row: SummaryRow) -> str:
        reference = baseline.get(row.family)
        if row.quality is None or reference is None:
            return UNKNOWN
        lost = row.quality - reference
        return f"{change(lost, '')} ({change(lost / reference)})" if reference else change(lost, "")

    note = "Quality minus ar's, in percentage points, and relative to ar's."
    return by_family(rest, "Quality against ar by family", note, lost)


def repetition(summary: pd.DataFrame) -> Table | None:
    """Make the table of repeated 3-grams, with loops in red, if they were counted."""
    counted = summary[summary["repeated_trigrams"].notna()]
    if counted.empty:
        return None
    note = (
        "% of 3-grams that already occurred in the same answer. Loops: above "
        f"{100 * LOOP_SHARE:.0f} %, or more than {100 * LOOP_EXCESS:.0f} points above ar's."
    )

    def share(row: SummaryRow) -> TableCell:
        text = percent(row.repeated_trigrams, "")
        return TableCell(f"{text} (loops)", bad=True) if row.loops else TableCell(text)

    return by_family(counted, "Repetition by family", note, share)


def looping(summary: pd.DataFrame) -> list[str]:
    """Name decoders whose answers loop, because loops are easy to draft."""
    lines, rows = [], summary_rows(summary, ALL)
    of_ar = next((row.repeated_trigrams for row in rows if row.decoder == BASELINE), None)
    for row in rows:
        if row.loops and row.repeated_trigrams is not None:
            line = f"{row.decoder} loops: {100 * row.repeated_trigrams:.0f} % of its 3-grams"
            aside = "" if of_ar is None else f" (ar {100 * of_ar:.0f} %)"
            line += f" repeat earlier ones of the answer{aside}; loops are easy to draft."
            lines.append(line)
    return lines


def text(summary: pd.DataFrame) -> Table | None:
    """Make the table of likelihood, entropy, repetition and agreement, all in one cell."""
    scored = summary[summary["base_nll"].notna()]
    if scored.empty:
        return None
    note = (
        "Answers of the quality pass: mean negative log-likelihood of a token under the target, in "
        "nats / mean entropy of the target's distributions, in nats / % of tokens that repeat the "
        "previous token / % of tokens that are the target's most likely / distinct 3-grams in % of "
        "all 3-grams, over all answers / tokens per answer. Loops have a high likelihood: read the "
        "first number with the third and the fifth."
    )

    def cell(row: SummaryRow) -> str:
        of = (row.repetition, row.base_agreement, row.distinct_trigrams)
        shares = (percent(share, "") for share in of)
        nats = (number(row.base_nll), number(row.base_entropy))
        return " / ".join((*nats, *shares, number(row.answer_tokens, ".0f")))

    return by_family(scored, "Likelihood and repetition of the answers by family", note, cell)


def likelihood(summary: pd.DataFrame) -> Table | None:
    """Make the table of likelihood lost against ar's answers, if it is known."""
    rest = summary[(summary["decoder"] != BASELINE) & summary["nll_over_ar"].notna()]
    note = (
        "Negative log-likelihood per token of the quality pass's answers under the target "
        "(teacher-forced, temperature 1) minus that of ar's answers to the same prompts, in nats; "
        f"{LEVEL} jackknife interval over conversations, bold if it excludes 0. Needs no gold "
        "answers and has no floor. Loops have a high likelihood: read it with the repetition."
    )

    def lost(row: SummaryRow) -> TableCell:
        low, high = row.nll_over_ar_low or 0.0, row.nll_over_ar_high or 0.0
        ends = interval(row.nll_over_ar_low, row.nll_over_ar_high)
        text = with_interval(number(row.nll_over_ar, "+.2f"), ends)
        return TableCell(text, bold=low > 0 or high < 0)

    title = "Likelihood lost against ar by family"
    return None if rest.empty else by_family(rest, title, note, lost)


def reference(summary: pd.DataFrame) -> str:
    """Return the cell whose quality the others should keep: ar, or the baseline without ar."""
    return BASELINE if (summary["decoder"] == BASELINE).any() else over(summary)


def areas(summary: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return accuracy under parallelism by method and family, if a method has several settings."""
    scored = summary[summary["quality"].notna() & summary["tpf"].notna()]
    scored = scored[(scored["guarantee"] != WRONG) & scored["quality_tells"].fillna(True)]
    methods = curves(str(cell) for cell in scored["decoder"].unique())
    texts: dict[tuple[str, str], str] = {}
    if all(len(cells) == 1 for cells in methods.values()):
        return texts
    base = reference(summary)
    for family in scored["family"].unique():
        rows = {row.decoder: row for row in summary_rows(scored, str(family))}
        accuracy = {name: 100 * (row.quality or 0.0) for name, row in rows.items()}
        for method, cells in methods.items():
            points = [(rows[cell].tpf or 0.0, accuracy[cell]) for cell in cells if cell in rows]
            texts[method, str(family)] = UNKNOWN
            if base in accuracy:
                best = max(accuracy.values())
                aup = accuracy_under_parallelism(points, best, accuracy[base])
                if aup is not None:
                    starred = "*" * bool(aup.num_dropped)
                    texts[method, str(family)] = f"{aup.value:.1f}{starred}"
    return texts


def area(summary: pd.DataFrame) -> Table | None:
    """Make the table of `areas`, if there are any."""
    note = (
        "AUP (d3LLM, arXiv 2601.07568): area under the curve of quality (per cent) over tokens per "
        "forward, through a method's settings; quality below the run's best is discounted by "
        "exp(-3 (1 - quality / best)). Settings are cells whose names differ in their final "
        f"number. Those that lose over 5 points of {reference(summary)}'s quality are left out "
        "(*); d3LLM compares with the slowest setting. '-': fewer than two settings are left."
    )
    cells = areas(summary)
    return from_cells(cells, "Accuracy under parallelism", note) if cells else None


def ceilings(run: Run, summary: pd.DataFrame) -> Table | None:
    """Make the table of right lists and their ceilings, if ceilings apply."""
    filled = group_by(
        answers_to_lists(run.records), lambda record: f"{record.decoder} {record.family}"
    )
    if not filled or not ceilings_hold(run.config):
        return None
    piece = read_pieces(run.path)
    note = (
        "% of correct lists / their ceiling in %, if the items decided in one pass are drawn "
        "independently, each from the task's distribution at its position. Computed from the "
        "recorded passes of each answer that is a list. Keeping items by confidence, or revising "
        "them, may exceed the ceiling; so may a model that always gives the same correct answer. "
        f"{_NO_CEILING}: the decoder keeps only verified tokens."
    )

    def cell(row: SummaryRow) -> str:
        answers = filled.get(f"{row.decoder} {row.family}")
        ceiling = _NO_CEILING if answers is None else percent(mean_ceiling(answers, piece), "")
        return f"{percent(row.quality, '')} / {ceiling}"

    lists = summary[summary["family"].isin(LISTS)]
    table = by_family(lists, "Lists against the ceiling of independent prediction", note, cell)
    rows = tuple(row[:-1] for row in table.rows)  # ceilings exist only per family
    return replace(table, headings=table.headings[:-1], rows=rows)


def ceiling_caveat(run: Run) -> list[str]:
    """State why a run with lists has no table of ceilings."""
    if ceilings_hold(run.config) or not answers_to_lists(run.records):
        return []
    return ["No ceilings of lists: they need --temperature 1, --top-p 1 and --top-k 0."]


def cut_share(records: Sequence[SampleRecord]) -> float | None:
    """Return the share of answers that the limit of new tokens cut, or None without answers."""
    stops = [record.stop for record in records if record.error is None and record.stop is not None]
    return sum(stop == "length" for stop in stops) / len(stops) if stops else None


def behind_share(records: Sequence[SampleRecord]) -> float:
    """Return the share of tokens that follow an answer's end token."""
    total = sum(len(record.tokens or ()) for record in records)
    return sum(record.num_behind or 0 for record in records) / total if total else 0.0


def ends(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Iterator[str]:
    """State which share of answers the limit cut, or else what follows their end tokens."""
    cells = group_by(records)
    behind = {name: behind_share(cells[name]) for name in decoders if name in cells}
    if any(behind.values()):
        yield (
            f"Behind the end: {_each(behind)} of the tokens follow an end token (--fixed-length); "
            "they are timed and counted, and not scored."
        )
        return
    shares = {name: cut_share(cells[name]) for name in decoders if name in cells}
    cut = {name: share for name, share in shares.items() if share is not None}
    if any(cut.values()):
        yield f"Cut by --max-new-tokens: {_each(cut)} of the answers."


def _each(shares: dict[str, float]) -> str:
    """Write shares by decoder, equal ones once."""
    names: dict[str, list[str]] = {}
    for name, share in shares.items():
        names.setdefault(f"{100 * share:.0f} %", []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return ", ".join(f"{share} ({', '.join(of)})" for share, of in names.items())

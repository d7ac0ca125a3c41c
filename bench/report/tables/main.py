"""The main table of a run, and sentences about its basis."""

from __future__ import annotations

import pandas as pd

from bench.records.plan import BASELINE
from bench.report.tables.table import (
    SESSIONS,
    Columns,
    Table,
    estimated,
    guarantee_label,
    is_number,
    number,
    quality,
    speed,
    step_length,
)
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import counted, factor, percent

DETERMINED = 0.1
"""Mean entropy (nats) below which the report calls the text nearly determined."""
PER_STEP = f"tokens per step [{LEVEL}]"
_HEADLINE: Columns = {
    "decoder": lambda r: r.decoder,
    "guarantee": guarantee_label,
    f"speed-up, geometric mean [{LEVEL}]": speed,
    f"decode speed-up [{LEVEL}]": lambda r: speed(r, "speedup_decode"),
    "ratio of totals": lambda r: factor(r.speedup_total),
    "specbench_compat": lambda r: factor(r.specbench_compat),
    "tokens per call": lambda r: number(r.tokens_per_call),
    PER_STEP: step_length,
    "calls per step": lambda r: number(r.calls_per_step),
    "draft acceptance %": lambda r: percent(r.acceptance_rate, ""),
    "rows per token": lambda r: number(r.rows_per_token),
    "TTFT ms": lambda r: number(r.ttft_s, ".1f", 1e3),
    "tokens/s": lambda r: number(r.tokens_per_s, ",.0f"),
    "peak memory MB": lambda r: number(r.peak_memory_bytes, ",.1f", 1e-6),
    f"quality % [{LEVEL}]": quality,
    "identical to ar %": lambda r: percent(r.identical_to_ar, ""),
    "errors": lambda r: number(r.errors, ".0f"),
}


def headline(summary: pd.DataFrame, verdict: str, model: str) -> Table:
    """Make the table of every decoder's main numbers over all families."""
    note = (
        "Speed-up: geometric mean over prompts of ar time / decoder time per emitted token, "
        "paired, from request start to last token (decode: from the first token on); median "
        f"over the repeats of a prompt; {LEVEL} t-interval over conversations; bold if it excludes "
        f"1 and the speed-up exceeds the A/A floor. {SESSIONS} Ratio of totals and "
        "specbench_compat are other estimators of the speed-up; 'Speed-up by estimator' has their "
        "intervals. Guarantee: what a decoder claims about its answers: the same tokens as ar, "
        "tokens of the same distribution, or nothing (lossy); not verified: its tokens differ from "
        "ar's, and rounding is not shown to explain it. Calls are target calls; calls per "
        "step exclude the prefill. Tokens per step include the target's own token, and are in "
        "brackets if nothing verifies them. Counters and times are pooled (sum / sum); the "
        "interval of tokens per step is a jackknife over conversations. "
        f"{entropy_sentence(summary)} {bases(summary)}. Model: {model}. "
        f"Verdict of the run: {verdict}."
    )
    return Table.made("All families", note, _HEADLINE, rows_of(summary, ALL))


def bases(summary: pd.DataFrame) -> str:
    """Describe the samples of all rows, each with its decoders if there are several."""
    sharing: dict[str, list[str]] = {}
    for row in rows_of(summary, ALL):
        sharing.setdefault(basis(row), []).append(row.decoder)
    several = len(sharing) > 1
    each = [f"{text} ({', '.join(names)})" if several else text for text, names in sharing.items()]
    return "; ".join(each)


def basis(row: SummaryRow) -> str:
    """Describe the sample of a row's speed-up: n, repeats, clusters, and what is left out."""
    grouped = is_number(row.batch_size) and row.batch_size != 1
    noun, of = ("group", " of prompts") if grouped else ("prompt", "")
    if not row.pairs:
        return f"n = 0: no {noun}{of} was timed with ar"
    repeats, clusters = counted(row.repeats or 0, "repeat"), counted(row.clusters or 0, "cluster")
    text = f"n = {counted(row.pairs, noun)}{of} x {repeats} in {clusters}"
    if row.pairs_dropped:
        text += f", {counted(row.pairs_dropped, 'pair')} dropped for errors"
    if row.pairs_decode not in (None, row.pairs) and not grouped:
        text += f", decode speed-up from {row.pairs_decode} (others ended in their first step)"
    if row.clusters == 1:
        one = "group of prompts" if grouped else "conversation"
        text += f" (one {one}: no interval; raise --limit)"
    return text


def entropies(summary: pd.DataFrame) -> dict[str, float]:
    """Return the known mean entropies of ar's next token along its answers, by family, in nats."""
    rows = [row for row in rows_of(summary, None) if row.decoder == BASELINE]
    return {row.family: row.base_entropy for row in rows if row.base_entropy is not None}


def entropy_sentence(summary: pd.DataFrame) -> str:
    """State the mean entropy of ar's next token, which tells how easy drafting is."""
    entropy = entropies(summary).get(ALL)
    if entropy is None:
        return "The entropy of ar's next token was not measured (no quality pass)."
    ease = "; the text is nearly determined and easy to draft" if entropy < DETERMINED else ""
    return f"The mean entropy of ar's next token along its answers is {entropy:.3g} nats{ease}."


def floor_sentence(floor: Estimate) -> str:
    """State the A/A noise floor."""
    if floor.value is None:
        return "A/A noise floor: unknown (the second arm of ar was not measured)."
    return (
        f"A/A noise floor: ar against a second ar measures {estimated(floor)}, "
        f"n = {floor.num}; a difference of this size is noise."
    )

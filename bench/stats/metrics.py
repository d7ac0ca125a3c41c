"""Declare the metrics of a run, each once: formula, value, unit, direction, headings, format.

A field of `SummaryRow` is a column of summary.csv. The main table, the table of a paper, the gate,
docs/metrics.md and docs/schema.md derive from the fields. Unknown values are None, and so are
columns that an older version's summary lacks. `bench.stats.summary` makes the frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import pandas as pd

from bench.stats import answers, counters, parallel_counters, times
from bench.stats.intervals import TEX_LEVEL, Estimate, paired_speedup
from bench.stats.metric import (
    FACTOR,
    GIGABYTES_PER_SECOND,
    MEGABYTES,
    MILLISECONDS,
    PER_SECOND,
    SHARE,
    Gated,
    Heading,
    Metric,
    Paper,
    declared_metrics,
    end,
    metric,
)
from bench.stats.parallel_counters import COPIED_RUN
from bench.stats.quality import failed, scored

_count = partial(metric, section="Counts")
_counter = partial(metric, section="Counters")
_time = partial(metric, section="Times")
_estimator = partial(metric, section="Three estimators")
_speedup = partial(metric, section="Speed-up")
_quality = partial(metric, section="Quality")
_guarantee = partial(metric, section="What a decoder guarantees")
_parallel = partial(metric, section="Parallel decoding")
_parallel_share = partial(_parallel, unit=SHARE)
_calibrated = partial(metric, section="Calibration of drafts", better="less", spec=".3f")
"""Declarations of metrics by the section of docs/metrics.md that explains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """Hold a row of the summary: one decoder in one family. The fields are the columns, in order.

    Outside readers rely on the columns up to `errors`, in this order.
    """

    decoder: str = _count(
        "a cell: NAME or NAME@LABEL",
        lambda data: data.decoder,
        heading=Heading("decoder", 0, first=True),
    )
    family: str = _count("a family of tasks, or `all`", lambda data: data.family)
    prompts: int | None = _count(
        "prompts of the timed pass", lambda data: len({r.prompt for r in data.timed})
    )
    repeats: int | None = _count(
        "repeats of each prompt", lambda data: len({r.repeat for r in data.timed})
    )
    quality_prompts: int | None = _count(
        "prompts of the quality pass, those of failed answers included",
        lambda data: len({r.prompt for r in [*scored(data.records), *failed(data.records)]}),
    )
    tokens_per_call: float | None = _counter(
        "emitted / target calls, prefill and its token included",
        lambda data: data.tally.tokens_per_call,
        better="more",
        heading=Heading("tokens per call", 5, "tokens\nper call", first=True),
        paper=Paper("Tok./call", "emitted tokens per target call"),
    )
    tpf: float | None = _counter(
        "(emitted - tokens of step 0) / (target calls - prefill calls)",
        lambda data: data.tally.tpf,
        better="more",
    )
    acceptance_length: float | None = _counter(
        "tokens emitted in later steps / number of later steps",
        lambda data: data.acceptance_length,
        better="more",
        heading=Heading("tokens per step", 7, "tokens\nper step", first=True, bare=True),
        paper=Paper("Tok./step", "tokens per step after prefill"),
        gate=Gated("more", tolerance=math.inf, name="tokens_per_step"),
    )
    acceptance_rate: float | None = _counter(
        "accepted / drafted",
        lambda data: data.tally.acceptance_rate,
        unit=SHARE,
        better="more",
        heading=Heading("draft acceptance %", 9, "draft\naccept. %"),
        paper=Paper("Acc.", "accepted drafts in per cent"),
    )
    rows_per_token: float | None = _counter(
        "target rows fed after prefill / emitted",
        lambda data: data.tally.rows_per_token,
        better="less",
        heading=Heading("rows per token", 10, "rows per\ntoken"),
        paper=Paper("Rows/tok.", "target rows per emitted token"),
    )
    ttft_s: float | None = _time(
        "mean over answers of the seconds from request start to the end of the step that emits the "
        "first token; empty steps before it count into this time",
        lambda data: times.ttft_s(data.records),
        unit=MILLISECONDS,
        better="less",
        spec=".1f",
        heading=Heading("TTFT ms", 12, "TTFT\nms"),
        paper=Paper("TTFT", "ms to the first token"),
    )
    time_per_token_s: float | None = _time(
        "Σ seconds from request start to last token / Σ emitted tokens",
        lambda data: data.time_per_token_s,
        unit=MILLISECONDS,
        better="less",
        paper=Paper("ms/tok.", "ms per emitted token"),
    )
    tokens_per_s: float | None = _time(
        "1 / `time_per_token_s`",
        lambda data: 1 / data.time_per_token_s if data.time_per_token_s else None,
        unit=PER_SECOND,
        better="more",
        heading=Heading("tokens/s", 8),
        paper=Paper("Tok./s", "emitted tokens per second", ".0f"),
    )
    speedup: float | None = _estimator(
        "geometric mean: exp(mean over prompts of log(time per token of the baseline, usually AR / "
        "of the decoder)); the headline",
        lambda data: data.over_ar(data.pairs),
        unit=FACTOR,
        better="more",
        heading=Heading("speed-up", 2, first=True),
        paper=Paper(
            "Speed-up",
            "speed-up over autoregressive decoding (geometric mean over prompts of paired "
            f"end-to-end time per token, {TEX_LEVEL} t-interval over prompts of one session)",
        ),
    )
    speedup_low: float | None = end("speedup", "low")
    speedup_high: float | None = end("speedup", "high")
    speedup_decode: float | None = _speedup(
        "the same ratio as `speedup`, from the first token on",
        lambda data: data.over_ar(data.decode_pairs),
        unit=FACTOR,
        better="more",
        heading=Heading("decode speed-up", 11),
        paper=Paper("Decode", "speed-up from the first token on"),
    )
    peak_memory_bytes: int | None = metric(
        "largest amount that any answer needed: weights that the decoder uses, and its KV caches "
        "(on a CPU the sum of their sizes as reserved, on CUDA the allocator's peak)",
        lambda data: counters.peak_memory_bytes(data.records),
        unit=MEGABYTES,
        better="less",
        heading=Heading("peak memory MB", 13, "peak\nmemory MB"),
        paper=Paper("MB", "peak memory in MB", ".0f"),
        section="Memory",
    )
    quality: float | None = _quality(
        "score from 0 to 1; `quality_metric` names its metric",
        lambda data: data.quality.estimate,
        unit=SHARE,
        better="more",
        heading=Heading("quality %", 3, "quality\n%", first=True, bare=True),
        paper=Paper("Quality", "quality in per cent"),
    )
    quality_metric: str | None = _quality(
        "what `quality` measures", lambda data: data.quality.metric
    )
    identical_to_ar: float | None = _quality(
        "share of (prompt, repeat) whose ids equal AR's exactly, EOS included; unknown if the "
        "decoder samples independently of AR",
        lambda data: (
            answers.identical_to_ar(data.records, data.baseline) if data.comparable_to_ar else None
        ),
        unit=SHARE,
        better="more",
        heading=Heading("identical to ar %", 4, "identical\nto ar %", first=True),
        paper=Paper("Same", "answers identical to AR's in per cent"),
    )
    errors: int | None = _count(
        "answers that failed: they have no numbers and are not replaced",
        lambda data: sum(r.error is not None for r in data.records),
        better="less",
        spec=".0f",
        heading=Heading("errors", 14),
    )
    decode_time_per_token_s: float | None = _time(
        "Σ (total - ttft) / Σ tokens emitted after the first token's step",
        lambda data: times.decode_time_per_token_s(data.units),
        unit=MILLISECONDS,
        better="less",
    )
    speedup_decode_low: float | None = end("speedup_decode", "low")
    speedup_decode_high: float | None = end("speedup_decode", "high")
    quality_low: float | None = end("quality", "low")
    quality_high: float | None = end("quality", "high")
    acceptance_length_low: float | None = end("acceptance_length", "low")
    acceptance_length_high: float | None = end("acceptance_length", "high")
    prompts_needed: int | None = metric(
        "number of further prompts that would narrow the interval of `speedup` to ±5 %, if they "
        "varied like the present ones; 0: it is that narrow",
        lambda data: data.estimators.more_prompts,
        section="Intervals",
    )
    speedup_total: float | None = _estimator(
        "ratio of totals: (Σ AR seconds / Σ AR tokens) / (Σ decoder seconds / Σ decoder tokens)",
        lambda data: data.estimators.totals,
        unit=FACTOR,
        better="more",
    )
    speedup_total_low: float | None = end("speedup_total", "low")
    speedup_total_high: float | None = end("speedup_total", "high")
    specbench_compat: float | None = _estimator(
        "mean over questions of the decoder's tokens per second / mean over questions of AR's, per "
        "repeat; then the mean over repeats",
        lambda data: data.estimators.specbench,
        unit=FACTOR,
        better="more",
    )
    specbench_compat_low: float | None = end("specbench_compat", "low")
    specbench_compat_high: float | None = end("specbench_compat", "high")
    aa_speedup: float | None = _speedup(
        "noise floor: speed-up of the baseline's second arm over its first, in the row's family",
        lambda data: paired_speedup(data.baseline_units, data.second_units),
        unit=FACTOR,
    )
    aa_low: float | None = end("aa_speedup", "low")
    aa_high: float | None = end("aa_speedup", "high")
    clusters: int | None = _count("conversations in the speed-up", lambda data: data.pairs.clusters)
    pairs: int | None = _count("prompts in the speed-up", lambda data: data.pairs.num)
    pairs_dropped: int | None = _count(
        "answers (of a prompt in a repeat) left out of the speed-up because of an error on either "
        "side; their prompt stays if another repeat is whole",
        lambda data: data.pairs.dropped,
    )
    tokens: int | None = _count("tokens emitted in the timed pass", lambda data: data.tally.emitted)
    batch_size: int | None = _count(
        "sequences at once", lambda data: max((r.batch_size for r in data.timed), default=None)
    )
    cold_rounds: float | None = _parallel_share(
        "share of steps after prefill that verified nothing",
        lambda data: data.rounds["cold_rounds"],
    )
    accepted_rounds: float | None = _parallel_share(
        "share of steps after prefill whose number of accepted drafts equals the depth",
        lambda data: data.rounds["accepted_rounds"],
    )
    rejected_rounds: float | None = _parallel_share(
        "share of steps after prefill with fewer accepted drafts than the depth",
        lambda data: data.rounds["rejected_rounds"],
    )
    overlap: float | None = _parallel(
        "mean over tested drafts of Σ min(target distribution, draft's distribution). Tested: all "
        "drafts before it in its step were accepted",
        lambda data: data.compared("overlap", "tested"),
        better="more",
    )
    alpha_all: float | None = _parallel(
        "mean over emitted tokens of min(1, target / draft), 1 for a token that was no draft: "
        "I-DLM's introspective acceptance rate",
        lambda data: data.compared("alpha", "emitted"),
        better="more",
    )
    passes_per_block: float | None = _parallel(
        "mean over finished blocks of the passes that predicted a block",
        lambda data: data.passes["passes_per_block"],
        better="less",
    )
    passes_per_block_p95: float | None = _parallel(
        "their nearest-rank 95th percentile",
        lambda data: data.passes["passes_per_block_p95"],
        better="less",
    )
    repetition: float | None = _parallel_share(
        "tokens of quality answers that equal the token before them / tokens except each answer's "
        "first",
        lambda data: parallel_counters.repetition(data.records),
        better="less",
    )
    base_nll: float | None = _parallel(
        "mean -log P of a token of a quality answer under the target at temperature 1, "
        "teacher-forced, in nats",
        lambda data: parallel_counters.per_token(data.records, "nll"),
        better="less",
    )
    base_agreement: float | None = _parallel_share(
        "tokens of quality answers that are the target's most likely next token / tokens",
        lambda data: parallel_counters.per_token(data.records, "agreement"),
    )
    base_entropy: float | None = _parallel(
        "mean entropy of the target's next-token distributions along a quality answer, in nats",
        lambda data: parallel_counters.per_token(data.records, "entropy"),
    )
    pairs_decode: int | None = _speedup(
        "prompts in `speedup_decode`: those with more than one step on both sides",
        lambda data: data.decode_pairs.num,
    )
    guarantee: str | None = _guarantee(
        "what the decoder's attributes, options and the temperature promise, unless the run's "
        "answers contradict it",
        lambda data: data.guarantee,
        heading=Heading("guarantee", 1, first=True),
    )
    calls_per_step: float | None = _counter(
        "(target calls - prefill calls) / number of later steps",
        lambda data: data.tally.calls_per_step,
        heading=Heading("calls per step", 6, "calls\nper step", first=True),
        paper=Paper("Calls/step", "target calls per step"),
    )
    repeated_trigrams: float | None = _parallel_share(
        "3-grams that occur earlier in the same answer / 3-grams; each answer once, timed and "
        "scored ones",
        lambda data: data.repeated_trigrams,
        better="less",
    )
    loops: bool | None = _parallel(
        "true if `repeated_trigrams` is above 0.5, or more than 0.1 above `ar`'s: such text is "
        "easy to draft",
        lambda data: parallel_counters.loops(
            data.repeated_trigrams, parallel_counters.repeated_trigrams(data.baseline)
        ),
    )
    shared_with_ar: float | None = _parallel_share(
        "tokens of `ar`'s answers up to the first difference / tokens of `ar`'s answers; known "
        "where `identical_to_ar` is",
        lambda data: (
            answers.shared_with_ar(data.records, data.baseline) if data.comparable_to_ar else None
        ),
    )
    energy_per_token_j: float | None = metric(
        "joules of timed answers / their tokens",
        lambda data: counters.energy_per_token_j(data.records),
        better="less",
        section="Energy",
    )
    nll_over_ar: float | None = _parallel(
        "`base_nll` minus that of `ar`'s answers to the same prompts, in nats per token",
        lambda data: parallel_counters.nll_over(data.records, data.baseline),
        better="less",
    )
    nll_over_ar_low: float | None = end("nll_over_ar", "low")
    nll_over_ar_high: float | None = end("nll_over_ar", "high")
    distinct_trigrams: float | None = _parallel(
        "different 3-grams of all quality answers together / their 3-grams "
        "([distinct-n](https://arxiv.org/abs/1510.03055)): low if the answers are all alike",
        lambda data: parallel_counters.distinct_trigrams(data.records),
        better="more",
    )
    answer_tokens: float | None = _parallel(
        "mean number of tokens of a quality answer, EOS included",
        lambda data: parallel_counters.answer_tokens(data.records),
    )
    quality_tells: bool | None = _quality(
        "false for a family in which `ar`'s score is at its floor, so that no loss would show",
        lambda data: data.quality_tells,
    )
    telling_quality: float | None = _quality(
        "in the row `all`: unweighted mean of `quality` over the families that tell",
        lambda data: data.telling_quality,
        unit=SHARE,
        better="more",
    )
    telling_quality_low: float | None = end("telling_quality", "low")
    telling_quality_high: float | None = end("telling_quality", "high")
    checked: str | None = _guarantee(
        "outcome of the checks before the run: verified, claimed or wrong",
        lambda data: data.cell and data.cell.checked,
    )
    no_speedup: str | None = _speedup(
        "why all speed-ups are null: most answers end in the first step, or nothing is drafted",
        lambda data: data.no_speedup,
    )
    copied: float | None = _parallel_share(
        f"tokens of timed answers in runs of {COPIED_RUN} or more tokens that also occur in the "
        "prompt / tokens",
        lambda data: parallel_counters.copied(data.timed, data.prompts),
    )
    tokens_per_block: float | None = _parallel(
        "mean over finished blocks of their tokens, after the cut at EOS and budget",
        lambda data: data.passes["tokens_per_block"],
    )
    weights_per_s: float | None = _time(
        "bytes of the target's weights that a call reads x its calls after the first token / "
        "their seconds; median over unbatched answers",
        lambda data: counters.weights_per_s(times.within_a_machine(data.timed), data.read_bytes),
        unit=GIGABYTES_PER_SECOND,
        better="more",
    )
    ece: float | None = _calibrated(
        "expected calibration error of drafts' confidences, 15 bins of equal width",
        lambda data: data.calibration[0],
    )
    ece_low: float | None = end("ece", "low")
    ece_high: float | None = end("ece", "high")
    brier: float | None = _calibrated(
        "mean over tested drafts of (confidence - outcome)², 1 for accepted, 0 for rejected",
        lambda data: data.calibration[1],
    )
    brier_low: float | None = end("brier", "low")
    brier_high: float | None = end("brier", "high")
    baseline: str | None = _speedup("the cell to which speed-ups refer", lambda data: data.over)

    @property
    def over(self) -> str:
        """Return the cell to which speed-ups refer."""
        return self.baseline or "ar"

    @property
    def floor(self) -> Estimate:
        """Return the A/A noise floor of the row's speed-ups."""
        value, low, high = map(self.value, ("aa_speedup", "aa_low", "aa_high"))
        return Estimate(value=value, low=low, high=high)

    def estimate(self, column: str) -> Estimate:
        """Return the value of a column with its interval."""
        value, low, high = (self.value(f"{column}{end}") for end in ("", "_low", "_high"))
        return Estimate(value=value, low=low, high=high)

    def value(self, column: str) -> float | None:
        """Return the number in the column of this name, or None if it has no number."""
        entry = getattr(self, column, None)
        return entry if isinstance(entry, int | float) else None


METRICS: Mapping[str, Metric] = declared_metrics(SummaryRow)
"""All metrics by column, in the order of summary.csv."""
INTERVALS = frozenset(each.end_of for each in METRICS.values() if each.end_of)
"""Metrics that have an interval."""

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


def summary_rows(summary: pd.DataFrame, family: str | None) -> list[SummaryRow]:
    """Read the rows of one family, or all rows (None)."""
    rows = summary if family is None else summary[summary["family"] == family]
    columns = [name for name in rows.columns if name in _READERS]
    return [
        SummaryRow(
            **{
                name: _READERS[name](value)
                for name, value in zip(columns, values, strict=True)
                if not pd.isna(value)
            }
        )
        for values in rows[columns].itertuples(index=False, name=None)
    ]

"""The tables of a report, as text cells: the same table is printed as Markdown, HTML, LaTeX, rich.

Every table says in its note what is estimated, from how much, and whether the run is valid. Unknown
is "-". A speed-up is bold only where its interval does not cover 1 and it exceeds the A/A floor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from bench.records.plan import BASELINE, WRONG
from bench.records.record import SampleRecord
from bench.stats.counters import Tally, accepted_by_drafter, group_by, timed
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.summary import ALL, family_order
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import UNKNOWN, counted, factor, markdown, percent

_NUMBER = re.compile(r"[-+(\[]?\d")
DETERMINED = 0.1
"""Mean entropy (nats) below which a reader is told that the text is nearly determined."""
SESSIONS = (
    "Intervals cover the choice of prompts, not sessions of the machine: another run of the same "
    "job can differ by more."
)
"""What stands next to every interval of a speed-up; figures in docs/metrics.md."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """One entry of a table; a `bad` one is red where there are colours."""

    text: str
    bold: bool = False
    bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A titled table; the first column names the row. `note` states estimand and n."""

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]

    @property
    def words(self) -> tuple[bool, ...]:
        """Whether each column holds words, which stand at its left; numbers stand at its right."""
        columns = [[row[place].text for row in self.rows] for place in range(len(self.headings))]
        return tuple(place == 0 or _are_words(column) for place, column in enumerate(columns))

    def to_markdown(self) -> str:
        """The table (not its title or note) as GitHub-flavoured Markdown."""
        lines = [
            tuple(map(markdown, self.headings)),
            tuple("---" if left else "---:" for left in self.words),
        ]
        lines += [tuple(_strong(cell) for cell in row) for row in self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def to_latex(self) -> str:
        """A booktabs tabular; bold cells in textbf."""
        frame = pd.DataFrame(
            [[cell.text for cell in row] for row in self.rows], columns=list(self.headings)
        )
        bold = pd.DataFrame(
            [["textbf:--rwrap;" * cell.bold for cell in row] for row in self.rows],
            columns=list(self.headings),
        )
        styler = frame.style.hide(axis="index").format(escape="latex")
        styler = styler.format_index(escape="latex", axis=1).apply(lambda _: bold, axis=None)
        aligned = "".join("l" if left else "r" for left in self.words)
        text: str = styler.to_latex(hrules=True, column_format=aligned)
        return text


def _are_words(column: Sequence[str]) -> bool:
    known = [text for text in column if text != UNKNOWN]
    return bool(known) and not any(_NUMBER.match(text) for text in known)


def _strong(cell: TableCell) -> str:
    text = markdown(cell.text)
    return f"**{text}**" if cell.bold else text


# ---------------------------------------------------------------- formats


def is_number(value: object) -> bool:
    """Whether a summary cell holds a number."""
    return value is not None and value is not pd.NA and not math.isnan(float(str(value)))


def number(value: object, spec: str = ".2f", scale: float = 1.0) -> str:
    """A number in format `spec`, times `scale`, or "-"."""
    return f"{float(str(value)) * scale:{spec}}" if is_number(value) else UNKNOWN


def speed(row: SummaryRow, column: str = "speedup") -> TableCell:
    """A speed-up with its interval, bold where both it and the A/A floor exclude no difference."""
    estimate = row.estimate(column)
    if row.decoder == BASELINE:
        return TableCell(factor(estimate.value))
    return TableCell(estimated(estimate), estimate.exceeds(row.floor))


def estimated(estimate: Estimate) -> str:
    """A factor with its interval, where it has one."""
    text, ends = factor(estimate.value), interval(estimate.low, estimate.high)
    return text if ends == UNKNOWN else f"{text} {ends}"


def quality(row: SummaryRow) -> TableCell:
    """A quality as a percentage, with its interval."""
    low, high = row.quality_low, row.quality_high
    text = percent(row.quality, "")
    if is_number(low) and is_number(high):
        text += f" [{percent(low, '')}, {percent(high, '')}]"
    return TableCell(text)


def interval(low: object, high: object) -> str:
    """An interval, or "-"."""
    return f"[{number(low)}, {number(high)}]" if is_number(low) and is_number(high) else UNKNOWN


def guarantee_label(row: SummaryRow) -> str:
    """What a decoder guarantees of its answers, in words; "-" where it is not known."""
    return row.guarantee or UNKNOWN


def verifies(summary: pd.DataFrame) -> pd.Series:
    """Of every row whether its decoder's tokens are accepted ones: it verifies drafts, or is ar."""
    overall = summary[(summary["family"] == ALL) & summary["acceptance_rate"].notna()]
    shown: pd.Series = summary["decoder"].isin([BASELINE, *overall["decoder"]])
    return shown


def kind_of_step(row: SummaryRow) -> str:
    """What the tokens of a step are called: accepted, or emitted where nothing is verified."""
    verified = row.decoder == BASELINE or is_number(row.acceptance_rate)
    return "accepted" if verified else "emitted"


def mark_wrong(table: Table, wrong: Collection[str]) -> Table:
    """The table with the rows of decoders that are wrong in red, named so, nothing of them bold."""
    names = {
        name: f"{cell} ({WRONG}){name.removeprefix(cell)}"
        for cell in wrong
        for name in (cell, f"{cell} (this run)")
    }
    rows = [
        row
        if row[0].text not in names
        else (
            TableCell(names[row[0].text], bad=True),
            *(TableCell(cell.text, bad=True) for cell in row[1:]),
        )
        for row in table.rows
    ]
    return replace(table, rows=tuple(rows))


def entropies(summary: pd.DataFrame) -> dict[str, float]:
    """Mean entropy of ar's next token along its answers by family, in nats, where it is known."""
    rows = [row for row in rows_of(summary, None) if row.decoder == BASELINE]
    return {row.family: row.base_entropy for row in rows if row.base_entropy is not None}


def entropy_sentence(summary: pd.DataFrame) -> str:
    """How open the text is that drafts are accepted on."""
    entropy = entropies(summary).get(ALL)
    if entropy is None:
        return "The entropy of ar's next token was not measured (no quality pass)."
    ease = "; the text is nearly determined, and easy to draft" if entropy < DETERMINED else ""
    return f"Along its answers ar's next token has a mean entropy of {entropy:.2g} nats{ease}."


def with_entropy(table: Table, summary: pd.DataFrame) -> Table:
    """A table by family with ar's entropies as its first row, where they are known."""
    known_in = entropies(summary)
    if not known_in:
        return table
    cells = [number(known_in.get(name.replace(" ", "_")), ".2g") for name in table.headings[1:]]
    row = (TableCell("ar's entropy, nats"), *map(TableCell, cells))
    return replace(table, rows=(row, *table.rows))


def without_wrong(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the summary less decoders that claim to be lossless and are not."""
    return summary[summary["guarantee"] != WRONG]


def step_length(row: SummaryRow) -> TableCell:
    """Tokens per step, with its interval."""
    text = number(row.acceptance_length)
    ends = interval(row.acceptance_length_low, row.acceptance_length_high)
    return TableCell(text if ends == UNKNOWN else f"{text} {ends}")


def floor_sentence(floor: Estimate) -> str:
    """The A/A line that stands under the main table."""
    if floor.value is None:
        return "A/A noise floor: unknown (the second arm of ar was not measured)."
    ends = "" if floor.low is None else f" {interval(floor.low, floor.high)}"
    return (
        f"A/A noise floor: ar against a second ar measures {factor(floor.value)}{ends}, "
        f"n = {floor.num}; a difference of this size is noise."
    )


# ---------------------------------------------------------------- tables

ACCEPTED, EMITTED = f"accepted tokens per step [{LEVEL}]", f"emitted tokens per step [{LEVEL}]"
"""The headings of one number: whose tokens are verified, and whose are not."""
_HEADLINE: dict[str, Callable[[SummaryRow], TableCell]] = {
    "decoder": lambda r: TableCell(r.decoder),
    "guarantee": lambda r: TableCell(guarantee_label(r)),
    f"speed-up, geometric mean [{LEVEL}]": speed,
    f"decode speed-up [{LEVEL}]": lambda r: speed(r, "speedup_decode"),
    "ratio of totals": lambda r: TableCell(factor(r.speedup_total)),
    "specbench_compat": lambda r: TableCell(factor(r.specbench_compat)),
    "tokens per call": lambda r: TableCell(number(r.tokens_per_call)),
    ACCEPTED: lambda r: step_length(r) if kind_of_step(r) == "accepted" else TableCell(UNKNOWN),
    EMITTED: lambda r: step_length(r) if kind_of_step(r) == "emitted" else TableCell(UNKNOWN),
    "calls per step": lambda r: TableCell(number(r.calls_per_step)),
    "draft acceptance %": lambda r: TableCell(percent(r.acceptance_rate, "")),
    "rows per token": lambda r: TableCell(number(r.rows_per_token)),
    "TTFT ms": lambda r: TableCell(number(r.ttft_s, ".1f", 1e3)),
    "tokens/s": lambda r: TableCell(number(r.tokens_per_s, ",.0f")),
    "peak memory MB": lambda r: TableCell(number(r.peak_memory_bytes, ",.1f", 1e-6)),
    f"quality % [{LEVEL}]": quality,
    "identical to ar %": lambda r: TableCell(percent(r.identical_to_ar, "")),
    "errors": lambda r: TableCell(number(r.errors, ".0f")),
}


def basis(row: SummaryRow) -> str:
    """What a row's speed-up rests on, in words: n, repeats, clusters, and what is left out."""
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


def headline(summary: pd.DataFrame, verdict: str, family: str = ALL) -> Table:
    """Every decoder's main numbers in one family."""
    rows = rows_of(summary, family)
    sample = {basis(row): row.decoder for row in reversed(rows)}
    texts = [t if len(sample) == 1 else f"{t} ({_those(rows, t)})" for t in reversed(sample)]
    note = (
        "Speed-up: geometric mean over prompts of ar time / decoder time per emitted token, "
        "paired, from request start to last token (decode: from the first token on); per prompt "
        f"the median over repeats; {LEVEL} t-interval over conversations; bold where it excludes "
        "1 and the speed-up exceeds the A/A floor. "
        f"{SESSIONS} Ratio of totals and specbench_compat are other estimators of it, with "
        "intervals in 'Speed-up by estimator'. Guarantee: what a decoder claims of its answers, "
        "ar's very tokens, tokens of ar's distribution, or nothing (lossy). Calls are target "
        "calls, per step those after the prefill. Tokens of a step are accepted where they are "
        "verified, else only emitted. Counters and times are pooled (sum / sum); the interval of "
        "tokens per step is a jackknife over conversations. "
        f"{entropy_sentence(summary)} "
        f"{'; '.join(texts)}. "
        f"Verdict of the run: {verdict}."
    )
    columns = dict(_HEADLINE)
    if all(kind_of_step(row) == "accepted" for row in rows):
        columns.pop(EMITTED)
    return Table(
        title="All families" if family == ALL else family.replace("_", " "),
        note=note,
        headings=tuple(columns),
        rows=tuple(tuple(make(row) for make in columns.values()) for row in rows),
    )


def by_family(
    summary: pd.DataFrame, title: str, note: str, make: Callable[[SummaryRow], TableCell]
) -> Table:
    """One row per decoder, one column per family and `all`; its n are the columns' prompts."""
    cells = {(row.decoder, row.family): make(row) for row in rows_of(summary, None)}
    return of_cells(cells, title, note)


def of_cells(cells: Mapping[tuple[str, str], TableCell], title: str, note: str) -> Table:
    """One row per decoder, one column per family and `all`, of cells by decoder and family."""
    families = [*family_order({family for _, family in cells} - {ALL}), ALL]
    decoders = list(dict.fromkeys(decoder for decoder, _ in cells))
    return Table(
        title=title,
        note=note,
        headings=("decoder", *families),
        rows=tuple(
            (TableCell(d), *(cells.get((d, f), TableCell(UNKNOWN)) for f in families))
            for d in decoders
        ),
    )


def acceptance(table: pd.DataFrame) -> Table | None:
    """Joint and conditional acceptance per draft position over all families."""
    rows = table[table["family"] == ALL].to_dict("records")
    if not rows:
        return None
    positions = sorted({int(row["position"]) for row in rows})[:16]
    lines: list[tuple[TableCell, ...]] = []
    for decoder in dict.fromkeys(str(row["decoder"]) for row in rows):
        mine = {int(row["position"]): row for row in rows if row["decoder"] == decoder}
        for kind in ("joint", "conditional"):
            cells = [number(mine[p][kind], ".3f") if p in mine else UNKNOWN for p in positions]
            lines.append(
                (
                    TableCell(decoder),
                    TableCell(kind),
                    TableCell(str(mine[1]["steps"])),
                    *map(TableCell, cells),
                )
            )
    note = (
        "Conditional: P(draft j accepted | drafts before it accepted), among steps that drafted at "
        "least j; joint: P(drafts 1..j all accepted), the product of the conditionals up to j, so "
        "that drafts of unequal length count as far as they go; '-': no step got that far. n (of "
        "position 1) counts steps; counts for every position and family: "
        "tables/acceptance_by_position.csv."
    )
    headings = ("decoder", "probability", "n", *map(str, positions))
    return Table(
        title="Draft acceptance by position", note=note, headings=headings, rows=tuple(lines)
    )


def by_drafter(records: Sequence[SampleRecord]) -> Table | None:
    """Accepted drafts per step by drafter, of decoders in which several draft."""
    lines = []
    for decoder, mine in group_by(records, lambda record: record.decoder).items():
        steps = Tally.pool(timed(mine)).later_steps
        lines += [
            (TableCell(decoder), TableCell(drafter), TableCell(number(num / steps)))
            for drafter, num in sorted(accepted_by_drafter(mine).items())
        ]
    if not lines:
        return None
    note = "Drafts that stood / steps after the prefill's; the target adds a token to each step."
    headings = ("decoder", "drafter", "accepted per step")
    return Table(
        title="Accepted drafts by drafter", note=note, headings=headings, rows=tuple(lines)
    )


def _those(rows: Sequence[SummaryRow], text: str) -> str:
    return ", ".join(row.decoder for row in rows if basis(row) == text)

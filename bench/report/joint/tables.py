"""Tables over several runs: a row a decoder, a column a run, and what the runs differ in.

Nothing is pooled: every number is one run's own. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from bench.records.plan import BASELINE, NO_GUARANTEE, WRONG
from bench.report.tables import main
from bench.report.tables import table as tables
from bench.report.tables.table import Table, TableCell
from bench.report.together import (
    NamedRun,
    decoders_of,
    differences,
    facts_of,
    same_machine,
)
from bench.stats.intervals import LEVEL
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import UNKNOWN, percent

_Make = Callable[[SummaryRow], TableCell]


def matrices(members: Sequence[NamedRun]) -> dict[str, Table]:
    """Speed-up, tokens per step, quality and identity with ar by file name: decoders × runs."""
    made = {
        "speedup": _matrix(
            members,
            f"Speed-up [{LEVEL}]",
            f"Against {BASELINE} of the same run: geometric mean over prompts of paired, "
            f"end-to-end time per token, {LEVEL} t-interval over conversations; bold where it "
            f"excludes 1. {machines(members)} {_bases(members)}",
            tables.speed,
        ),
        "tokens_per_step": _matrix(
            members,
            f"Accepted tokens per step [{LEVEL}]",
            "Emitted tokens / steps, both after the first step, pooled within a run; jackknife "
            "interval over conversations. *: emitted only, nothing verifies them. These are "
            "counts and no times.",
            _step,
        ),
        "quality": _matrix(
            members,
            f"Quality % [{LEVEL}]",
            "Mean of the families' own scores over held-out prompts. Runs that scored other "
            "numbers of prompts, or sampled otherwise, differ by that too.",
            tables.quality,
        ),
        "identical_to_ar": _matrix(
            members,
            "Identical to ar %",
            "Share of answers with the very tokens of ar of the same run; '-' where a decoder "
            "promises ar's distribution and not its tokens.",
            lambda row: TableCell(percent(row.identical_to_ar, "")),
        ),
    }
    return {
        name: table
        for name, table in made.items()
        if any(cell.text != UNKNOWN for row in table.rows for cell in row[1:])
    }


def _matrix(members: Sequence[NamedRun], title: str, note: str, make: _Make) -> Table:
    rows = [{row.decoder: row for row in rows_of(member.summary, ALL)} for member in members]
    return Table(
        title=title,
        note=note,
        headings=("decoder", *(member.label for member in members)),
        rows=tuple(
            (TableCell(_named(decoder, rows)), *(_cell(each.get(decoder), make) for each in rows))
            for decoder in decoders_of(members)
        ),
    )


def _named(decoder: str, rows: Sequence[Mapping[str, SummaryRow]]) -> str:
    """A decoder, with a word where it guarantees nothing, or nobody knows what."""
    kinds = {each[decoder].guarantee for each in rows if decoder in each}
    if NO_GUARANTEE in kinds:
        return f"{decoder} (lossy)"
    return f"{decoder} (guarantee unknown)" if kinds == {None} else decoder


def _cell(row: SummaryRow | None, make: _Make) -> TableCell:
    """What a run says of a decoder; what is wrong is red and named so wherever it stands."""
    if row is None:
        return TableCell(UNKNOWN)
    cell = make(row)
    if row.guarantee != WRONG:
        return cell
    return TableCell(f"{cell.text} {WRONG}", bad=True)


def _step(row: SummaryRow) -> TableCell:
    cell = tables.step_length(row)
    accepted = tables.kind_of_step(row) == "accepted" or cell.text == UNKNOWN
    if accepted:
        return cell
    value, gap, ends = cell.text.partition(" [")
    return replace(cell, text=f"{value}*{gap}{ends}")


def machines(members: Sequence[NamedRun]) -> str:
    """Whether times could be held against each other, and that they are not."""
    if same_machine(members):
        kind = "The runs share their kind of machine and setup (comparability key), not a session"
    else:
        kind = "The runs are of different machines or setups, or of unknown ones"
    return f"{kind}: times are not pooled, and none is compared with another run's."


def _bases(members: Sequence[NamedRun]) -> str:
    """How much each column rests on."""
    each = [f"{member.label}: {_basis(member.summary)}" for member in members]
    return "; ".join(each) + "."


def _basis(summary: pd.DataFrame) -> str:
    rows = [row for row in rows_of(summary, ALL) if row.decoder != BASELINE]
    return "; ".join(dict.fromkeys(map(main.basis, rows)))


def unlike(members: Sequence[NamedRun]) -> Table | None:
    """What the runs differ in, a row a fact; None where they differ in nothing that is known."""
    return _facts(members, differences(members), "What differs")


def alike(members: Sequence[NamedRun]) -> list[tuple[str, str]]:
    """What all runs have in common, as (key, value)."""
    return [(k, str(v[0])) for k, v in facts_of(members) if len(set(v)) == 1]


def _facts(
    members: Sequence[NamedRun], facts: Sequence[tuple[str, Sequence[str | None]]], title: str
) -> Table | None:
    if not facts:
        return None
    return Table(
        title=title,
        note="Hashes are of weights. A commit 'with uncommitted changes' cannot be gone back to.",
        headings=("fact", *(member.name for member in members)),
        rows=tuple(
            (TableCell(key), *(TableCell(value or UNKNOWN) for value in values))
            for key, values in facts
        ),
    )


def frame(members: Sequence[NamedRun]) -> pd.DataFrame:
    """The rows over all families of every run, each with its run, model and machine."""
    frames = []
    for member in members:
        rows = member.summary[member.summary["family"] == ALL].drop(columns="family")
        own = {"run": member.name, "model": member.label, "comparability_key": member.side.key}
        for place, (name, value) in enumerate(own.items()):
            rows.insert(place, name, value)
        frames.append(rows.dropna(axis="columns", how="all"))
    return pd.concat(frames, ignore_index=True)

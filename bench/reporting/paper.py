r"""`bench paper`: a run's figure and table as a paper needs them, from its folder alone.

One PDF at column width with embedded TrueType fonts and no title (the caption says it), its numbers
as CSV, and one booktabs table to ``\input``. The same records give the same bytes. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from bench.errors import BenchError, Exit
from bench.files import write_files
from bench.plain import latex as escaped
from bench.plan import NO_GUARANTEE, WRONG
from bench.regress.sides import Side
from bench.reporting import tables
from bench.reporting.tables import Cell, Table, known, number, rows_of
from bench.stats import Estimate
from bench.summary import ALL, noise_floor, summarise
from bench.validity import VALID

WIDTHS: Mapping[str, float] = {
    "icml": 3.25,
    "acl": 3.03,
    "neurips": 5.5,
    "iclr": 5.5,
    "tmlr": 6.5,
}
"""Inches of a text column, by venue."""


def write_paper(side: Side, folder: Path, venue: str) -> list[Path]:
    """Write ``speedup.pdf``, ``speedup.csv`` and ``main.tex`` into `folder`; returns them.

    Errors: `BenchError` where no speed-up was measured (exit 5), or it cannot be written (1).
    """
    from bench import plots  # matplotlib: only where something is drawn

    summary, floor = _numbers(side)
    drawn = plots.column_figure(summary, floor, WIDTHS[venue])
    if drawn is None:
        raise BenchError(f"{side.name} measured no speed-up over ar", Exit.UNAVAILABLE)
    figure, data = drawn
    made = {
        "speedup.pdf": plots.render(figure)["pdf"],
        "speedup.csv": data.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode(),
        "main.tex": latex(side, summary).encode(),
    }
    return write_files(folder, made)


def _numbers(side: Side) -> tuple[pd.DataFrame, Estimate]:
    """The summary, and the A/A floor where there are records."""
    if side.summary is not None:
        return side.summary, _stored_floor(side.summary)
    records = side.records or ()
    summary = summarise(records, {"cells": side.planned}, side.gold, side.wrong)
    return summary, noise_floor(records)


def _stored_floor(summary: pd.DataFrame) -> Estimate:
    """The A/A floor as a summary keeps it; unknown in one that does not."""
    rows = summary[summary["family"] == ALL]
    if rows.empty or "aa_speedup" not in rows or not known(rows.iloc[0]["aa_speedup"]):
        return Estimate()
    value, low, high = (rows.iloc[0][name] for name in ("aa_speedup", "aa_low", "aa_high"))
    ends = (float(low), float(high)) if known(low) and known(high) else (None, None)
    return Estimate(value=float(value), low=ends[0], high=ends[1])


def main_table(summary: pd.DataFrame) -> Table:
    """Decoders by speed-up, tokens per call and step, time and quality, over all families."""
    made = Table(
        title="main",
        note="",
        headings=("Decoder", "Speed-up", "Tok./call", "Tok./step", "ms/tok.", "Quality"),
        rows=tuple(
            (
                Cell(str(row["decoder"])),
                tables.speed(row),
                Cell(number(row["tokens_per_call"])),
                Cell(number(row["acceptance_length"])),
                Cell(number(row["time_per_token_s"], ".2f", 1e3)),
                Cell(number(row["quality"], ".1f", 100)),
            )
            for row in rows_of(summary, ALL)
        ),
    )
    return tables.mark_wrong(made, _with_guarantee(summary, WRONG))


def _with_guarantee(summary: pd.DataFrame, promise: str) -> list[str]:
    return list(dict.fromkeys(summary.loc[summary["guarantee"] == promise, "decoder"]))


def latex(side: Side, summary: pd.DataFrame) -> str:
    """The table in its environment; the caption says what is estimated, from what, on what."""
    rows = summary[summary["family"] == ALL]
    counts = f"{rows['prompts'].max()} prompts, {rows['repeats'].max()} repeats"
    caption = (
        "Speed-up over autoregressive decoding: geometric mean over prompts of paired end-to-end "
        "time per token, 95\\,\\% t-interval clustered by conversation (bold where it excludes 1); "
        "emitted tokens per target call and per step after prefill; quality in "
        f"per cent. {counts}{_setting(side)}.{_floor(_stored_floor(summary))}"
        f"{_qualified(side, summary)}"
    )
    body = main_table(summary).to_latex().strip()
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n\\small\n"
        f"{body}\n\\caption{{{caption}}}\n\\label{{tab:decoders}}\n\\end{{table}}\n"
    )


def _floor(floor: Estimate) -> str:
    if floor.value is None:
        return ""
    ends = "" if floor.low is None else f" {tables.interval(floor.low, floor.high)}"
    return f" AR against a second AR in the same run: {floor.value:.2f}x{ends}."


def _qualified(side: Side, summary: pd.DataFrame) -> str:
    """What a reader must know of decoders without a guarantee, and of a run that is not VALID."""
    lossy, wrong = (_with_guarantee(summary, kind) for kind in (NO_GUARANTEE, WRONG))
    text = f" Lossy, without any guarantee: {', '.join(lossy)}." if lossy else ""
    if wrong:
        text += f" {WRONG}, and left out of the figure: {', '.join(wrong)}."
    if side.verdict not in (VALID, WRONG):
        text += f" The run is {side.verdict}."
    return f" {escaped(text)}" if text else ""


def _setting(side: Side) -> str:
    """Temperature, batch size, dtype and machine, as far as they are known."""
    machine = side.env.get("gpu") or side.env.get("machine") or {}
    parts = {
        "temperature": side.config.get("temperature"),
        "batch size": side.config.get("batch_size"),
        "": side.config.get("dtype"),
        " ": machine.get("name") or machine.get("cpu"),
    }
    told = [f"{name.strip()} {value}".strip() for name, value in parts.items() if _told(value)]
    return "".join(f", {escaped(text)}" for text in told)


def _told(value: object) -> bool:
    return isinstance(value, str) or known(value)

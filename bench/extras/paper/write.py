r"""Write all parts of a paper that come from runs, from their folders alone (`bench paper`).

The parts: figures at column width with embedded TrueType fonts and no title (the caption has it),
their numbers as CSV, a booktabs table to ``\input`` with its caption, and BibTeX entries. The same
records give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.errors import UsageError, did_you_mean
from bench.extras.paper import table
from bench.extras.paper.citations import bibliography
from bench.extras.paper.table import COLUMNS, SPEEDUPS, VENUES, PaperLayout, TableGrid, eligible
from bench.extras.together.runs import NamedRun
from bench.records.files import write_files
from bench.records.frames import csv_bytes
from bench.records.plan import BASELINE, NO_GUARANTEE, WRONG
from bench.report.findings import ordered_decoders
from bench.report.tables.conclusion import telling
from bench.report.tables.setting import describe_model, hardware
from bench.report.tables.table import interval, over
from bench.stats.metrics import summary_rows
from bench.stats.summary import ALL
from bench.stats.validity import VALID
from bench.text import counted, factor, latex, portable


def write_paper(
    members: Sequence[NamedRun],
    folder: Path,
    layout: PaperLayout,
    note: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write the table, the figures with their CSVs and the references, and return the files.

    `note` is called with names without BibTeX entries.

    Raises:
        BenchError: a label names no decoder of the runs (exit 2), or the files cannot be written
            (1).
    """
    there = ordered_decoders(members)
    for name in layout.labels:
        if name not in there:
            runs = " and ".join(member.name for member in members)
            line = f"--label {name}: {runs} has no such decoder; {did_you_mean(name, there)}"
            raise UsageError(line)
    references, missing = bibliography(members)
    if missing:
        note(f"no BibTeX entry is known for {', '.join(missing)}: add yours to references.bib")
    texts = {
        "main.tex": table.latex(members, layout, partial(write_caption, members, layout)),
        "references.bib": references,
    }
    files = _figures(members, layout) | {name: text.encode() for name, text in texts.items()}
    return write_files(folder, files)


def _figures(members: Sequence[NamedRun], layout: PaperLayout) -> dict[str, bytes]:
    """Draw speed-up, tokens per step and quality, each if it is known."""
    from bench.report.figures import canvas, dots  # imports matplotlib: only for drawing

    contents: dict[str, bytes] = {}
    shown = {"speedup": dots.SPEEDUP, "tokens_per_step": dots.TOKENS, "quality": dots.QUALITY}
    for name, metric in shown.items():
        drawing = dots.dots_figure(members, metric, VENUES[layout.venue].width, layout.labels)
        if drawing is not None:
            contents[f"{name}.pdf"] = canvas.render(drawing[0], ["pdf"])["pdf"]
            contents[f"{name}.csv"] = csv_bytes(drawing[1])
    return contents


def write_caption(members: Sequence[NamedRun], layout: PaperLayout, grid: TableGrid) -> str:
    """Return the caption as LaTeX: estimands, model, meaning of bold, and lossy decoders."""
    rows = [row for member in members for row in summary_rows(member.summary, ALL)]
    with_interval = grid.spread - {*SPEEDUPS}
    words = [
        COLUMNS[name].caption + " with its 95\\,\\% interval" * (name in with_interval)
        for name in grid.columns
    ]
    bold = ""
    if layout.bold == "best":
        of = " of a run" if len(members) > 1 else ""
        bold = f" Bold: the best{of}"
        bold += "" if all(map(eligible, rows)) else " of those with a guarantee"
        bold += ", times and qualities only if their intervals show it"
        if "acceptance_length" in grid.columns:
            bold += ", tokens per step only among decoders with as many calls per step"
        bold += "."
    quality = ""
    if "quality" in grid.columns:
        lines = dict.fromkeys(telling(member.summary) for member in members)
        quality = f" {latex(' '.join(filter(None, lines)))}".rstrip()
    named = dict.fromkeys(str(member.side.config.get("primary") or "") for member in members)
    cells = ", ".join(latex(layout.labels.get(n, n)) for n in named if n not in ("", "none"))
    primary = f" Primary comparison: {cells}; all others are exploratory." if cells else ""
    estimated = f"{_setting(members)}: {'; '.join(words)}.{primary}"
    floors = []
    for label, floor in ((member.label, member.floor) for member in members):
        if floor.value is not None:
            ends = "" if floor.low is None else f" {interval(floor.low, floor.high)}"
            of = f" ({latex(label)})" if len(members) > 1 else ""
            floors.append(factor(floor.value, f"{ends}{of}"))
    base = _baseline(members, layout)
    noise = f" {base} against a second {base} in the same run: {', '.join(floors)}." * bool(floors)
    text = f"{estimated}{quality}{bold}{noise}{_guarantee_warnings(members, layout)}"
    return text if base == "AR" else text.replace("autoregressive decoding", base)


def _baseline(members: Sequence[NamedRun], layout: PaperLayout) -> str:
    """Name the cells that speed-ups refer to, `ar` as ``AR``."""
    names = dict.fromkeys(over(member.summary) for member in members)
    usual = {**layout.labels, BASELINE: "AR"}
    return " or ".join(latex(usual.get(name, name)) for name in names)


def _guarantee_warnings(members: Sequence[NamedRun], layout: PaperLayout) -> str:
    """Warn of decoders without a guarantee, and of runs that are not VALID."""
    lossy, wrong = (
        dict.fromkeys(
            layout.labels.get(row.decoder, row.decoder)
            for member in members
            for row in summary_rows(member.summary, ALL)
            if row.guarantee == kind and row.decoder != row.over
        )
        for kind in (NO_GUARANTEE, WRONG)
    )
    text = f" Lossy, without any guarantee: {', '.join(lossy)}." if lossy else ""
    if wrong:
        text += f" {WRONG}, and left out of the figures: {', '.join(wrong)}."
    for member in members:
        if member.side.verdict not in (VALID, WRONG):
            run = f"The run {member.name}" if len(members) > 1 else "The run"
            text += f" {run} is {member.side.verdict}."
    return f" {latex(text)}" if text else ""


def _setting(members: Sequence[NamedRun]) -> str:
    """Name the model, prompts, sampling and machine, by run where the runs differ."""
    each = [[describe_model(member.side), *_conditions(member)] for member in members]
    common = [part for part in each[0] if all(part in parts for parts in each)]
    if len(members) == 1:
        return latex(portable(f"Decoders of {', '.join(common)}"))
    runs = [
        f"{member.label}: {', '.join(rest)}" if rest else member.label
        for member, parts in zip(members, each, strict=True)
        for rest in [[part for part in parts if part not in (*common, member.label)]]
    ]
    all_with = f", all with {', '.join(common)}" if common else ""
    return latex(portable(f"Decoders by run{all_with} ({'; '.join(runs)})"))


def _conditions(member: NamedRun) -> list[str]:
    rows, side = summary_rows(member.summary, ALL), member.side
    config = side.config
    prompts, clusters, repeats = (
        counted(max(getattr(row, f"{noun}s") or 0 for row in rows), noun)
        for noun in ("prompt", "cluster", "repeat")
    )
    texts = {"tasks": "tasks {}", "split": "split {}", "temperature": "temperature {:g}"}
    texts |= {"batch_size": "batch size {}", "max_new_tokens": "at most {} new tokens"}
    parts = [text.format(config[key]) for key, text in texts.items() if config.get(key) is not None]
    dtype = config.get("dtype") or side.env.dtype
    return [f"{prompts} in {clusters}", repeats, *parts, *filter(None, [dtype, hardware(side.env)])]

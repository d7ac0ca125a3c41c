"""Show a comparison: as a table on the terminal, in Markdown for a pull request, and as JSON.

Answers that changed are shown side by side, token by token. Tokens that only one side has are
coloured, or in brackets on a terminal without colours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import pydantic_core
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.compare.gate import HARD, KEY_FIGURE
from bench.compare.judge import OVER_AR, ROUNDING, CellRegression, Comparison, Measure, Regression
from bench.compare.pair import RunPair, join
from bench.records.plan import BASELINE
from bench.records.prompts import read_pieces
from bench.records.record import SampleRecord
from bench.report.tables.table import Columns, Table, TableCell
from bench.stats.answers import first_difference
from bench.stats.intervals import LEVEL
from bench.stats.side import RunSnapshot
from bench.text import UNKNOWN, colourless, counted, markdown, percent

_SHARES = ("identical_to_ar", "quality", "changed_answers", "errors")
_ALWAYS = (KEY_FIGURE, "calls", "rows", "emitted", "accepted", "identical_to_ar", "quality")
_TIMES = ("time", OVER_AR)
_BAD = (Regression.wrong, Regression.regressed, Regression.not_comparable)
_STYLES: Mapping[str, str] = {
    **dict.fromkeys(_BAD, "bold red"),
    Regression.inconclusive: "yellow",
    Regression.improved: "bold green",
    Regression.passed: "green",
}
_MAX_CHANGES = 12
_CONTROLS = {
    True: "a decoder regressed only if the control did so too",
    False: "it takes no part in the verdict, because ar's own code may have changed",
}
_EXACT = {"same": "must be equal", "more": "must not fall", "less": "must not rise"}
"""Wording of a tolerance of 0, by the better direction."""
_MAX_ANSWERS = 10
"""Maximum number of answers shown per decoder."""
_ONLY_BASE, _ONLY_HEAD = "black on rgb(250,190,180)", "black on rgb(180,225,170)"


def to_table(comparison: Comparison, *, absolute: bool = False) -> Table:
    """Return a table with a row per decoder and a column per measure.

    Regressions are bold. With `absolute`, cells show both numbers and their change.
    """
    say = _before_and_after if absolute else _change

    def measured(cell: CellRegression, name: str) -> TableCell | str:
        named = (m for m in cell.measures if m.name == name)
        return next((TableCell(say(m), m.verdict is Regression.regressed) for m in named), UNKNOWN)

    # columns: the usual measures, any that changed, and time
    measures = [measure for cell in comparison.cells for measure in cell.measures]
    have = dict.fromkeys(measure.name for measure in measures)
    moved = {m.name for m in measures if m.verdict is not Regression.passed} - {*_TIMES}
    shown = [name for name in have if name in _ALWAYS or name in moved]
    shown += [name for name in _TIMES if name in have]
    names = {name: measure_heading(name) for name in shown}
    columns: Columns = {
        "decoder": lambda cell: cell.cell,
        "verdict": lambda cell: TableCell(str(cell.verdict), cell.verdict in _BAD),
        **{heading: partial(measured, name=name) for name, heading in names.items()},
        "answers": _pairs,
    }
    base = _at(comparison.base, comparison.base_code)
    title = f"{_at(comparison.head, comparison.head_code)} against {base}: {comparison.verdict}"
    return Table.of(title, _note(comparison), columns, comparison.cells)


def measure_heading(measure: str) -> str:
    """Return a measure's heading."""
    return "time over ar (control)" if measure == OVER_AR else measure.replace("_", " ")


def _at(name: str, code: str | None) -> str:
    return name if code is None else f"{name} at {code}"


def to_markdown(comparison: Comparison) -> str:
    """Return the comparison for a pull request: verdict, table and remarks."""
    table = to_table(comparison, absolute=True)
    lines = [f"### {markdown(table.title)}", "", table.to_markdown(), "", markdown(table.note), ""]
    lines += [f"* {markdown(line)}" for line in _remarks(comparison)]
    warnings = counted(len(comparison.warnings), "warning")
    lines += _folded(f"{warnings} of the runs", comparison.warnings)
    lines += _folded("Other differences", comparison.changes)
    return "\n".join(lines) + "\n"


def _folded(summary: str, inside: Sequence[str]) -> list[str]:
    if not inside:
        return []
    opening = f"<details><summary>{summary}</summary>"
    return ["", opening, "", *(f"* {markdown(line)}" for line in inside), "", "</details>"]


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON data, with null for an infinite change."""
    data: dict[str, Any] = json.loads(pydantic_core.to_json(comparison, inf_nan_mode="null"))
    return data | {"verdict": str(comparison.verdict), "exit_code": int(comparison.exit_code)}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, remarks, and the verdict in one line."""
    table = to_table(comparison)
    short = {name: name.replace(" ", "\n").replace(".", ".\n") for name in table.headings}
    rows = [[replace(c, text=c.text.replace(" -> ", "\n-> ")) for c in r] for r in table.rows]
    stacked = replace(table, rows=tuple(map(tuple, rows)))  # a line for each side of a change
    for block in stacked.to_blocks(console, short, _style, table.headings[:1:-1]):
        console.print(block, "")
    console.print(Text(table.note, style="dim"))
    for line in (*_remarks(comparison), *comparison.warnings):
        console.print(Text(f"! {line}", style="yellow"))
    shown, left = comparison.changes[:_MAX_CHANGES], len(comparison.changes) - _MAX_CHANGES
    more = [f"and {left} more differences (--json has all)"] if left > 0 else []
    for line in (*shown, *more):
        console.print(Text(f"  {line}", style="dim"))
    console.print(Text(str(comparison.verdict), style=_STYLES.get(comparison.verdict, "")))


def _style(row: Sequence[TableCell], index: int) -> str:
    return _STYLES.get(row[1].text, "") if index == 1 else "bold red" * row[index].bold


def _remarks(comparison: Comparison) -> list[str]:
    """List remarks on the verdicts, the worst first, without the runs' warnings."""
    lines = [f"{c.cell}: {c.notes[0]}" for c in comparison.cells if c.verdict is Regression.wrong]
    lines += [
        f"{cell.cell}: {measure_heading(measure.name)} regressed: {both_sides(measure)}"
        for cell in comparison.cells
        for measure in cell.measures
        if measure.verdict is Regression.regressed
    ]
    lines += [*comparison.unlike, *comparison.invalid]
    for cell in comparison.cells:
        lines += [f"{cell.cell}: {note}" for note in cell.notes]
        lines += [f"{cell.cell}: option {change}" for change in cell.options]
        lines += [
            f"{cell.cell}: {measure_heading(m.name)}: {m.note}" for m in cell.measures if m.note
        ]
        if cell.num_changed:
            changed = counted(cell.num_changed, "answer")
            lines.append(f"{cell.cell}: {changed} changed (--diff shows them)")
    pairs = {cell.cell: (cell.base_code, cell.head_code) for cell in comparison.cells}
    shown = [
        f"{cell} {base} on both sides" if base == head else f"{cell} {base} -> {head}"
        for cell, (base, head) in pairs.items()
        if None not in (base, head) and (base != head or cell != BASELINE)
    ]
    lines += [*comparison.unjudged, *([f"code of decoders: {', '.join(shown)}"] if shown else [])]
    fails = comparison.gate.strict or comparison.invalid
    if comparison.verdict is Regression.inconclusive and not fails:
        lines.append("an inconclusive result ends with 0; with --fail-inconclusive it ends with 4")
    return list(dict.fromkeys(lines))


def _change(measure: Measure) -> str:
    if measure.name in _TIMES:
        if measure.low is None or measure.high is None:
            return _percent(measure.change)
        return f"{_percent(measure.change)} [{measure.low * 100:+.1f}, {measure.high * 100:+.1f}]"
    if measure.change is None or abs(measure.change) <= ROUNDING:
        return f"{_sides(measure)[1]} =" if measure.name == KEY_FIGURE else "="
    if measure.relative and measure.name != KEY_FIGURE:
        return _percent(measure.change, 2)
    return " -> ".join(_sides(measure))


def _before_and_after(measure: Measure) -> str:
    change = _change(measure)
    base, head = _sides(measure)
    if change.endswith("="):
        return f"{head} ="
    both = f"{base} -> {head}"
    if measure.name == KEY_FIGURE:
        change = _percent(measure.change)
    return f"{both} ({change})" if measure.relative else both


def both_sides(measure: Measure) -> str:
    """Return a measure on both sides, its change, and its tolerance."""
    if measure.name == "time":
        return f"{_before_and_after(measure)} per token, margin {100 * measure.tolerance:.3g} %"
    allowed = f"tolerance {measure.tolerance:.3g}"
    if not measure.tolerance:
        allowed = _EXACT[HARD[measure.name.partition(".")[0]][0]]
    text = " -> ".join(_sides(measure))
    if measure.relative:
        text += f" ({_percent(measure.change, 2)})"
    return f"{text}, {allowed}"


def _sides(measure: Measure) -> tuple[str, str]:
    """Format both sides, with more decimals if different values would look equal."""
    values = measure.base, measure.head
    base, head = (_value(measure, value) for value in values)
    if base == head and values[0] != values[1]:
        base, head = (_value(measure, value, places=3) for value in values)
    return base, head


def _value(measure: Measure, value: float | None, places: int = 1) -> str:
    if value is None:
        return UNKNOWN
    if measure.name == "time":
        return f"{value * 1e3:,.2f} ms"
    if measure.name in (OVER_AR, KEY_FIGURE):
        return f"{value:.{places + 2}f}" if measure.name == OVER_AR else f"{value:.{places + 1}f}"
    share = measure.name.partition(".")[0] in _SHARES
    return percent(value, places=places) if share else f"{value:,.6g}"


def _percent(change: float | None, places: int = 1) -> str:
    if change is None:
        return UNKNOWN
    return "new" if math.isinf(change) else f"{change * 100:+.{places}f} %"


def _pairs(cell: CellRegression) -> str:
    if cell.num_pairs is None:
        return UNKNOWN
    if cell.num_pairs == cell.num_base:
        return str(cell.num_pairs)
    return f"{cell.num_pairs} of {cell.num_base}"


def _note(comparison: Comparison) -> str:
    text = (
        f"Change from {comparison.base} to {comparison.head} ({comparison.how}), over the answers "
        "to the same prompts; counters are sums, '=' is no change. Tokens per step are shown, and "
        "judged by calls."
    )
    if comparison.benchmark is not None:
        text += f" The benchmark is at {comparison.benchmark}."
    if comparison.margin is not None:
        rule = f"regressed if the whole interval lies beyond +{100 * comparison.margin:.3g} %"
        fails = comparison.gate.time.fail
        part = _CONTROLS[comparison.control] if fails else "it decides nothing"
        text += (
            f" Time: seconds per token, geometric mean over prompts, paired, {LEVEL} interval "
            "(milliseconds are of all prompts together, so their ratio may differ); it "
            f"{rule if fails else 'is only reported'}. The control, time over ar, is the same in "
            "units of ar's time on each side, so that a machine or process that is slower as a "
            f"whole cancels out; {part}."
        )
    return text


def show_changes(base: RunSnapshot, head: RunSnapshot, console: Console) -> int:
    """Print the first changed answers of each decoder, and return the number of changed answers.

    Repeats with the same change, as in greedy decoding, are shown and counted once.
    """
    pieces = read_pieces(base.path), read_pieces(head.path)
    brackets, total = colourless(console), 0
    for cell in [cell for cell in base.cells if cell in head.cells]:
        distinct: dict[tuple[object, ...], tuple[SampleRecord, SampleRecord]] = {}
        for old, new in join(RunPair(base, head), cell).changed:
            distinct.setdefault((old.prompt, old.tokens, new.tokens), (old, new))
        total += len(distinct)
        for old, new in list(distinct.values())[:_MAX_ANSWERS]:
            before, after = old.tokens or (), new.tokens or ()
            line = f"\n{cell}  {old.prompt} ({old.family}), repeat {old.repeat}: differs from"
            console.print(Text(f"{line} token {first_difference(before, after)}", style="bold"))
            table = RichTable(box=None, pad_edge=False, header_style="dim", expand=True)
            for name, tokens in (("base", before), ("head", after)):
                table.add_column(f"{name}, {len(tokens)} tokens", ratio=1, overflow="fold")
            table.add_row(
                marked(before, after, pieces[0], _ONLY_BASE, brackets=brackets),
                marked(after, before, pieces[1], _ONLY_HEAD, brackets=brackets),
            )
            console.print(table)
        if (more := len(distinct) - _MAX_ANSWERS) > 0:
            console.print(Text(f"{cell}: {more} more answers changed", style="dim"))
    if not total:
        console.print(Text("no answer changed", style="dim"))
    return total


def marked(
    tokens: Sequence[int],
    other: Sequence[int],
    pieces: Callable[[int], str],
    style: str,
    *,
    brackets: bool = False,
) -> Text:
    """Return an answer as text, and mark its tokens that the other answer lacks.

    Args:
        tokens: ids of the answer.
        other: ids of the other answer.
        pieces: returns the text of an id, by the answer's own tokenizer.
        style: rich's style of marked tokens.
        brackets: whether marked tokens are also in brackets, for a terminal without colours.
    """
    text = Text()
    matcher = SequenceMatcher(a=tokens, b=other, autojunk=False)
    for tag, start, end, _, _ in matcher.get_opcodes():
        part = "".join(map(pieces, tokens[start:end]))
        if not part:
            continue
        if tag == "equal":
            text.append(part)
        else:
            text.append(f"[{part}]" if brackets else part, style=style)
    return text

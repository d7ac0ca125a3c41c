"""Shows the answers that changed between two runs side by side, token by token.

Tokens that only one side has are coloured, or in brackets on a terminal without colours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.compare.pair import RunPair, join
from bench.records.record import SampleRecord
from bench.records.vocabulary import read_pieces
from bench.stats.counters import first_difference
from bench.stats.side import RunSnapshot
from bench.text import colourless

MOST = 10
"""Maximum number of answers shown per decoder."""
_GONE, _CAME = "black on rgb(250,190,180)", "black on rgb(180,225,170)"


def show_changes(base: RunSnapshot, head: RunSnapshot, console: Console, most: int = MOST) -> int:
    """Print at most `most` changed answers per decoder; return the number of all changed answers.

    Repeats with the same change, as in greedy decoding, are shown and counted once.
    """
    old, new = read_pieces(base.path), read_pieces(head.path)
    total = 0
    for cell in [cell for cell in base.cells if cell in head.cells]:
        distinct: dict[tuple[object, ...], tuple[SampleRecord, SampleRecord]] = {}
        for ours, theirs in join(RunPair(base, head), cell).changed:
            distinct.setdefault((ours.prompt, ours.tokens, theirs.tokens), (ours, theirs))
        total += len(distinct)
        for ours, theirs in list(distinct.values())[:most]:
            mine, other = ours.tokens or (), theirs.tokens or ()
            line = f"\n{cell}  {ours.prompt} ({ours.family}), repeat {ours.repeat}: differs from"
            console.print(Text(f"{line} token {first_difference(mine, other)}", style="bold"))
            brackets = colourless(console)
            table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
            for name, tokens in (("base", mine), ("head", other)):
                table.add_column(f"{name}, {len(tokens)} tokens", ratio=1, overflow="fold")
            table.add_row(
                marked(mine, other, old, _GONE, brackets=brackets),
                marked(other, mine, new, _CAME, brackets=brackets),
            )
            console.print(table)
        if len(distinct) > most:
            console.print(Text(f"{cell}: {len(distinct) - most} more answers changed", style="dim"))
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
    """Return the text of `tokens`; tokens that `other` lacks are in `style`, or in brackets."""
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

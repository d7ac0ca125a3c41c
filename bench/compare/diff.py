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
from bench.stats.answers import first_difference
from bench.stats.side import RunSnapshot
from bench.text import colourless

_MAX_ANSWERS = 10
"""Maximum number of answers shown per decoder."""
_ONLY_BASE, _ONLY_HEAD = "black on rgb(250,190,180)", "black on rgb(180,225,170)"


def show_changes(base: RunSnapshot, head: RunSnapshot, console: Console) -> int:
    """Print the first changed answers of each decoder, and return the number of all.

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
            table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
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
    """Return the text of `tokens`, with those that `other` lacks in `style`, or in brackets."""
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

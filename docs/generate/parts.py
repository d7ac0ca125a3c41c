"""Generated parts of pages: `python -m docs.generate` writes them between two comments.

``<!-- made of code: columns -->`` opens a part, and ``<!-- end of code -->`` ends it; each comment
has its own line. The parts are committed, so that a forge shows them; a test holds them against the
code. Tables of stored runs have one comment, above them (`docs.generate.runs`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath

from bench.stats.metrics import METRICS
from docs.generate import (
    architectures,
    claims,
    command_line,
    decoder_pages,
    interface,
    methods,
    schema,
)
from docs.generate.places import DOCS, ROOT, readable
from docs.generate.runs import with_tables

RENEW = "python -m docs.generate"
"""The command that writes all generated parts."""
_END = "<!-- end of code -->"
PART = re.compile(
    rf"^<!-- made of code: (?P<name>[\w-]+) -->$(?:(?:(?!^<!-- made of code).)*?^{_END}$)?",
    re.MULTILINE | re.DOTALL,
)
"""Matches a generated part, or a new comment that still lacks one."""

PARTS: dict[str, Callable[[], str]] = {
    "architectures": architectures.architectures,
    "claims": claims.claims,
    "command-line": command_line.command_line,
    "decoders": decoder_pages.index,
    "columns": schema.columns,
    **{
        f"metrics-{schema.anchor(section)}": partial(schema.metrics, section)
        for section in dict.fromkeys(each.section for each in METRICS.values())
    },
    "record": schema.record,
    "files": schema.files,
    "configuration": schema.configuration,
    "gate": schema.gate,
    "exit-codes": schema.exit_codes,
    "methods": methods.methods,
    "controls": methods.controls,
    **interface.PARTS,
}
OF_A_DECODER: dict[str, Callable[[str], str]] = {
    "facts": decoder_pages.facts,
    "promises": decoder_pages.promises,
    "options": decoder_pages.options,
    "measured": decoder_pages.results,
    "cite": decoder_pages.citations,
}
"""Parts about the decoder whose page names them."""


def filled(text: str, path: str) -> str:
    """Return a page with all generated parts as the code gives them.

    Args:
        text: Markdown of the page.
        path: path of the page's file in the repository.

    Raises:
        ValueError: the page names an unknown part or table.
    """

    def part(mark: re.Match[str]) -> str:
        name = mark["name"]
        if name in PARTS:
            made = PARTS[name]()
        elif name in OF_A_DECODER:
            made = OF_A_DECODER[name](PurePosixPath(path).stem)
        else:
            known = ", ".join([*PARTS, *OF_A_DECODER])
            raise ValueError(f"{path} asks for {name!r}, which nothing makes; there is: {known}")
        return f"<!-- made of code: {name} -->\n\n{made.strip()}\n\n{_END}"

    return with_tables(PART.sub(part, text), path)


def write() -> list[str]:
    """Write the generated parts of all pages; return the paths of the pages that changed."""
    texts = readable().items()
    changed = {path: new for path, text in texts if (new := filled(text, path)) != text}
    for path, text in changed.items():
        (ROOT / path).write_text(text, encoding="utf-8")
    return list(changed)


def decisions() -> str:
    """Generate the page that lists all decisions."""
    files = sorted((DOCS / "adr").glob("[0-9]*.md"))
    titles = [file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for file in files]
    lines = [f"* [{title}]({file.name})" for file, title in zip(files, titles, strict=True)]
    head = "# Decisions\n\nWhat was decided, why, and what follows from it, in the order of time."
    return f"{head} What was tried stands in the [project log](../log.md).\n\n" + "\n".join(lines)

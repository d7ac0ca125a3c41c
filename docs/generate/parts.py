"""Generated parts of pages: a comment in a page names a part, and the site fills it in.

The comment, such as ``<!-- made of code: columns -->``, has its own line. Readers of the repository
do not see the part, so the text before names another place for it: ``--help``, or a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath

from docs.generate import architectures, command_line, decoder_pages, schema
from docs.generate.places import DOCS

_MARK = re.compile(r"^<!-- made of code: ([\w-]+) -->$", re.MULTILINE)

PARTS: dict[str, Callable[[], str]] = {
    "architectures": architectures.architectures,
    "command-line": command_line.command_line,
    "decoders": decoder_pages.index,
    "columns": schema.columns,
    "record": schema.record,
    "files": schema.files,
    "configuration": schema.configuration,
    "gate": schema.gate,
    "exit-codes": schema.exit_codes,
}
OF_A_DECODER: dict[str, Callable[[str], str]] = {
    "promises": decoder_pages.promises,
    "options": decoder_pages.options,
    "measured": decoder_pages.measured,
}
"""Parts about the decoder whose page names them."""


def filled(text: str, path: str) -> str:
    """Fill in all generated parts of a page.

    Args:
        text: Markdown of the page.
        path: path of the page's file in the repository.

    Raises:
        ValueError: the page names an unknown part.
    """

    def part(mark: re.Match[str]) -> str:
        name = mark[1]
        if name in PARTS:
            return PARTS[name]()
        if name in OF_A_DECODER:
            return OF_A_DECODER[name](PurePosixPath(path).stem)
        known = ", ".join([*PARTS, *OF_A_DECODER])
        raise ValueError(f"{path} asks for {name!r}, which nothing makes; there is: {known}")

    return _MARK.sub(part, text)


def decisions() -> str:
    """Generate the page that lists all decisions."""
    files = sorted((DOCS / "adr").glob("[0-9]*.md"))
    titles = [file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for file in files]
    lines = [f"* [{title}]({file.name})" for file, title in zip(files, titles, strict=True)]
    head = "# Decisions\n\nWhat was decided, why, and what follows from it, in the order of time."
    return f"{head} What was tried stands in the [project log](../log.md).\n\n" + "\n".join(lines)

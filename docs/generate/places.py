"""Maps files of the repository to places on the site, and rewrites relative links.

Pages in ``docs/`` keep their places. Linked files outside of ``docs/`` are added to the site: a
Markdown file as a page, an image unchanged, any other text as a page that shows it. Their places
are ``repository/`` plus their path in the repository. Links are written for readers of the
repository, and are rewritten for the site when it is built.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DECISIONS = "adr/index.md"
"""The generated page of all decisions; readers of the repository see the folder instead."""
_REPOSITORY = "repository/"
IMAGES = (".png", ".svg")
"""Files that are copied unchanged."""
_FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]*)(?P<after>[^)]*\))")


def pages() -> dict[str, str]:
    """Return the text of all pages in ``docs/``, by path in the repository."""
    files = sorted(DOCS.rglob("*.md"))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def readable() -> dict[str, str]:
    """Return the pages that have generated parts or tables, by path."""
    folders = ("", "results/reference/", "zoo/", "zoo/smollm2-135m/")
    return pages() | {path: text_of(path) for path in (f"{each}README.md" for each in folders)}


def place_of(path: str) -> str:
    """Return the place of a repository file among the site's sources.

    Args:
        path: path of a file, or of a linked folder, from the repository's root.

    Raises:
        ValueError: the path is a folder without a README.md.
    """
    if path == "docs/adr":
        return DECISIONS
    if (ROOT / path).is_dir():
        if not (ROOT / path / "README.md").is_file():
            raise ValueError(f"{path} is a folder without a README.md: link to a file of it")
        path = f"{path}/README.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    shown = path.endswith((".md", *IMAGES))
    return f"{_REPOSITORY}{path}" if shown else f"{_REPOSITORY}{path}.md"


def path_of(place: str) -> str:
    """Return the repository file at a place of the site; the inverse of `place_of`."""
    if not place.startswith(_REPOSITORY):
        return f"docs/{place}"
    path = place.removeprefix(_REPOSITORY)
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def targets(text: str, path: str) -> list[str]:
    """Return the repository paths that relative links lead to; ignore links in fenced code.

    Args:
        text: Markdown of the file at `path`.
        path: path of that file, from the repository's root.
    """
    found = [_resolved(link["target"], path) for link in _LINK.finditer(_FENCED.sub("", text))]
    return list(dict.fromkeys(target for target in found if target is not None))


def outside(texts: Mapping[str, str]) -> list[str]:
    """Return files outside ``docs/`` among these pages, or linked from them directly or indirectly.

    Args:
        texts: Markdown of the pages, by path in the repository.
    """
    asked = list(texts.items())
    found = {path for path in texts if not path.startswith("docs/")}
    while asked:
        path, text = asked.pop()
        for target in targets(text, path):
            file = path_of(place_of(target))
            if file.startswith("docs/") or file in found or not (ROOT / file).is_file():
                continue
            found.add(file)
            if file.endswith(".md"):
                asked.append((file, text_of(file)))
    return sorted(found)


def relinked(text: str, path: str) -> str:
    """Replace the repository's links in a page with links of the site.

    Args:
        text: Markdown of the file at `path`.
        path: path of that file, from the repository's root.
    """
    here = PurePosixPath(place_of(path)).parent

    def of_site(link: re.Match[str]) -> str:
        target = _resolved(link["target"], path)
        if target is None:
            return link[0]
        there = posixpath.relpath(place_of(target), here)
        return f"{link['before']}{there}{link['after']}"

    pieces, start = list[str](), 0
    for fence in _FENCED.finditer(text):  # fenced code stays as it is
        pieces += [_LINK.sub(of_site, text[start : fence.start()]), fence[0]]
        start = fence.end()
    return "".join([*pieces, _LINK.sub(of_site, text[start:])])


def text_of(path: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def shown(path: str) -> str:
    """Generate a page that shows a text file other than Markdown."""
    text = text_of(path)
    kind = {".py": "python", ".toml": "toml", ".yml": "yaml", ".json": "json"}
    language = kind.get(PurePosixPath(path).suffix, "text")
    head = f"---\ntitle: {PurePosixPath(path).name}\nsearch:\n  exclude: true\n---\n"
    return f'{head}\n# `{path}`\n\n~~~~~~{{ .{language} linenums="1" }}\n{text}~~~~~~\n'


def _resolved(target: str, path: str) -> str | None:
    """Return the repository path of a link's target; None for external and same-page links."""
    if not target or ":" in target or target.startswith("/"):
        return None
    return os.path.normpath(PurePosixPath(path).parent / target)

"""The navigation of the site: the entries of mkdocs.yml, plus all decoders and decisions."""

from __future__ import annotations

from typing import Any

from docs.generate import decoder_pages
from docs.generate.places import DECISIONS, DOCS

_DECODERS = "decoders/README.md"


def expanded(nav: Any) -> Any:
    """Insert every decoder's page and every decision after the page that lists them."""
    if isinstance(nav, dict):
        return {title: expanded(entry) for title, entry in nav.items()}
    if not isinstance(nav, list):
        return nav
    entries: list[Any] = []
    for entry in nav:
        entries.append(expanded(entry))
        if entry == _DECODERS:
            entries += [{name: decoder_pages.page_of(name)} for name in decoder_pages.built_in()]
        if entry == DECISIONS:
            entries += [f"adr/{file.name}" for file in sorted((DOCS / "adr").glob("[0-9]*.md"))]
    return entries


def entries(nav: Any) -> list[str]:
    """Return every page that a navigation leads to."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in entries(part)]

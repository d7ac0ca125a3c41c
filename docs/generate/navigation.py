"""The navigation of the site: what mkdocs.yml lists, with the lists that code knows."""

from __future__ import annotations

from typing import Any

from docs.generate import decoder_pages
from docs.generate.places import DECISIONS, DOCS

_DECODERS = "decoders/README.md"


def expanded(nav: Any) -> Any:
    """The same navigation, every decoder's page and every decision behind the page of them all."""
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
    """Every page that a navigation leads to."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in entries(part)]

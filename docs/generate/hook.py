"""Functions that mkdocs calls while it builds the site (``hooks`` of mkdocs.yml)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.generate import navigation, places
from docs.generate.dialect import for_python_markdown
from docs.generate.parts import decisions

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation; take the site's address from ``SITE_URL`` if set."""
    config.nav = navigation.expanded(config.nav)
    config.site_url = os.environ.get("SITE_URL") or config.site_url
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add generated pages, and the files outside of ``docs/`` that pages link to."""
    from mkdocs.structure.files import File, InclusionLevel

    def add(place: str, content: str, **options: Any) -> None:
        files.append(File.generated(config, place, content=content, **options))

    add(places.DECISIONS, decisions())
    listed = [places.path_of(place) for place in navigation.entries(config.nav)]
    texts = places.pages() | {f"docs/{places.DECISIONS}": decisions()}
    texts |= {path: places.text_of(path) for path in listed if not path.startswith("docs/")}
    for path in places.outside(texts):
        place = places.place_of(path)
        if path.endswith(places.IMAGES):
            files.append(File.generated(config, place, abs_src_path=str(places.ROOT / path)))
            continue
        level = InclusionLevel.INCLUDED if path in listed else InclusionLevel.NOT_IN_NAV
        content = places.text_of(path) if path.endswith(".md") else places.shown(path)
        add(place, content, inclusion=level)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Convert links and lists for the site."""
    return for_python_markdown(places.relinked(markdown, places.path_of(page.file.src_uri)))

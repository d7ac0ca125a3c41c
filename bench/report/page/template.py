"""Markdown that is made of templates: reports, and the card of a dataset."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.text import markdown

_TEMPLATES = Path(str(files("bench.report"))) / "templates"


def render_markdown(template: str, **context: object) -> str:
    """A file of ``templates/`` filled in; ``md`` makes text of records harmless."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = markdown
    return environment.get_template(template).render(**context)

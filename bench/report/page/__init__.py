"""Fill the templates of pages and Markdown with findings, figures and answers.

Templates, style and code of the pages are in this folder: ``*.jinja``, ``*.j2``, ``*.css``,
``*.js``; `answers` makes the data of the step viewer.

A page needs no network. Its content security policy allows only the page's code, by hash, so a tag
in a record would do nothing even if it got through the escaping.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from bench.report.figures.style import FAINT, INK, PAPER
from bench.text import markdown

_FOLDER = files("bench.report.page")
_PAGES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "page.html.jinja": (
        ("page.css", "viewer.css"),
        ("chunks.js", "lanes.js", "race.js", "viewer.js"),
    ),
    "joint.html.jinja": (("page.css",), ()),
    "index.html.jinja": (("page.css",), ("search.js",)),
}
"""Templates of pages, each with its style, and its code besides the code of all pages."""


def render(template: str, **context: object) -> bytes:
    """Render the template of a page, with style and code, or of a Markdown file.

    Pages escape the text of records; in Markdown, the filter ``md`` makes it harmless.
    """
    if template in _PAGES:
        styles, code = _PAGES[template]
        every = ("page.js", "tables.js", *code, "open.js")  # in order of execution
        script = '"use strict";\n' + "\n".join(map(_text, every))
        style = Markup("\n".join(map(_text, styles)))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        allowed = {
            "default-src": "'none'",
            "script-src": f"'sha256-{digest}'",
            "style-src": "'unsafe-inline'",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        context |= {
            "policy": "; ".join(f"{name} {value}" for name, value in allowed.items()),
            "style": style,
            "code": Markup(script),
        }
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=template in _PAGES,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": markdown, "inline": inline_svg}
    return environment.get_template(template).render(**context).encode()


def inline_svg(svg: str, name: str) -> Markup:
    """Fit an SVG into the page: take colours and font from the page, make ids unique."""
    svg = svg[svg.index("<svg") :]
    for colour, swap in ((INK, "currentColor"), (FAINT, "var(--line)"), (PAPER, "var(--paper)")):
        svg = svg.replace(colour, swap)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", svg)
    width = re.search(r'<svg[^>]*? width="([^"]*)"', svg)
    size = f'style="width: 100%; max-width: {width[1] if width else "100%"}"'
    return Markup(re.sub(r'<svg([^>]*?) width="[^"]*"', rf"<svg {size}\1", svg, count=1))


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")

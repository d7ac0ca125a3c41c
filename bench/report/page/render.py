"""Pages and Markdown: templates filled with findings, figures and answers.

A page asks nothing of the network and runs no code but its own, which its content security policy
pins by hash: a tag in a record, were it ever to get through the escaping, would do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from bench.report.figures.style import FAINT, INK, PAPER
from bench.report.findings import Findings
from bench.report.page.answers import viewer
from bench.text import markdown

_FOLDER = files("bench.report.page")
_BASICS = ("page.js", "tables.js")
_TITLES = {
    "families": "By family",
    "quality": "Quality",
    "acceptance": "Draft acceptance by position",
}
"""Titles of the parts of `Findings.tables` that are one section whatever tables they have."""
_NONE_OF = {"quality": "No quality was scored.", "acceptance": "No decoder drafted tokens."}


def render_page(
    findings: Findings, figures: Sequence[tuple[str, str, str]], left_out: Sequence[str]
) -> str:
    """Return the HTML of a run; `figures` are (name, caption, SVG), `left_out` names the others."""
    return _fill(
        "page.html.jinja",
        ("page.css", "viewer.css"),
        (*_BASICS, "chunks.js", "lanes.js", "race.js", "viewer.js", "open.js"),
        r=findings,
        figures=[(name, caption, inline_svg(svg, name)) for name, caption, svg in figures],
        left_out=left_out,
        viewer=viewer(findings.run),
    )


def render_joint(figure: tuple[str, str] | None, **context: object) -> str:
    """Return the HTML of several runs; the figure is (caption, SVG)."""
    shown = figure and (figure[0], inline_svg(figure[1], "speedup"))
    styles, code = ("page.css",), (*_BASICS, "open.js")
    return _fill("joint.html.jinja", styles, code, figure=shown, **context)


def render_index(**context: object) -> str:
    """Return the HTML of a folder of runs."""
    return _fill("index.html.jinja", ("page.css",), (*_BASICS, "search.js", "open.js"), **context)


def render_markdown(template: str, **context: object) -> str:
    """Return a Markdown template filled in; its filter ``md`` makes text of records harmless."""
    return _template(template, autoescape=False).render(**context)


def _template(name: str, *, autoescape: bool) -> Template:
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = markdown
    environment.globals |= {"titles": _TITLES, "none_of": _NONE_OF}
    return environment.get_template(name)


def _fill(template: str, styles: Sequence[str], code: Sequence[str], **context: object) -> str:
    """Fill a template with its style and, in the order in which it is run, its code."""
    own = '"use strict";\n' + "\n".join(map(_text, code))
    return _template(template, autoescape=True).render(
        policy=_policy(own),
        style=Markup("\n".join(map(_text, styles))),
        code=Markup(own),
        **context,
    )


def inline_svg(svg: str, name: str) -> Markup:
    """Fit an SVG into the page: its colours and font follow the page, its ids are its own."""
    svg = svg[svg.index("<svg") :]
    for colour, swap in ((INK, "currentColor"), (FAINT, "var(--line)"), (PAPER, "var(--paper)")):
        svg = svg.replace(colour, swap)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", svg)
    width = re.search(r'<svg[^>]*? width="([^"]*)"', svg)
    size = f'style="width: 100%; max-width: {width[1] if width else "100%"}"'
    return Markup(re.sub(r'<svg([^>]*?) width="[^"]*"', rf"<svg {size}\1", svg, count=1))


def _policy(code: str) -> str:
    """Allow this code alone, and nothing to be loaded."""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii")
    allowed = {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")

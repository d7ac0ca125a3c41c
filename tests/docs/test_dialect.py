"""Pages are written for forges, and the site reads the same structure in them."""

import pytest

from docs.generate.dialect import for_python_markdown
from docs.generate.places import outside, pages, text_of

CASES = {
    "a list behind a line": ("text:\n* a\n* b", "text:\n\n* a\n* b"),
    "a list that is set off": ("text\n\n* a\n  more", "text\n\n* a\n    more"),
    "numbers": ("1. a\n\n   more\n2. b", "1. a\n\n    more\n\n2. b"),
    "an item behind a table": ("* a\n\n  | b |\n* c", "* a\n\n    | b |\n\n* c"),
    "a paragraph in an item": ("* a\n\n  more\n\nbehind", "* a\n\n    more\n\nbehind"),
    "code in an item": ("* a\n\n  ```sh\n  x\n  ```\n", "* a\n\n    ```sh\n    x\n    ```\n"),
    "a nested list": ("* a\n  * b", "* a\n    * b"),
    "a lazy line": ("* a\nlazy\n* b", "* a\nlazy\n* b"),
    "a table behind a line": ("text\n| a |\n|---|", "text\n\n| a |\n|---|"),
    "code is left alone": ("```\ntext\n* a\n  b\n| c |\n```", "```\ntext\n* a\n  b\n| c |\n```"),
    "code behind a list": ("* a\n\n```\n  x\n```", "* a\n\n```\n  x\n```"),
    "indented code": ("text\n\n    a\n    b", "text\n\n    a\n    b"),
    "a bar in a table's code": ("| `a\\|b` | c\\|d |", "| `a|b` | c\\|d |"),
    "a bar in code of a text": ("see `a\\|b`", "see `a\\|b`"),
    "emphasis is no list": ("text\n*a* b", "text\n*a* b"),
}


@pytest.mark.parametrize("case", CASES)
def test_lists_and_tables_are_adapted_to_python_markdown(case: str) -> None:
    given, expected = CASES[case]
    assert for_python_markdown(given) == expected


def structure(html: str) -> dict[str, int]:
    tags = ("li", "ul", "ol", "table", "tr", "td", "pre", "h1", "h2", "h3", "img", "blockquote")
    return {tag: html.count(f"<{tag}>") + html.count(f"<{tag} ") for tag in tags}


TEXTS = pages()
TEXTS |= {path: text_of(path) for path in outside(TEXTS) if path.endswith(".md")}


@pytest.mark.parametrize("path", TEXTS)
def test_python_markdown_reads_every_page_with_the_structure_of_commonmark(path: str) -> None:
    markdown = pytest.importorskip("markdown", reason="Python-Markdown comes with the extra `docs`")
    pytest.importorskip("pymdownx", reason="pymdown-extensions come with the extra `docs`")
    from markdown_it import MarkdownIt

    text = (
        TEXTS[path]
        .replace('<div class="grid cards" markdown>', "")
        .replace('<div class="keep-first" markdown>', "")
    )
    text = text.replace("</div>", "")
    expected = structure(MarkdownIt("commonmark").enable("table").render(text))
    extensions = ["tables", "pymdownx.superfences", "pymdownx.highlight"]
    html = markdown.markdown(for_python_markdown(text), extensions=extensions)
    assert structure(html) == expected

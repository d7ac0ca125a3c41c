"""The site: its navigation, what it asks of other hosts (nothing), and that it builds."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from docs.generate import decoder_pages, navigation, places

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
NAV = navigation.expanded(CONFIG["nav"])


def test_every_entry_of_the_navigation_is_a_page() -> None:
    listed = navigation.entries(NAV)
    missing = [page for page in listed if not (ROOT / places.path_of(page)).is_file()]
    assert missing == [places.DECISIONS]
    assert len(listed) == len(set(listed))


def test_every_page_of_docs_stands_in_the_navigation() -> None:
    listed = {places.path_of(page) for page in navigation.entries(NAV)}
    assert not set(places.pages()) - listed, "put these pages into `nav` of mkdocs.yml"


def test_every_decoder_and_decision_follows_its_index_page_in_the_navigation() -> None:
    nav = navigation.expanded([{"D": ["decoders/README.md", "x.md"]}, {"A": ["adr/index.md"]}])
    (decoders,) = nav[0].values()
    expected = [{name: f"decoders/{name}.md"} for name in decoder_pages.built_in()]
    assert decoders == ["decoders/README.md", *expected, "x.md"]
    assert nav[1]["A"][:2] == ["adr/index.md", "adr/0001-layout-and-names.md"]


def test_the_configuration_makes_no_request_to_another_host() -> None:
    assert CONFIG["theme"]["font"] is False
    assert "repo_url" not in CONFIG  # its number of stars would be asked for
    assert CONFIG["plugins"] == ["search"]
    assert "http" not in str(CONFIG.get("extra_css")) + str(CONFIG.get("extra_javascript"))
    assert "http" not in (ROOT / "docs" / "style.css").read_text(encoding="utf-8")


def test_warnings_of_links_and_navigation_are_on() -> None:
    rules = CONFIG["validation"]
    assert {value for group in rules.values() for value in group.values()} == {"warn"}
    assert "anchors" in rules["links"]
    assert "omitted_files" in rules["nav"]
    assert "mkdocs build --strict" in places.text_of("Makefile")
    assert "/site/" in places.text_of(".gitignore").splitlines()


def test_the_docs_workflow_publishes_only_from_main_and_may_write_only_pages() -> None:
    text = places.text_of(".github/workflows/docs.yml")
    workflow: dict[str, Any] = yaml.safe_load(text)
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in build
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}
    assert publish["if"] == "github.ref == 'refs/heads/main'"
    assert not any("run" in step for step in publish["steps"])
    steps = [step for job in (build, publish) for step in job["steps"]]
    assert not any("${{" in step.get("run", "") for step in steps)
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", s["uses"]) for s in steps if "uses" in s)
    assert {"run": "make docs"}.items() <= next(
        s for s in steps if s.get("name") == "Build"
    ).items()


class Page(HTMLParser):
    """What a page loads, where it leads, and the names it can be entered by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.names |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href", ""))
        elif tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.loads += [given[key] for key in ("src", "srcset") if key in given]


@pytest.mark.slow
def test_the_site_builds_without_warnings_broken_links_or_missing_parts(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install -e '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "SITE_URL": "https://example.org/bench/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    files = {path: Page(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    assert len(files) > len(places.pages())
    for path, page in files.items():
        loaded = [url for url in page.loads if urlsplit(url).netloc]
        assert not loaded, f"{path} loads {loaded}"
        for url in page.leads + page.loads:
            follow(url, path, files, tmp_path)
    for name in decoder_pages.built_in():
        text = (tmp_path / "decoders" / name / "index.html").read_text(encoding="utf-8")
        parts = re.findall(
            r"<!-- made of code: [\w-]+ -->(.*?)<!-- end of code -->", text, re.DOTALL
        )
        assert len(parts) == text.count("made of code")
        assert all(part.strip() for part in parts), name
        assert "<table>" in text
    styles = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()[\"' ]*(?:https?:)?//", styles)
    assert "https://example.org/bench/cli/" in (tmp_path / "sitemap.xml").read_text()


def follow(url: str, path: Path, files: dict[Path, Page], site: Path) -> None:
    """A link of the site leads to a file of it, and to a name in that file."""
    parts = urlsplit(url)
    if parts.scheme or parts.netloc or not url:
        return
    place = unquote(parts.path)
    if place.startswith("/bench/"):  # of 404.html
        there = site / place.removeprefix("/bench/")
    else:
        there = (path.parent / place).resolve() if place else path
    there = there / "index.html" if there.is_dir() else there
    assert there.is_file(), f"{path} leads to {url}"
    if parts.fragment and there in files:
        assert unquote(parts.fragment) in files[there].names, f"{path} leads to {url}"

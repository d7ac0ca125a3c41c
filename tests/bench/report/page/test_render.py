"""The page is one file that loads nothing and runs no code but its own."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path

import pytest

from bench.report.page import render
from bench.report.write import write_report
from tests.conftest import only_svg


def page_of(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def test_the_page_stands_alone(told_run: Path) -> None:
    text = page_of(told_run)
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    drawn = list((told_run / "figures").glob("*.svg"))
    assert own.count("<svg") == len(drawn) > 7
    assert not re.search(r"""(src|href)=["'](?!data:,|#)""", own)
    assert not re.search(r"@import|url\((?!#)", own)
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_the_policy_allows_the_pages_own_code_and_nothing_else(told_run: Path) -> None:
    text = page_of(told_run)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (code,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:"
    assert "connect-src" not in rules  # default-src: nothing is asked of any network


def test_there_is_a_chunk_a_prompt_and_only_data_in_it(told_run: Path) -> None:
    chunks = re.findall(
        r'<script type="text/plain" id="chunk-(\w+)">(.*?)</script>', page_of(told_run), re.DOTALL
    )
    assert [name for name, _ in chunks] == ["index", "pieces", *map(str, range(14))]
    assert all(re.fullmatch(r"[A-Za-z0-9+/]+=*", chunk) for _, chunk in chunks)


def test_the_verdict_and_a_sentence_come_before_everything_else(told_run: Path) -> None:
    body = page_of(told_run).split("<main>")[0]
    lead = body.split('<p class="lead">')[1].split("</p>")[0]
    assert lead.startswith('<span class="badge good">VALID</span>')
    assert re.search(r"(ptp|spec) is \d\.\d\d times as fast as ar", lead)
    assert body.index('class="lead"') < body.index("timing blocks measured")


def test_the_head_says_what_ran_where_in_a_line_each(told_run: Path) -> None:
    head = page_of(told_run).split("<main>")[0]
    lines = dict(re.findall(r"<dt>(\w+)</dt><dd>(.*?)</dd>", head))
    assert lines["decoders"] == "ar, ptp, spec, idlm"
    assert lines["status"].startswith("complete; ")


def test_a_few_short_lines_stand_below_the_main_table_and_the_rest_is_folded(
    told_run: Path,
) -> None:
    section = page_of(told_run).split('id="numbers"')[1].split("</figure>")[0]
    lines = re.findall(r"<li>(.*?)</li>", section)
    openings = ["A/A noise floor", "Resolution", "Wide intervals"]
    *lines, last = lines
    assert [line.split(":")[0] for line in lines] == openings[: len(lines)]
    assert len(lines) >= 2
    assert "exploratory" in last
    folded = section.split('<details class="reading">')[1]
    assert "geometric mean over prompts" in folded


def test_words_stand_left_numbers_right_and_no_heading_breaks_within_a_word(
    told_run: Path,
) -> None:
    section = page_of(told_run).split('id="numbers"')[1].split("</figure>")[0]
    left = re.findall(r'<th scope="col" class="words">(.*?)</th>', section)
    assert left == ["decoder", "guarantee"]
    assert "specbench_compat</th>" in section
    assert "\u200b" not in section
    assert "<span>speed-up,</span>" in section


def test_every_section_folds_and_the_main_ones_are_open(told_run: Path) -> None:
    sections = re.findall(r'<details class="section" id="([\w-]+)"( open)?>', page_of(told_run))
    assert {name for name, is_open in sections if is_open} == {
        "numbers", "viewer", "figures", "quality",
    }  # fmt: skip
    assert {"families", "acceptance", "environment", "reproduce"} <= {name for name, _ in sections}
    tables = page_of(told_run).split("<main>")[1]
    assert tables.count('<figure class="table"') == tables.count("<table")


@pytest.mark.usefixtures("saved")
@pytest.mark.slow
def test_the_page_is_written_again_with_the_same_bytes(told_run: Path, tmp_path: Path) -> None:
    again = tmp_path / told_run.name
    shutil.copytree(told_run, again, ignore=shutil.ignore_patterns("report.*", "figures"))
    with only_svg():
        write_report(again)
    assert page_of(again) == page_of(told_run)


def test_a_page_without_timed_answers_says_so(told_run: Path, tmp_path: Path) -> None:
    run = tmp_path / told_run.name
    shutil.copytree(told_run, run)
    lines = (run / "samples.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    untimed = [line for line in lines if '"kind":"quality"' in line]
    (run / "samples.jsonl").write_text("".join(untimed), encoding="utf-8")
    write_report(run)
    assert "No prompt was timed." in page_of(run)
    assert "chunk-" not in page_of(run).replace("chunk-${name}", "")


def test_an_inline_drawing_follows_the_page_and_keeps_its_ids_to_itself() -> None:
    drawn = (
        '<?xml version="1.0"?><svg xmlns="x" width="9pt"><metadata>m</metadata>'
        '<clipPath id="p1"/><g clip-path="url(#p1)" style="fill: #1b1f24"/></svg>'
    )
    inline = render.inline_svg(drawn, "speedup")
    assert inline.startswith('<svg style="width: 100%; max-width: 9pt"')
    assert 'id="speedup-p1"' in inline
    assert "url(#speedup-p1)" in inline
    assert "fill: currentColor" in inline
    assert "metadata" not in inline

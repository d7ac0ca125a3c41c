"""The page is one file that loads nothing and runs no code but its own."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path

import pytest

from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.page import inline_svg
from bench.report.write import write_report
from tests.conftest import only_svg


def page_of(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def test_the_page_loads_no_external_resource(told_run: Path) -> None:
    text = page_of(told_run)
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    drawn = list((told_run / "figures").glob("*.svg"))
    assert own.count("<svg") == len(drawn) > 3
    assert not re.search(r"""(src|href)=["'](?!data:,|#)""", own)
    assert not re.search(r"@import|url\((?!#)", own)
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_the_content_security_policy_allows_only_the_script_of_the_page(told_run: Path) -> None:
    text = page_of(told_run)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (code,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:"
    assert "connect-src" not in rules  # default-src: nothing is asked of any network


def test_the_page_has_one_base64_chunk_per_prompt(told_run: Path) -> None:
    chunks = re.findall(
        r'<script type="text/plain" id="chunk-(\w+)">(.*?)</script>', page_of(told_run), re.DOTALL
    )
    assert [name for name, _ in chunks] == ["index", "pieces", *map(str, range(14))]
    assert all(re.fullmatch(r"[A-Za-z0-9+/]+=*", chunk) for _, chunk in chunks)


def test_the_verdict_and_the_conclusion_stand_at_the_top_of_the_page(told_run: Path) -> None:
    body = page_of(told_run).split("<main>")[0]
    lead = body.split('<p class="lead">')[1].split("</p>")[0]
    assert lead.startswith('<span class="badge good">VALID</span>')
    assert re.search(r"(ptp|spec) is \d\.\d\d times as fast as ar", lead)
    assert body.index('class="lead"') < body.index("timing blocks measured")


def main_table(page: str) -> str:
    return page.split('id="numbers"')[1].split('<figure class="table"')[1].split("</figure>")[0]


def test_the_head_lists_the_facts_of_the_run_one_per_line(told_run: Path) -> None:
    head = page_of(told_run).split("<main>")[0]
    lines = dict(re.findall(r"<dt>(\w+)</dt><dd>(.*?)</dd>", head))
    assert lines["decoders"] == "ar, ptp, spec, idlm"
    assert lines["status"].startswith("complete; ")


def test_only_a_short_caption_stands_below_the_main_table_and_further_notes_are_folded(
    told_run: Path,
) -> None:
    table = main_table(page_of(told_run))
    shown, folded = table.split('<details class="reading">')
    assert "<figcaption>A/A noise floor" in shown
    assert "interval" not in shown.split("<figcaption>")[1].replace("[", ""), "one statement"
    lines = re.findall(r"<li>(.*?)</li>", folded)
    assert [line.split(":")[0] for line in lines][:1] == ["Resolution"]
    assert "exploratory" in lines[-1]
    assert "geometric mean over prompts" in folded


def test_the_page_has_a_readable_title_and_its_figure_before_the_main_table(told_run: Path) -> None:
    page = page_of(told_run)
    (title,) = re.findall(r"<h1>(.*?)</h1>", page)
    assert title == Findings(load_run(told_run)).title
    assert f"<title>{title}</title>" in page
    assert f"<dt>run</dt><dd>{told_run.name}</dd>" in page
    section = page.split('id="numbers"')[1]
    assert section.index("<svg") < section.index("<table")


def test_eight_columns_are_shown_at_first_and_a_switch_shows_all_columns(told_run: Path) -> None:
    section = page_of(told_run).split('id="numbers"')[1].split("</table>")[0]
    headings = re.findall(r'<th scope="col"(?: class="([\w ]*)")?>', section)
    folded = ["more" in kinds.split() for kinds in headings]
    assert folded.count(False) == 8
    assert "ratio of totals" not in section
    assert f"all {len(headings)} columns" in section
    for row in re.findall(r"<tr>(<th.*?)</tr>", section)[1:]:
        cells = re.findall(r'<t[hd](?: class="([\w ]*)")?>', row)
        assert ["more" in kinds.split() for kinds in cells] == folded


def test_text_is_aligned_left_numbers_right_and_no_heading_breaks_within_a_word(
    told_run: Path,
) -> None:
    table = main_table(page_of(told_run))
    left = re.findall(r'<th scope="col" class="words">(.*?)</th>', table)
    assert left == ["decoder", "guarantee"]
    assert "specbench_compat" not in table
    assert "\u200b" not in table
    assert "<span>speed-up</span>" in table


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


@pytest.mark.slow
def test_a_page_without_timed_answers_says_that_no_prompt_was_timed(
    told_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / told_run.name
    shutil.copytree(told_run, run)
    lines = (run / "samples.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    untimed = [line for line in lines if '"kind":"quality"' in line]
    (run / "samples.jsonl").write_text("".join(untimed), encoding="utf-8")
    write_report(run)
    assert "No prompt was timed." in page_of(run)
    assert "chunk-" not in page_of(run).replace("chunk-${name}", "")


def test_an_inline_drawing_takes_the_text_colour_of_the_page_and_has_prefixed_ids() -> None:
    drawn = (
        '<?xml version="1.0"?><svg xmlns="x" width="9pt"><metadata>m</metadata>'
        '<clipPath id="p1"/><g clip-path="url(#p1)" style="fill: #1b1f24"/></svg>'
    )
    inline = inline_svg(drawn, "speedup")
    assert inline.startswith('<svg style="width: 100%; max-width: 9pt"')
    assert 'id="speedup-p1"' in inline
    assert "url(#speedup-p1)" in inline
    assert "fill: currentColor" in inline
    assert "metadata" not in inline

"""The page in real Chromium: plays, filters, sorts, copies, asks for nothing, obeys no text."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.records.record import SampleRecord
from bench.records.run_folder import Run, load_run
from bench.report.findings import Findings
from bench.report.page.answers import chosen_answers
from bench.report.write import write_report
from bench.stats.counters import Tally
from bench.stats.intervals import LEVEL
from tests.bench.report.page.browser import Browser, missing, opened
from tests.bench.report.page.runs import BAD, rewrite, without

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("saved"),
    pytest.mark.skipif(missing() is not None, reason=missing() or "there is a browser"),
]
SPACE, LEFT, RIGHT, UP, DOWN, END, HOME = (
    " ",
    "\ue012",
    "\ue014",
    "\ue013",
    "\ue015",
    "\ue010",
    "\ue011",
)
ORDER = ["ar", "ptp", "spec", "idlm"]
STATE = """
const text = (selector) => document.querySelector(selector).textContent;
return {
  names: [...document.querySelectorAll(".race .name:not(.head)")].map((name) => name.textContent),
  cells: ["tokens", "calls", "drafts", "ms", "times"].map((cell) =>
    [cell, [...document.querySelectorAll(`.race .cell.${cell}`)].map((one) => one.textContent)]),
  cards: [...document.querySelectorAll(".card .name")].map((name) => name.textContent),
  button: text("#play"), moment: text(".moment"), pace: text(".pace"),
  at: Number(document.getElementById("at").value), count: text(".count"),
  prompts: [...document.getElementById("prompt").options].map((option) => option.value),
};
"""


INJECTED = """
const code = document.createElement("script");
code.textContent = "window.hacked = 1";
document.body.append(code);
document.body.insertAdjacentHTML("beforeend", '<b onclick="window.hacked = 2">x</b>');
document.body.lastChild.click();
"""
TYPED = """
const search = document.getElementById("search");
search.value = arguments[0];
search.dispatchEvent(new Event("input"));
"""
OUTSIDE = """
return [...document.querySelectorAll("#stage *")]
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => node.className);
"""
HEADINGS = "return [...document.querySelectorAll('#numbers thead th')].map((h) => h.textContent)"


@pytest.fixture(scope="module")
def chromium(told_run: Path) -> Iterator[Browser]:
    with opened(told_run / "report.html") as browser:
        yield browser


@pytest.fixture
def page(chromium: Browser) -> Browser:
    """The page as it is when it is opened."""
    chromium.look(1440, "light")
    chromium.ask("localStorage.clear()")
    chromium.again()
    chromium.errors()
    return chromium


def state(page: Browser) -> dict[str, Any]:
    now: dict[str, Any] = page.ask(STATE)
    rows: dict[str, dict[str, str]] = {name: {} for name in now["names"]}
    for cell, texts in now["cells"]:
        for name, text in zip(rows, texts, strict=True):
            rows[name][cell] = text
    return now | {"rows": rows}


def answers(run: Run, prompt: int) -> Mapping[str, SampleRecord]:
    """The records of the prompt in that place of the list."""
    return list(chosen_answers(run.records).values())[prompt]


# ---------------------------------------------------------------- opening


def test_the_page_opens_without_errors_or_further_requests(chromium: Browser) -> None:
    chromium.requests()
    chromium.again()
    for selector in ("#play", "#unfold", "#theme"):
        chromium.one(selector).click()
    chromium.press(DOWN, SPACE)
    assert chromium.errors() == []
    assert chromium.requests() == [chromium.page]
    assert chromium.ready_ms() < 2_000


def test_html_and_scripts_in_texts_are_shown_and_never_executed(page: Browser) -> None:
    page.ask("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert page.ask("return [window.hacked ?? null, document.images.length]") == [None, 0]
    assert BAD in page.text(".asked")
    assert "</script><script>" in page.text(".card .text")
    assert BAD in page.text(".card .text")
    assert "{{7*7}}" in page.ask("return document.documentElement.innerHTML")
    assert page.ask("return document.scripts.length") == 2 + 14 + 1
    # even a tag that got in would do nothing: the policy lets no other code run
    page.ask(INJECTED)
    assert page.ask("return window.hacked ?? null") is None
    assert all("Content Security Policy" in line for line in page.errors())


# ---------------------------------------------------------------- the race


def test_counts_at_the_end_of_the_race_equal_those_of_the_records(
    page: Browser, told_run: Path
) -> None:
    run = load_run(told_run)
    rows = state(page)["rows"]
    assert list(rows) == state(page)["cards"] == ORDER
    records = answers(run, 0)
    each_s = {name: (r.total_s or 0) / len(r.tokens or ()) for name, r in records.items()}
    for name, record in records.items():
        tally = Tally.of(record)
        assert rows[name]["tokens"] == f"{tally.emitted}/{tally.emitted}"
        assert rows[name]["calls"] == str(tally.target_calls)
        assert float(rows[name]["ms"]) == pytest.approx(1e3 * (record.total_s or 0), abs=0.06)
        assert rows[name]["times"] == f"{each_s['ar'] / each_s[name]:.2f}\u00d7"


def test_the_race_plays_at_the_relative_speed_of_the_records(page: Browser, told_run: Path) -> None:
    records = answers(load_run(told_run), 0)
    longest_us = max(round(1e6 * (record.total_s or 0)) for record in records.values())
    page.select("#speed", "4")
    began = time.perf_counter()
    page.press(SPACE)
    seen: list[tuple[float, dict[str, Any]]] = []
    while "Pause" in (now := state(page))["button"]:
        seen.append((time.perf_counter() - began, now))
        time.sleep(0.1)
    assert time.perf_counter() - began == pytest.approx(4, abs=1.5)
    assert len(seen) > 5
    for _, now in seen:
        # what is shown fits one moment: that of the lane that runs longest
        at_us = 1e3 * max(float(row["ms"]) for row in now["rows"].values())
        for name, record in records.items():
            assert record.steps is not None
            ends = [1e6 * end_s for end_s in record.steps.ended_s]
            tokens = [0, *itertools.accumulate(record.steps.emitted)]
            num = int(now["rows"][name]["tokens"].split("/")[0])
            low, high = (sum(end <= at_us + slack for end in ends) for slack in (-60, 60))
            assert tokens[low] <= num <= tokens[high], name
            total_us = 1e6 * (record.total_s or 0)
            spent = float(now["rows"][name]["ms"])
            assert spent == pytest.approx(min(at_us, total_us) / 1e3, abs=0.06)
            assert bool(now["rows"][name]["times"]) == (at_us >= total_us - 60) or (
                abs(at_us - total_us) < 60
            )
    middle = [now for _, now in seen if 0 < now["at"] < 1000]
    assert middle
    assert state(page)["at"] == 1000
    assert f"{longest_us / 1e3:.1f}" in state(page)["moment"]


def test_steps_differ_in_colour_and_rejected_and_refined_tokens_are_marked(
    page: Browser, told_run: Path
) -> None:
    records = answers(load_run(told_run), 0)
    script = """
    const card = [...document.querySelectorAll(".card")][arguments[0]];
    return [...card.querySelectorAll(".step")].map((step) => ({
      name: step.className,
      fell: [...step.querySelectorAll("del")].map((node) => node.textContent),
      drafted: step.querySelectorAll(".drafted").length,
      tokens: step.querySelectorAll(".token").length,
      passes: [...step.querySelectorAll(".refined")].map((node) => node.dataset.pass),
    }));
    """
    for place, name in enumerate(ORDER):
        steps = records[name].steps
        assert steps is not None
        shown = page.ask(script, place)
        assert [each["tokens"] for each in shown] == list(steps.emitted)
        assert [each["drafted"] for each in shown] == list(steps.accepted)
        colours = [each["name"].split()[1] for each in shown]
        assert colours[0] == "prefill"
        assert all(one != other for one, other in itertools.pairwise(colours))
        fallen = [len(each["fell"]) for each in shown]
        assert fallen == [len(ids) for ids in steps.rejected or [()] * len(shown)]
        passes = [[str(p) for p in each if p > 1] for each in steps.decided or [()] * len(shown)]
        assert [each["passes"] for each in shown] == passes
    assert any(each["fell"] for each in page.ask(script, 1))
    assert page.ask("return document.querySelector('.text del').textContent") == " fell↵"
    struck = "return getComputedStyle(document.querySelector('.text del')).textDecorationLine"
    assert page.ask(struck) == "line-through"


def test_the_keyboard_shortcuts_work(page: Browser, told_run: Path) -> None:
    page.press(HOME)
    assert state(page)["at"] == 0
    assert {row["tokens"].split("/")[0] for row in state(page)["rows"].values()} == {"0"}
    records = answers(load_run(told_run), 0)
    ends = sorted(
        {round(e, 6) for r in records.values() for e in (r.steps.ended_s if r.steps else ())}
    )
    page.press(RIGHT, RIGHT, RIGHT)
    assert state(page)["moment"].startswith(f"{1e3 * ends[2]:.1f} ms")
    page.press(LEFT)
    assert state(page)["moment"].startswith(f"{1e3 * ends[1]:.1f} ms")
    page.press(END)
    assert state(page)["at"] == 1000
    page.press(DOWN, DOWN)
    page.wait("return document.getElementById('prompt').value === '2'")
    page.press(UP)
    page.wait("return document.getElementById('prompt').value === '1'")
    page.press("2")
    assert state(page)["cards"] == ["ar", "spec", "idlm"]
    page.press("2", "1")
    assert state(page)["cards"] == ["ptp", "spec", "idlm"]
    page.press("c")
    assert page.ask("return document.getElementById('unit').value") == "calls"
    assert "call" in state(page)["moment"]
    page.press("c", "r")
    assert (
        page.ask("return getComputedStyle(document.querySelector('.text del')).display") == "none"
    )
    page.press("+")
    assert page.ask("return document.getElementById('speed').value") == "4"
    page.press("-", "-")
    assert page.ask("return document.getElementById('speed').value") == "16"
    page.press("/")
    assert page.ask("return document.activeElement.id") == "search"
    page.one("#search").send_keys("2 c")
    assert page.ask("return document.getElementById('search').value") == "2 c"


def test_a_key_pressed_outside_the_viewer_does_not_start_the_race(page: Browser) -> None:
    page.one("body").send_keys(SPACE)
    assert "Play" in state(page)["button"]


INFO = "return document.querySelectorAll('.card .info')[1].textContent"
POINTED = """
const step = document.querySelectorAll(".card")[1].querySelectorAll(".step")[arguments[0]];
step.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
"""


def test_pointing_at_a_step_shows_its_details_and_a_click_moves_the_race_there(
    page: Browser,
) -> None:
    page.ask(POINTED, 1)
    assert page.ask(INFO).startswith("step 1 of ")
    assert " of 7 drafts accepted" in page.ask(INFO)
    assert page.ask("return document.querySelectorAll('.track rect.lit').length") == 1
    page.ask(POINTED, 0)
    assert page.ask(INFO).startswith("prefill · 1 token · 1 call")
    page.ask("document.querySelectorAll('.card')[1].querySelectorAll('.step')[1].click()")
    assert 0 < state(page)["at"] < 1000


# ---------------------------------------------------------------- choosing


def test_prompts_are_filtered_by_family_and_by_words(page: Browser) -> None:
    assert state(page)["count"] == "14 of 14 prompts"
    page.select("#family", "rag")
    assert state(page)["count"] == "2 of 14 prompts"
    page.wait(f"return document.getElementById('prompt').value === '{state(page)['prompts'][0]}'")
    page.one("#search").send_keys("W24 w-nothing")
    assert state(page)["count"] == "no prompt matches"
    page.select("#family", "")
    page.ask(TYPED, "W21")
    assert state(page)["prompts"] == ["11"]
    page.wait("return document.querySelector('.asked').textContent.endsWith(' w21')")


def test_a_race_keeps_its_moment_when_a_decoder_is_hidden(page: Browser) -> None:
    page.press(HOME, RIGHT, RIGHT)
    before = state(page)["moment"].split(" of ")[0]
    page.ask("document.querySelectorAll('.chip input')[3].click()")
    assert state(page)["cards"] == ["ar", "ptp", "spec"]
    assert state(page)["moment"].split(" of ")[0] == before


def test_hidden_decoders_are_named_and_an_empty_selection_has_a_message(page: Browser) -> None:
    unshown, nothing = ".chip + .count", ".nothing"
    assert (page.text(unshown), page.text(nothing)) == ("", "")
    page.press("3")
    assert page.text(unshown) == "not shown: spec"
    page.press("1", "2", "4")
    assert page.text(nothing) == "No decoder is chosen: tick one above."
    assert not page.one(".race").is_displayed()
    page.press("2")
    assert page.text(nothing) == ""
    assert state(page)["cards"] == ["ptp"]


def test_a_search_without_matches_empties_the_viewer_until_a_prompt_matches(page: Browser) -> None:
    page.ask(TYPED, "no prompt says this")
    page.wait("return document.querySelector('.nothing').textContent")
    assert page.text(".nothing").startswith("No prompt matches: clear the search")
    assert state(page)["cards"] == []
    assert not page.one(".race").is_displayed()
    page.ask(TYPED, "")
    page.wait("return !document.querySelector('.nothing').textContent")
    assert state(page)["cards"] == ORDER


def test_a_click_enlarges_a_figure_and_another_puts_it_back(page: Browser) -> None:
    for width, least in ((1440, 600), (390, 340)):  # type of 8 points is readable; all of a phone
        page.look(width, "light")
        size = "return document.querySelector(arguments[0] + ' svg').getBoundingClientRect().width"
        before = page.ask(size, ".drawing")
        assert least <= before <= width
        page.ask("document.querySelector('.drawing').click()")
        page.wait("return document.querySelector('dialog').open")
        assert page.ask(size, "dialog") > before
        page.ask("document.querySelector('dialog').click()")
        page.wait("return !document.querySelector('dialog svg')")
        assert page.ask(size, ".drawing") == before


# ---------------------------------------------------------------- tables


COLUMN = """
const [section, column] = arguments;
const table = document.querySelector(`#${section} table`);
return {
  cells: [...table.tBodies[0].rows]
    .map((row) => row.cells[column].textContent.split(" [")[0].trim()),
  sorted: table.tHead.rows[0].cells[column].getAttribute("aria-sort"),
};
"""


def test_clicks_on_a_heading_sort_descending_then_ascending_then_in_the_original_order(
    page: Browser,
) -> None:
    places = {text: i for i, text in enumerate(page.ask(HEADINGS))}
    (column,) = [i for text, i in places.items() if text.startswith("speed-up")]
    original = page.ask(COLUMN, "numbers", column)
    assert original["sorted"] is None
    values = [float(text.removesuffix("x")) for text in original["cells"]]
    click = "document.querySelectorAll('#numbers thead th button')[arguments[0]].click()"
    page.ask(click, column)
    assert page.ask(COLUMN, "numbers", column)["sorted"] == "descending"
    cells = page.ask(COLUMN, "numbers", column)["cells"]
    assert [float(text.removesuffix("x")) for text in cells] == sorted(values, reverse=True)
    page.ask(click, column)
    cells = page.ask(COLUMN, "numbers", column)["cells"]
    assert [float(text.removesuffix("x")) for text in cells] == sorted(values)
    page.ask(click, column)
    assert page.ask(COLUMN, "numbers", column) == original
    (rate,) = [i for text, i in places.items() if text.startswith("draft acceptance")]
    for _ in range(2):
        page.ask(click, rate)
        assert page.ask(COLUMN, "numbers", rate)["cells"][-2:] == ["-", "-"], "unknown is last"


def copied(page: Browser, section: str, form: str) -> str:
    """What a table's button leaves in the clipboard."""
    page.send(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    script = """
    const buttons = [...document.querySelectorAll(`#${arguments[0]} .copy button`)];
    buttons.find((button) => button.textContent === arguments[1]).click();
    """
    page.ask("window.focus(); window.text = null")
    page.ask(script, section, form)
    page.ask("setTimeout(async () => { window.text = await navigator.clipboard.readText() }, 100)")
    return str(page.wait("return window.text"))


def test_tables_are_copied_as_the_report_writes_them(page: Browser, told_run: Path) -> None:
    headline = Findings(load_run(told_run)).headline
    assert copied(page, "numbers", "Markdown") == headline.to_markdown() + "\n"
    latex = copied(page, "numbers", "LaTeX")
    assert all(rule in latex for rule in ("\\toprule", "\\midrule", "\\bottomrule"))
    assert "[95 \\%]" in latex
    assert latex.count("\\textbf{") == sum(cell.bold for row in headline.rows for cell in row)
    rows = list(csv.DictReader(io.StringIO(copied(page, "numbers", "CSV"))))
    assert [row["decoder"] for row in rows] == ORDER
    name = "speed-up"
    column = headline.headings.index(f"{name} [{LEVEL}]")
    for row, cells in zip(rows, headline.rows, strict=True):
        shown = re.fullmatch(r"([\d.]+)x(?: \[([\d.]+), ([\d.]+)\])?", cells[column].text)
        assert shown is not None
        assert [row[name], row[f"{name} low"], row[f"{name} high"]] == [
            g or "" for g in shown.groups()
        ]
    assert rows[0]["draft acceptance %"] == ""


def test_a_copied_table_is_sorted_as_it_is_shown(page: Browser) -> None:
    page.ask("document.querySelector('#numbers thead th button').click()")
    rows = list(csv.DictReader(io.StringIO(copied(page, "numbers", "CSV"))))
    assert [row["decoder"] for row in rows] == sorted(ORDER)


def test_every_table_has_its_buttons(page: Browser) -> None:
    tables, headings, bars, copies = page.ask(
        "return ['table', 'thead th', '.copy', '.copy button'].map("
        "(s) => document.querySelectorAll(`figure.table ${s}`).length)"
    )
    assert tables == bars == page.ask("return document.querySelectorAll('table').length")
    assert copies == 3 * tables
    assert headings == page.ask("return document.querySelectorAll('.sort').length")


# ---------------------------------------------------------------- how it looks


def test_sections_fold_alone_and_all_at_once(page: Browser) -> None:
    is_open = "return [...document.querySelectorAll('details.section')].map((one) => one.open)"
    page.ask("document.querySelector('#families > summary').click()")
    assert page.ask("return document.querySelector('#families').open")
    page.one("#fold").click()
    assert not any(page.ask(is_open))
    page.ask("dispatchEvent(new Event('beforeprint'))")
    assert all(page.ask(is_open)), "all of it is printed"
    page.ask("dispatchEvent(new Event('afterprint'))")
    assert not any(page.ask(is_open))
    page.one("#unfold").click()
    assert all(page.ask(is_open))


def test_colours_follow_the_system_until_they_are_chosen(page: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = page.ask(paper)
    page.look(1440, "dark")
    dark = page.ask(paper)
    assert light == "rgb(255, 255, 255)"
    assert dark != light
    page.one("#theme").click()
    assert page.ask(paper) == light
    page.again()
    assert page.ask(paper) == light, "it is remembered"
    page.look(1440, "light")
    page.one("#theme").click()
    assert page.ask(paper) == dark
    page.one("#theme").click()
    assert page.ask(paper) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 400])
def test_the_page_fits_its_width_and_has_readable_contrast(
    page: Browser, width: int, scheme: str, tmp_path: Path
) -> None:
    page.look(width, scheme)
    page.one("#unfold").click()
    assert page.ask("return document.documentElement.scrollWidth") <= width
    assert page.ask(OUTSIDE) == []
    for name, ratio in contrasts(page).items():
        assert ratio >= 4.5, f"{name} in {scheme}"
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000


def contrasts(page: Browser) -> dict[str, float]:
    """How much texts stand out from what lies under them, by the WCAG's formula."""
    script = """
    const [selectors] = arguments;
    const luminance = (colour) => {
      const canvas = new OffscreenCanvas(1, 1).getContext("2d");
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => {
        const share = part / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const under = (node) => {
      const colour = getComputedStyle(node).backgroundColor;
      const clear = colour === "rgba(0, 0, 0, 0)" && node.parentElement;
      return clear ? under(node.parentElement) : colour;
    };
    const worst = {};
    for (const selector of selectors) {
      for (const node of document.querySelectorAll(selector)) {
        const [a, b] = [luminance(getComputedStyle(node).color), luminance(under(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        worst[selector] = Math.min(worst[selector] ?? 99, ratio);
      }
    }
    return worst;
    """
    selectors = (
        ".lead",
        ".soft",
        ".token",
        ".text del",
        ".info",
        "figcaption",
        "button",
        ".race .cell",
    )
    ratios: dict[str, float] = page.ask(script, selectors)
    assert set(ratios) == set(selectors)
    return ratios


# ---------------------------------------------------------------- other runs


def test_the_viewer_counts_rejected_drafts_whose_ids_were_not_recorded(
    told_run: Path, tmp_path: Path
) -> None:
    run = load_run(told_run)
    records = [
        dataclasses.replace(r, steps=r.steps and without(r.steps, "rejected", "decided"))
        for r in run.records
    ]
    with shown(run, records, tmp_path) as browser:
        browser.ask(POINTED, 1)
        assert "rejected drafts not recorded" in browser.ask(INFO)


def test_a_failed_answer_is_shown_as_failed_and_the_others_race(
    told_run: Path, tmp_path: Path
) -> None:
    run = load_run(told_run)
    blank = dict.fromkeys(("tokens", "text", "stop", "steps", "ttft_s", "total_s"))
    records = [
        SampleRecord(**{**fields(r), **blank, "error": f"ValueError: {BAD}"})
        if r.decoder == "spec"
        else r
        for r in run.records
    ]
    with shown(run, records, tmp_path) as browser:
        assert state(browser)["cards"] == ORDER
        assert f"ValueError: {BAD}" in browser.text(".cards")
        assert browser.ask("return document.images.length") == 0
        browser.press(HOME, SPACE)
        browser.wait("return Number(document.getElementById('at').value) > 0")
        assert browser.errors() == []


def test_answers_of_a_batch_race_by_calls(told_run: Path, tmp_path: Path) -> None:
    run = load_run(told_run)
    records = [batched(r) for r in run.records]
    with shown(run, records, tmp_path) as browser:
        now = state(browser)
        assert browser.ask("return document.getElementById('unit').disabled")
        assert now["moment"].endswith("calls")
        assert {row["ms"] for row in now["rows"].values()} == {"-"}
        assert now["rows"]["ar"]["times"] == "1.00\u00d7"
        assert float(now["rows"]["ptp"]["times"].removesuffix("\u00d7")) > 1


def fields(record: SampleRecord) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def batched(record: SampleRecord) -> SampleRecord:
    """A record as one of a batch."""
    values = fields(record)
    if record.steps is not None:
        values["steps"] = without(record.steps, "ended_s")
    if record.kind == "timing":
        values |= {"batch_size": 4, "ttft_s": None, "total_s": None, "group_s": 1.0}
    return SampleRecord(**values)


def shown(run: Run, records: list[SampleRecord], folder: Path) -> Any:
    """The page of the run with other records, in a browser of its own."""
    path = folder / "run"
    path.mkdir()
    for name in (
        "manifest.json",
        "config.toml",
        "env.json",
        "run.json",
        "vocab.json",
        "prompts.jsonl",
    ):
        (path / name).write_bytes((run.path / name).read_bytes())
    write_report(rewrite(path, records))
    return opened(path / "report.html")

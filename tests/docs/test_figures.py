"""Numbers of pages are those of the files they name, and sentences hold as long as they rest."""

import re
from pathlib import Path

import pytest

from docs.generate import figures
from docs.generate.figures import Figure
from docs.generate.parts import PART
from docs.generate.runs import TABLE
from docs.generate.sources import Interval, resolve

PAGES = figures.readable()
ZOO = "cpu-zoo/summary.csv"
ROOT = Path(__file__).parents[2]


OF_OTHERS = ("docs/log.md", "docs/log/2026-11.md", "docs/comparison.md")
CLAIMS = "docs/claims.md"
OURS = [page for page in PAGES if page not in OF_OTHERS and "/adr/" not in page]
EXAMPLES = {"docs/reporting.md": "2.52x [2.14, 2.97]"}
MEASURED = re.compile(r"\d+\.\d+x(?!\w)|\d%? \[\d")
VERDICTS = {"**confirmed**", "**partly**", "**refuted here**", "**not testable here**"}


def without_sources(page: str) -> str:
    """A page without code, generated tables, examples, others' claims, and sourced numbers."""
    text = re.sub(
        r"^( *)```.*?^\1```",
        "",
        PART.sub("", TABLE.sub("", PAGES[page])),
        flags=re.DOTALL | re.MULTILINE,
    )
    text = text.replace(EXAMPLES.get(page, "\0"), "")
    if page == CLAIMS:
        text = re.sub(r"^\| .*? \|", "", text, flags=re.MULTILINE)
    return figures.SHOWN.sub("", text)


def claims() -> list[list[str]]:
    """The cells of every row of docs/claims.md."""
    rows = [row for row in PAGES[CLAIMS].splitlines() if row.startswith("| ")]
    return [row.strip("| ").split(" | ") for row in rows if not row.startswith("| claim ")]


def one(text: str) -> Figure:
    (figure,) = figures.figures(text, "docs/a.md")
    return figure


def spec(column: str) -> float:
    return resolve([ZOO, "decoder=spec", column]).value


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_what_its_source_says(page: str) -> None:
    found = [figures.wrong(figure) for figure in figures.figures(PAGES[page], page)]
    renew = "\npython -m docs.generate.figures writes what the files say"
    assert not any(found), "\n".join(filter(None, found)) + renew


@pytest.mark.parametrize("page", OURS)
def test_speed_ups_and_intervals_name_their_source(page: str) -> None:
    found = MEASURED.findall(without_sources(page))
    assert not found, f"{page}: put <!-- from FILE … --> behind {found}"


@pytest.mark.parametrize("row", claims(), ids=lambda row: row[0][:40])
def test_every_claim_has_a_run_a_figure_a_sentence_and_a_verdict(row: list[str]) -> None:
    claim, run, figure, sentence, verdict = row
    assert verdict in VERDICTS
    assert len(sentence) > 20
    if verdict == "**not testable here**":
        assert (run, figure) == ("-", "-")
    else:
        assert "](" in run
        assert figures.figures(figure, claim), "name the file of its figure"


def test_the_page_of_claims_counts_its_verdicts() -> None:
    words = [row[-1].strip("*") for row in claims()]
    counts = [words.count(verdict.strip("*")) for verdict in sorted(VERDICTS)]
    tally = "{} claims: {} confirmed, {} partly, {} refuted here, {} not testable here:"
    confirmed, untestable, partly, refuted = counts
    assert tally.format(len(words), confirmed, partly, refuted, untestable) in PAGES[CLAIMS]


def test_the_first_screen_of_the_readme_leads_to_the_claims() -> None:
    assert "](docs/claims.md)" in PAGES["README.md"].split("## ")[0]


def test_a_number_that_its_file_does_not_say_is_named_with_its_page_and_line() -> None:
    text = f"a\nb 9.99x [1.44, 1.63]<!-- from {ZOO} decoder=spec speedup --> c"
    low, high = (spec(f"speedup_{end}") for end in ("low", "high"))
    assert figures.wrong(one(text)) == (
        f"docs/a.md:2: shows 9.99 [1.44, 1.63], {ZOO} decoder=spec speedup says "
        f"{spec('speedup'):.2f} [{low:.2f}, {high:.2f}]"
    )


def test_a_page_is_renewed_with_the_decimals_and_units_it_has() -> None:
    text = (
        f"9.9x [1, 2]<!-- from {ZOO} decoder=spec speedup --> and **0.0 %**"
        f"<!-- from {ZOO} decoder=spec quality --> and 1 MB"
        f"<!-- from {ZOO} decoder=spec peak_memory_bytes -->, 3 rows"
    )
    new = figures.renewed(text, "docs/a.md")
    assert new.startswith(f"{spec('speedup'):.1f}x [{spec('speedup_low'):.0f}, ")
    assert f"**{100 * spec('quality'):.1f} %**<!--" in new
    assert f" and {spec('peak_memory_bytes') / 1e6:.0f} MB<!--" in new
    assert new.endswith("-->, 3 rows")
    assert not any(map(figures.wrong, figures.figures(new, "docs/a.md")))


@pytest.mark.parametrize(("bound", "holds"), [("above 1", True), ("below 1", False)])
def test_a_sentence_rests_on_the_whole_interval_that_it_shows(bound: str, holds: bool) -> None:
    text = f"0x [0, 0]<!-- from {ZOO} decoder=spec speedup {bound} -->"
    found = figures.wrong(one(figures.renewed(text, "docs/a.md")))
    assert (found == "") == holds
    assert holds or "is not below 1, on which the sentence rests" in found


def test_two_decoders_are_paired_prompt_by_prompt_as_in_the_report() -> None:
    words = "cpu-zoo-rivals/tables/by_prompt.csv decoder={} speedup over decoder={}"
    report = (ROOT / "results/reference/cpu-zoo-rivals/report.md").read_text(encoding="utf-8")
    table = report.split("## Decoders against one another")[1].split("\n## ")[0]
    columns = [cell.strip() for cell in table.strip().partition("\n")[0].split("|")]
    for mine, theirs in (("ar", "hf"), ("spec", "hf@assisted"), ("lookup", "hf@lookup")):
        (row,) = re.findall(rf"^\| {mine} \|.*$", table, re.MULTILINE)
        said = resolve(words.format(mine, theirs).split())
        expected = row.split("|")[columns.index(theirs)].strip(" *")
        assert f"{said.value:.2f}x [{said.low:.2f}, {said.high:.2f}]" == expected


def test_ratios_losses_and_arithmetic_are_of_one_row_each() -> None:
    over = resolve(f"{ZOO} decoder=nar quality over decoder=ar".split())
    short = resolve(f"{ZOO} decoder=nar quality short-of decoder=ar".split())
    assert short.value == pytest.approx(1 - over.value)
    half = resolve(f"{ZOO} decoder=nar (quality_high-quality_low)/2".split())
    row = {end: resolve(f"{ZOO} decoder=nar quality_{end}".split()) for end in ("low", "high")}
    assert half == Interval((row["high"].value - row["low"].value) / 2)


def test_logs_are_read_from_their_end_and_summed_over_files() -> None:
    logs = ("zoo/ptp/training_log.jsonl", "zoo/ptp/finetuning_log.jsonl")
    each = [resolve([log, "tokens"]).value for log in logs]
    assert resolve(["zoo/ptp/*_log.jsonl", "tokens"]).value == sum(each) > max(each)


def test_weights_are_counted_and_keys_with_dots_are_read() -> None:
    counted = resolve(["zoo/isd/adapter.safetensors", "parameters"])
    assert counted == resolve(["zoo/isd/training_log.jsonl", "parameters"])
    assert 0.9 < resolve(["zoo/refine/adapter.json", "measured/by_ratio/0.25"]).value < 1


def test_a_number_of_the_log_stands_under_its_heading_as_it_is_shown() -> None:
    text = '1.16 [1.12, 1.21]<!-- from docs/log/2026-11.md "first measurements on the zoo" -->'
    assert figures.wrong(one(text)) == ""
    assert "is not in docs/log/2026-11.md" in figures.wrong(one(text.replace("1.16", "1.1")))
    assert "is not in docs/log/2026-11.md" in figures.wrong(one(text.replace("1.12", "1.2")))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("cpu-zoo/nothing.csv decoder=ar speedup", "is neither in results/reference/ nor"),
        (f"{ZOO} decoder=arr speedup", "has 0 rows of"),
        (f"{ZOO} family=qa speedup", "rows of {'family': 'qa'}, not 1"),
        (f"{ZOO} decoders=ar speedup", "has no column ['decoders']"),
        (f"{ZOO} decoder=ar sped", "sped is no number of the row"),
        (f"{ZOO} ar speedup", "filters are COLUMN=VALUE, not ['ar']"),
        ("zoo/ptp/adapter.json measured.nothing", "has no measured.nothing"),
        ("zoo/ptp/adapter.json", "name one place of a value, not []"),
        ('docs/log.md "no such heading"', "has 0 headings with 'no such heading'"),
    ],
)
def test_a_source_that_names_no_value_is_refused_in_a_line(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        figures.wrong(one(f"1<!-- from {source} -->"))


def test_a_source_behind_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="no number stands directly before the source"):
        figures.figures(f"many tokens<!-- from {ZOO} decoder=ar speedup -->", "docs/a.md")

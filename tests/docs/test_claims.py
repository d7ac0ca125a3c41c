"""Claims show what the files they name say; other prose has no such number."""

import re
from pathlib import Path

import pytest

from docs.generate import claims, runs
from docs.generate.parts import PART
from docs.generate.places import readable
from docs.generate.sources import Interval, num_weights, resolve

PAGES = readable()
ZOO = "cpu-zoo/summary.csv"
ROOT = Path(__file__).parents[2]
OF_OTHERS = ("docs/log.md", "docs/log/2026-11.md", "docs/comparison.md")
OURS = [page for page in PAGES if page not in OF_OTHERS and "/adr/" not in page]
EXAMPLES = {"docs/reporting.md": "2.52x [2.14, 2.97]"}
MEASURED = re.compile(r"\d+\.\d+x(?!\w)|\d%? \[\d")
EACH = [claim for section in claims.sections() for claim in section["claims"]]


def prose(page: str) -> str:
    """A page without code, generated parts and tables, and examples."""
    text = re.sub(
        r"^( *)```.*?^\1```",
        "",
        PART.sub("", runs.TABLE.sub("", PAGES[page])),
        flags=re.DOTALL | re.MULTILINE,
    )
    return text.replace(EXAMPLES.get(page, "\0"), "")


def shown(figure: str) -> str:
    """The text of a figure, as a page shows it."""
    (match,) = claims.FIGURE.finditer(figure)
    assert match[0] == figure
    return claims.shown(match)


def broken(figure: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines about a claim that rests on one figure."""
    claim = {"claim": "faster", "figure": figure, "sentence": "It is.", "verdict": "confirmed"}
    monkeypatch.setattr(claims, "sections", lambda: [{"heading": "a", "claims": [claim]}])
    return list(claims.broken())


def spec(column: str) -> float:
    return resolve([ZOO, "decoder=spec", column]).value


@pytest.mark.parametrize("page", OURS)
def test_speed_ups_and_intervals_appear_only_in_tables_of_stored_files(page: str) -> None:
    assert not MEASURED.findall(prose(page)), f"{page}: say it in words, or show a table"


@pytest.mark.parametrize("page", PAGES)
def test_no_page_hides_the_source_of_a_number_in_a_comment(page: str) -> None:
    assert "<!-- from" not in PAGES[page]


def test_every_sentence_rests_on_its_figures() -> None:
    assert list(claims.broken()) == []


@pytest.mark.parametrize("claim", EACH, ids=lambda claim: claim["claim"][:40])
def test_every_claim_has_a_run_a_figure_a_sentence_and_a_verdict(claim: dict[str, str]) -> None:
    assert claim["verdict"] in claims.VERDICTS
    assert len(claim["sentence"]) > 20
    if claim["verdict"] == "not testable here":
        assert "runs" not in claim
        assert "figure" not in claim
    else:
        assert "](" in claim["runs"]
        assert claims.FIGURE.search(" ".join(claim["figure"].split())), "name the figure's file"
    for text in claim.values():
        plain = claims.FIGURE.sub("", " ".join(text.split()))
        assert not {"{", "}"} & set(plain), f"no figure: {plain}"


def test_the_page_counts_its_verdicts_and_has_a_row_for_each_claim() -> None:
    page = claims.claims()
    rows = [line for line in page.splitlines() if re.search(r"\| \*\*[a-z ]+\*\* \|$", line)]
    assert len(rows) == len(EACH) == 43
    assert page.startswith("43 claims: 13 confirmed, 19 partly, 8 refuted here, 3 not testable")
    assert "{" not in page
    assert "![" not in page


def test_the_first_screen_of_the_readme_leads_to_the_claims() -> None:
    assert "](docs/claims.md)" in PAGES["README.md"].split("## ")[0]


def test_a_figure_has_the_decimals_and_the_unit_of_its_form() -> None:
    low, high = (spec(f"speedup_{end}") for end in ("low", "high"))
    source = f"from {ZOO} decoder=spec"
    value = spec("speedup")
    assert shown(f"{{0.00x [] {source} speedup}}") == f"{value:.2f}x [{low:.2f}, {high:.2f}]"
    assert shown(f"{{0.000 {source} speedup}}") == f"{value:.3f}"
    assert shown(f"{{+0.0 {source} speedup}}") == f"+{value:.1f}"
    assert shown(f"{{0 % {source} quality}}") == f"{100 * spec('quality'):.0f} %"
    memory = spec("peak_memory_bytes")
    assert shown(f"{{0.0 MB {source} peak_memory_bytes}}") == f"{memory / 1e6:.1f} MB"
    assert shown(f"{{0,000 {source} peak_memory_bytes}}") == f"{memory:,.0f}"
    assert shown("{0.0 M from zoo/ptp/*_log.jsonl tokens}") == "24.9 M"


@pytest.mark.parametrize(("bound", "holds"), [("above 1", True), ("below 1", False)])
def test_a_sentence_rests_on_the_whole_interval_that_it_shows(
    bound: str, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"{ZOO} decoder=spec speedup {bound}"
    figure = f"{{0.00x [] from {source}}}"
    said = [] if holds else [f"faster: {shown(figure)} ({source})"]
    assert broken(figure, monkeypatch) == said
    middle = (spec("speedup") + spec("speedup_low")) / 2
    assert broken(f"{{0.00x from {ZOO} decoder=spec speedup above {middle}}}", monkeypatch) == []
    assert broken(f"{{0.00x [] from {ZOO} decoder=spec speedup above {middle}}}", monkeypatch)


def test_a_number_quoted_from_the_log_must_occur_verbatim_under_its_heading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = '{1.16 [1.12, 1.21] from docs/log/2026-11.md "first measurements on the zoo"}'
    assert shown(text) == "1.16 [1.12, 1.21]"
    assert broken(text, monkeypatch) == []
    assert broken(text.replace("1.16", "1.1"), monkeypatch)
    assert broken(text.replace("1.12", "1.2"), monkeypatch)


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


def test_ratios_and_losses_of_rows_and_columns_of_a_table_are_computed() -> None:
    over = resolve(f"{ZOO} decoder=nar quality over decoder=ar".split())
    short = resolve(f"{ZOO} decoder=nar quality short-of decoder=ar".split())
    assert short.value == pytest.approx(1 - over.value)
    ratio = resolve(f"{ZOO} decoder=nar quality_high/quality_low".split())
    row = {end: resolve(f"{ZOO} decoder=nar quality_{end}".split()) for end in ("low", "high")}
    assert ratio == Interval(row["high"].value / row["low"].value)


def test_logs_are_read_from_their_end_and_summed_over_files() -> None:
    logs = ("zoo/ptp/training_log.jsonl", "zoo/ptp/finetuning_log.jsonl")
    each = [resolve([log, "tokens"]).value for log in logs]
    assert resolve(["zoo/ptp/*_log.jsonl", "tokens"]).value == sum(each) > max(each)


def test_weights_are_counted() -> None:
    counted = num_weights(ROOT / "zoo/isd/adapter.safetensors")
    assert counted == resolve(["zoo/isd/training_log.jsonl", "parameters"]).value


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
def test_a_source_that_names_no_value_is_refused_in_a_line(
    source: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        broken(f"{{1 from {source}}}", monkeypatch)

"""The page of files and columns holds every column, field and key, with its meaning."""

import dataclasses
import re

import pytest

from bench.errors import Exit
from bench.records.record import SampleRecord, StepColumns
from bench.settings.config import RunConfig
from bench.stats.metrics import COLUMNS, METRICS
from docs.generate import schema
from docs.generate.answers import FIELDS
from docs.generate.places import DOCS


def rows(markdown: str) -> dict[str, list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {each[0].strip(" `"): each[1:] for each in cells}


def test_every_column_of_the_summary_has_a_type_a_meaning_and_a_definition() -> None:
    found = rows(schema.columns())
    assert list(found) == list(COLUMNS)
    for column, (kind, meaning, link) in found.items():
        assert kind in ("text", "integer", "number", "true or false"), column
        assert len(meaning) > 5, column
        assert link.startswith("["), column
    assert found["tokens_per_call"][1].startswith("emitted / target calls, prefill")
    assert found["speedup"][1].startswith("geometric mean: exp(mean over prompts")
    assert found["speedup_low"][1] == "lower end of the interval of `speedup`"
    assert found["speedup_total_high"][1] == "upper end of the interval of `speedup_total`"
    assert found["prompts_needed"][1].startswith("number of further prompts that would narrow")
    assert found["prompts_needed"][2] == "[Intervals](metrics.md#intervals)"


def test_every_field_of_a_record_has_a_meaning_and_no_meaning_is_left_over() -> None:
    found = rows(schema.record())
    fields = [*dataclasses.fields(SampleRecord), *dataclasses.fields(StepColumns)]
    assert set(found) == {field.name for field in fields}
    assert all(len(meaning) > 8 for _, meaning in found.values())
    steps = {f"steps_{field.name}" for field in dataclasses.fields(StepColumns)}
    records = {field.name for field in dataclasses.fields(SampleRecord)}
    assert set(FIELDS) == records | steps
    assert found["tokens"][0] == "list of integers, or null"


def test_every_key_of_the_configuration_stands_with_its_option_and_default() -> None:
    found = rows(schema.configuration())
    assert set(found) == set(RunConfig.model_fields)
    assert found["limit"][0] == "`--limit`, `-L`"
    assert found["quality_limit"][:2] == ["`--quality-limit`", "`40`"]
    assert found["adapters"][0] == "`--adapter`"
    assert found["columns"][0] == "-"


def test_the_other_files_of_a_run_are_listed_with_the_fields_of_their_types() -> None:
    text = schema.files()
    for file, types in schema.FILES.items():
        part = text.split(f"### {file}\n", 1)[1].split("\n### ", 1)[0]
        for kind in types:
            assert f"**{kind.__name__}.**" in part
            assert {field.name for field in dataclasses.fields(kind)} <= set(rows(part))
    assert "`margin_apart` | `0.2`" in schema.gate()


def test_every_exit_code_has_a_meaning() -> None:
    text = schema.exit_codes()
    for code in Exit:
        assert f"| {int(code)} | " in text


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        ("str", "text"),
        ("int | None", "integer, or null"),
        ("tuple[float, ...] | None", "list of numbers, or null"),
        ("Mapping[str, float] | None", "object, or null"),
        ("tuple[Block, ...]", "list of Block"),
        ("tuple[int | float, ...] | None", "list of integer or number, or null"),
    ],
)
def test_types_are_described_in_words(annotation: str, words: str) -> None:
    assert schema.kind_of(annotation) == words


def test_each_metric_is_explained_under_a_heading() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    for section in {each.section for each in METRICS.values()}:
        assert section in headings
        assert schema.metrics(section).strip() in page


def test_a_section_without_intervals_has_no_column_for_them() -> None:
    assert schema.metrics("Times").startswith("| column | formula |\n")
    assert "| `speedup` |" in schema.metrics("Three estimators")
    assert "speedup_low" not in schema.metrics("Intervals")

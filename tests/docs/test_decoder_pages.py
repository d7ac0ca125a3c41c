"""What pages of decoders say is what their classes and the reference runs say."""

import dataclasses
import re
from pathlib import Path

import pytest

from decoders.core.registry import resolve
from decoders.core.types import DecoderSpec
from docs.generate import decoder_pages
from docs.generate.places import DOCS, pages

NAMES = decoder_pages.built_in()
WRITTEN = sorted(path.stem for path in (DOCS / "decoders").glob("[!R]*.md"))


@pytest.mark.parametrize("name", NAMES)
def test_every_option_stands_with_its_default_and_meaning(name: str) -> None:
    text = decoder_pages.options(name)
    fields = dataclasses.fields(resolve(DecoderSpec(name=name)))
    for field in fields:
        (row,) = re.findall(rf"^\| `{field.name}` \| (.*) \| (.*) \| (.*) \|$", text, re.MULTILINE)
        assert all(row[1:]), f"{name}:{field.name}: say under Args: of its class what it does"
    assert fields or text == f"`{name}` has no options.\n"


def test_tables_of_options_show_values_and_defaults_as_users_type_them() -> None:
    text = decoder_pages.options("idlm")
    rows = {line.split("`")[1]: line for line in text.splitlines()[2:]}
    assert rows["revise"].startswith("| `revise` | `remask` | treatment of kept tokens")
    assert rows["revise"].endswith(" | `none`, `remask`, `edit` |")
    assert rows["early_exit"].startswith("| `early_exit` | `true` | stop refining")
    assert rows["early_exit"].endswith(" | true, false |")
    assert rows["adapter"].startswith("| `adapter` | `refine` | name of the adapter")


def test_guarantees_follow_options_and_temperature() -> None:
    text = decoder_pages.promises("idlm")
    assert "| `idlm` | none | none | adapter refine | yes |" in text
    isd = "same tokens | same distribution | adapter isd"
    assert f"| `idlm@isd:mode=isd:stride=8` | {isd} | yes |" in text
    assert "| `ptp` | same tokens | same tokens |" in decoder_pages.promises("ptp")
    assert decoder_pages.promises("jacobi").endswith("| - | no |\n")


def _row(run: str, name: str) -> list[str]:
    """Cells of a decoder in the table of a run, which lies beside the stored runs."""
    stored = (Path(__file__).parents[2] / "results/reference/README.md").read_text("utf-8")
    table = stored.split(f"<!-- table: run {run} -->\n")[1].split("\n\n")[0]
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_measured_numbers_are_those_of_the_reference_runs() -> None:
    text = decoder_pages.measured("spec")
    for model, run in {"SmolLM2": "cpu-smollm2", "zoo": "cpu-zoo"}.items():
        _, _, speedup, tokens, *_ = _row(run, "spec")
        linked = f"[{model}](../../results/reference/{run}/report.md)"
        assert f"| spec | {linked} | 0 | {speedup} | {tokens} | " in text
    assert text.count("| 0.7 |") == 2
    assert "| 99.9 % |" in text  # 0.9988, which must not read 100 %
    assert text.endswith("The linked reports have the numbers by family.\n")
    assert "No reference run has `ptp_spec`" in decoder_pages.measured("ptp_spec")
    assert "list it as [`idlm@isd`](idlm.md#measured)" in decoder_pages.measured("isd")


def test_decoders_without_a_timed_run_show_their_counters() -> None:
    text = decoder_pages.measured("jacobi")
    assert text.endswith("| jacobi@b16 | zoo, without times | 0 | - | 1.05 | - |\n")
    assert "zoo, beside transformers" in decoder_pages.measured("eagle")


def test_every_decoder_stands_in_the_table_of_departures() -> None:
    page = (DOCS / "decoders" / "README.md").read_text(encoding="utf-8")
    table = page.split("## Where they depart from their papers")[1]
    rows = re.findall(r"^\| `(\w+)[`:].* \| .+ \| .+ \|$", table, re.MULTILINE)
    assert set(rows) == set(NAMES)
    for said in ("branches=all` is not I-DLM's", "C-PTP", "begun from the `isd` adapter"):
        assert said in table
    for said in ("level without u", "no typical acceptance", "500"):
        assert said in table


def test_the_index_lists_every_decoder_with_a_page_to_open() -> None:
    assert re.findall(r"^\| \[`(\w+)`\]", decoder_pages.index(), re.MULTILINE) == NAMES
    assert NAMES[0] == "ar"
    assert set(WRITTEN) == set(NAMES)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_has_an_algorithm_of_up_to_ten_lines_generated_parts_and_a_link_to_the_code(
    name: str,
) -> None:
    text = pages()[f"docs/decoders/{name}.md"]
    assert text.startswith(f"# {name}: ")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:5] == ["How it works", "Guarantee", "Options", "When it wins", "Measured"]
    assert headings[5:] == ([] if name == "ar" else ["Cite"])
    parts = re.findall(r"<!-- made of code: (\w+) -->", text)
    assert [part for part in parts if part != "cite"] in (
        ["facts", "measured"],
        ["promises", "options", "measured"],
    )
    assert parts.count("cite") == (name != "ar")
    for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        assert len(block.splitlines()) <= 10
    place = resolve(DecoderSpec(name=name)).__module__.replace(".", "/")
    assert f"(../../{place}.py)" in text
    assert name == "ar" or "https://arxiv.org/abs/" in text
    assert "![" in text or "figure of it" in " ".join(text.split())


def test_arguments_are_read_over_several_lines_and_end_with_their_section() -> None:
    docstring = """Do it.

    Args:
        k: how
            many.
        name: which one: this.

    Returns:
        other: nothing.
    """
    assert decoder_pages.described(docstring) == {"k": "how many.", "name": "which one: this."}
    assert decoder_pages.described("Do it.") == {}


def test_a_page_cites_the_papers_of_a_decoder_and_of_its_modes() -> None:
    text = decoder_pages.citations("idlm")
    assert text.startswith(
        "## Cite\n\n* Yu et al.: *Introspective Diffusion Language Models*, 2026, "
    )
    for paper in ("2604.11035", "1904.09324", "2502.09992", "2505.22618"):
        assert text.count(f"[arXiv {paper}](https://arxiv.org/abs/{paper})") == 1
    assert "* Leviathan, Kalman, Matias: *Fast Inference" in decoder_pages.citations("spec")
    assert "[arXiv 2404.16710]" in decoder_pages.citations("hf")
    assert "* DeepSeek-AI: *DeepSeek-V3 Technical Report*, 2024" in decoder_pages.citations("mtp")
    for name in NAMES[1:]:
        assert not {"{", "}", "\\"} & set(decoder_pages.citations(name))

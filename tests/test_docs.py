"""The documentation matches what it documents: code, columns, links, numbering."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.plan.select import build_decoder
from bench.settings.config import load_config
from bench.stats.metrics import COLUMNS
from decoders.core import registry
from specbench_tasks.tabular import COLUMNS as CELLS
from specbench_tasks.task import FAMILIES
from tests.specbench_tasks.published import PUBLISHED

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md"])
STORED = ROOT / "results" / "reference"
REFERENCES = sorted([*STORED.rglob("config.toml"), STORED / "counters" / "zoo.toml"])
DECODERS = "|".join(registry.built_in())
SPEC = re.compile(rf"(?<![\w/.])((?:{DECODERS})(?:@\w+)?(?::\w+=[\w.+=-]*\w)+)")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def test_the_walk_through_links_to_the_example_and_explains_its_methods() -> None:
    page = (DOCS / "adding-a-decoder.md").read_text(encoding="utf-8")
    section = page.split("## A complete example\n")[1].split("\n## ")[0]
    example = (ROOT / "examples" / "recycle.py").read_text(encoding="utf-8")
    assert "(../examples/recycle.py)" in section
    for method in ("propose", "observe"):
        assert f"`{method}`" in section
        assert f"def {method}(" in example


@pytest.mark.parametrize("column", [c for c in COLUMNS if c != "family"])
def test_every_column_of_the_summary_is_explained(column: str) -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert f"`{column}`" in page or column == "decoder"


def test_every_usual_column_name_of_a_task_file_is_listed() -> None:
    page = (DOCS / "adding-a-task.md").read_text(encoding="utf-8")
    for part, names in CELLS.items():
        assert f"| `{part}` | {', '.join(names)} |" in page
    assert all(family in page for family in FAMILIES)


def test_every_published_shape_of_a_task_file_is_listed() -> None:
    page = (DOCS / "adding-a-task.md").read_text(encoding="utf-8")
    table = page.split("| shape |")[1].split("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in row.split("|")[1].split(", ")}
    shapes = {published.shape for published in PUBLISHED.values()}
    ours = {shape for shape in shapes if not shape.startswith("prompts in")}
    assert {name.strip() for name in listed} == ours | {"anything else"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_decoder_specs_in_the_docs_use_only_valid_options(page: Path) -> None:
    for spec in set(SPEC.findall(page.read_text(encoding="utf-8"))):
        named = registry.parse_spec(spec)
        costs = dict.fromkeys(("row_cost", "draft_cost"), "auto").items()  # of a folder
        options = {k: v for k, v in named.options.items() if (k, v) not in costs}
        build_decoder(named.cell, options)


DELETED = {"exit"}
"""Decoders that a stored run measured and that do not exist any more."""


@pytest.mark.parametrize("file", REFERENCES, ids=lambda file: file.parent.name)
def test_every_stored_configuration_can_be_run_again(file: Path) -> None:
    decoders = load_config(file, {"threads": 1}).decoders  # others have more cores
    assert decoders
    for cell, options in decoders.items():
        if cell not in DELETED:
            build_decoder(cell, options)


def test_decisions_are_numbered_without_gaps_and_titled_by_their_number() -> None:
    files = sorted((DOCS / "adr").glob("*.md"))
    assert [int(file.name[:4]) for file in files] == list(range(1, len(files) + 1))
    for file in files:
        assert file.read_text(encoding="utf-8").startswith(f"# {file.name[:4]} ")


def test_a_superseded_decision_opens_with_a_note_that_names_a_later_decision() -> None:
    decisions = {
        file.name: file.read_text(encoding="utf-8") for file in (DOCS / "adr").glob("0*.md")
    }
    noted = {name for name, text in decisions.items() if "*Superseded " in text}
    assert len(noted) > 15
    for name in noted:
        opening = decisions[name].split("\n\n")[1]
        assert opening.startswith("*Superseded "), name
        later = LINK.findall(opening)
        assert later or "last paragraph" in opening, name
        assert all(decision > name and decision in decisions for decision in later), name


@pytest.mark.parametrize("page", ["log.md", *sorted(p.name for p in (DOCS / "log").iterdir())])
def test_every_log_entry_opens_with_a_one_sentence_conclusion_and_fits_in_100_columns(
    page: str,
) -> None:
    newest = page == "log.md"
    log = (DOCS / page if newest else DOCS / "log" / page).read_text(encoding="utf-8")
    entries = re.split(r"^## ", log, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        title, empty, conclusion, *_ = entry.splitlines()
        assert not empty, title
        assert re.match(r"[A-Z`0-9].*\w", conclusion), f"{title} opens with {conclusion!r}"
        opening = entry.split("\n\n")[1]
        assert not newest or len(entry.strip().splitlines()) <= 40, f"{title}: move its tables"
        assert len(re.findall(r"[.!](?:\s|$)", opening)) == 1, (
            f"{title}: one sentence, not {opening}"
        )
    wide = [row for row in log.splitlines() if len(row) > 100]
    assert not wide, wide


def gpu_places(node: ast.AST, name: str = "") -> Iterator[str]:
    """Functions of a module that ask whether there is a GPU or use one; "" is the module itself."""
    body = getattr(node, "body", [])
    text = body[0].value if isinstance(body, list) and body and _is_text(body[0]) else None
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and child.value is text:
            continue
        inner = name
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}" if name else child.name
        if _asks_for_a_gpu(child):
            yield name
        yield from gpu_places(child, inner)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _asks_for_a_gpu(node: ast.AST) -> bool:
    match node:
        case (
            ast.Attribute(attr="cuda" | "is_cuda" | "on_gpu")
            | ast.Import(names=[ast.alias(name="pynvml")])
        ):
            return True
        case ast.Constant(value=str(text)):
            return "cuda" in text
        case ast.Compare(comparators=[ast.Constant(value="cpu")]):
            return True
    return False


def test_every_function_that_asks_for_a_gpu_is_listed() -> None:
    page = (ROOT / "tests" / "gpu_only.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([^`]+\.py\b[^`]*)` \|", page, re.MULTILINE))
    places = set()
    for folder in ("bench", "decoders"):
        for file in (ROOT / folder).rglob("*.py"):
            if file.relative_to(ROOT).as_posix() == "bench/extras/gpu.py":  # the script itself
                continue
            for name in gpu_places(ast.parse(file.read_text(encoding="utf-8"))):
                place = file.relative_to(ROOT).as_posix()
                places.add(f"{place}:{name}" if name else place)
    assert places - listed == set(), "tests/gpu_only.md lacks them"
    assert listed - places == set(), "tests/gpu_only.md names what asks for no GPU"

"""BibTeX of decoders, models and data: every decoder has one, and what has none is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.extras.paper.citations import (
    HARNESS,
    bibliography,
    decoder_keys,
    entries,
    model_keys,
    task_keys,
)
from bench.extras.together.runs import load_members
from decoders.core import registry
from tests.bench.extras.paper.test_table import ROOT, stored

Write = Callable[..., Path]


def keys(text: str) -> list[str]:
    return re.findall(r"^@\w+\{([^,]+),", text, re.MULTILINE)


@pytest.mark.parametrize("name", registry.built_in())
def test_every_decoder_is_cited_by_the_papers_that_its_page_cites(name: str) -> None:
    page = (ROOT / "docs" / "decoders" / f"{name}.md").read_text(encoding="utf-8")
    _, _, cited = page.partition("## Cite")
    papers = set(re.findall(r"\[arXiv\s+([\d.]+)\]", cited))
    options = [{}, *({"mode": "refine", "commit": c} for c in ("cmlm", "quota", "threshold"))]
    options += ({"kind": kind} for kind in ("assisted", "lookup", "early-exit"))
    mine = {key for each in options for key in decoder_keys(name, each)}
    ours = {number for key in mine for number in re.findall(r"arXiv:([\d.]+)", entries()[key])}
    assert ours <= papers | {"2211.17192", "2302.01318"}
    assert bool(mine) == (name != "ar")
    if name not in ("lookup", "ptp_spec"):  # these cite by way of another page
        assert ours == papers


def test_every_key_has_an_entry_with_title_author_and_year() -> None:
    for key, entry in entries().items():
        assert entry.count("{") == entry.count("}"), key
        for field in ("title", "author", "year"):
            assert re.search(rf"^  {field} = \{{", entry, re.MULTILINE), (key, field)
    for tasks in ("zoo", "specbench", "qa,rag"):
        assert set(task_keys(tasks)) <= entries().keys()
        assert task_keys(tasks)
    for own in ("jsonl=mine.jsonl", "/home/somebody/mine.csv", "", None):
        assert task_keys(own) == ()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zoo", (HARNESS,)),
        ("smollm2-135m", ("allal2025smollm2",)),
        ("lmsys/vicuna-7b-v1.3", ("zheng2023judging",)),
        ("/data/Qwen3-8B", ("qwen2025qwen3",)),
        ("Org/New_Model-1.0", ()),
        ("/data/mine", ()),
        (None, ()),
    ],
)
def test_models_are_cited_by_name(name: str | None, expected: tuple[str, ...]) -> None:
    assert model_keys(name) == expected


def test_the_harness_is_cited_at_the_commits_that_measured(synthetic_run: Write) -> None:
    def harness(**git: object) -> str:
        runs = [synthetic_run(name=f"{name}-{len(git)}") for name in ("one", "two")]
        (runs[0] / "env.json").write_text(json.dumps({"schema": 1, "git": git}))
        text, _ = bibliography(load_members(list(map(str, runs)), runs[0]))
        (entry,) = (each for each in text.split("@") if HARNESS in each)
        return entry

    assert "note = {Apache-2.0, commit 0123456789ab}" in harness(commit="0123456789abcdef")
    said = r"commit \textbackslash{}\}x with uncommitted changes}"
    assert said in harness(commit=r"\}x", dirty=True)
    assert "note = {Apache-2.0}" in harness()


@pytest.mark.slow
def test_the_bibliography_has_exactly_the_entries_of_the_runs() -> None:
    members = stored("cpu-zoo", "cpu-zoo-ptp")
    text, missing = bibliography(members)
    assert missing == []
    cells = [each for member in members for each in member.side.cells.items()]
    assert set(keys(text)) == {key for each in cells for key in decoder_keys(*each)} | {HARNESS}
    assert len(keys(text)) == len(set(keys(text)))
    assert "santilli2023accelerating" not in text


def test_refinement_cites_the_paper_of_its_commit_rule() -> None:
    refined = decoder_keys("idlm@x", {"mode": "refine", "commit": "quota"})
    assert "nie2025large" in refined
    assert decoder_keys("idlm@isd", {"mode": "isd", "commit": "quota"}) == ("yu2026introspective",)


def test_decoders_models_and_tasks_without_a_bibliography_entry_are_named(
    synthetic_run: Write,
) -> None:
    run = synthetic_run({"Recycle": 3.0, "spec": 2.0})
    config = 'model = "org/some_model"\ndraft = "/data/own"\ntasks = "hf=org/questions"\n'
    config += '[adapters]\neagle = "../my-layer"\n'  # trained by the author: nothing to cite
    (run / "config.toml").write_text(config)
    text, missing = bibliography(load_members([str(run)], run))
    unknown = ["model org/some_model", "model own", "tasks hf=org/questions"]
    assert missing == ["decoder Recycle", *unknown]
    assert "% no entry is known for decoder Recycle: add yours" in text

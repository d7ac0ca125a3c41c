"""The paragraph on reproducing runs and the facts for checklists: what is recorded, and no more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from bench.report.paper import facts
from bench.report.paper.layout import VENUES
from bench.report.paper.write import checklist, reproducibility
from bench.report.together import load_members
from tests.bench.report.paper.test_table import REFERENCES, stored

Write = Callable[..., Path]


def test_the_paragraph_states_machine_software_protocol_seeds_and_commit() -> None:
    text = reproducibility(stored(), "neurips")
    env = json.loads((REFERENCES / "cpu-zoo" / "env.json").read_text())
    for words in (
        f"commit {env['git']['commit'][:9]}",
        f"torch {env['packages']['torch']}",
        f"Python {env['python']}",
        "AMD EPYC, 2 cores, 2 threads, 24 GiB of memory, no GPU",
        "greedy (temperature 0), at most 256 new tokens",
        "Seeds: 0 to 2, one per repeat",
        "3 repeats, batch size 1, float32",
        "28 timed of zoo in 24 conversations, 6 families, and 120 held-out ones scored",
        env["models"]["target"]["weights_sha256"][:12],
        env["models"]["adapters"]["ptp"]["weights_sha256"][:12],
        "clustered by conversation (clusters: 24)",
    ):
        assert words in text, words
    assert "run differ" not in text
    assert text.count("{") == text.count("}")


def test_families_that_were_only_scored_are_not_counted_as_timed() -> None:
    (member,) = stored()
    summary = member.summary.copy()
    summary.loc[summary["family"].isin(["qa", "rag", "translation"]), "prompts"] = 0
    assert "in 24 conversations, 3 families, and 120" in facts.data(
        [replace(member, summary=summary)]
    )


def test_a_warning_of_a_run_does_not_begin_a_sentence() -> None:
    (member,) = stored()
    status = replace(member.side.status, warnings=("other processes used a core",))
    text = facts.limits([replace(member, side=replace(member.side, status=status))])
    assert text.endswith(" Warning: other processes used a core.")


def test_what_runs_share_is_said_once_and_what_not_by_run() -> None:
    text = reproducibility(stored("cpu-zoo", "cpu-zoo-t07", "cpu-zoo-ptp"), "icml")
    assert text.count("EPYC") == 1
    assert "greedy (temperature 0), at most 256 new tokens (cpu-zoo); temperature 0.7, " in text
    assert "(cpu-zoo, cpu-zoo-t07); 56 timed of zoo" in text
    differing = text.partition("The runs differ in: ")[2]
    for fact in ("isd adapter", "refine adapter", "limit"):
        assert fact in differing


def test_iclr_has_a_statement_and_others_a_paragraph() -> None:
    assert r"\subsubsection*{Reproducibility statement}" in reproducibility(stored(), "iclr")
    assert r"\paragraph{Reproducibility.}" in reproducibility(stored(), "acl")


def test_every_venue_has_a_list_of_facts() -> None:
    told = json.loads((REFERENCES / "cpu-zoo" / "run.json").read_text())
    spent = datetime.fromisoformat(told["finished_utc"]) - datetime.fromisoformat(
        told["started_utc"]
    )
    env = json.loads((REFERENCES / "cpu-zoo" / "env.json").read_text())
    minutes = f"Wall time: {spent.total_seconds() / 60:.1f} minutes"
    for venue in VENUES:
        text = checklist(stored(), venue)
        commit = f"commit {env['git']['commit'][:7]}"
        for words in ("t intervals", minutes, "zoo Apache-2.0", commit):
            if not (venue == "acl" and words.startswith("commit")):
                assert words in text, (venue, words)
        assert text.count(r"\item[") == len(VENUES[venue].questions)


@pytest.mark.parametrize(
    ("venue", "items"),
    [
        ("neurips", ("7. Experiment statistical significance", "8. Experiments compute resources")),
        ("acl", ("B2. Licences of artifacts", "C1. Parameters, budget, infrastructure")),
    ],
)
def test_the_checklists_own_numbers_stand_before_the_facts(
    venue: str, items: tuple[str, ...]
) -> None:
    text = checklist(stored(), venue)
    assert all(rf"\item[{item}] " in text for item in items)


def test_what_is_not_recorded_is_not_made_up(synthetic_run: Write) -> None:
    run = synthetic_run(env={"git": {"commit": "abcdef0123", "dirty": True}})
    config = 'model = "/home/somebody/tiny"\ntasks = "jsonl=/srv/private.jsonl"\n'
    (run / "config.toml").write_text(config)
    members = load_members([str(run)], run)
    text = reproducibility(members, "neurips") + checklist(members, "neurips")
    for words in (
        "Hardware: not recorded",
        "versions not recorded",
        "temperature not recorded",
        "Seeds are not recorded",
        "Wall time not recorded",
        "commit abcdef012 with uncommitted changes",
        "Models: tiny licence not recorded (state it). "
        "Data: jsonl=private.jsonl licence not recorded (state it).",
    ):
        assert words in text, words
    assert "/home" not in text
    assert "/srv" not in text
    assert "None" not in text


def test_warnings_and_reasons_of_a_run_are_among_its_limits(tmp_path: Path) -> None:
    run = tmp_path / "drifted"
    shutil.copytree(REFERENCES / "cpu-zoo", run)
    told = json.loads((run / "run.json").read_text())
    told["warnings"] = ["the machine's speed drifted by 12 %"]
    (run / "run.json").write_text(json.dumps(told))
    assert "the machine's speed drifted" in facts.limits(load_members([str(run)], run))


def test_licences_of_named_models_and_of_spec_bench_are_known(synthetic_run: Write) -> None:
    run = synthetic_run()
    (run / "config.toml").write_text('model = "smollm2-135m"\ntasks = "specbench=/q.jsonl"\n')
    text = facts.licences(load_members([str(run)], run))
    assert "Models: smollm2-135m Apache-2.0." in text
    assert "Data: specbench Apache-2.0, texts: own terms." in text

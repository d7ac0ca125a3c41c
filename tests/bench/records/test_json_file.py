"""The small JSON files of a run: what is read as what, and what is one line instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.records.environment import Environment, Machine, read_environment, write_environment
from bench.records.files import remove_scratch
from bench.records.plan import RunStatus, read_status, write_status
from bench.records.run_folder import load_run

ROOT = Path(__file__).parents[3]
UNREAD = {"num_blocks", "num_loaded_blocks", "max_other_cores", "split"}
"""Fields of run.json that nothing reads, and that are not written any more."""
REFERENCES = sorted(file.parent for file in (ROOT / "results" / "reference").glob("*/run.json"))
MANIFEST: dict[str, list[object]] = {"cells": [], "prompts": [], "blocks": []}


def folder_with(folder: Path, name: str, data: object) -> Path:
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    (folder / name).write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize("name", ["manifest.json", "env.json", "run.json"])
@pytest.mark.parametrize("schema", [2, 0, None, "1.5", [1]])
def test_a_file_of_an_unknown_schema_is_refused_with_both_schema_numbers(
    name: str, schema: object, tmp_path: Path
) -> None:
    folder_with(tmp_path, name, {**MANIFEST, "schema": schema})
    with pytest.raises(BenchError) as caught:
        load_run(tmp_path)
    assert caught.value.exit_code == Exit.UNAVAILABLE
    assert f"{tmp_path / name} has schema {schema}" in caught.value.message
    assert "this version reads 1" in caught.value.message


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("run.json", {"num_records": "many"}, "its num_records cannot be read"),
        ("run.json", {"num_records": "9"}, "its num_records cannot be read: it must be a whole"),
        ("run.json", {"drift": True}, "its drift cannot be read: it must be a number"),
        ("run.json", {"reasons": "broken"}, "its reasons cannot be read"),
        ("run.json", {"differences": [{"cell": 3}]}, "its differences cannot be read (at 0.cell)"),
        ("manifest.json", {"cells": []}, "its blocks are missing"),
        ("manifest.json", {"blocks": [{"block": 0}]}, "its blocks cannot be read (at 0.repeat)"),
        ("env.json", {"machine": 3}, "its machine cannot be read"),
        ("env.json", {"packages": {"torch": 2}}, "its packages cannot be read (at torch)"),
    ],
)
def test_a_field_of_a_wrong_type_is_reported_by_name_as_damage(
    name: str, data: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BenchError) as caught:
        load_run(folder_with(tmp_path, name, data))
    assert caught.value.exit_code == Exit.INVALID
    assert f"{tmp_path / name} is damaged: {said}" in caught.value.message


def test_fields_that_an_older_version_did_not_write_are_unknown_and_never_zero(
    tmp_path: Path,
) -> None:
    folder_with(tmp_path, "run.json", {"status": "complete", "verdict": "VALID"})
    run = load_run(tmp_path)
    assert run.status == RunStatus(status="complete", verdict="VALID")
    assert (run.status.num_records, run.status.differences, run.status.drift) == (None, None, None)
    assert run.env == Environment()
    assert (run.env.machine.cpu, run.env.comparability_key) == (None, None)


def test_environment_fields_of_another_version_are_ignored(tmp_path: Path) -> None:
    folder_with(tmp_path, "env.json", {"device": "cpu", "weather": {"rain": True}})
    assert read_environment(tmp_path) == Environment(device="cpu")


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda folder: folder.name)
def test_stored_files_are_read_without_loss(reference: Path) -> None:
    status, env = (json.loads((reference / f"{n}.json").read_text()) for n in ("run", "env"))
    env["git"].setdefault("branch", None)  # the first of them did not know it, nor the kernels
    for name in ("attention", "product_rows", "product_price"):
        env["torch"].setdefault(name, None)
    env["machine"].setdefault("instructions", None)
    env["models"].setdefault("models", None)
    for each in (status, *status["differences"]):
        for name in UNREAD & each.keys():
            del each[name]
    assert json.loads(json.dumps(read_status(reference).to_json())) == _known(status)
    assert read_environment(reference).to_json() == env


def _known(data: Any) -> Any:
    """Leave out what is unknown, as writers do."""
    if isinstance(data, dict):
        return {key: _known(value) for key, value in data.items() if value is not None}
    return [_known(value) for value in data] if isinstance(data, list) else data


OPENING = {
    "schema": 1,
    "status": "opening",
    "started_utc": "2026-01-02T03:04:05+00:00",
    "reasons": [],
    "warnings": [],
}
JUDGED = {
    **OPENING,
    "status": "complete",
    "attempts": 1,
    "verdict": "VALID",
    "differences": [{"cell": "spec", "num_answers": 2, "num_wrong": None, "places": [3]}],
    "num_records": 9,
    "num_errors": 0,
    "drift": 0.1,
    "num_graphs": None,
    "finished_utc": "2026-01-02T03:05:05+00:00",
    "reported": True,
    "ab": "x",
    "revision": "main",
}


@pytest.mark.parametrize("data", [OPENING, JUDGED])
def test_a_status_is_written_as_it_was_read_without_its_unknown_values(
    data: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(data))
    write_status(tmp_path, read_status(tmp_path))
    assert json.loads(file.read_text()) == _known(data)


def test_an_environment_is_written_as_it_was_read(tmp_path: Path) -> None:
    env = Environment(schema=1, device="cpu", machine=Machine(cpu="x", load_average=(0.5, 1.0)))
    write_environment(tmp_path, env)
    before = (tmp_path / "env.json").read_bytes()
    assert read_environment(tmp_path) == env
    write_environment(tmp_path, read_environment(tmp_path))
    assert (tmp_path / "env.json").read_bytes() == before


def test_only_temporary_files_of_interrupted_replacements_are_removed(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    ours = [tmp_path / ".run.json.4711", tmp_path / "tables" / ".main.csv.12"]
    others = [tmp_path / name for name in (".notes.2026.txt", ".gitignore", "run.json.4711")]
    for file in (*ours, *others):
        file.touch()
    remove_scratch(tmp_path)
    assert not any(file.exists() for file in ours)
    assert all(file.exists() for file in others)

"""What a resumed run must find unchanged: a copy of the code is edited before it is resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.machine.env import ROOT
from bench.plan.identity import setup_identity
from bench.plan.select import choose_decoders

pytestmark = pytest.mark.usefixtures("quick")
PACKAGES = ("bench", "decoders", "specbench_tasks")


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the packages, which identities are taken of."""
    copy = tmp_path / "code"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("*.pyc"))
    monkeypatch.setattr("bench.plan.identity.ROOT", copy)
    return copy


def edit(file: Path) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write("\n# edited\n")


@pytest.fixture
def resumed(
    code: Path, tmp_path: Path, small: Any, opener: Any, progress: Any
) -> Callable[[str], Exit]:
    """Stops a run, edits a file of the code, and resumes: the exit code."""

    def resume(edited: str) -> Exit:
        config = small(repeats=1, limit=2, quality_limit=1)
        stopped = bench_run.run(
            config, tmp_path / "results", progress(stop_at=5), opener, report=None
        )
        edit(code / edited)
        return Exit(bench_run.resume(stopped.run_dir, progress(), opener, report=None).exit_code)

    return resume


def test_a_run_cannot_be_resumed_after_a_change_to_the_scorers(
    resumed: Callable[[str], Exit],
) -> None:
    with pytest.raises(BenchError, match="cannot resume: the code has changed") as caught:
        resumed("specbench_tasks/scorers.py")
    assert caught.value.exit_code == Exit.UNAVAILABLE


def test_a_run_can_be_resumed_after_a_change_to_the_report_code(
    resumed: Callable[[str], Exit],
) -> None:
    assert resumed("bench/report/write.py") == Exit.DONE


@pytest.mark.parametrize(
    ("folder", "measures"),
    [(name, True) for name in ("decoders", "specbench_tasks")]
    + [(f"bench/{name}", True) for name in ("settings", "records", "machine", "plan", "measure")]
    + [
        (f"bench/{name}", False)
        for name in ("stats", "report", "verify", "compare", "extras", "cli")
    ],
)
def test_only_modules_that_take_part_in_measuring_belong_to_the_code_of_a_runs_identity(
    code: Path, small: Any, opener: Any, folder: str, measures: bool
) -> None:
    setup = opener(choose_decoders(small(), print))
    modules = [*(code / folder).rglob("*.py"), code / folder / "added.py"]
    for module in modules:
        before = setup_identity(setup)["code"]
        edit(module)
        changes = measures or module.parent == code / "bench" / "extras" / "workers"
        assert (setup_identity(setup)["code"] != before) is changes, module


@pytest.mark.parametrize(
    ("facts", "part"),
    [("target", "target"), ("draft", "draft"), ("models", "models"), ("adapters", "adapter")],
)
def test_different_weights_change_only_their_part_of_the_identity(
    small: Any, opener: Any, facts: str, part: str
) -> None:
    setup = opener(choose_decoders(small(), print))
    facts_of_other: Any = {facts: {"weights_sha256": "other"}}
    other = replace(setup, facts=replace(setup.facts, **facts_of_other))
    before, after = setup_identity(setup), setup_identity(other)
    assert [name for name in before if before[name] != after[name]] == [part]


@pytest.mark.parametrize("name", ["loop.py", "loop/custom_generate/generate.py"])
def test_a_custom_loop_belongs_to_the_code(
    tmp_path: Path, small: Any, opener: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("def generate(model, input_ids, **_): ...\n", encoding="utf-8")
    custom = tmp_path / Path(name).parts[0]
    monkeypatch.setattr("decoders.core.testing.table_model.TableModel.library_module", object())
    setup = opener(choose_decoders(small(decoders=f"hf:custom={custom}"), print))
    before = setup_identity(setup)["code"]
    assert setup_identity(setup)["code"] == before
    edit(file)
    assert setup_identity(setup)["code"] != before


def test_two_laws_of_a_file_differ_and_a_moved_file_of_a_law_does_not(
    tmp_path: Path, small: Any, opener: Any
) -> None:
    found = []
    for name in ("a/law.py:One", "a/law.py:Two", "b/law.py:One"):
        file = tmp_path / name.partition(":")[0]
        file.parent.mkdir(exist_ok=True)
        file.write_text("One = Two = lambda tokenizer: lambda answer, logits: logits\n")
        setup = opener(choose_decoders(small(law=str(tmp_path / name)), print))
        found.append(setup_identity(setup)["configuration"])
    assert found[0] != found[1]
    assert found[0] == found[2]

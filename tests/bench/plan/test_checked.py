"""Models are compared with transformers when a run opens them; what was not is in the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import runs
from bench.errors import BenchError, Exit
from bench.plan.select import stored_decoders
from bench.plan.setup import Setup, open_setup
from bench.records.run_folder import load_run
from bench.settings.config import RunConfig
from bench.stats.validity import judge
from decoders.core.hf.model import HFModel
from tests.tiny_checkpoint import save_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_checkpoint(tmp_path_factory.mktemp("model"))
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.2}))
    return folder


def config_of(small: Callable[..., RunConfig], folder: Path, **values: Any) -> RunConfig:
    few = {"limit": 1, "quality_limit": 0, "phase_limit": 0, "repeats": 1, "max_new_tokens": 2}
    return small(model=str(folder), draft=str(folder), device="cpu", **few, **values)


def opened(small: Callable[..., RunConfig], folder: Path) -> Setup:
    return open_setup(stored_decoders(config_of(small, folder, decoders=["ar"])))


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    own = HFModel.own_logits
    monkeypatch.setattr(HFModel, "own_logits", lambda *given: own(*given).flip(-1))


@pytest.mark.usefixtures("wrong")
def test_a_model_with_wrong_logits_is_refused_in_one_line_that_names_its_role(
    small: Any, folder: Path
) -> None:
    line = r"^target refused: LlamaForCausalLM gives other logits for a prompt alone .*\(--no-self"
    with pytest.raises(BenchError, match=line) as caught:
        opened(small, folder)
    assert caught.value.exit_code == Exit.UNAVAILABLE
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("wrong", "undrawn")
def test_a_run_without_the_self_check_completes_and_its_report_has_a_warning(
    small: Any, folder: Path, tmp_path: Path, progress: Any
) -> None:
    shown = progress()
    config = config_of(small, folder, decoders=["ar", "spec"], self_check=False)
    result = runs.run(config, tmp_path, shown)
    warnings = judge(load_run(result.run_dir)).warnings
    unchecked = "not compared with transformers' own forward (--no-self-check)"
    penalty = "its generation config asks for repetition_penalty=1.2, which no decoder here applies"
    for role in ("target", "draft"):
        assert f"{role}: {unchecked}" in warnings
        assert any(line.startswith(f"{role}: {penalty}") for line in warnings)
    report = (result.run_dir / "report.md").read_text()
    assert f"Warning: target: {unchecked}" in report
    assert f"target: {unchecked}" in shown.notes


def test_a_sound_model_opens_without_a_note_on_the_self_check(small: Any, folder: Path) -> None:
    facts = opened(small, folder).facts.target or {}
    assert [note for note in facts["notes"] if "compared" in note] == []

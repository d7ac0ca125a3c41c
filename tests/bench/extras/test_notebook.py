"""The Python interface: the documented examples run, and show what the report's files say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import bench
from bench.errors import BenchError, Exit, UsageError
from bench.extras.notebook import Loaded, Results, load, load_run
from bench.plan.checks import check_first
from bench.settings.config import load_config
from tests.conftest import open_tables

pytestmark = pytest.mark.usefixtures("saved")
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
CELLS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_documented_examples_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(CELLS) == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in CELLS:
        exec(compile(cell, "docs/notebooks.md", "exec"), names)
    assert names["answer"].steps["accepted"].sum() > 0
    measured = names["results"]
    assert (tmp_path / "results" / "latest" / "report.md").is_file()
    written = pd.read_csv(measured.path / "summary.csv")
    assert list(written.columns) == list(names["summary"].columns)
    assert names["spec"].speedup == pytest.approx(
        written.query("decoder == 'spec' and family == 'all'")["speedup"].item(), rel=1e-4
    )
    assert (tmp_path / "speedup.pdf").read_bytes().startswith(b"%PDF")


def test_frames_are_those_of_the_files(reported_run: Path) -> None:
    results = load_run(reported_run)
    written = pd.read_csv(reported_run / "summary.csv")
    assert list(results.summary.columns) == list(written.columns)
    for column in written.select_dtypes("number"):
        shown = results.summary[column].astype(float).to_numpy()
        assert shown == pytest.approx(written[column].to_numpy(), rel=1e-4, nan_ok=True), column
    assert len(results.answers) == len(results.findings.run.records) > 0
    assert next(iter(results.headline.index)) == "ar"


@pytest.mark.slow
def test_figures_are_those_of_the_report(reported_run: Path) -> None:
    figures = load_run(reported_run).figures
    assert set(figures) == {file.stem for file in (reported_run / "figures").glob("*.png")}
    figure, drawn = figures["speedup"]
    data = pd.read_csv(reported_run / "figures" / "data" / "speedup.csv")
    assert list(drawn.columns) == list(data.columns)
    assert len(figure.axes) > 0


def test_html_in_a_decoders_name_is_escaped_in_notebooks(
    synthetic_run: Callable[..., Path],
) -> None:
    shown = load_run(synthetic_run({"spec@<script>x</script>": 3.0}))._repr_html_()
    assert "<p>VALID: " in shown
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_changing_a_frame_does_not_change_the_results(reported_run: Path) -> None:
    results = load_run(reported_run)
    frame = results.summary
    frame["speedup"] = 0.0
    assert (results.summary["speedup"] != 0).any()


def test_bad_input_is_refused_and_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no run folder 'latest'") as caught:
        load_run(output=tmp_path)
    assert caught.value.exit_code == Exit.USAGE
    with pytest.raises(BenchError, match="limits"):
        bench.run(limits=3, output=tmp_path)
    with pytest.raises(ValueError, match="progress"):
        bench.run(limit=3, output=tmp_path, progress="loud")
    assert not list(tmp_path.iterdir())
    with pytest.raises(AttributeError, match="has no attribute 'rum'"):
        bench.rum  # noqa: B018


@pytest.mark.slow
def test_opening_a_run_needs_no_model(reported_run: Path) -> None:
    code = (
        "import sys; import bench; assert 'pandas' not in sys.modules; "
        f"bench.load_run({str(reported_run)!r})._repr_html_(); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_package_exports_results_and_load_run() -> None:
    assert bench.Results is Results
    assert bench.load_run is load_run


def test_a_loaded_model_answers_one_prompt_with_its_steps() -> None:
    config = load_config(None, {"decoders": "spec", "max_new_tokens": 24, "compile": False})
    run = check_first(config, lambda note: None, brings_models=True)
    model = Loaded(open_tables(run))
    by_ar, by_spec = (model.answer(name, "abcab") for name in ("ar", "spec:k=3"))
    assert by_ar.text == by_spec.text != ""
    assert list(by_ar.steps["tokens"]) == [1] * len(by_ar.generation.tokens)
    assert by_spec.steps["tokens"].sum() == len(by_spec.generation.tokens)
    assert len(by_spec.steps) < len(by_ar.steps)
    assert "".join(by_spec.steps["text"]) == by_spec.text
    assert by_spec.steps["drafted"].max() == 3
    assert by_spec.steps["accepted"].max() <= 3
    with pytest.raises(UsageError, match="needs an adapter named 'ptp'"):
        model.answer("ptp", "abc")
    with pytest.raises(UsageError, match="unknown decoder 'spek'; did you mean 'spec'"):
        model.answer("spek", "abc")


def test_a_model_is_loaded_by_name() -> None:
    zoo = load("zoo", "spec", max_new_tokens=6)
    answer = zoo.answer("spec", "What is 3 plus 4?")
    assert len(answer.generation.tokens) == answer.steps["tokens"].sum() <= 6
    with pytest.raises(UsageError, match=r"the prompt is refused: \d+ tokens; at most"):
        zoo.answer("ar", "far too much " * 1000)
    with pytest.raises(BenchError, match="neither a folder nor"):
        load("nowhere/at-all")

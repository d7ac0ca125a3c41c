"""Runs in MLflow: the real package holds the run's numbers, in a local store."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.extras.exports.export import export
from bench.extras.exports.mlflow import tracked
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from tests.command_line import bench

ROOT = Path(__file__).parents[4]


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    reason = f"{', '.join(missing)} missing: pip install 'decoding-bench[{modules[0]}]'"
    return pytest.mark.skipif(bool(missing), reason=reason)


@pytest.fixture
def findings(reported_run: Path) -> Findings:
    return Findings(load_run(reported_run))


@pytest.fixture(autouse=True)
def _no_store_of_mine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


# ---------------------------------------------------------------- what is tracked


def test_a_tracked_run_has_the_decoders_rows_and_how_it_was_measured(findings: Findings) -> None:
    runs = tracked(findings)
    assert list(runs) == ["ar", "spec", "nar"]
    summary = findings.summary.set_index(["decoder", "family"])
    params, metrics = runs["spec"]
    assert metrics["speedup"] == pytest.approx(summary["speedup"]["spec", "all"])
    assert metrics["qa/quality"] == pytest.approx(summary["quality"]["spec", "qa"])
    assert params["decoder"] == "spec"
    assert params["verdict"] == "VALID"
    assert params["config.max_new_tokens"] == "256"


def test_each_decoder_is_tracked_with_its_own_options_under_names_that_trackers_allow(
    synthetic_run: Callable[..., Path],
) -> None:
    path = synthetic_run({"spec": 3.0, "idlm@isd": 4.0})
    text = '[decoders.spec]\nk = "4"\n[decoders."idlm@isd"]\nstride = "8"\n'
    (path / "config.toml").write_text('model = "zoo"\n' + text, encoding="utf-8")
    runs = {decoder: params for decoder, (params, _) in tracked(Findings(load_run(path))).items()}
    assert runs["idlm@isd"]["option.stride"] == "8"
    assert not [name for name in runs["idlm@isd"] if "spec" in name or "@" in name]
    assert runs["spec"]["option.k"] == "4"


def test_a_wrong_decoder_is_not_tracked(synthetic_run: Callable[..., Path]) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {"status": "complete", "verdict": "VALID", "differences": [left]}
    runs = tracked(Findings(load_run(synthetic_run(status=status))))
    assert list(runs) == ["ar", "ptp"]
    assert {params["verdict"] for params, _ in runs.values()} == {"WRONG"}


# ---------------------------------------------------------------- refusals


def test_a_missing_package_is_reported_in_one_line_with_the_command_that_installs_it(
    reported_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    ended = bench("export", reported_run, "--to", "mlflow", "--folder", tmp_path / "store")
    assert (ended.code, ended.err.count("\n")) == (5, 1)
    assert not (tmp_path / "store").exists()
    assert "needs the package mlflow" in ended.err
    assert "pip install 'decoding-bench[mlflow]'" in ended.err


def test_a_run_without_answers_leaves_the_tracker_untouched(
    synthetic_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = synthetic_run()
    (run / "samples.jsonl").write_text("")
    with pytest.raises(BenchError, match="no answers to export") as refused:
        export(Findings(load_run(run)), "mlflow", tmp_path / "store")
    assert refused.value.exit_code == Exit.UNAVAILABLE
    assert not (tmp_path / "store").exists()


# ---------------------------------------------------------------- the real packages

_EXPORTS = """
import json, sys
from pathlib import Path
from bench.records.run_folder import load_run
from bench.extras.exports.export import export
from bench.report.findings import Findings

kind, store, run = sys.argv[1:]
folder = Path(store) if store else None
(where,) = export(Findings(load_run(Path(run))), kind, folder)
seen = look(where)
assert not {"torch", "transformers"} & set(sys.modules)
print(json.dumps(seen))
"""
_LOOK_MLFLOW = """
def look(uri):
    import mlflow
    client = mlflow.MlflowClient(tracking_uri=uri)
    number = client.get_experiment_by_name("decoding-bench").experiment_id
    return {
        run.info.run_name: {
            "status": run.info.status, "start": run.info.start_time,
            "params": run.data.params, "metrics": run.data.metrics,
        }
        for run in client.search_runs([number])
    }
"""


def exported(look: str, kind: str, folder: Path | None, run: Path, **env: str) -> dict[str, Any]:
    """What the tracker holds after an export, in a process of its own."""
    command = [sys.executable, "-c", look + _EXPORTS, kind, str(folder or ""), str(run)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, cwd=run.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    held: dict[str, Any] = json.loads(done.stdout)
    return held


@pytest.fixture
def run(synthetic_run: Callable[..., Path]) -> Path:
    status = {
        "status": "complete",
        "verdict": "VALID",
        "started_utc": "2026-01-02T03:04:05+00:00",
        "finished_utc": "2026-01-02T03:05:05+00:00",
    }
    return synthetic_run({"spec": 3.0}, status=status)


@pytest.mark.slow
@needs("mlflow", "sqlalchemy", "alembic")
def test_mlflow_holds_the_numbers_of_the_run(run: Path, tmp_path: Path) -> None:
    held = exported(_LOOK_MLFLOW, "mlflow", tmp_path / "store", run)
    ours = {f"{run.name}/{name}": each for name, each in tracked(Findings(load_run(run))).items()}
    assert set(held) == set(ours) == {f"{run.name}/ar", f"{run.name}/spec"}
    for name, one in held.items():
        params, metrics = ours[name]
        assert one["metrics"] == pytest.approx(metrics)
        assert one["params"] == params
        assert (one["status"], one["start"]) == ("FINISHED", 1767323045000)
    assert {file.name for file in (tmp_path / "store").iterdir()} == {"mlflow.db"}


def test_the_figure_option_is_refused_for_mlflow(reported_run: Path, tmp_path: Path) -> None:
    figure = ("--folder", tmp_path, "--figure", "speedup")
    ended = bench("export", reported_run, "--to", "mlflow", *figure)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--figure is for --to reference, not for mlflow" in ended.err
    assert not list(tmp_path.iterdir())

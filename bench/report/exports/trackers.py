"""`bench export --to mlflow|trackio`: a run in an experiment tracker, one tracked run per decoder.

Metrics are the decoder's row of the summary (``FAMILY/METRIC``: for one family), and parameters say
how it was measured. A second export adds nothing: it keeps tracked runs with the same content, and
replaces those with other content (e.g. of a run resumed since).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.errors import BenchError, UsageError, optional
from bench.records.files import cannot_write
from bench.report.findings import Findings
from bench.report.tables.table import guarantee_label, without_wrong
from bench.stats.summary import ALL
from bench.stats.summary_row import COLUMNS, SummaryRow, rows_of
from bench.text import portable

PROJECT = "decoding-bench"
"""Default name of the experiment (MLflow) or project (Trackio)."""
MLFLOW_URI = "MLFLOW_TRACKING_URI"
TRACKIO_DIR = "TRACKIO_DIR"
_TRACKIO_REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
_MAX_PARAMS, _MAX_METRICS, _MAX_VALUE = 100, 1000, 6000
"""MLflow's limits: parameters and metrics per call, and characters of a parameter's value."""
_KEY, _CONTENT = "bench.key", "bench.content"


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """One decoder of a run (`group`), as a tracker shows it; times since 1970 (0: unknown)."""

    decoder: str
    group: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    started_ms: int
    ended_ms: int

    @property
    def name(self) -> str:
        """Return a name unique among runs."""
        return f"{self.group}/{self.decoder}"

    @property
    def content(self) -> str:
        """Return a digest of the name, parameters, metrics and times."""
        held = [self.name, dict(self.params), dict(self.metrics), self.started_ms, self.ended_ms]
        return hashlib.sha256(json.dumps(held).encode()).hexdigest()[:32]


def tracked_runs(findings: Findings) -> list[TrackedRun]:
    """Return a tracked run per decoder, in order, without WRONG decoders."""
    status = findings.run.status
    by_decoder: dict[str, list[SummaryRow]] = {}
    for row in rows_of(without_wrong(findings.summary), None):
        by_decoder.setdefault(row.decoder, []).append(row)
    started, ended = _milliseconds(status.started_utc), _milliseconds(status.finished_utc)
    return [
        TrackedRun(
            decoder=decoder,
            group=findings.name,
            params=_params(findings, decoder, rows[0]),
            metrics={name: value for row in rows for name, value in _metrics(row)},
            started_ms=started,
            ended_ms=max(started, ended),
        )
        for decoder, rows in by_decoder.items()
    ]


def _metrics(row: SummaryRow) -> Iterator[tuple[str, float]]:
    prefix = "" if row.family == ALL else f"{row.family}/"
    for column in COLUMNS:
        value = row.value(column)
        if value is not None:
            yield _safe(prefix + column), float(value)


def _params(findings: Findings, decoder: str, row: SummaryRow) -> dict[str, str]:
    """Return configuration and environment, with only this decoder's options."""
    own = f"decoders.{decoder}."
    params = {
        "decoder": decoder,
        "guarantee": guarantee_label(row),
        "run": portable(findings.name),
        "verdict": findings.verdict,
    }
    for key, value in findings.configuration:
        if key.startswith(own):
            params[f"option.{key.removeprefix(own)}"] = value
        elif not key.startswith("decoders."):
            params[f"config.{key}"] = value
    params |= {f"env.{key}": value for key, value in findings.environment}
    return {_safe(key): value for key, value in params.items()}


def _safe(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _milliseconds(utc: str | None) -> int:
    return 0 if utc is None else int(datetime.fromisoformat(utc).timestamp() * 1000)


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error


def to_mlflow(runs: Sequence[TrackedRun], project: str, folder: Path | None) -> str:
    """Write into ``mlflow.db`` of `folder`, or into MLFLOW_TRACKING_URI; return the URI."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = optional("mlflow", "mlflow", "export --to mlflow")
    optional("sqlalchemy", "mlflow", "export --to mlflow")
    uri, artifacts = os.environ.get(MLFLOW_URI, ""), None
    if folder is not None:
        _made(folder)
        uri = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        artifacts = (folder.resolve() / "mlflow-artifacts").as_uri()
    try:
        logging.disable(logging.INFO)
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(project)
        number = (
            client.create_experiment(project, artifact_location=artifacts)
            if experiment is None
            else experiment.experiment_id
        )
        for run in runs:
            _into_mlflow(mlflow.entities, client, number, run)
    except Exception as error:  # errors of the client, a database or HTTP
        raise BenchError(f"MLflow could not store the run in {uri}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
    return uri


def _is_there(
    new: str, runs: Sequence[Any], content: Callable[[Any], object], delete: Callable[[Any], None]
) -> bool:
    """Delete all earlier exports but one with the `new` content; tell whether one was kept."""
    kept = next((run for run in runs if content(run) == new), None)
    for run in runs:
        if run is not kept:
            delete(run)
    return kept is not None


def _into_mlflow(entities: Any, client: Any, experiment: str, run: TrackedRun) -> None:
    """Write one run, its digest last, so that the next export replaces a partial run."""
    key = hashlib.sha256(run.name.encode()).hexdigest()[:32]
    there = client.search_runs([experiment], f"tags.`{_KEY}` = '{key}'")
    if _is_there(
        run.content,
        there,
        lambda one: one.data.tags.get(_CONTENT),
        lambda one: client.delete_run(one.info.run_id),
    ):
        return
    made = client.create_run(
        experiment, start_time=run.started_ms, run_name=run.name, tags={_KEY: key}
    )
    number = made.info.run_id
    params = [entities.Param(name, value[:_MAX_VALUE]) for name, value in run.params.items()]
    metrics = [entities.Metric(name, value, run.ended_ms, 0) for name, value in run.metrics.items()]
    for start in range(0, len(params), _MAX_PARAMS):
        client.log_batch(number, params=params[start : start + _MAX_PARAMS])
    for start in range(0, len(metrics), _MAX_METRICS):
        client.log_batch(number, metrics=metrics[start : start + _MAX_METRICS])
    client.set_terminated(number, end_time=run.ended_ms)
    client.set_tag(number, _CONTENT, run.content)


def to_trackio(runs: Sequence[TrackedRun], project: str, folder: Path | None) -> str:
    """Write into the store in `folder`, or TRACKIO_DIR, never to a server; return the store."""
    remote = next((name for name in _TRACKIO_REMOTE if os.environ.get(name)), None)
    if remote is not None:
        line = f"{remote} is set, and export --to trackio writes only a local store"
        raise UsageError(f"{line}; unset it, then `trackio sync` sends the project")
    store = Path(os.environ[TRACKIO_DIR]) if folder is None else folder
    trackio = _trackio_on(store.resolve())
    _made(store)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # trackio prints every run
            for run in runs:
                _into_trackio(trackio, project, run)
            stored = {one.config.get(_CONTENT) for one in _in_trackio(trackio, project)}
    except Exception as error:  # errors of trackio, a database or a project's name
        raise BenchError(f"Trackio could not store the run in {store}: {error}") from error
    lost = [run.name for run in runs if run.content not in stored]
    if lost:  # trackio only warns if it cannot write
        raise BenchError(f"Trackio has not stored {', '.join(lost)} in {store}; is it writable?")
    return str(store)


def _trackio_on(store: Path) -> ModuleType:
    """Import trackio, which reads its folder from the environment at import."""
    before = os.environ.get(TRACKIO_DIR)
    os.environ[TRACKIO_DIR] = str(store)
    try:
        trackio = optional("trackio", "trackio", "export --to trackio")
    finally:
        if before is None:
            del os.environ[TRACKIO_DIR]
        else:
            os.environ[TRACKIO_DIR] = before
    opened = Path(trackio.utils.TRACKIO_DIR)
    if opened.resolve() != store:
        line = f"trackio is already open on {opened} in this process"
        raise UsageError(f"{line}; export to that folder, or in a new process")
    return trackio


def _into_trackio(trackio: Any, project: str, run: TrackedRun) -> None:
    there = [one for one in _in_trackio(trackio, project) if one.name == run.name]
    if _is_there(
        run.content, there, lambda one: one.config.get(_CONTENT), lambda one: one.delete()
    ):
        return
    trackio.init(
        project=project,
        name=run.name,
        group=run.group,
        config={**run.params, _CONTENT: run.content},
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    trackio.log(dict(run.metrics), step=0)
    trackio.finish()


def _in_trackio(trackio: Any, project: str) -> list[Any]:
    try:
        return list(trackio.Api().runs(project))
    except ValueError:  # "does not exist"
        return []

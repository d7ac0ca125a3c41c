"""Export a run to an experiment tracker (`bench export --to mlflow`), a tracked run per decoder.

Metrics are the decoder's row of the summary (``FAMILY/METRIC``: for one family). Parameters
describe the measurement.
"""

from __future__ import annotations

import logging
import os
import re
from datetime import datetime
from pathlib import Path

from bench.errors import BenchError, optional
from bench.records.files import cannot_write
from bench.report.findings import Findings
from bench.report.tables.table import guarantee_label, without_wrong
from bench.stats.counters import group_by
from bench.stats.metrics import COLUMNS, summary_rows
from bench.stats.summary import ALL
from bench.text import portable

_EXPERIMENT = "decoding-bench"
_MAX_VALUE = 6000
"""MLflow's limit of characters in a parameter's value."""


def tracked(findings: Findings) -> dict[str, tuple[dict[str, str], dict[str, float]]]:
    """Return the parameters and metrics of each decoder, in order, without WRONG decoders."""
    by_decoder = {}
    for decoder, rows in group_by(summary_rows(without_wrong(findings.summary), None)).items():
        prefix = f"decoders.{decoder}."
        params = {
            "decoder": decoder,
            "guarantee": guarantee_label(rows[0]),
            "run": portable(findings.name),
            "verdict": findings.verdict,
        }
        for key, text in findings.configuration:  # with only this decoder's options
            if key.startswith(prefix):
                params[f"option.{key.removeprefix(prefix)}"] = text
            elif not key.startswith("decoders."):
                params[f"config.{key}"] = text
        params |= {f"env.{key}": text for key, text in findings.environment}
        metrics = {
            _safe(column if row.family == ALL else f"{row.family}/{column}"): float(value)
            for row in rows
            for column in COLUMNS
            if (value := row.value(column)) is not None
        }
        by_decoder[decoder] = {_safe(key): text for key, text in params.items()}, metrics
    return by_decoder


def _safe(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _milliseconds(utc: str | None) -> int:
    return 0 if utc is None else int(datetime.fromisoformat(utc).timestamp() * 1000)


def to_mlflow(findings: Findings, folder: Path | None, default: Path) -> str:
    """Write into `folder`, MLFLOW_TRACKING_URI or `default`, and return the URI of the store."""
    status = findings.run.status
    started = _milliseconds(status.started_utc)
    ended = max(started, _milliseconds(status.finished_utc))
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = optional("mlflow", "mlflow", "export --to mlflow")
    optional("sqlalchemy", "mlflow", "export --to mlflow")
    uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
    if folder is not None or not uri:
        store = folder or default
        try:
            store.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(store, error) from error
        uri = f"sqlite:///{store.resolve() / 'mlflow.db'}"
        artifacts = (store.resolve() / "mlflow-artifacts").as_uri()
    try:
        logging.disable(logging.INFO)
        client = mlflow.MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        experiment = client.get_experiment_by_name(name)
        number = (
            client.create_experiment(name, artifact_location=artifacts)
            if experiment is None
            else experiment.experiment_id
        )
        for decoder, (params, metrics) in tracked(findings).items():
            name = f"{findings.name}/{decoder}"
            run = client.create_run(number, start_time=started, run_name=name)
            run_id, entities = run.info.run_id, mlflow.entities
            rows = [entities.Metric(key, value, ended, 0) for key, value in metrics.items()]
            texts = [entities.Param(key, text[:_MAX_VALUE]) for key, text in params.items()]
            client.log_batch(run_id, rows, texts)
            client.set_terminated(run_id, end_time=ended)
    except Exception as error:  # errors of the client, a database or HTTP
        raise BenchError(f"MLflow could not store the run in {uri}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
    return uri

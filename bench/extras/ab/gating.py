"""Define the rules of `bench gate`, and compare a new run with a stored run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from bench import runs
from bench.cli import options
from bench.compare.gate import Gate
from bench.errors import UsageError, as_error
from bench.records.run_folder import find_run, law_name, read_config
from bench.settings.config import read_toml
from bench.stats.side import RunSnapshot, load_side

_SETTINGS = (
    *("model", "draft", "tasks", "columns", "split", "limit", "overlong", "prompt_tokens"),
    *("template_args", "date", "protocol", "batch_size", "max_new_tokens", "fixed_length"),
    *("reuse_prefix", "temperature", "top_p", "top_k", "seed"),
)
"""Settings of a stored run that decide its prompts and answers."""


def gate_settings(rules: Gate, file: Path | None, margin: float, *, timed: bool) -> Gate:
    """Return the rules of `bench gate`.

    Args:
        rules: `file`'s rules, or the default ones.
        file: the user's gate file.
        margin: slow-down that regresses (0.05: 5 %), unless `file` sets one.
        timed: let times fail: both sides were measured together.
    """
    stated = dict((read_toml(file) if file is not None else {}).get("time", {}))
    changes = {} if "margin" in stated else {"margin": margin}
    time = rules.time.model_copy(update={**changes, "fail": rules.time.fail and timed})
    return rules.model_copy(update={"time": time})


def with_defaults(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verb's options, with the verb's defaults for options that nothing else sets."""
    file = values["config"]
    stated = read_toml(file) if file is not None else {}
    unset = {k: v for k, v in defaults.items() if values.get(k) is None and k not in stated}
    return {**values, **unset}


def measure_against(
    reference: str, values: Mapping[str, Any], output: Path, progress: str
) -> tuple[RunSnapshot, RunSnapshot]:
    """Repeat a stored run with the present decoders, once and uncompiled, and return both runs.

    Args:
        reference: the stored run: a folder, or a name below `output`.
        values: the verb's options; those of `_SETTINGS` that are None follow the stored run.
        output: the parent of the new run's folder.
        progress: auto, rich, plain or none.
    """
    before = "--against takes a run that `bench export RUN --to reference` stored (docs/ci.md): "
    with as_error(UsageError, UsageError, before):
        folder = find_run(reference, output)
    base, settings = load_side(str(folder), output), read_config(folder)
    defaults = {key: settings[key] for key in _SETTINGS if settings.get(key) is not None}
    defaults |= {"repeats": 1, "quality_limit": 0, "phase_limit": 0, "run_name": "gate"}
    config = options.configuration({**with_defaults(values, defaults), "compile": False})
    if (law := law_name(settings)) != (other := law_name(vars(config))):
        line = f"{folder} was measured under --law {law}, not {other}"
        raise UsageError(f"{line}: set law in a --config file, or leave it out there")
    with options.choose(progress) as shown:
        ended = runs.run(config, output, shown)
    typer.echo(f"{base.path}  {ended.run_dir}")
    return base, load_side(str(ended.run_dir), output)

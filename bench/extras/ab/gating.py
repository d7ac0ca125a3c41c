"""What `bench gate` decides beside `bench ab`: its rules, and a run against a stored reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from bench import runs
from bench.cli import options
from bench.compare.gate import Gate
from bench.records.run_folder import find_run, read_config
from bench.settings.config import read_toml
from bench.stats.side import RunSnapshot, load_side

_ASKED = (
    *("model", "draft", "tasks", "split", "limit"),
    *("max_new_tokens", "fixed_length", "temperature", "top_p", "top_k", "seed"),
)
"""Settings of a stored run that decide what its decoders were asked."""


def gate_settings(rules: Gate, file: Path | None, margin: float, *, timed: bool) -> Gate:
    """Return the rules with the gate's margin, if the file has none; times fail only if `timed`."""
    own = dict((read_toml(file) if file is not None else {}).get("time", {}))
    changes = {"margin": margin} if "margin" not in own else {}
    fail = rules.time.fail and timed
    time = rules.time.model_copy(update={**changes, "fail": fail})
    return rules.model_copy(update={"time": time})


def with_defaults(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return options, with a verb's own defaults for what neither they nor their file sets."""
    file = given["config"]
    stated = read_toml(file) if file is not None else {}
    unset = {k: v for k, v in own.items() if given.get(k) is None and k not in stated}
    return {**given, **unset}


def measure_against(
    reference: str, given: Mapping[str, Any], output: Path, progress: str
) -> tuple[RunSnapshot, RunSnapshot]:
    """Ask the present decoders what a stored run asked, once and uncompiled; return both."""
    base = load_side(reference, output)
    stored = read_config(find_run(reference, output))
    asked = {key: stored[key] for key in _ASKED if stored.get(key) is not None}
    asked |= {"repeats": 1, "quality_limit": 0, "phase_limit": 0, "run_name": "gate"}
    chosen = options.configuration({**with_defaults(given, asked), "compile": False})
    with options.choose(progress) as shown:
        ended = runs.run(chosen, output, shown)
    typer.echo(f"{base.path}  {ended.run_dir}")
    return base, load_side(str(ended.run_dir), output)

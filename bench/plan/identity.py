"""Hash everything that must not change between a run and its resumption.

The hashes cover the code that decides what is asked, answered, timed, counted or scored, the
configuration, the models' weights, the prompts, and the machine: a mixture of two would give
numbers about neither. Whole folders of code count (`_MEASURING`), so that no module is forgotten.
Folders that compute from the records of a complete run may change: `stats`, `verify`, `report`,
`compare`. So may the command line and the extras, workers apart: they measure nothing resumable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.errors import UnavailableError
from bench.machine.env import ROOT, source_hash
from bench.plan.code import law_files, own_files
from bench.plan.setup import Setup
from bench.records.environment import Environment
from bench.records.plan import Plan
from bench.records.prompts import Prompt
from bench.records.run_folder import law_name

_MEASURING = (
    *("decoders/**/*.py", "specbench_tasks/**/*.py", "specbench_tasks/**/*.toml"),
    *(f"bench/{floor}/*.py" for floor in ("settings", "records", "machine", "plan", "measure")),
    "bench/extras/workers/*.py",
    "bench/runs.py",
)
"""Modules that decide what a run measures, as patterns relative to the root."""
_PLACES = ("model", "draft", "adapters", "models", "tasks", "law", "cost")
FREE = {"threads", "device", "run_name", "reference", "timeout", *_PLACES}
"""Settings that may differ: files may be moved, and parts measured at different speeds."""


def setup_identity(setup: Setup) -> dict[str, str | None]:
    """Return the hashes of ``code``, ``configuration`` and the roles of models."""
    files = [file for pattern in _MEASURING for file in sorted(ROOT.glob(pattern))]
    brought = {file for arm in setup.arms.values() for file in own_files(arm.decoder)}
    brought |= {*law_files(setup.config.law)}
    facts = asdict(setup.facts)
    settings = setup.config.model_dump(exclude=FREE, exclude_none=True)
    return {
        "code": source_hash([*files, *sorted(brought - set(files))]),
        "configuration": _facts_hash({**settings, "law_name": law_name(vars(setup.config))}),
        **{role: _facts_hash(facts[role]) for role in ("target", "draft", "models")},
        "adapter": _facts_hash(facts["adapters"]),
    }


def check_identity(
    setup: Setup, plan: Plan, prompts: Mapping[str, Prompt], env: Environment
) -> None:
    """Raise `UnavailableError` if anything that a run began with has changed.

    Args:
        setup: what is open now.
        plan: the run's plan, with the hashes to compare (`Plan.identity`).
        prompts: the stored prompts by name.
        env: the environment in which the run began.
    """
    now = setup_identity(setup)
    hashes = {name: prompt.hash for name, prompt in prompts.items()}
    before = plan.identity or {}
    changed = [f"the {part}" for part in before if now.get(part) != before[part]]
    changed += [f"prompt {p.prompt}" for p in plan.prompts if hashes.get(p.prompt) != p.hash]
    if changed:
        line = f"cannot resume: {changed[0]} has changed since the run began; start a new run"
        raise UnavailableError(line)
    if env.comparability_key != setup.environment().comparability_key:
        line = "cannot resume: the machine or its setup (threads, torch, device) has changed"
        raise UnavailableError(f"{line}; start a new run")


def _facts_hash(facts: Mapping[str, Any] | None) -> str | None:
    text = json.dumps(facts, sort_keys=True)
    return None if facts is None else hashlib.sha256(text.encode()).hexdigest()

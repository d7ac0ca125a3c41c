"""What must not change between a run and its resumption, as hashes.

The code that decides what is asked, answered, timed, counted or scored, the models' weights, the
prompts, and the machine. Half a run of each of two would be a number about neither.

Of the code whole folders count (`_MEASURING`), so that no module is forgotten. What is computed
from the records of a whole run may change between its halves: `stats` (summaries and verdicts),
`verify` (whether answers left the baseline's tokens), `report`, `compare`. So may the command line
and `ab`, which measures and cannot be resumed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError
from bench.machine.env import ROOT, source_hash
from bench.plan.setup import Setup
from bench.records.environment import Environment
from bench.records.plan import Plan
from bench.records.prompts import Prompt

_MEASURING = (
    *("decoders/**/*.py", "specbench_tasks/**/*.py", "specbench_tasks/**/*.toml"),
    *(f"bench/{floor}/*.py" for floor in ("settings", "records", "machine", "plan", "measure")),
    "bench/workers/*.py",
    "bench/runs.py",
)
"""The modules that decide what a run measures, as patterns below the root."""


def identity_of(setup: Setup) -> dict[str, str | None]:
    """Hashes by what they are of: ``code``, ``target``, ``draft``, ``adapter``."""
    return {
        "code": _code_hash(setup),
        "target": _facts_hash(setup.facts.get("target")),
        "draft": _facts_hash(setup.facts.get("draft")),
        "adapter": _facts_hash(setup.facts.get("adapters")),
    }


def check_identity(
    setup: Setup,
    plan: Plan,
    prompts: Mapping[str, Prompt],
    env_then: Environment,
    env_now: Environment,
) -> None:
    """`BenchError` (exit 5) unless a run can go on as it began."""
    now = identity_of(setup)
    for what, then in (plan.identity or {}).items():
        if now.get(what) != then:
            _refuse(f"the {what} is not the one the run began with")
    for planned in plan.prompts:
        prompt = prompts.get(planned.prompt)
        if prompt is None or prompt.hash != planned.hash:
            _refuse(f"prompt {planned.prompt} is not the one the run began with")
    if env_then.comparability_key != env_now.comparability_key:
        _refuse("this machine, or its setup (threads, torch, device), is another one")


def _refuse(why: str) -> None:
    raise UnavailableError(f"cannot resume: {why}; start a new run")


def _code_hash(setup: Setup) -> str:
    """The hash of `_MEASURING`, and of the decoders and loops that were brought along."""
    files = [file for pattern in _MEASURING for file in sorted(ROOT.glob(pattern))]
    decoders = [arm.decoder for arm in setup.arms.values()]
    brought = {Path(inspect.getfile(type(decoder))) for decoder in decoders}
    brought |= {Path(file) for decoder in decoders for file in decoder.sources}
    return source_hash([*files, *sorted(brought - set(files))])


def _facts_hash(facts: Mapping[str, Any] | None) -> str | None:
    if facts is None:
        return None
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

"""What must not change between a run and its resumption, as hashes.

The code that generates and measures (decoders and the measuring half of bench; reports may change),
the models' weights, the prompts, and the machine. Half a run of each of two would be a number about
neither.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.env import ROOT, source_hash
from bench.errors import BenchError, Exit
from bench.plan import Plan
from bench.prompts import Prompt
from bench.workbench import Workbench

_MEASURING = ("clock", "memory", "quality", "records", "runner", "workbench")


def identity_of(bench: Workbench) -> dict[str, str | None]:
    """Hashes by what they are of: ``code``, ``target``, ``draft``, ``adapter``."""
    return {
        "code": _code_hash(bench),
        "target": _facts_hash(bench.facts.get("target")),
        "draft": _facts_hash(bench.facts.get("draft")),
        "adapter": _facts_hash(bench.facts.get("adapters")),
    }


def check_identity(
    bench: Workbench,
    plan: Plan,
    prompts: Mapping[str, Prompt],
    env_then: Mapping[str, Any],
    env_now: Mapping[str, Any],
) -> None:
    """`BenchError` (exit 5) unless a run can go on as it began."""
    now = identity_of(bench)
    for what, then in plan.identity.items():
        if now.get(what) != then:
            _refuse(f"the {what} is not the one the run began with")
    for planned in plan.prompts:
        prompt = prompts.get(planned.prompt)
        if prompt is None or prompt.hash != planned.hash:
            _refuse(f"prompt {planned.prompt} is not the one the run began with")
    if env_then.get("comparability_key") != env_now["comparability_key"]:
        _refuse("this machine, or its setup (threads, torch, device), is another one")


def _refuse(why: str) -> None:
    raise BenchError(f"cannot resume: {why}; start a new run", Exit.UNAVAILABLE)


def _code_hash(bench: Workbench) -> str:
    files = sorted((ROOT / "decoders").rglob("*.py"))
    files += [ROOT / "bench" / f"{name}.py" for name in _MEASURING]
    for arm in bench.arms.values():
        defined_in = Path(inspect.getfile(type(arm.decoder)))
        if ROOT / "decoders" not in defined_in.parents:
            files.append(defined_in)
    return source_hash(files)


def _facts_hash(facts: Mapping[str, Any] | None) -> str | None:
    if facts is None:
        return None
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

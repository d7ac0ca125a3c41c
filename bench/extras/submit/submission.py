"""Submit a run to ``results/reference``: its public files, its name, and checks to pass.

`tests/test_stored_runs.py` repeats the checks on every stored run.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.records.environment import ENV
from bench.records.plan import MANIFEST, STATUS
from bench.records.run_folder import CONFIG, Run
from bench.records.samples import PHASES_FILE
from bench.report.findings import Findings
from bench.report.tables.setting import hardware, short_name
from bench.report.tables.table import estimated
from bench.stats.validity import VALID
from bench.text import counted
from specbench_tasks.loaders import is_pinned
from specbench_tasks.task import FAMILIES, LISTS

MAX_BYTES = 300_000
MAX_NOISE = 0.05
"""Limit of the A/A factor's distance from 1."""
_PACKAGES = ("decoding-bench", "torch", "transformers", "tokenizers", "numpy")
_SCANNED = (CONFIG, ENV, STATUS, MANIFEST, PHASES_FILE)
"""Files with facts about machine and user. All other files have numbers, answers and tokens."""
_PRIVATE = {
    "a path of a machine": r"(?<![\w./])(?:~?/[\w.-]+/|[A-Za-z]:(?:\\{1,2}|/)[\w.-]+)[^\s\"',]*",
    "an e-mail address": r"[\w.+-]+@[\w-]+(?:\.[a-z]{2,})+",
    "a token": r"\b(?:hf_|gh[a-z]_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA)[\w-]{16,}",
}
_SHARED_NAMES = {"root", "user", "runner", "ubuntu", "admin", "localhost"}


def free_name(parent: Path, run: Run) -> str:
    """Return a new name, MACHINE-MODEL with the temperature of a sampled run and a number."""
    machine = re.sub(r"\(R\)|\(TM\)|Processor|\d+ cores|family|model", "", hardware(run.env) or "")
    temperature = run.config.get("temperature") or 0
    sampled = f"-t{temperature:g}".replace(".", "") if temperature else ""
    words = f"{machine} {short_name(run.config.get('model'))}{sampled}"
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    names = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
    return next(each for each in names if not (parent / each).exists())


def problems(
    findings: Findings, files: Mapping[str, bytes], *, public: bool = False
) -> Iterator[str]:
    """Yield one line per failed check.

    Args:
        findings: the run.
        files: the stored files of the run, by name.
        public: whether answers to prompts of the user's file may be stored.
    """
    run, floor = findings.run, findings.floor
    if findings.verdict != VALID:
        reasons = findings.validity.reasons[:1]
        yield ": ".join([f"it is {findings.verdict}, not {VALID}", *reasons])
    if run.plan.parts:
        yield "it is a part of a run: `bench merge` joins the parts"
    if errors := sum(record.error is not None for record in run.records):
        yield f"{counted(errors, 'answer')} failed: measure again without these decoders"
    if floor.value is None:
        baseline = run.plan.baseline
        yield f"{baseline} was measured once: without its second arm, the noise is not known"
    elif floor.differs_from_one or abs(math.log(floor.value)) > math.log1p(MAX_NOISE):
        bounds = f"it must be within {100 * MAX_NOISE:.0f} % of 1, and its interval contain 1"
        yield f"A/A is {estimated(floor)}: {bounds}; measure again on an idle machine"
    yield from _unrecorded(run)
    yield from _private(files)
    if not public and not _are_public(str(run.config.get("tasks"))):
        yield "its prompts are from a file, and their answers would be public: allow it by --public"
    if (size := sum(map(len, files.values()))) >= MAX_BYTES:
        limit = f"the limit is {MAX_BYTES // 1000} kB"
        yield f"it takes {size / 1000:.0f} kB, and {limit}: measure fewer prompts (--limit)"


def _unrecorded(run: Run) -> Iterator[str]:
    env, models = run.env, run.env.models
    adapters = {name: each.weights_sha256 for name, each in (models.adapters or {}).items()}
    hashes = {role: models.weights_hash(role) for role in models.by_role} | adapters
    facts = {f"version of {name}": env.packages.get(name) for name in _PACKAGES}
    facts |= {f"hash of the weights of {name}": digest for name, digest in hashes.items()}
    facts |= {"version of Python": env.python, "processor": env.machine.cpu, "dtype": env.dtype}
    facts |= {"driver of the GPU (extra gpu)": env.gpu_driver} if env.gpu else {}
    if unknown := [name for name, fact in facts.items() if not fact]:
        yield f"{ENV} lacks: {', '.join(unknown)}"
    for git in {env.git, env.repository or env.git}:
        if git.commit is None:
            yield "it names no commit: measure in a clone, with decoders of a git repository"
        elif git.dirty is not False:
            yield f"commit {git.commit[:9]} had uncommitted changes or new files: measure without"
    prompts = {prompt.prompt: prompt.hash for prompt in run.plan.prompts}
    if not all(prompts.values()):
        yield f"{MANIFEST} lacks hashes of prompts"
    if other := {r.prompt for r in run.records if prompts.get(r.prompt) != r.prompt_hash}:
        yield f"{counted(len(other), 'prompt')} of its answers differ from {MANIFEST}"


def _private(files: Mapping[str, bytes]) -> Iterator[str]:
    patterns = dict(_PRIVATE)
    for kind, name in (("host", socket.gethostname()), ("user", Path.home().name)):
        if len(name) > 2 and name not in _SHARED_NAMES:
            patterns[f"the {kind}'s name"] = rf"(?<!\w){re.escape(name)}(?!\w)"
    for file in _SCANNED:
        text = files.get(file, b"").decode(errors="replace")
        if file == MANIFEST:  # gold answers are data
            text = json.dumps(json.loads(text or "{}") | {"prompts": ()})
        for kind, pattern in patterns.items():
            if match := re.search(pattern, text):
                yield f"{file} has {kind}: {match[0][:60]}"


def _are_public(tasks: str) -> bool:
    """Return whether prompts are of this package, Spec-Bench or a dataset of the hub."""
    kind, _, place = tasks.partition("=")
    if kind == "specbench":
        return not place or is_pinned(Path(place))
    if kind == "hf":
        return re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", place) is not None and not Path(place).exists()
    return {*tasks.split(",")} <= {"zoo", *FAMILIES, *LISTS}

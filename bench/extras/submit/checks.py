"""The checks of a run for ``results/reference``: one line per check that fails.

CI repeats the checks on every stored folder (`tests/test_stored_runs.py`).
"""

from __future__ import annotations

import getpass
import io
import json
import math
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from bench.records.environment import ENV, Environment
from bench.records.frames import csv_bytes
from bench.records.plan import MANIFEST, STATUS
from bench.records.run_folder import CONFIG
from bench.records.samples import PHASES_FILE
from bench.report.findings import Findings
from bench.report.tables.table import estimated
from bench.report.write import SUMMARY
from bench.stats.validity import VALID, from_here
from bench.text import counted
from specbench_tasks.task import FAMILIES, LISTS

MAX_BYTES = 300_000
"""The limit of a stored run; the largest folders before it had twice as much."""
MAX_NOISE = 0.05
"""The limit of the A/A factor's distance from 1."""
_PACKAGES = ("decoding-bench", "torch", "transformers", "tokenizers", "numpy")
_SCANNED = (CONFIG, ENV, STATUS, MANIFEST, PHASES_FILE)
"""Files with facts of the machine and the user; the rest are numbers, answers and their tokens."""
_PRIVATE = {
    "a path of a machine": r"(?<![\w./])(?:~?/[\w.-]+/|[A-Za-z]:(?:\\{1,2}|/)[\w.-]+)[^\s\"',]*",
    "an e-mail address": r"[\w.+-]+@[\w-]+(?:\.[a-z]{2,})+",
    "a token": r"\b(?:hf_|gh[a-z]_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA)[\w-]{16,}",
}
_SHARED_NAMES = {"root", "user", "runner", "ubuntu", "admin", "localhost"}


def problems(
    findings: Findings, files: Mapping[str, bytes], *, public: bool = False
) -> Iterator[str]:
    """Yield one line per failed check.

    Args:
        findings: the run.
        files: what is stored of it, by name.
        public: whether answers to prompts of the user's file may be stored.
    """
    yield from _measured(findings)
    yield from _recorded(findings)
    yield from _private(files)
    if not public and not _public_tasks(str(findings.run.config.get("tasks"))):
        yield "its prompts are from a file, and their answers would be public: allow it by --public"
    if (size := sum(map(len, files.values()))) >= MAX_BYTES:
        limit = f"the limit is {MAX_BYTES // 1000} kB"
        yield f"it takes {size / 1000:.0f} kB, and {limit}: measure fewer prompts (--limit)"


def stored_problems(findings: Findings) -> Iterator[str]:
    """Yield one line per failed check of a stored folder, and per number that answers do not give.

    Its author has agreed that the answers are public.
    """
    folder = findings.run.path
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    files = {name: (folder / name).read_bytes() for name in names}
    yield from problems(findings, files, public=True)
    try:
        again, beside = (
            pd.read_csv(io.BytesIO(data)) for data in (csv_bytes(findings.summary), files[SUMMARY])
        )
        pd.testing.assert_frame_equal(again, beside, rtol=1e-5)  # six digits are written
    except (AssertionError, KeyError, ValueError):
        yield f"{SUMMARY} is missing or not what its answers give: bench report {folder.name}"


def _measured(findings: Findings) -> Iterator[str]:
    status, floor = findings.run.status, findings.floor
    if findings.verdict != VALID:
        why = [from_here(reason, findings.run.path) for reason in findings.validity.reasons]
        yield ": ".join([f"it is {findings.verdict}, not {VALID}", *why[:1]])
    if not status.complete or findings.run.plan.parts:
        yield "it is not complete: bench resume measures the rest, bench merge joins parts"
    if errors := sum(record.error is not None for record in findings.run.records):
        yield f"{counted(errors, 'answer')} failed: measure again without these decoders"
    if floor.value is None:
        yield "ar was measured once: without its second arm, the noise is not known"
    elif floor.differs_from_one or abs(math.log(floor.value)) > math.log1p(MAX_NOISE):
        bounds = f"1 must be inside, and the value within {MAX_NOISE:.0%}"
        yield f"A/A is {estimated(floor)}: {bounds}; measure again on an idle machine"


def _recorded(findings: Findings) -> Iterator[str]:
    run, env = findings.run, findings.run.env
    facts = {
        **{f"the version of {name}": env.packages.get(name) for name in _PACKAGES},
        "the version of Python": env.python,
        "the processor": env.machine.cpu,
        "the device": env.device,
        "the dtype": env.dtype,
        "the number of threads": env.torch.threads,
        "the start": run.status.started_utc,
        **({"the GPU's driver (pip install '.[gpu]')": env.gpu_driver} if env.gpu else {}),
        **{f"the hash of the weights of {name}": each for name, each in _weights(env).items()},
    }
    if unknown := [name for name, fact in facts.items() if not fact]:
        yield f"{ENV} lacks {', '.join(unknown)}"
    for git in (env.git, env.repository or env.git):
        if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", git.commit or ""):
            yield "it names no commit: measure in a clone, not with an installed package"
        elif git.dirty is not False:
            yield f"commit {str(git.commit)[:9]} had uncommitted changes or new files: commit them"
        if env.repository is None:
            break
    hashes = {prompt.prompt: prompt.hash for prompt in run.plan.prompts}
    if not hashes or not all(re.fullmatch("[0-9a-f]{16}", each) for each in hashes.values()):
        yield f"{MANIFEST} lacks hashes of prompts"
    if other := {r.prompt for r in run.records if hashes.get(r.prompt) != r.prompt_hash}:
        yield f"{counted(len(other), 'prompt')} of its answers differ from {MANIFEST}"


def _weights(env: Environment) -> dict[str, str | None]:
    models = env.models
    roles = [role for role in ("target", "draft") if role == "target" or models.draft]
    adapters = {name: each.weights_sha256 for name, each in (models.adapters or {}).items()}
    return {role: models.weights_hash(role) for role in roles} | adapters


def _private(files: Mapping[str, bytes]) -> Iterator[str]:
    names = {"the host's name": socket.gethostname(), "the user's name": _user()}
    patterns = _PRIVATE | {
        kind: rf"(?<!\w){re.escape(name)}(?!\w)"
        for kind, name in names.items()
        if len(name) > 2 and name not in _SHARED_NAMES
    }
    for file in _SCANNED:
        text = files.get(file, b"").decode(errors="replace")
        if file == MANIFEST:  # gold answers are data
            text = json.dumps(json.loads(text or "{}") | {"prompts": ()})
        for kind, pattern in patterns.items():
            if match := re.search(pattern, text):
                yield f"{file} has {kind}: {match[0][:60]}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name, as in some containers
        return Path.home().name


def _public_tasks(tasks: str) -> bool:
    """Tell whether prompts are of this package, Spec-Bench or a dataset of the hub."""
    kind, _, place = tasks.partition("=")
    if kind == "hf":
        return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", place) is not None and not Path(place).exists()
    return {name.partition("=")[0] for name in tasks.split(",")} <= {
        *("zoo", "specbench"),
        *FAMILIES,
        *LISTS,
    }

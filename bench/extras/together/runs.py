"""Combine several runs in one report: check them, name them, and list their differences.

A speed-up is a ratio of two decoders of one run, so one table may show speed-ups of several runs.
Their times cannot be pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.errors import BenchError, UnavailableError, UsageError
from bench.records.run_folder import Run
from bench.report.findings import RunNumbers
from bench.report.tables.conclusion import Rivals, rivals
from bench.report.tables.setting import describe_model, hardware
from bench.stats.metrics import summary_rows
from bench.stats.quality import with_telling_quality
from bench.stats.side import RunSnapshot, load_side
from bench.stats.summary import ALL, summarise
from bench.stats.validity import DAMAGED, EXIT_CODES, INVALID
from bench.stats.workers import noise_floor
from bench.text import portable

_SHARED = {
    "tasks": "their prompts differ",
    "split": "their prompts differ",
    "protocol": "they count tokens by different rules",
    "fixed_length": "their answers end by different rules",
    "reuse_prefix": "their later turns start with different caches",
    "baseline": "their speed-ups refer to different decoders",
    "batch_size": "speed-ups are per answer at batch size 1, and per group above it",
}
"""Settings that runs of one table must share, and the reason (`batch_size`: 1 in all or none)."""
_SETTINGS = (
    *("tasks", "split", "limit", "overlong", "prompt_tokens", "quality_limit", "repeats"),
    *("batch_size", "max_new_tokens", "temperature", "top_p", "top_k", "law", "seed", "dtype"),
    *("protocol", "fixed_length", "compile", "quantize", "numerics", "tile", "reuse_prefix"),
)
_PACKAGES = ("decoding-bench", "torch", "transformers", "tokenizers", "numpy")
CIRCUMSTANCES = {
    *("hardware", "threads", "GPU driver", "comparability key", "system", "Python", *_PACKAGES),
    *("commit", "started", "verdict"),
}
"""Identity facts about the place, time and code of a measurement, not about its subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRun(RunNumbers):
    """Hold one of several runs, with decoder names from `disambiguate_names`.

    `pairs` holds the speed-ups of decoders over each other.
    """

    side: RunSnapshot
    pairs: Rivals


def load_members(names: Sequence[str], parent: Path) -> list[NamedRun]:
    """Load runs for one table, in the order of their names.

    Raises:
        BenchError: a name is not a run (exit 2), or a run measured no speed-up (5). With several
            runs also: one is damaged or invalid (4), named twice (2), or unlike the first (5).
    """
    sides = [load_side(name, parent) for name in names]
    for i, side in enumerate(sides):
        if len(sides) > 1:
            refuse_invalid(side)
        for before in sides[:i]:
            refuse_twice(before, side)
        if i:
            first = sides[0]
            for key, why in _SHARED.items():
                one, two = first.config.get(key), side.config.get(key)
                if key == "baseline":  # older runs lack it, and options of one name may differ
                    named = zip((first, side), disambiguate_names([first, side]), strict=True)
                    one, two = (new.get(s.plan.baseline, s.plan.baseline) for s, new in named)
                is_known = key in ("protocol", "split") or None not in (one, two)
                alike = (one == 1) == (two == 1) if key == "batch_size" else one == two
                if is_known and not alike:
                    why = portable(f"{key} is {one} in one and {two} in the other: {why}")
                    line = f"{first.name} and {side.name} cannot be in one table: {why}"
                    raise UnavailableError(f"{line}; report each run separately")
    members = name_runs(sides)
    for member in members:
        rows = summary_rows(member.summary, ALL)
        if not any(row.decoder != row.over and row.speedup is not None for row in rows):
            line = f"{member.side.name} measured no speed-up over {member.side.plan.baseline}"
            raise UnavailableError(line)
    return members


def name_runs(sides: Sequence[RunSnapshot]) -> list[NamedRun]:
    """Return the runs with their names and numbers."""
    names = [side.name for side in sides]
    runs = [
        name if names.index(name) == i else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]
    models = [describe_model(side) for side in sides]
    labels = models if len(set(models)) == len(models) else runs
    members = []
    for side, name, label, new in zip(sides, runs, labels, disambiguate_names(sides), strict=True):
        summary = run_summary(side)
        decoders = [str(decoder) for decoder in summary["decoder"].unique()]
        new_names = {decoder: new.get(decoder, decoder) for decoder in decoders}
        member = NamedRun(
            name=name,
            label=label,
            summary=summary.assign(decoder=summary["decoder"].map(new_names)),
            floor=noise_floor(side.records),
            side=side,
            pairs={
                (new_names[one], new_names[other]): estimate
                for (one, other), estimate in rivals(side.records, decoders).items()
            },
        )
        members.append(member)
    return members


def run_summary(side: RunSnapshot) -> pd.DataFrame:
    """Return a run's summary, with overall quality from the families that can show a loss."""
    return with_telling_quality(summarise(side))


def refuse_invalid(side: RunSnapshot) -> None:
    """Refuse a damaged or invalid run (exit 4)."""
    if side.verdict in (DAMAGED, INVALID):
        why = f": {side.reasons[0]}" if side.reasons else ""
        line = f"{side.name} is {side.verdict} and cannot be combined with other runs{why}"
        raise BenchError(line, exit_code=EXIT_CODES[side.verdict])


def are_one(first: Run, second: Run) -> bool:
    """Return whether two folders hold one run: they are the same, or one is a stored copy.

    A copy has the run's times, load and peak memory; paths in its configuration are shortened.
    """
    one, two = ((s.status.started_utc, s.status.finished_utc, s.env) for s in (first, second))
    return (one == two and None not in one) or first.path.resolve() == second.path.resolve()


def refuse_twice(first: Run, second: Run) -> None:
    """Refuse one run under two names."""
    if are_one(first, second):
        raise UsageError(f"{first.path} and {second.path} are one run: name it once")


def disambiguate_names(sides: Sequence[RunSnapshot]) -> list[dict[str, str]]:
    """Return, per run, new names for decoders whose options differ: ``spec (k 8)``.

    Missing options (older versions had fewer) are assumed to be equal.
    """
    renamed: list[dict[str, str]] = [{} for _ in sides]
    for cell in dict.fromkeys(cell for side in sides for cell in side.cells):
        having = [side.cells[cell] for side in sides if cell in side.cells]
        keys = dict.fromkeys(key for options in having for key in options)
        differing = [key for key in keys if len({o[key] for o in having if key in o}) > 1]
        for side, names in zip(sides, renamed, strict=True):
            options = side.cells.get(cell, {})
            parts = [f"{key} {options[key]}" for key in differing if key in options]
            if parts:
                names[cell] = f"{cell} ({', '.join(parts)})"
    return renamed


def identity(side: RunSnapshot) -> dict[str, str]:
    """Return the known facts about a run's model, work, sampling, machine, software and code.

    Absolute paths are shortened to their last part.
    """
    env, config = side.env, side.config
    adapters = (env.models.adapters or {}).items()
    facts: dict[str, object] = {
        "model": describe_model(side),
        **{f"{role} weights": _short(env.models.weights_hash(role)) for role in env.models.by_role},
        **{f"{name} adapter": _short(each.weights_sha256) for name, each in adapters},
        **{key.replace("_", " "): config.get(key) for key in _SETTINGS},
        "baseline": side.plan.baseline,
        "hardware": hardware(side.env),
        "threads": env.torch.threads,
        "GPU driver": env.gpu_driver,
        "comparability key": side.env.comparability_key,
        "system": env.machine.system and f"{env.machine.system} {env.machine.release or ''}",
        "Python": env.python,
        **{name: env.packages.get(name) for name in _PACKAGES},
        "commit": side.code,
        "started": side.status.started_utc,
        "verdict": side.verdict,
    }
    return {key: portable(str(value)).strip() for key, value in facts.items() if value is not None}


def _short(digest: str | None) -> str | None:
    return digest and digest.rpartition(":")[2][:12]


def all_facts(members: Sequence[NamedRun]) -> list[tuple[str, list[str | None]]]:
    """Return every identity fact with its value in each run (None: unknown)."""
    each = [identity(member.side) for member in members]
    keys = dict.fromkeys(key for facts in each for key in facts)
    return [(key, [facts.get(key) for facts in each]) for key in keys]


def differences(members: Sequence[NamedRun]) -> list[tuple[str, list[str | None]]]:
    """Return the identity facts that differ between the runs."""
    return [(key, values) for key, values in all_facts(members) if len(set(values)) > 1]


def same_machine(members: Sequence[NamedRun]) -> bool:
    """Return whether all runs share one known comparability key (kind of machine and setup)."""
    keys = {member.side.env.comparability_key for member in members}
    return None not in keys and len(keys) == 1

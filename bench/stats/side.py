"""A finished run, or a stored reference, read to be compared or shown.

A reference (``results/reference/NAME``) keeps a run's summary.csv, env.json, config.toml and
run.json, and no records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import InvalidRunError, UsageError
from bench.records.environment import ENV, Environment, read_environment
from bench.records.plan import MANIFEST, SAME_TOKENS, SECOND_BASELINE, WRONG, Cell
from bench.records.record import SampleRecord
from bench.records.run_folder import CONFIG, find_run, load_run, lost_plan, read_config
from bench.records.status import STATUS, Difference, RunStatus, read_status
from bench.settings.config import INVARIANT, as_text
from bench.stats.quality import Gold, gold_answers
from bench.stats.summary import ALL
from bench.stats.validity import VALID, judge

_SUMMARY = "summary.csv"
_SHORT = 9
"""Digits of a commit that are shown."""
FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A run as a comparison sees it; exactly one of `records` and `summary` is there.

    `cells` maps each decoder to its options as text; `same_as_ar` holds those that promise the
    baseline's very tokens (of a reference: those that kept to them throughout). `passes` are those
    planned (``timing``, ``quality``); `planned` holds the cells as the manifest has them.
    """

    path: Path
    config: Mapping[str, Any]
    env: Environment
    status: RunStatus
    cells: Mapping[str, Mapping[str, str]]
    same_as_ar: frozenset[str] = frozenset()
    passes: frozenset[str] = frozenset()
    records: tuple[SampleRecord, ...] | None = None
    summary: pd.DataFrame | None = None
    gold: Gold | None = None
    planned: tuple[Cell, ...] = ()
    verdict: str = VALID
    reasons: tuple[str, ...] = ()

    @property
    def wrong(self) -> list[str]:
        """Return the cells that claim to be lossless and are not."""
        return self.status.wrong

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.path.resolve().name

    @property
    def code(self) -> str | None:
        """Return the measured code: short commit, branch or revision; None: unknown."""
        git = self.env.git
        if not git.commit:
            return None
        where = self.status.revision or git.branch
        text = git.commit[:_SHORT] + (f" ({where})" if where else "")
        return f"{text} with uncommitted changes" if git.dirty else text

    @property
    def key(self) -> str | None:
        """Return the comparability key of its machine and setup."""
        return self.env.comparability_key

    @property
    def dtype(self) -> str:
        """Return the precision of weights and cache."""
        return self.env.dtype or FLOAT32

    def is_exact(self, cell: str) -> bool:
        """Tell whether rounding leaves a cell's tokens alone: float32, or row-invariant."""
        numerics = self.cells.get(cell, {}).get("numerics") or self.config.get("numerics")
        return self.dtype == FLOAT32 or numerics == INVARIANT

    def num_wrong(self, cell: str) -> int | None:
        """Count answers in which a cell left the baseline's promised tokens without a near-tie.

        None where nobody looked: nothing was promised, or the run did not come to it.
        """
        difference = self._difference(cell)
        if difference is not None:
            return difference.num_wrong
        return 0 if self.status.differences is not None and cell in self.same_as_ar else None

    def near_ties_alone(self, cell: str) -> bool:
        """Tell whether a cell left the baseline's tokens, and at near-ties only."""
        difference = self._difference(cell)
        return difference is not None and difference.num_wrong == 0

    def _difference(self, cell: str) -> Difference | None:
        return next((d for d in self.status.differences or () if d.cell == cell), None)


def load_side(name: str, parent: Path) -> RunSnapshot:
    """Read a run by path, name or ``latest``, or a folder of a stored reference.

    Raises:
        BenchError: where there is neither (exit 2), or a file is damaged (4).
    """
    folder = Path(name)
    is_run = (folder / MANIFEST).is_file() or lost_plan(folder)
    if (folder / _SUMMARY).is_file() and not is_run:
        return _reference(folder)
    run = load_run(find_run(name, parent))
    planned = tuple(c for c in run.plan.cells if c.cell != SECOND_BASELINE)
    validity = judge(run)
    return RunSnapshot(
        path=run.path,
        config=run.config,
        env=run.env,
        status=run.status,
        cells={c.cell: _texts(c.options) for c in planned},
        same_as_ar=frozenset(c.cell for c in planned if c.guarantee == SAME_TOKENS),
        planned=planned,
        verdict=validity.verdict,
        reasons=validity.reasons,
        passes=frozenset(p for prompt in run.plan.prompts for p in prompt.passes),
        records=run.records,
        gold=gold_answers(run.path, run.plan),
    )


def _reference(folder: Path) -> RunSnapshot:
    for name in (CONFIG, ENV, STATUS):
        if not (folder / name).is_file():
            line = f"{folder} is neither a run nor a reference: {name} is missing"
            raise UsageError(line)
    config, status = read_config(folder), read_status(folder)
    try:
        summary = pd.read_csv(folder / _SUMMARY)
    except ValueError as error:
        raise InvalidRunError(f"{folder / _SUMMARY} is damaged: {error}") from error
    wrong = status.wrong
    if "guarantee" not in summary:  # one of an older version
        summary["guarantee"] = None
        summary["calls_per_step"] = summary["acceptance_length"] / summary["tpf"]
    summary.loc[summary["decoder"].isin(wrong), "guarantee"] = WRONG
    decoders: dict[str, dict[str, Any]] = config.get("decoders") or {}
    measured = list(dict.fromkeys(summary["decoder"]))
    overall = summary[summary["family"] == ALL]
    exact = overall[overall["identical_to_ar"] == 1]["decoder"]
    return RunSnapshot(
        path=folder,
        config=config,
        env=read_environment(folder),
        status=status,
        cells={cell: _texts(decoders.get(cell, {})) for cell in measured},
        same_as_ar=frozenset(exact),
        summary=summary,
        verdict=WRONG if wrong else status.verdict or VALID,
        reasons=status.reasons,
    )


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {key: as_text(value) for key, value in options.items() if value is not None}

"""Read a finished run for comparison or display."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.records.environment import GitState
from bench.records.plan import SAME_TOKENS, Difference
from bench.records.run_folder import Run, find_run, load_run
from bench.settings.config import as_text
from bench.stats.validity import judge

_SHORT = 9
"""Displayed digits of a commit or a hash."""


@dataclass(frozen=True, kw_only=True)
class RunSnapshot(Run):
    """Hold a run with its current verdict."""

    verdict: str
    reasons: tuple[str, ...]

    @cached_property
    def cells(self) -> Mapping[str, Mapping[str, str]]:
        """Each decoder's options as text."""
        return {
            cell.cell: {k: as_text(v) for k, v in cell.options.items() if v is not None}
            for cell in self.plan.cells
        }

    @property
    def same_as_ar(self) -> frozenset[str]:
        """Cells that guarantee exactly the baseline's tokens, as head must, too."""
        return frozenset(c.cell for c in self.plan.cells if c.guarantee == SAME_TOKENS)

    @property
    def passes(self) -> frozenset[str]:
        """The planned passes (``timing``, ``quality``)."""
        return frozenset(p for prompt in self.plan.prompts for p in prompt.passes)

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.path.resolve().name

    @property
    def code(self) -> str | None:
        """Return the commit of the decoders' repository, else of the benchmark."""
        return _named(self.env.repository or self.env.git, self.status.revision)

    @property
    def benchmark(self) -> str | None:
        """Return the benchmark's commit, if the decoders come from another repository."""
        return None if self.env.repository is None else _named(self.env.git)

    def cell_code(self, cell: str) -> str | None:
        """Return the shortened hash of a decoder's own source files."""
        code = next((each.code for each in self.plan.cells if each.cell == cell), None)
        return code and code[:_SHORT]

    def num_wrong(self, cell: str) -> int | None:
        """Count a cell's answers with wrong tokens: not the baseline's, and without a near-tie.

        None if unchecked: the cell guarantees nothing, or the run ended before the check.
        """
        if (difference := self.difference(cell)) is not None:
            return difference.num_wrong
        return 0 if self.status.compared and cell in self.same_as_ar else None

    def difference(self, cell: str) -> Difference | None:
        """Return the difference of a cell's tokens from the baseline's, if there is one."""
        return next((d for d in self.status.differences or () if d.cell == cell), None)


def _named(git: GitState, revision: str | None = None) -> str | None:
    """Return a short commit, with its revision or branch."""
    if not git.commit:
        return None
    where = revision or git.branch
    text = git.commit[:_SHORT] + (f" ({where})" if where else "")
    return f"{text} with uncommitted changes" if git.dirty else text


def load_side(name: str, parent: Path) -> RunSnapshot:
    """Read a run by path, name or ``latest``.

    Raises:
        BenchError: the run does not exist (exit 2), or a file is damaged (exit 4).
    """
    run = load_run(find_run(name, parent))
    status = judge(run)
    return RunSnapshot(**vars(run), verdict=str(status.verdict), reasons=status.reasons)

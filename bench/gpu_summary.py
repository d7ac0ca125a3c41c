"""The summary of ``make gpu``, step by step: summary.json and summary.md, small enough to commit.

Read from the cost and run folders that its steps left, whatever became of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bench.errors import BenchError
from bench.records.environment import Environment
from bench.records.files import write_json, write_text
from bench.records.run_folder import Run, find_run, load_run
from bench.report.findings import Findings
from bench.report.tables.table import Columns, Table, number
from bench.stats.cost_curve import limits, load_cost
from bench.stats.limit import ar_limit, mismatch
from bench.stats.summary import ALL
from bench.stats.summary_row import rows_of
from bench.text import UNKNOWN, markdown, percent

_SCHEMA = 1


class Status(Enum):
    """End of a step."""

    PASSED = "passed"
    FAILED = "failed"
    OUT_OF_TIME = "out of time"
    INTERRUPTED = "interrupted"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command (`words` of ``python -m``), and what is read from its results.

    It may take `budget_s` seconds, its start and its end included. `aim` is the share of the
    bandwidth limit that one row is to reach; `against` names the step whose cost folder says how
    near the run's ar is to the limit; `left_out` says why it is not run.
    """

    name: str
    kind: Literal["tests", "cost", "run"]
    words: tuple[str, ...]
    budget_s: float
    aim: float | None = None
    against: str | None = None
    left_out: str | None = None

    def command(self, folder: Path) -> str:
        """Return it as it is typed; its output folder is called OUT."""
        return " ".join(self.words).replace(str(folder), "OUT")


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a step, the reason, its figures as data and in Markdown, and where it ran."""

    step: Step
    status: Status
    exit_code: int | None = None
    seconds: float = 0.0
    reason: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    page: tuple[str, ...] = ()
    env: Environment | None = None

    @property
    def well(self) -> bool:
        """Return whether nothing went wrong: a missed aim is a result, not a failure."""
        return self.status in (Status.PASSED, Status.LEFT_OUT)


def read_outcome(
    step: Step, folder: Path, status: Status, exit_code: int | None, seconds: float
) -> Outcome:
    """Read what a step left in `folder`; one that passed and left nothing has failed."""
    log = (folder / f"{step.name}.log").read_text(encoding="utf-8", errors="replace")
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
    reason = None if status is Status.PASSED else last.replace(str(folder), "OUT") or None
    outcome = Outcome(step, status, exit_code, seconds, reason)
    if step.kind == "tests":
        return replace(outcome, figures={"last_line": last})
    try:
        return (_with_cost if step.kind == "cost" else _with_run)(outcome, folder)
    except BenchError as error:
        if status is not Status.PASSED:
            return outcome
        message = error.message.replace(str(folder), "OUT")
        return replace(outcome, status=Status.FAILED, reason=message)


def _with_cost(outcome: Outcome, folder: Path) -> Outcome:
    """Add one row against the limit, called and replayed, and the time of every cell."""
    cost, aim = load_cost(folder / outcome.step.name), outcome.step.aim
    facts, points = cost.facts, cost.curve.points
    cell = facts.replayed or min(points)
    bound_s = limits(facts, cell).memory_s
    called_s = facts.beside_replay.value if facts.beside_replay else points.get(cell)
    replay_s = facts.replay.value if facts.replay else None
    best_s = min((s for s in (called_s, replay_s) if s is not None), default=None)
    share = bound_s / best_s if bound_s and best_s else None
    figures = {
        "model": facts.name,
        "dtype": cost.env.dtype,
        "weight_bytes": facts.work.weight_bytes,
        "bandwidth_bytes_per_s": facts.bandwidth.value if facts.bandwidth else None,
        "matrix_rate_flops_per_s": facts.matrix_rate.value if facts.matrix_rate else None,
        "context": cell.context,
        "one_row": {
            "called_s": called_s,
            "replay_s": replay_s,
            "replay_by": facts.replay_by,
            "no_replay": facts.no_replay,
            "bandwidth_limit_s": bound_s,
            "share_of_limit": share,
            "aim": aim,
            "aim_met": None if aim is None or share is None else share >= aim,
        },
        "calls": [{**asdict(at), "seconds": seconds} for at, seconds in sorted(points.items())],
        "left_out": [f"{each.cell}: {each.reason}" for each in cost.left_out],
        "complete": facts.complete,
    }
    calls = {(at.rows, at.sequences): seconds for at, seconds in points.items()}

    def time(rows: int, sequences: int) -> str:
        return _ms(calls.get((rows, sequences)))

    columns: Columns = {"rows": str}
    for sequences in sorted({at.sequences for at in points}):
        columns[f"batch {sequences}"] = partial(time, sequences=sequences)
    table = _table(columns, sorted({rows for rows, _ in calls}))
    page = (f"## Calls of {markdown(outcome.step.name)}, ms", "", table)
    return replace(outcome, figures=figures, page=page, env=cost.env)


def _with_run(outcome: Outcome, folder: Path) -> Outcome:
    """Add the verdict, the main table, and ar's time against its limit."""
    step = outcome.step
    run = load_run(find_run("latest", folder / step.name))
    findings = Findings(run)
    verdict, reasons = findings.verdict, findings.validity.reasons
    ar = None if step.against is None else _of_ar(folder / step.against, run)
    figures = {
        "verdict": verdict,
        "reasons": list(reasons),
        "decoders": [asdict(row) for row in rows_of(findings.summary, ALL)],
        "ar": ar,
    }
    page = [f"## Run {markdown(step.name)}", ""]
    page += [f"{verdict}. {' '.join(map(markdown, reasons))}".strip(), ""]
    if ar is not None and "token_s" in ar:
        share = ar["memory_s"] / ar["token_s"] if ar["memory_s"] else None
        times = f"{_ms(ar['token_s'])} ms a token, {_ms(ar['call_s'])} ms a call of the model alone"
        page += [f"AR takes {times}: {percent(share)} of the bandwidth limit.", ""]
    page += [findings.headline.to_markdown(), "", markdown(findings.headline.note)]
    return replace(outcome, figures=figures, page=tuple(page), env=run.env)


def _of_ar(folder: Path, run: Run) -> dict[str, Any]:
    try:
        cost = load_cost(folder)
    except BenchError:
        return {"unknown": "the step that measures calls left no cost folder"}
    why = mismatch(cost, run.env)
    limit = None if why else ar_limit(cost, run)
    return {"unknown": why} if limit is None else asdict(limit)


# ---------------------------------------------------------------- writing


_ENDED: Columns = {
    "step": lambda o: o.step.name,
    "status": lambda o: o.status.value,
    "seconds": lambda o: f"{o.seconds:.0f}",
    "of": lambda o: f"{o.step.budget_s:.0f}",
    "why": lambda o: o.reason or "",
}
_LIMITS: Columns = {
    "step": lambda o: o.step.name,
    "model": lambda o: f"{o.figures['model']}, {o.figures['dtype']}",
    "called ms": lambda o: _ms(o.figures["one_row"]["called_s"]),
    "replayed ms": lambda o: _ms(o.figures["one_row"]["replay_s"]),
    "limit ms": lambda o: _ms(o.figures["one_row"]["bandwidth_limit_s"]),
    "share": lambda o: percent(o.figures["one_row"]["share_of_limit"]),
    "aim": lambda o: percent(o.figures["one_row"]["aim"]),
    "aim met": lambda o: {None: UNKNOWN, True: "yes", False: "no"}[o.figures["one_row"]["aim_met"]],
}


def write_summary(folder: Path, outcomes: Sequence[Outcome], *, rehearsal: bool) -> None:
    """Replace summary.json and summary.md."""
    machine = next((_described(each.env) for each in outcomes if each.env is not None), {})
    steps = [
        {
            "name": each.step.name,
            "command": each.step.command(folder),
            "status": each.status.value,
            "reason": each.reason,
            "exit_code": each.exit_code,
            "seconds": round(each.seconds, 1),
            "budget_s": each.step.budget_s,
            "figures": each.figures,
        }
        for each in outcomes
    ]
    data = {"schema": _SCHEMA, "rehearsal": rehearsal, "machine": machine, "steps": steps}
    write_json(folder / "summary.json", data)
    facts = ", ".join(f"{key} {value}" for key, value in machine.items() if value is not None)
    lines = ["# One GPU, everything once", ""]
    if rehearsal:
        lines += ["**A rehearsal on a CPU: tiny sizes, and no figure of it says anything.**", ""]
    lines += [markdown(facts or "no step said where it ran"), "", _table(_ENDED, outcomes)]
    limited = [each for each in outcomes if "one_row" in each.figures]
    if limited:
        lines += ["", "## One row, and what memory allows", "", _table(_LIMITS, limited)]
    for each in outcomes:
        lines += ["", *each.page] if each.page else []
    write_text(folder / "summary.md", "\n".join(lines) + "\n")


def _described(env: Environment) -> dict[str, Any]:
    return {
        "gpu": env.gpu_name,
        "driver": env.gpu_driver,
        "cuda": env.torch.cuda,
        "torch": env.packages.get("torch"),
        "transformers": env.packages.get("transformers"),
        "python": env.python,
        "cpu": env.machine.cpu,
        "commit": env.git.commit,
        "dirty": env.git.dirty,
    }


def _table(columns: Columns, rows: Sequence[Any]) -> str:
    table = Table.of("", "", columns, rows)
    return "" if table is None else table.to_markdown()


def _ms(seconds: float | None) -> str:
    return number(seconds, ".3g", 1e3)

"""The summary of ``make gpu``, step by step: summary.json and summary.md, small enough to commit.

Read from the cost and run folders that its steps left, whatever became of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from bench.errors import BenchError
from bench.records.environment import Environment, read_environment
from bench.records.files import write_json, write_text
from bench.records.run_folder import find_run, load_run
from bench.report.findings import Findings
from bench.report.tables import table as tables
from bench.stats.cost_curve import limits, load_cost
from bench.stats.limit import ar_limit, mismatch
from bench.stats.summary import ALL
from bench.stats.summary_row import rows_of
from bench.text import UNKNOWN, factor, markdown, percent

_SCHEMA = 1
_LATEST = "latest"
_COLUMNS = (
    *("decoder", "guarantee", "speedup", "speedup_low", "speedup_high", "tokens_per_call"),
    *("acceptance_length", "decode_time_per_token_s", "identical_to_ar", "quality", "errors"),
)
"""Columns of a run's summary."""


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
    """End of a step, the reason, and its figures."""

    step: Step
    status: Status
    exit_code: int | None = None
    seconds: float = 0.0
    reason: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)

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
    figures: dict[str, Any] = {"last_line": last} if step.kind == "tests" else {}
    try:
        if step.kind == "cost":
            figures = _cost_figures(folder / step.name, step.aim)
        elif step.kind == "run":
            cost = None if step.against is None else folder / step.against
            figures = _run_figures(folder / step.name, cost)
    except BenchError as error:
        if status is Status.PASSED:
            status, reason = Status.FAILED, error.message.replace(str(folder), "OUT")
    return Outcome(step, status, exit_code, seconds, reason, figures)


def _cost_figures(folder: Path, aim: float | None) -> dict[str, Any]:
    """Return one row against the limit, called and replayed, and the time of every cell."""
    cost = load_cost(folder)
    facts = cost.facts
    cell = facts.replayed or min(cost.curve.points)
    bound_s = limits(facts, cell).memory_s
    called_s = facts.beside_replay.value if facts.beside_replay else cost.curve.points.get(cell)
    replay_s = facts.replay.value if facts.replay else None
    best_s = min((s for s in (called_s, replay_s) if s is not None), default=None)
    share = bound_s / best_s if bound_s and best_s else None
    return {
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
        "calls": [
            {**asdict(cell), "seconds": seconds}
            for cell, seconds in sorted(cost.curve.points.items())
        ],
        "left_out": [f"{each.cell}: {each.reason}" for each in cost.left_out],
        "complete": facts.complete,
    }


def _run_figures(folder: Path, cost: Path | None) -> dict[str, Any]:
    run = load_run(find_run(_LATEST, folder))
    findings = Findings(run)
    rows = rows_of(findings.summary, ALL)
    return {
        "verdict": findings.verdict,
        "reasons": list(findings.validity.reasons),
        "decoders": [{name: getattr(row, name) for name in _COLUMNS} for row in rows],
        "ar": None if cost is None else _ar_figures(cost, run),
    }


def _ar_figures(folder: Path, run: Any) -> dict[str, Any]:
    try:
        cost = load_cost(folder)
    except BenchError:
        return {"unknown": "the step that measures calls left no cost folder"}
    why = mismatch(cost, run.env)
    limit = None if why else ar_limit(cost, run)
    return {"unknown": why} if limit is None else asdict(limit)


# ---------------------------------------------------------------- writing


def write_summary(folder: Path, outcomes: Sequence[Outcome], *, rehearsal: bool) -> None:
    """Replace summary.json and summary.md."""
    machine = _machine(folder, outcomes)
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
    write_text(folder / "summary.md", "\n".join(_page(outcomes, machine, rehearsal)) + "\n")


def _machine(folder: Path, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Describe the first step that says where it ran."""
    for outcome in outcomes:
        if not outcome.figures or outcome.step.kind == "tests":
            continue
        where = folder / outcome.step.name
        where = find_run(_LATEST, where) if outcome.step.kind == "run" else where
        return _described(read_environment(where))
    return {}


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


def _page(outcomes: Sequence[Outcome], machine: Mapping[str, Any], rehearsal: bool) -> list[str]:
    facts = ", ".join(f"{key} {value}" for key, value in machine.items() if value is not None)
    lines = ["# One GPU, everything once", ""]
    if rehearsal:
        lines += ["**A rehearsal on a CPU: tiny sizes, and no figure of it says anything.**", ""]
    head = ("step", "status", "seconds", "of", "why")
    ended = [
        (o.step.name, o.status.value, f"{o.seconds:.0f}", f"{o.step.budget_s:.0f}", o.reason or "")
        for o in outcomes
    ]
    lines += [markdown(facts or "no step said where it ran"), "", _table(head, ended)]
    costs = [each for each in outcomes if each.step.kind == "cost" and each.figures]
    if costs:
        limited = ("called ms", "replayed ms", "limit ms", "share", "aim", "aim met")
        rows = [_limit_row(each.step.name, each.figures) for each in costs]
        table = _table(("step", "model", *limited), rows)
        lines += ["", "## One row, and what memory allows", "", table]
    for each in costs:
        lines += ["", f"## Calls of {markdown(each.step.name)}, ms", "", _grid(each.figures)]
    for each in outcomes:
        if each.step.kind == "run" and each.figures:
            lines += ["", f"## Run {markdown(each.step.name)}", "", *_run_lines(each.figures)]
    return lines


def _limit_row(name: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    one = figures["one_row"]
    times = [_ms(one[key]) for key in ("called_s", "replay_s", "bandwidth_limit_s")]
    shares = [percent(one[key]) for key in ("share_of_limit", "aim")]
    met = {None: UNKNOWN, True: "yes", False: "no"}[one["aim_met"]]
    return (name, f"{figures['model']}, {figures['dtype']}", *times, *shares, met)


def _grid(figures: Mapping[str, Any]) -> str:
    calls = {(call["rows"], call["sequences"]): call["seconds"] for call in figures["calls"]}
    across = sorted({sequences for _, sequences in calls})
    head = ("rows", *(f"batch {sequences}" for sequences in across))
    down = sorted({rows for rows, _ in calls})
    return _table(head, [(str(r), *(_ms(calls.get((r, s))) for s in across)) for r in down])


def _run_lines(figures: Mapping[str, Any]) -> list[str]:
    lines = [f"{figures['verdict']}. {' '.join(map(markdown, figures['reasons']))}".strip(), ""]
    ar = figures["ar"]
    if ar is not None and "token_s" in ar:
        share = ar["memory_s"] / ar["token_s"] if ar["memory_s"] else None
        times = f"{_ms(ar['token_s'])} ms a token, {_ms(ar['call_s'])} ms a call of the model alone"
        lines += [f"AR takes {times}: {percent(share)} of the bandwidth limit.", ""]
    head = ("decoder", "guarantee", "speed-up", "tokens per call", "ms per token", "as ar")
    rows = [
        (
            str(row["decoder"]),
            row["guarantee"] or UNKNOWN,
            _speedup(row["speedup"], row["speedup_low"], row["speedup_high"]),
            tables.number(row["tokens_per_call"]),
            _ms(row["decode_time_per_token_s"]),
            percent(row["identical_to_ar"]),
        )
        for row in figures["decoders"]
    ]
    return [*lines, _table(head, rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = tuple(tuple(map(tables.TableCell, row)) for row in rows)
    return tables.Table(title="", note="", headings=tuple(head), rows=cells).to_markdown()


def _speedup(value: float | None, low: float | None, high: float | None) -> str:
    known = low is not None and high is not None
    return factor(value) + (f" {tables.interval(low, high)}" if known else "")


def _ms(seconds: float | None) -> str:
    return tables.number(seconds, ".3g", 1e3)

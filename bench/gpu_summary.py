"""What ``make gpu`` measured, step by step: summary.json and summary.md, small enough to commit.

Read from the cost and run folders that its steps left, whatever became of them. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from bench.errors import BenchError
from bench.records.cost import CostCell
from bench.records.environment import Environment, read_environment
from bench.records.files import write_json, write_text
from bench.records.run_folder import find_run, load_run
from bench.report.findings import Findings
from bench.stats.cost_curve import limits, load_cost
from bench.stats.limit import ar_limit, mismatch
from bench.stats.summary import ALL
from bench.stats.summary_row import rows_of
from bench.text import factor, markdown, percent

_SCHEMA = 1
_LATEST = "latest"
_COLUMNS = (
    *("decoder", "guarantee", "speedup", "speedup_low", "speedup_high", "tokens_per_call"),
    *("acceptance_length", "decode_time_per_token_s", "identical_to_ar", "quality", "errors"),
)
"""Of a run's summary."""


class Status(Enum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "failed"
    OUT_OF_TIME = "out of time"
    INTERRUPTED = "interrupted"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command, and what is read from what it leaves.

    Attributes:
        name: of its folder and log.
        kind: what it leaves.
        words: of ``python -m``.
        budget_s: seconds it may take, its start and its end included.
        aim: share of the bandwidth limit that one row is to reach.
        against: the step whose cost folder says how near the run's ar is to the limit.
        left_out: why it is not run.
    """

    name: str
    kind: Literal["tests", "cost", "run"]
    words: tuple[str, ...]
    budget_s: float
    aim: float | None = None
    against: str | None = None
    left_out: str | None = None

    def command(self, folder: Path) -> str:
        """As it is typed; where it writes to is called OUT."""
        return " ".join(self.words).replace(str(folder), "OUT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a step ended, why, and its figures."""

    step: Step
    status: Status
    exit_code: int | None = None
    seconds: float = 0.0
    reason: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether nothing went wrong: an aim that is missed is a result, not a failure."""
        return self.status in (Status.PASSED, Status.LEFT_OUT)


def read_outcome(
    step: Step, folder: Path, status: Status, exit_code: int | None, seconds: float
) -> Outcome:
    """What a step that was run left in `folder`; one that passed and left nothing has failed."""
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
    return Outcome(
        step=step,
        status=status,
        exit_code=exit_code,
        seconds=seconds,
        reason=reason,
        figures=figures,
    )


def _cost_figures(folder: Path, aim: float | None) -> dict[str, Any]:
    """One row against the limit, called and replayed, and the time of every cell."""
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
        "calls": [_call(cell, seconds) for cell, seconds in sorted(cost.curve.points.items())],
        "left_out": [f"{each.cell}: {each.reason}" for each in cost.left_out],
        "complete": facts.complete,
    }


def _call(cell: CostCell, seconds: float) -> dict[str, Any]:
    return {**asdict(cell), "seconds": seconds}


def _run_figures(folder: Path, cost: Path | None) -> dict[str, Any]:
    """The verdict, a row for each decoder, and ar beside what a call costs."""
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
    """Replace summary.json and summary.md.

    Raises:
        BenchError: it cannot be written (exit 1).
    """
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
    """Of the first step that says where it ran."""
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
    lines += [markdown(facts or "no step said where it ran"), ""]
    lines += _table(
        ("step", "status", "seconds", "of", "why"),
        [
            (
                each.step.name,
                each.status.value,
                f"{each.seconds:.0f}",
                f"{each.step.budget_s:.0f}",
                each.reason or "",
            )
            for each in outcomes
        ],
    )
    costs = [each for each in outcomes if each.step.kind == "cost" and each.figures]
    if costs:
        lines += ["", "## One row, and what memory allows", ""]
        head = ("step", "model", "called ms", "replayed ms", "limit ms", "share", "aim", "aim met")
        lines += _table(head, [_limit_row(each) for each in costs])
    for each in costs:
        lines += ["", f"## Calls of {markdown(each.step.name)}, ms", "", *_grid(each.figures)]
    for each in outcomes:
        if each.step.kind == "run" and each.figures:
            lines += ["", f"## Run {markdown(each.step.name)}", "", *_run_lines(each.figures)]
    return lines


def _limit_row(outcome: Outcome) -> tuple[str, ...]:
    figures, one = outcome.figures, outcome.figures["one_row"]
    met = one["aim_met"]
    return (
        outcome.step.name,
        f"{figures['model']}, {figures['dtype']}",
        _ms(one["called_s"]),
        _ms(one["replay_s"]),
        _ms(one["bandwidth_limit_s"]),
        percent(one["share_of_limit"]),
        percent(one["aim"]),
        "-" if met is None else "yes" if met else "no",
    )


def _grid(figures: Mapping[str, Any]) -> list[str]:
    """Rows down, sequences across."""
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
            row["guarantee"] or "-",
            _interval(row["speedup"], row["speedup_low"], row["speedup_high"]),
            _number(row["tokens_per_call"]),
            _ms(row["decode_time_per_token_s"]),
            percent(row["identical_to_ar"]),
        )
        for row in figures["decoders"]
    ]
    return lines + _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[markdown(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    ends = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return factor(value) + ends


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3g}"

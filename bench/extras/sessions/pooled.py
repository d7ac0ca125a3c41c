"""Combine sessions of one job into one estimate (pool.csv, pool.md, pool.tex): `bench pool`.

Sessions are runs of the same work, on any day, machine and commit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import compress, islice
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from bench.errors import Exit, UnavailableError
from bench.extras.paper.table import packaged
from bench.extras.paper.write import conditions
from bench.extras.sections.estimators import prompt_table
from bench.extras.sessions.pool import MIN_SESSIONS, Pooled, pool_logs
from bench.extras.together.runs import CIRCUMSTANCES, identity, refuse_invalid, refuse_twice
from bench.records.environment import Environment
from bench.records.files import write_files
from bench.records.frames import csv_bytes
from bench.records.plan import SECOND, STATUS, guarantee_rank
from bench.report.tables.setting import describe_model, hardware
from bench.report.tables.table import Columns, Table, against_floor, estimated, interval, number
from bench.settings.config import RunConfig
from bench.stats.counters import group_by
from bench.stats.folders import run_folders
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.metric import CellData
from bench.stats.side import RunSnapshot, load_side
from bench.stats.summary import ALL
from bench.stats.validity import INCOMPLETE
from bench.text import UNKNOWN, counted, factor, latex, markdown, percent, portable

_SHOWN = {"started", "verdict", "comparability key", "hardware", "threads"}
"""Circumstances that the tables already show, or that follow from others."""
_NOTE = (
    "Speed-up over {}: geometric mean of paired, end-to-end time per token, with an interval over "
    "prompts and sessions; bold if it excludes 1 and exceeds the A/A floor. Next session: interval "
    "predicted for another session of these prompts on this machine, and on no other. SD: standard "
    "deviation of sessions, as a factor. Predicted: sessions inside the interval predicted from "
    "all other occasions (from all other sessions, if there is only one)."
)
POOL = "pool.csv"
EVERY = "all"
"""Stands for all machines of a pool, whose next session is not predicted."""
_PAUSE = timedelta(minutes=10)
"""A longer pause between two sessions of a machine begins another occasion."""


def machine(env: Environment) -> str:
    """Return what identifies a machine: processor (with instructions) or GPU, and threads."""
    cpu, num = env.machine, env.torch.threads
    facts = [f"{UNKNOWN} threads" if num is None else counted(num, "thread")]
    if not env.gpu_name:
        unclear = cpu.architecture == "x86_64" and "family" not in str(cpu.cpu)
        facts += [*(cpu.instructions or ()), *["family not recorded"] * unclear]
    return portable(", ".join([hardware(env) or UNKNOWN, *facts]))


@dataclass(frozen=True)
class PooledRun:
    """Hold one of the pooled runs."""

    side: RunSnapshot

    @cached_property
    def by_prompt(self) -> pd.DataFrame:
        """Speed-ups by decoder and prompt, see `bench.extras.sections.estimators.prompt_table`."""
        plan, records = self.side.plan, self.side.records
        data, answers = partial(CellData, family=ALL, over=plan.baseline), group_by(records)
        cells = [data(decoder=c.cell, cell=c, records=answers.get(c.cell, ())) for c in plan.cells]
        return prompt_table(records, [each.decoder for each in cells if not each.no_speedup])

    @property
    def machine(self) -> str:
        """Processor (with its instructions) or GPU and threads, by which machines differ."""
        return machine(self.side.env)

    @property
    def start(self) -> str:
        """The start of the session (UTC), to the minute."""
        return (self.side.status.started_utc or UNKNOWN)[:16].replace("T", " ")

    def follows(self, before: PooledRun) -> bool:
        """Return whether this session began soon after another ended, or a time is unknown."""
        start, end = self.side.status.started_utc, before.side.status.finished_utc
        if start is None or end is None:
            return True
        return datetime.fromisoformat(start) - datetime.fromisoformat(end) < _PAUSE

    def mean(self, decoder: str, column: str) -> float:
        """Return the geometric mean of a column of `by_prompt`."""
        rows = self.by_prompt[self.by_prompt["decoder"] == decoder]
        return float(np.exp(np.log(rows[column]).mean()))


@dataclass(frozen=True)
class Pool:
    """Hold sessions to pool, with the runs and decoders that are left out."""

    sessions: Sequence[PooledRun]
    left_out: tuple[str, ...] = ()

    @cached_property
    def decoders(self) -> dict[str, tuple[str, Pooled]]:
        """Guarantee and estimate of each decoder in all sessions, strongest guarantee first."""
        guarantees = {each.cell: each.guarantee for each in self.sessions[0].side.plan.cells}
        kept = [name for name in guarantees if self._in_all(name) and name not in self.wrong]
        kept.sort(key=lambda name: guarantee_rank(guarantees[name]))
        return {name: (guarantees[name], self._pooled(name)) for name in kept}

    @property
    def baseline(self) -> str:
        """The cell to which speed-ups refer."""
        return self.sessions[0].side.plan.baseline

    @cached_property
    def floor(self) -> Estimate:
        """The A/A floor over all sessions."""
        second = self.baseline + SECOND
        return self._pooled(second).mean if self._in_all(second) else Estimate()

    @cached_property
    def wrong(self) -> set[str]:
        """Decoders that wrongly claim to be lossless, in any session."""
        return {cell for session in self.sessions for cell in session.side.status.wrong}

    @cached_property
    def occasions(self) -> list[str]:
        """Number the sessions' occasions: series on one machine without a long pause."""
        numbers, last = list[str](), dict[str, tuple[PooledRun, str]]()
        for session in self.sessions:
            before, number = last.get(session.machine, (None, ""))
            if before is None or not session.follows(before):
                number = str(len(set(numbers)) + 1)
            last[session.machine] = session, number
            numbers.append(number)
        return numbers

    @property
    def machines(self) -> list[str]:
        """The machines, in the order of their first sessions."""
        return list(dict.fromkeys(session.machine for session in self.sessions))

    @cached_property
    def by_machine(self) -> dict[str, Pool]:
        """All sessions, if of several machines, then the sessions of each that has enough."""
        pools = {} if len(self.machines) == 1 else {EVERY: self}
        for name in self.machines:
            sessions = [session for session in self.sessions if session.machine == name]
            if len(sessions) >= MIN_SESSIONS:
                pools[name] = Pool(sessions) if pools else self
        return pools

    @property
    def days(self) -> set[str]:
        """The days (UTC) on which sessions began."""
        return {session.start[:10] for session in self.sessions}

    @property
    def title(self) -> str:
        """Count the sessions, occasions, days, machines and prompts, and name the machines."""
        prompts = max(pooled.mean.num for _, pooled in self.decoders.values())
        occasions = len(set(self.occasions))
        counts = zip(
            (len(self.sessions), occasions, prompts, len(self.days), len(self.machines)),
            ("session", "occasion", "prompt", "UTC date", "machine"),
            strict=True,
        )
        return f"{', '.join(counted(*each) for each in counts)}: {'; '.join(self.machines)}"

    @property
    def notes(self) -> list[str]:
        """State the A/A floor, the sessions' differences, and the omitted runs and decoders."""
        facts = [identity(session.side) for session in self.sessions]
        values = {key: dict.fromkeys(str(each.get(key)) for each in facts) for key in facts[0]}
        floor = [f"A/A noise floor: {estimated(self.floor)}."] if self.floor.value else []
        if len(self.sessions) == MIN_SESSIONS:
            line = "Two sessions say little about a third, and no other is left to check"
            floor.append(f"{line} the prediction (Predicted: -): measure more.")
        if len(set(self.occasions)) == 1:
            floor.append(
                "All sessions are one occasion and share the machine's state: the next session may "
                "differ more on another (`bench run --sessions N --every MINUTES`)."
            )
        lone = [name for name in self.machines if name not in self.by_machine]
        floor += [f"{name}: one session, which predicts none." for name in lone]
        differing = [
            f"{key}: {', '.join(each)}"
            for key, each in values.items()
            if len(each) > 1 and key in CIRCUMSTANCES - _SHOWN
        ]
        return [*floor, *differing, *self.left_out]

    def _in_all(self, decoder: str) -> bool:
        return all((session.by_prompt["decoder"] == decoder).any() for session in self.sessions)

    def _pooled(self, decoder: str) -> Pooled:
        """Pool one decoder over the prompts that every session answered."""
        rows = pd.concat([s.by_prompt.assign(session=i) for i, s in enumerate(self.sessions)])
        rows = rows[(rows["decoder"] == decoder) & (rows["speedup"] > 0)]
        ratios = rows.pivot(index="session", columns="prompt", values="speedup").dropna(axis=1)
        if ratios.empty or len(ratios) < len(self.sessions):
            raise UnavailableError(f"{decoder} has no prompt that every session answered")
        conversations = rows.drop_duplicates("prompt").set_index("prompt")["conversation"]
        named = list(conversations[ratios.columns])
        return pool_logs(np.log(ratios.to_numpy()), self.occasions, named)


def load_pool(names: Sequence[str], parent: Path) -> Pool:
    """Load runs, or folders of runs, without incomplete runs.

    Raises:
        BenchError: a name is not a run, or is given twice (exit 2); a run is damaged or invalid
            (4); a run measured another job, or fewer than two runs or no shared decoder remain (5).
    """
    sides = [load_side(str(run), parent) for name in names for run in list_runs(name, parent)]
    lost = [s for s in sides if s.verdict == INCOMPLETE and not s.status.complete]
    left_out = [f"{side.name} did not end" for side in lost]
    ended = [side for side in sides if side not in lost]
    ended.sort(key=lambda side: side.status.started_utc or "")
    for i, side in enumerate(ended):
        refuse_invalid(side)
        for before in ended[:i]:
            refuse_twice(before, side)
        if i and (different := list(unlike(ended[0], side))):
            line = f"{ended[0].name} and {side.name} cannot be pooled: {'; '.join(different)}"
            raise UnavailableError(portable(line))
    if len(ended) < MIN_SESSIONS:
        line = f"pooling needs {MIN_SESSIONS} or more sessions that ended, and got {len(ended)}"
        raise UnavailableError("; ".join([line, *left_out]))
    pool = Pool([PooledRun(side) for side in ended])
    baseline = ended[0].plan.baseline
    if not set(pool.decoders) - {baseline}:
        raise UnavailableError(f"no decoder except {baseline} is in all {len(ended)} sessions")
    for cell in dict.fromkeys(cell for side in ended for cell in side.cells):
        if cell in pool.wrong:
            left_out.append(f"{cell} claims to be lossless and is not")
        elif cell not in (baseline, *pool.decoders):
            left_out.append(f"{cell} has no speed-up in some session")
    return Pool(pool.sessions, tuple(f"Left out: {line}." for line in left_out))


def list_runs(name: str, parent: Path) -> list[str]:
    """Return the runs in a folder that is not itself a run, or else the name."""
    for folder in (Path(name), parent / name):
        runs = [str(run) for run in run_folders(folder)]
        if runs and not (folder / STATUS).is_file():
            return runs
    return [name]


def unlike(first: RunSnapshot, other: RunSnapshot) -> Iterator[str]:
    """Yield differences between the jobs of two sessions, with defaults for missing settings."""
    fields = RunConfig.model_fields.items()
    usual = {name.replace("_", " "): str(field.default) for name, field in fields}
    jobs = _job(first, other), _job(other, first)
    for key in jobs[0] | jobs[1]:
        one, two = (facts.get(key, usual.get(key)) for facts in jobs)
        if one != two and None not in (one, two):
            yield f"{key} is {one} in one and {two} in the other"
    prompts, other_prompts = (
        {prompt.prompt: prompt.hash for prompt in side.plan.in_pass("timing")}
        for side in (first, other)
    )
    if prompts != other_prompts:
        yield "their prompts differ"


def _job(side: RunSnapshot, other: RunSnapshot) -> dict[str, str]:
    """Return the job of a run: its identity without circumstances, and decoder options."""
    less = CIRCUMSTANCES | {"quality limit"}  # which affects no times
    facts = {key: value for key, value in identity(side).items() if key not in less}
    if side.env.device:
        facts["kind of device"] = side.env.device.partition(":")[0]
    for cell in side.cells.keys() & other.cells.keys():
        facts |= {f"{key} of {cell}": value for key, value in side.cells[cell].items()}
    return facts


def write_pool(pool: Pool, folder: Path) -> list[Path]:
    """Write pool.csv, pool.md and pool.tex into a folder (`BenchError` if it cannot be written)."""
    tables = [f"{each.to_markdown()}\n\n{each.note}" for each in (table(pool), sessions(pool))]
    texts = [f"# {pool.title}", *tables, *(f"* {markdown(line)}" for line in pool.notes)]
    files = {POOL: csv_bytes(frame(pool)), "pool.md": "\n\n".join(texts).encode() + b"\n"}
    return write_files(folder, files | {"pool.tex": to_latex(pool).encode()})


def to_latex(pool: Pool) -> str:
    """Return the table of pooled estimates as LaTeX, with a group of rows by machine."""
    shown, side, lines = table(pool), pool.sessions[0].side, list[str]()
    kept, rows = [name != "machine" for name in shown.headings], iter(shown.rows)
    for place, part in pool.by_machine.items():
        lines.append(r"\midrule")
        if len(pool.by_machine) > 1:
            name = latex("all machines" if place == EVERY else place)
            lines.append(rf"\multicolumn{{{sum(kept)}}}{{@{{}}l}}{{\emph{{{name}}}}} \\")
        for row in islice(rows, len(part.decoders)):
            texts = [latex("--" if cell.text == UNKNOWN else cell.text) for cell in row]
            bold = [rf"\textbf{{{t}}}" if c.bold else t for t, c in zip(texts, row, strict=True)]
            lines.append(" & ".join(compress(bold, kept)) + r" \\")
    floor = f" A/A noise floor: {estimated(pool.floor)}." if pool.floor.value else ""
    job = ", ".join([describe_model(side), *conditions(side)])
    return Template(packaged("table.tex")).substitute(
        star="*",
        caption=latex(portable(f"Decoders of {job}; {pool.title}. {shown.note}{floor}")),
        label="pool",
        shapes="".join(compress(("l" if words else "r" for words in shown.words[1:]), kept[1:])),
        headings=" & ".join(compress((latex(n[0].upper() + n[1:]) for n in shown.headings), kept)),
        body="\n".join(lines),
    )


def print_pool(pool: Pool, console: Console) -> Exit:
    """Print the pooled estimates, and return the exit code (3 if a decoder is wrong)."""
    shown = table(pool)
    console.print(Text(pool.title, style="bold"))
    console.print(*shown.to_blocks(console, {n: n.replace(" ", "\n", 1) for n in shown.headings}))
    for line in (shown.note, *pool.notes):
        console.print(Text(line, style="yellow" if line in pool.left_out else "dim"))
    return Exit.REGRESSION if pool.wrong else Exit.DONE


def frame(pool: Pool) -> pd.DataFrame:
    """Return the pooled estimates, one row per machine and decoder."""
    return pd.DataFrame(
        {
            "decoder": name,
            "machine": place,
            "guarantee": guarantee,
            "sessions": len(part.sessions),
            "occasions": len(set(part.occasions)),
            "days": len(part.days),
            "machines": len(part.machines),
            "prompts": pooled.mean.num,
            "conversations": pooled.mean.clusters,
            **pooled.mean.columns("speedup"),
            "next_low": None if place == EVERY else pooled.next.low,
            "next_high": None if place == EVERY else pooled.next.high,
            "session_sd": pooled.spread,
            "predicted": pooled.held_out,
            "predicted_inside": pooled.inside,
        }
        for place, part in pool.by_machine.items()
        for name, (guarantee, pooled) in part.decoders.items()
    )


def table(pool: Pool) -> Table:
    """Make the table of pooled estimates by decoder, and by machine if there are several."""
    columns: Columns = {
        "decoder": lambda row: row.decoder,
        "machine": lambda row: row.machine,
        "guarantee": lambda row: row.guarantee,
        f"speed-up [{LEVEL}]": lambda row: against_floor(
            (part := pool.by_machine[row.machine]).decoders[row.decoder][1].mean, part.floor
        ),
        f"next session [{LEVEL}]": lambda row: interval(row.next_low, row.next_high),
        "sessions' SD": lambda row: factor(math.exp(row.session_sd), ""),
        "predicted": lambda row: (
            f"{row.predicted_inside} of {row.predicted}" if row.predicted else UNKNOWN
        ),
    }
    if len(pool.by_machine) == 1:
        del columns["machine"]
    return Table.of("Pooled", _NOTE.format(pool.baseline), columns, frame(pool).itertuples())


def sessions(pool: Pool) -> Table:
    """Make the table of speed-ups by session."""
    any_decoder = next(iter(pool.decoders))
    occasions = dict(zip(map(id, pool.sessions), pool.occasions, strict=True))
    columns: Columns = {
        "session": lambda each: each.side.name,
        "occasion": lambda each: occasions[id(each)],
        "began": lambda each: each.start,
        "machine": lambda each: each.machine,
        f"{pool.baseline} ms per token": lambda each: number(
            each.mean(any_decoder, "ar_time_per_token_s"), scale=1e3
        ),
        "drift": lambda each: percent(each.side.status.drift),
    }

    def speedup(session: PooledRun, decoder: str) -> str:
        return factor(session.mean(decoder, "speedup"))

    columns |= {name: partial(speedup, decoder=name) for name in pool.decoders}
    note = (
        "Geometric means over a session's prompts. Occasion: sessions without a pause of ten "
        f"minutes between them. Drift: how much slower {pool.baseline} became within the session."
    )
    return Table.of("Sessions", note, columns, pool.sessions)

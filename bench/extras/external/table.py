"""Store another engine's answers to a run's prompts, and report their statistics in a section.

The answers are stored in the run folder, in the append-only ``external.jsonl``, one per line, but
the plan, the verdict and the speed-ups of the run never use them. Each `bench external` command is
a new `session`. There are no ratios to the run's own decoders, because only those decoders ran
interleaved under this harness's loop and clock.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records.files import SCHEMA, append_text, check_schema, parse
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.records.samples import intact_lines
from bench.report.sections import Section
from bench.report.tables.table import Columns, Table, TableCell, number
from bench.settings.bounds import Num, RealOrInt, Time, TokenId
from bench.stats.counters import ratio
from bench.text import UNKNOWN, percent

EXTERNAL = "external.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAnswer:
    """One answer of another engine, in one of its modes, to one prompt of the run.

    Attributes:
        session: number of the `bench external` command that measured the answer, from 0.
        engine: name of the engine, e.g. ``llamacpp``.
        version: version of the engine's package.
        mode: ``ar``, or one of the engine's speculative modes.
        options: options of the mode.
        model: name of the model's file or folder, without its path.
        prompt: name of the run's prompt.
        prompt_hash: hash of the prompt's ids.
        threads: number of CPU threads, if one was set for the engine.
        tokens: ids of the answer, end token included.
        total_s: seconds from the request to the last token.
        calls: forward passes of the model, the prompt's included.
        drafted: number of drafted tokens.
        accepted: number of drafts that were accepted into the answer.
        num_tokens: length of the answer, if its ids are unknown.
        num_steps: number of steps that verified drafts, if the engine counts them.
        error: the reason why the request failed; all measurements are then None.
        schema: schema of this file.
    """

    session: Num
    engine: str
    version: str
    mode: str
    options: dict[str, str | RealOrInt | bool | None]
    model: str
    prompt: str
    prompt_hash: str
    threads: Num | None = None
    tokens: tuple[TokenId, ...] | None = None
    total_s: Time | None = None
    calls: Num | None = None
    drafted: Num | None = None
    accepted: Num | None = None
    num_tokens: Num | None = None
    num_steps: Num | None = None
    error: str | None = None
    schema: Num = SCHEMA

    @property
    def name(self) -> str:
        """Engine and mode, as shown in tables."""
        return f"{self.engine}:{self.mode}"


def read_external(run_dir: Path) -> tuple[ExternalAnswer, ...]:
    """Read answers in measured order (raises as `intact_lines`, `check_schema` and `parse`)."""
    path = run_dir / EXTERNAL
    answers = []
    for line, _ in intact_lines(path):
        check_schema(path, line)
        answers.append(parse(ExternalAnswer, line, path))
    return tuple(answers)


def append_external(run_dir: Path, answer: ExternalAnswer) -> None:
    """Append one answer as one line (`BenchError` if writing fails)."""
    line = json.dumps(dataclasses.asdict(answer), ensure_ascii=False, separators=(",", ":"))
    append_text(run_dir / EXTERNAL, line + "\n")


def next_session(answers: Sequence[ExternalAnswer]) -> int:
    """Return the number of the session that follows these answers."""
    return max((answer.session for answer in answers), default=-1) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSums:
    """Hold statistics of one engine in one mode, with None for unknown values.

    `first` is the first answer. `tokens_per_call` counts the prompt's forward pass as a call.
    `tokens_per_step` is 1 + accepted drafts / steps that verified drafts. `identical` is the share
    of the `compared` answers whose ids equal ar's.
    """

    first: ExternalAnswer
    prompts: int
    errors: int
    tokens_per_s: float | None
    tokens_per_call: float | None
    tokens_per_step: float | None
    acceptance_rate: float | None
    compared: int
    identical: float | None


def engine_sums(
    answers: Sequence[ExternalAnswer], records: Iterable[SampleRecord]
) -> list[EngineSums]:
    """Summarise the newest session of each engine, mode, options and model, in order."""
    baseline = {
        (record.prompt, record.prompt_hash): record.tokens
        for record in records
        if record.kind == "timing" and record.decoder == BASELINE and record.tokens is not None
    }
    sessions: dict[object, dict[int, list[ExternalAnswer]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        options = tuple(sorted(answer.options.items()))
        sessions[answer.name, options, answer.model][answer.session].append(answer)
    return [_sums(each[max(each)], baseline) for each in sessions.values()]


def _sums(
    answers: Sequence[ExternalAnswer], baseline: dict[tuple[str, str], tuple[int, ...]]
) -> EngineSums:
    done = [answer for answer in answers if answer.error is None]
    emitted = sum(len(answer.tokens or ()) or answer.num_tokens or 0 for answer in done)
    accepted, steps = (sum(getattr(a, n) or 0 for a in done) for n in ("accepted", "num_steps"))
    same = [
        answer.tokens == baseline[answer.prompt, answer.prompt_hash]
        for answer in done
        if (answer.prompt, answer.prompt_hash) in baseline
    ]
    calls = [answer.calls for answer in done]
    return EngineSums(
        first=answers[0],
        prompts=len(done),
        errors=len(answers) - len(done),
        tokens_per_s=ratio(emitted, sum(answer.total_s or 0.0 for answer in done)),
        tokens_per_call=ratio(emitted, 0 if None in calls else sum(n or 0 for n in calls)),
        tokens_per_step=1 + accepted / steps if steps else None,
        acceptance_rate=ratio(accepted, sum(a.drafted or 0 for a in done)),
        compared=len(same),
        identical=ratio(sum(same), len(same)),
    )


_NOTE = (
    "Other engines, with their own loops, caches, kernels and weights, on this run's prompts one "
    "at a time. They were measured separately from the run: no row is paired with ar or "
    "has a speed-up or an interval. Tokens/s: emitted tokens / end-to-end seconds, summed. Tokens "
    "per call: emitted tokens / forward passes, prefill included, from the engine's counters; per "
    "step: 1 + accepted drafts / steps that verified drafts. "
    "Same ids as ar: share of the prompts that ar answered in this run."
)
_COLUMNS: Columns = {
    "other engine": lambda s: f"{s.first.name} (other engine)",
    "version": lambda s: s.first.version,
    "options": lambda s: " ".join(f"{k}={v}" for k, v in s.first.options.items()) or UNKNOWN,
    "model": lambda s: s.first.model,
    "threads": lambda s: number(s.first.threads, ".0f"),
    "prompts": lambda s: str(s.prompts),
    "tokens/s": lambda s: number(s.tokens_per_s, ".1f"),
    "tokens per call": lambda s: number(s.tokens_per_call),
    "tokens per step": lambda s: number(s.tokens_per_step),
    "accepted %": lambda s: percent(s.acceptance_rate, ""),
    "same ids as ar %": lambda s: (
        percent(s.identical, "") + f" (n = {s.compared})" * (s.compared > 0)
    ),
    "errors": lambda s: TableCell(str(s.errors), bad=s.errors > 0),
}


def other_engines(answers: Sequence[ExternalAnswer], records: Iterable[SampleRecord]) -> Table:
    """Make the table of other engines."""
    return Table.of("Other engines", _NOTE, _COLUMNS, engine_sums(answers, records))


SECTION = Section(
    "engines",
    lambda f: [other_engines(read_external(f.run.path), f.run.records)],
    is_open=True,
)

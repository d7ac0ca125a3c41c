"""Statistics of another engine's answers, their table, and its section of the report.

There are no ratios to the run's own decoders: only those ran interleaved under this harness's loop
and clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.extras.external.answers import ExternalAnswer, read_external
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.report.findings import Findings
from bench.report.sections import Section
from bench.report.tables.table import Columns, Table, TableCell, number
from bench.stats.counters import ratio
from bench.text import UNKNOWN, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSums:
    """Statistics of one engine in one mode, with None for unknown values.

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
    """Summarise each engine, mode, options and model, in the order of first measurement.

    Only the session with the most successful answers counts; in a tie, the latest.
    """
    baseline = {
        (record.prompt, record.prompt_hash): record.tokens
        for record in records
        if record.kind == "timing" and record.decoder == BASELINE and record.tokens is not None
    }
    sessions: dict[object, dict[int, list[ExternalAnswer]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        options = tuple(sorted(answer.options.items()))
        sessions[answer.name, options, answer.model][answer.session].append(answer)

    def fullest(each: tuple[int, list[ExternalAnswer]]) -> tuple[int, int]:
        session, answered = each
        return sum(answer.error is None for answer in answered), session

    return [_sums(max(each.items(), key=fullest)[1], baseline) for each in sessions.values()]


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


def other_engines(
    answers: Sequence[ExternalAnswer], records: Iterable[SampleRecord]
) -> Table | None:
    """Make the table of other engines, if one was measured."""
    return Table.of("Other engines", _NOTE, _COLUMNS, engine_sums(answers, records))


def _tables(findings: Findings) -> list[Table | None]:
    return [other_engines(read_external(findings.run.path), findings.run.records)]


SECTION = Section("engines", _tables, is_open=True)

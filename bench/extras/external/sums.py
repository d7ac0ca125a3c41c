"""Statistics of another engine's answers: tokens per second, tokens per call, equality with ar.

There are no ratios to the run's own decoders: only those ran interleaved under this harness's loop
and clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.extras.external.answers import ExternalAnswer
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.stats.counters import ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSums:
    """Statistics of one engine in one mode; unknown values are None.

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

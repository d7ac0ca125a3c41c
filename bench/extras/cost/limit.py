"""A machine's limit on decoding speed, and a run's distance from it, from a cost folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.compare.pair import SHAPE
from bench.extras.cost.curve import Cost
from bench.extras.cost.records import CostCell
from bench.records.environment import Environment
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.records.run_folder import Run
from bench.stats import times
from bench.stats.counters import ratio, timed


def mismatch(cost: Cost, env: Environment) -> str | None:
    """Return why a run's times cannot be compared with a cost folder, if so."""
    facts = env.models.target or {}
    for name in SHAPE:
        expected, value = cost.facts.target.get(name), facts.get(name)
        if value != expected:
            return f"it describes another model ({name} is {expected}, in the run {value})"
    if bool(cost.facts.target.get("compiled")) != bool(facts.get("compiled")):
        return "calls were compiled in one of them, and ran eagerly in the other"
    if cost.env.comparability_key != env.comparability_key:
        return "it was measured on another machine or setup (dtype and threads included)"
    return None


def mean_context(records: Sequence[SampleRecord]) -> float | None:
    """Return the mean number of cached tokens at the start of ar's later calls."""
    calls, seen = 0, 0.0
    for record in timed(records):
        if record.decoder == BASELINE and record.steps is not None:
            later = len(record.steps.emitted) - 1
            calls += later
            seen += later * (record.num_prompt_tokens + (later - 1) / 2)
    return ratio(seen, calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArLimit:
    """ar's seconds per token after the first, and three lower limits (None: not measured).

    `call_s` is the time of a model call, `replay_s` the call without Python, `memory_s` its bytes /
    bandwidth.
    """

    context: float
    token_s: float
    call_s: float
    replay_s: float | None
    memory_s: float | None


def ar_limit(cost: Cost, run: Run) -> ArLimit | None:
    """Compare ar's time with its limits, if an answer was decoded unbatched."""
    records = [record for record in run.records if record.decoder == BASELINE]
    token_s = times.decode_time_per_token_s(times.timed_units(records))
    context = mean_context(records)
    if token_s is None or context is None:
        return None
    facts, call_s, replay_s = cost.facts, cost.curve.seconds(1, context), None
    if facts.replay is not None and facts.beside_replay is not None:
        # a replay saves Python, which does not grow with the context
        saved_s = facts.beside_replay.value - facts.replay.value
        replay_s = max(facts.replay.value, call_s - saved_s)
    return ArLimit(
        context=context,
        token_s=token_s,
        call_s=call_s,
        replay_s=replay_s,
        memory_s=facts.memory_s(CostCell(rows=1, sequences=1, context=round(context))),
    )

"""State a machine's rates and limit on decoding speed, and a run's distance from the limit."""

from __future__ import annotations

from collections.abc import Sequence

from bench.extras.cost.curve import Cost
from bench.extras.cost.records import CostCell, CostFacts
from bench.records.environment import Environment
from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.records.run_folder import Run
from bench.stats import times
from bench.stats.counters import ratio, timed
from bench.stats.validity import MAX_OTHER_CORES
from bench.text import percent

_SHAPE = ("architecture", "layers", "hidden_size", "vocab_size", "parameters")
"""Model facts that, with dtype and machine, determine a call's cost (weight values do not)."""


def machine_lines(facts: CostFacts) -> list[str]:
    """State what a call reads, the machine's rates, and other load if there was any."""
    num_bytes = facts.work.weight_bytes
    size = f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
    lines = [
        f"{facts.name}: a call reads {size} of weights and "
        f"{facts.work.token_bytes} bytes per cached token"
    ]
    rates = (
        (facts.bandwidth, "matrix-vector products over matrices as large as the weights", "B"),
        (facts.matrix_rate, "a product of large matrices", "op"),
    )
    for rate, name, unit in rates:
        if rate is not None:
            low, high = rate.low, (rate.high or 0) / 1e9
            ends = "" if low is None else f" [{low / 1e9:.3g}, {high:.3g}]"
            lines.append(f"{name}: {rate.value / 1e9:.3g}{ends} G{unit}/s")
    if facts.other_cores is not None and facts.other_cores.value > MAX_OTHER_CORES:
        busy = f"{facts.other_cores.value:.1f} cores"
        lines.append(f"the machine was busy: other processes took {busy}, so times are noisy")
    return lines


def mismatch(cost: Cost, env: Environment) -> str | None:
    """Return a reason why a run's times cannot be compared with a cost folder, if there is one."""
    facts = env.models.target or {}
    for name in _SHAPE:
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


def limit_lines(run: Run, cost: Cost) -> list[str]:
    """State ar's share of the machine's limit (limit / measured), or why it is unknown."""
    name, why = cost.path.resolve().name, mismatch(cost, run.env)
    if why is not None:
        return [f"{name} cannot tell how near ar is to this machine's limit: {why}."]
    records = [record for record in run.records if record.decoder == BASELINE]
    token_s = times.decode_time_per_token_s(times.timed_units(records))
    context = mean_context(records)
    if token_s is None or context is None:
        return [
            f"How near ar is to the limit is unknown: {name} measures one sequence at a time, and "
            "this run has no such times."
        ]
    facts, call_s = cost.facts, cost.curve.seconds(1, context)
    cell = CostCell(rows=1, sequences=1, context=round(context))
    limits = {
        "reading weights and cache once": facts.memory_s(cell),
        "only calling the model": call_s,
    }
    shares = [
        f"{percent(seconds / token_s)} for {bound} ({1e3 * seconds:.2f} ms)"
        for bound, seconds in limits.items()
        if seconds is not None
    ]
    return [
        f"ar took {1e3 * token_s:.2f} ms per token after the first, with {context:.0f} tokens in "
        f"the cache on average: it reads {facts.work.num_bytes(cell) / token_s / 1e9:.3g} GB/s. "
        f"Limit / measured: {'; '.join(shares)}."
    ]

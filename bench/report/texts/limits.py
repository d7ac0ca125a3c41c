"""How much of the machine's limit a run's ar reaches, in a sentence. No torch here."""

from __future__ import annotations

from bench.records.run_folder import Run
from bench.stats.cost_curve import Cost
from bench.stats.limit import ArLimit, ar_limit, mismatch
from bench.text import percent


def cost_name(cost: Cost | None) -> str:
    """What a cost folder is called."""
    return "" if cost is None else cost.path.resolve().name


def limit_lines(run: Run, cost: Cost) -> list[str]:
    """Ar's share of what the machine allows, or why it cannot be said."""
    why = mismatch(cost, run.env)
    if why is not None:
        return [f"{cost_name(cost)} does not say how near ar is to this machine's limit: {why}."]
    found = ar_limit(cost, run)
    if found is None:
        return [
            f"How near ar is to the limit is not known: {cost_name(cost)} is about one "
            "sequence at a time, and this run has no such times."
        ]
    return [_sentence(found)]


def _sentence(found: ArLimit) -> str:
    """Shares are limit / measured: 100 % would be as fast as that."""
    parts = []
    if found.memory_s is not None:
        parts.append(_share(found, found.memory_s, "reading weights and cache once"))
    if found.replay_s is not None:
        parts.append(_share(found, found.replay_s, "replaying one captured call"))
    parts.append(_share(found, found.call_s, "a call of the model alone"))
    return (
        f"ar took {1e3 * found.token_s:.2f} ms per token after the first, with {found.context:.0f} "
        f"tokens in the cache on average. Its share of the limit: {'; '.join(parts)}."
    )


def _share(found: ArLimit, seconds: float, what: str) -> str:
    return f"{percent(seconds / found.token_s)} by {what} ({1e3 * seconds:.2f} ms)"

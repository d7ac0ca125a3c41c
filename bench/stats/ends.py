"""Where answers end: at the limit, or at an end token that a run of a fixed length ignores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.records.record import SampleRecord
from bench.stats.counters import group_by


def cut_share(records: Sequence[SampleRecord]) -> float | None:
    """Return the share of answers that the limit of new tokens cut, or None without answers."""
    stops = [record.stop for record in records if record.error is None and record.stop is not None]
    return sum(stop == "length" for stop in stops) / len(stops) if stops else None


def behind_share(records: Sequence[SampleRecord]) -> float:
    """Return the share of tokens that follow an answer's end token."""
    total = sum(len(record.tokens or ()) for record in records)
    return sum(record.num_behind or 0 for record in records) / total if total else 0.0


def lines(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Iterator[str]:
    """Say which share of answers the limit cut, or else what follows their ends."""
    cells = group_by(records)
    behind = {name: behind_share(cells[name]) for name in decoders if name in cells}
    if any(behind.values()):
        yield (
            f"Behind the end: {_each(behind)} of the tokens follow an end token (--fixed-length); "
            "they are timed and counted, and not scored."
        )
        return
    shares = {name: cut_share(cells[name]) for name in decoders if name in cells}
    cut = {name: share for name, share in shares.items() if share is not None}
    if any(cut.values()):
        yield f"Cut by --max-new-tokens: {_each(cut)} of the answers."


def _each(shares: dict[str, float]) -> str:
    """Write shares by decoder, equal ones once."""
    names: dict[str, list[str]] = {}
    for name, share in shares.items():
        names.setdefault(f"{100 * share:.0f} %", []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return ", ".join(f"{share} ({', '.join(of)})" for share, of in names.items())

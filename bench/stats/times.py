"""Compute all times of a run: the units that were timed, and seconds per token.

Times are pooled (sum of seconds / sum of tokens). Speed-ups are not ratios of pooled times: they
are paired, see `bench.stats.intervals`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bench.records.record import SampleRecord
from bench.stats.counters import Tally, group_by, join_clusters, ratio, timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Hold one timed unit: an answer, or at batch size > 1 a whole group of prompts.

    `key` is the same for every decoder and repeat. `cluster` is the conversation (or the group), or
    the first conversation with the same text. If an answer has an error, `ok` is False and no time
    counts. `decode_*` begin after the first token's step; `decode_seconds` is None for a group.
    `recounted` is the length of the baseline's answer as Spec-Bench counts it, under its protocol.
    """

    key: str
    cluster: str
    family: str | None
    repeat: int
    ok: bool
    prompts: int = 1
    tokens: int = 0
    seconds: float | None = None
    decode_tokens: int = 0
    decode_seconds: float | None = None
    recounted: int | None = None

    @property
    def time_per_token(self) -> float | None:
        """Return end-to-end seconds (request start to last token) per emitted token."""
        return None if self.seconds is None else ratio(self.seconds, self.tokens)

    @property
    def decode_time_per_token(self) -> float | None:
        """Return seconds after the first token, per token emitted after its step."""
        spent_s = self.decode_seconds
        return None if spent_s is None else ratio(spent_s, self.decode_tokens)


def timed_units(records: Iterable[SampleRecord]) -> list[Unit]:
    """Return the timed units of one decoder's records by repeat, failed units included.

    A group of several families has the family None. Records of several machines give no units,
    because their times cannot be pooled.
    """
    groups: defaultdict[tuple[int, int], list[SampleRecord]] = defaultdict(list)
    units: list[Unit] = []
    named: list[tuple[str, str]] = []
    for record in within_a_machine(records):
        if record.kind != "timing":
            continue
        if record.batch_size > 1:
            groups[record.block, record.repeat].append(record)
        else:
            units.append(answer_unit(record))
            named.append((record.conversation, record.prompt_hash))
    for group in groups.values():
        key = "|".join(sorted(record.prompt for record in group))
        families = {record.family for record in group}
        tokens = Tally.pool(group).emitted
        failed = any(record.error is not None for record in group)
        unit = Unit(
            key=key,
            cluster=key,
            family=families.pop() if len(families) == 1 else None,
            repeat=group[0].repeat,
            ok=tokens > 0 and not failed,
            prompts=len(group),
            tokens=tokens,
            seconds=None if failed else group[0].group_s,
        )
        units.append(unit)
        hashes = "|".join(sorted(record.prompt_hash for record in group))
        named.append((key, hashes.strip("|")))
    clusters = join_clusters(named)
    units = [replace(unit, cluster=clusters[unit.cluster]) for unit in units]
    return sorted(units, key=lambda unit: (unit.repeat, unit.key))


def units_by_decoder(records: Iterable[SampleRecord]) -> Mapping[str, list[Unit]]:
    """Return the timed units of every decoder, none for a decoder without records."""
    units = {decoder: timed_units(answers) for decoder, answers in group_by(records).items()}
    return defaultdict(list, units)


def within_a_machine(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Return the records, or none if they come from several machines."""
    records = list(records)
    return [] if len({record.machine for record in records}) > 1 else records


def answer_unit(record: SampleRecord) -> Unit:
    """Return the unit of an unbatched answer."""
    tally, total, ttft = Tally.of(record), record.total_s, record.ttft_s
    first = 0 if record.steps is None else sum(record.steps.emitted[: record.steps.first + 1])
    return Unit(
        key=record.prompt,
        cluster=record.conversation,
        family=record.family,
        repeat=record.repeat,
        ok=record.error is None and tally.emitted > 0,
        tokens=tally.emitted,
        seconds=total,
        decode_tokens=tally.emitted - first,
        decode_seconds=None if total is None or ttft is None else total - ttft,
        recounted=record.recounted,
    )


def matched(baseline: Iterable[Unit], arm: Iterable[Unit]) -> list[tuple[Unit, Unit]]:
    """Pair (baseline, arm) units by key and repeat, failed units included."""
    reference = {(unit.key, unit.repeat): unit for unit in baseline}
    pairs = [(reference.get((unit.key, unit.repeat)), unit) for unit in arm]
    return [(other, unit) for other, unit in pairs if other is not None]


def time_per_token_s(units: Iterable[Unit]) -> float | None:
    """Return the pooled end-to-end time per token: sum of seconds / sum of emitted tokens."""
    good = [u for u in units if u.ok and u.seconds is not None]
    return ratio(sum(u.seconds or 0.0 for u in good), sum(u.tokens for u in good))


def decode_time_per_token_s(units: Iterable[Unit]) -> float | None:
    """Return the pooled time per token after the first: sum of (total - ttft) / tokens."""
    good = [u for u in units if u.ok and u.decode_seconds is not None and u.decode_tokens]
    return ratio(sum(u.decode_seconds or 0.0 for u in good), sum(u.decode_tokens for u in good))


def ttft_s(records: Iterable[SampleRecord]) -> float | None:
    """Return the seconds from request start to first token, averaged over answers."""
    times = [r.ttft_s for r in within_a_machine(timed(records)) if r.ttft_s is not None]
    return ratio(sum(times), len(times))

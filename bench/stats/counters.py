"""Compute every counter of a run, as docs/metrics.md defines it, from error-free timing records.

Counters are *pooled*: sums over all answers divided by sums over all answers, so a long answer
weighs more than a short one. Calls, rows and tokens of the prefill (step 0) are kept separate.

Answers to one conversation depend on each other, so they are one *cluster*. So do answers to the
same text under two names: a prompt that occurs twelve times in a file is not a sample of twelve.
Conversations are therefore one cluster if any of their prompts have the same hash of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Self, TypeVar

from bench.records.plan import PlannedPrompt
from bench.records.record import SampleRecord, StepColumns
from bench.records.samples import PhasedAnswer

T = TypeVar("T")


def ratio(part: float, whole: float) -> float | None:
    """Return `part` / `whole`, or None if `whole` is 0."""
    return part / whole if whole else None


def timed(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Return the records of the timing pass without an error."""
    return [r for r in records if r.kind == "timing" and r.error is None and r.steps is not None]


def timed_steps(records: Iterable[SampleRecord]) -> Iterator[StepColumns]:
    """Yield the steps of timed answers, unpacked one answer at a time to save memory."""
    return (steps for record in timed(records) if (steps := record.steps) is not None)


def timed_again(
    answers: Iterable[PhasedAnswer], records: Iterable[SampleRecord]
) -> Iterator[tuple[PhasedAnswer, list[StepColumns]]]:
    """Yield answers of the second pass with the steps timed for the same prompts and repeats.

    An answer to a group is left out unless all of its prompts were timed.
    """
    counted = {(r.decoder, r.prompt, r.repeat): r.steps for r in timed(records)}
    for answer in answers:
        steps = [counted.get((answer.decoder, prompt, answer.repeat)) for prompt in answer.prompts]
        present = [each for each in steps if each is not None]
        if len(present) == len(steps):
            yield answer, present


def group_by(
    records: Iterable[T], key: Callable[[T], str] = attrgetter("decoder")
) -> dict[str, list[T]]:
    """Group records by `key`, in order of first appearance."""
    groups: dict[str, list[T]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def cluster_names(records: Iterable[SampleRecord]) -> Mapping[str, str]:
    """Return the cluster of each conversation, named after the cluster's first conversation."""
    return join_clusters((record.conversation, record.prompt_hash) for record in records)


def by_cluster(records: Iterable[SampleRecord]) -> dict[str, list[SampleRecord]]:
    """Group records by cluster."""
    clusters = cluster_names(records := list(records))
    return group_by(records, lambda record: clusters[record.conversation])


def repeated_texts(prompts: Iterable[PlannedPrompt]) -> list[str]:
    """Warn if conversations of the timing pass have the same text."""
    timed_texts = [(each.conversation, each.hash) for each in prompts if "timing" in each.passes]
    clusters = join_clusters(timed_texts)
    if not (repeated := len(clusters) - len(set(clusters.values()))):
        return []
    return [
        f"{repeated} of {len(clusters)} conversations ask a text that another one asks: intervals "
        "count each text once"
    ]


def join_clusters(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the cluster of each name: names that share a hash, directly or not, are one cluster.

    The alphabetically first name becomes the cluster's name. An empty hash is unknown.
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    owner: dict[str, str] = {}
    for name, digest in set(named):
        first, second = root(name), root(owner.setdefault(digest, name) if digest else name)
        parent[max(first, second)] = min(first, second)
    return {name: root(name) for name in parent}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Hold sums over answers, from which all counter ratios are computed.

    `first_*` and `prefill_*` count step 0. `later_*` count all other steps, including cold steps
    (no drafts) and empty ones (no tokens). `drafted`, `depth` and `accepted` count all steps.
    """

    answers: int = 0
    emitted: int = 0
    first_emitted: int = 0
    target_calls: int = 0
    prefill_calls: int = 0
    later_rows: int = 0
    later_steps: int = 0
    empty_steps: int = 0
    drafted: int = 0
    depth: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, record: SampleRecord) -> Self:
        """Count one answer, with all zeros for an answer without steps (a failed one)."""
        steps = record.steps
        if steps is None or not steps.emitted:
            return cls()
        return cls(
            answers=1,
            emitted=sum(steps.emitted),
            first_emitted=steps.emitted[0],
            target_calls=sum(steps.target_calls),
            prefill_calls=steps.target_calls[0],
            later_rows=sum(steps.target_rows[1:]),
            later_steps=len(steps.emitted) - 1,
            empty_steps=steps.emitted[1:].count(0),
            drafted=sum(steps.drafted),
            depth=sum(steps.depths),
            accepted=sum(steps.accepted),
        )

    @classmethod
    def pool(cls, records: Iterable[SampleRecord]) -> Self:
        """Add up the tallies of `records`."""
        names = tuple(cls.__dataclass_fields__)
        values = attrgetter(*names)
        sums = [sum(column) for column in zip(*(values(cls.of(r)) for r in records), strict=True)]
        return cls(**dict(zip(names, sums, strict=True))) if sums else cls()

    @property
    def tokens_per_call(self) -> float | None:
        """Emitted tokens / target calls, including the prefill and its token. AR is exactly 1."""
        return ratio(self.emitted, self.target_calls)

    @property
    def tpf(self) -> float | None:
        """(Emitted - tokens of the first step) / (target calls - prefill calls). AR is 1."""
        return ratio(self.emitted - self.first_emitted, self.target_calls - self.prefill_calls)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted in later steps / later steps ("tokens per step"). AR is 1."""
        return ratio(self.emitted - self.first_emitted, self.later_steps)

    @property
    def calls_per_step(self) -> float | None:
        """Target calls of later steps / later steps: `acceptance_length` / `tpf`. AR is 1."""
        return ratio(self.target_calls - self.prefill_calls, self.later_steps)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / verified drafts on all branches, None if nothing is drafted."""
        return ratio(self.accepted, self.drafted)

    @property
    def rows_per_token(self) -> float | None:
        """Target rows fed after the prefill / emitted tokens: the compute cost of a token."""
        return ratio(self.later_rows, self.emitted) if self.answers else None


def peak_memory_bytes(records: Iterable[SampleRecord]) -> int | None:
    """Return the largest memory of an answer: weights, adapter and KV cache (CUDA: allocated)."""
    return max(
        (r.peak_memory_bytes for r in timed(records) if r.peak_memory_bytes is not None),
        default=None,
    )


def weights_per_s(records: Iterable[SampleRecord], read_bytes: int | None) -> float | None:
    """Return the median over answers of `read_bytes` x calls after the first token / seconds."""
    rates: list[float] = []
    for record in records:
        steps, total_s, ttft_s = record.steps, record.total_s, record.ttft_s
        if steps is None or total_s is None or ttft_s is None or not read_bytes:
            continue
        if (calls := sum(steps.target_calls[steps.first + 1 :])) and total_s > ttft_s:
            rates.append(read_bytes * calls / (total_s - ttft_s))
    return median(rates) if rates else None


def energy_per_token_j(records: Iterable[SampleRecord]) -> float | None:
    """Return joules of timed answers / their tokens, or None if no energy is known."""
    energies = [(r.energy_j, len(r.tokens or ())) for r in timed(records) if r.energy_j is not None]
    return ratio(sum(joules for joules, _ in energies), sum(tokens for _, tokens in energies))

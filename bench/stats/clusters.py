"""Clusters of answers: conversations, where those that ask the same text count as one.

Answers to one conversation depend on each other. So do answers to the same text under two names: a
prompt that stands twelve times in a file is no sample of twelve. Conversations are therefore one
cluster if any of their prompts have the same hash of ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bench.records.plan import PlannedPrompt
from bench.records.record import SampleRecord


def cluster_names(records: Iterable[SampleRecord]) -> Mapping[str, str]:
    """Return the cluster of each conversation, named after the cluster's first conversation."""
    return joined((record.conversation, record.prompt_hash) for record in records)


def repeated_texts(prompts: Iterable[PlannedPrompt]) -> list[str]:
    """Warn if conversations of the timing pass ask the same text."""
    timed = [(each.conversation, each.hash) for each in prompts if "timing" in each.passes]
    clusters = joined(timed)
    if not (repeated := len(clusters) - len(set(clusters.values()))):
        return []
    return [
        f"{repeated} of {len(clusters)} conversations ask a text that another one asks: intervals "
        "count each text once"
    ]


def joined(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the cluster of each name: names that share a hash, directly or not, are one cluster.

    A cluster has the alphabetically first of its names. An empty hash is unknown.
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

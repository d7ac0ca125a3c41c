"""Warn about drafts that are poor or cannot work: adapters and draft models that do not fit.

The answers are still right, and the numbers are measured, but they say little about the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bench.records.environment import AdapterFacts, ModelFacts
from bench.records.plan import Cell
from bench.records.record import SampleRecord
from bench.stats.counters import Tally, group_by, timed
from bench.text import counted
from decoders.core.adapter_config import SLOT_VARIANTS

_MAX_TOP_P_GAP = 0.05
"""Maximum difference of top-p from a trained value that counts as trained."""


def model_warnings(
    config: Mapping[str, Any], models: ModelFacts, prompt_lengths: Iterable[int]
) -> list[str]:
    """Return the models' notes, and a line for each adapter or draft model that does not fit.

    Adapters outside their training do not fit, nor draft models whose context is too short.
    """
    lines = list(models.notes)
    for name, facts in (models.adapters or {}).items():
        base = facts.base_weights_sha256
        hashes = {role: models.weights_hash(role) for role in facts.models}
        reasons = [
            *_other_distribution(config, facts),
            *[
                f"trained with other {role} weights"
                for role, sha256 in hashes.items()
                if base is not None and sha256 not in (None, base)
            ],
        ]
        if reasons:
            lines.append(
                f"adapter {name!r} is used outside its training ({'; '.join(reasons)}): "
                "its proposals may be worse"
            )
    contexts = [(facts or {}).get("max_length") for facts in (models.target, models.draft)]
    max_length = max(prompt_lengths, default=0) + config.get("max_new_tokens", 0)
    if None not in contexts and max_length > contexts[1]:
        lines.append(
            f"the draft model's context is {contexts[1]:,} tokens, the target's {contexts[0]:,}: "
            f"texts of this run have up to {max_length:,}, and drafts beyond the draft's context "
            "are poor"
        )
    return lines


def _other_distribution(config: Mapping[str, Any], facts: AdapterFacts) -> list[str]:
    complete = {"temperature", "top_p", "top_k"} <= config.keys()  # a damaged one may be empty
    if not complete or facts.masked or facts.variant not in (None, *SLOT_VARIANTS):  # fits any
        return []
    temperature, top_p, top_k = config["temperature"], config["top_p"], config["top_k"]
    if temperature == 0:
        return ["temperature 0, trained without greedy text"] * (facts.greedy is False)
    reasons = []
    low, high = facts.temperatures or (-math.inf, math.inf)
    if not low <= temperature <= high:
        reasons.append(f"temperature {temperature:g}, trained {low:g} to {high:g}")
    top_ps = (top_p,) if facts.top_ps is None else facts.top_ps
    if all(abs(top_p - trained) > _MAX_TOP_P_GAP + 1e-9 for trained in top_ps):
        reasons.append(f"top-p {top_p:g}, trained {', '.join(f'{p:g}' for p in top_ps)}")
    if facts.top_k not in (None, top_k):
        reasons.append(f"top-k {top_k}, trained {facts.top_k}")
    return reasons


def draft_warnings(cells: Iterable[Cell], records: Iterable[SampleRecord]) -> list[str]:
    """Return a line for each lossless drafting cell of whose drafts none was accepted."""
    drafting = {cell.cell for cell in cells if cell.drafts and cell.lossless}
    warnings = []
    for cell, answers in group_by(r for r in timed(records) if r.decoder in drafting).items():
        tally = Tally.pool(answers)
        if tally.drafted > 0 and tally.accepted == 0:
            warnings.append(
                f"{cell}: none of {counted(tally.drafted, 'draft')} was accepted; do the draft "
                "model, adapter or options belong to this target?"
            )
    return warnings

"""Whether two runs can be compared, and what differs between them.

A side is a run folder, or a stored reference (``results/reference/NAME``), which has a summary and
no records: its prompts are taken to be the same where everything that chooses them is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bench.stats.side import FLOAT32, RunSnapshot

_DISTRIBUTION = ("temperature", "top_p", "top_k", "max_new_tokens", "fixed_length")
"""What decides the answers to a prompt, beside the decoder (and the seed, when sampling)."""
_WORK = ("reuse_prefix",)
"""What decides how much of it is timed."""
_PROMPTS = ("tasks", "columns", "limit", "overlong", "seed")
"""What chooses the prompts."""
_SHAPE = ("architecture", "layers", "hidden_size", "vocab_size", "parameters")
"""What a run records of a model beside the hash of its weights."""


# ---------------------------------------------------------------- two of them


def unlike(base: RunSnapshot, head: RunSnapshot) -> list[str]:
    """List why two runs are not about the same thing; empty where they are."""
    stored = base.records is None or head.records is None
    decisive = (*_DISTRIBUTION, *_WORK, *(_PROMPTS if stored else ()))
    if base.config.get("temperature"):
        decisive = (*dict.fromkeys((*decisive, "seed")), *(("repeats",) if stored else ()))
    lines = [
        f"{key} is {base.config[key]} in base and {head.config[key]} in head"
        for key in decisive
        if key in base.config and key in head.config and base.config[key] != head.config[key]
    ]
    return [*lines, *_other_target(base, head)]


def _other_target(base: RunSnapshot, head: RunSnapshot) -> list[str]:
    """Say why the targets are two models, by weights, else by name and shape.

    The hash is of a checkpoint's files: packed weights (`--quantize`) are another model than these.
    """
    facts = [side.env.models.target or {} for side in (base, head)]
    widths = [known.get("quantized") or "not packed" for known in facts]
    if all(facts) and widths[0] != widths[1]:
        return [
            f"the target model is another one: its weights are {widths[0]} in base and {widths[1]} "
            "in head"
        ]
    hashes = [known.get("weights_sha256") for known in facts]
    if all(hashes):
        return ["the target model is another one"] if hashes[0] != hashes[1] else []
    old, new = (
        {"name": side.config.get("model")} | {what: known.get(what) for what in _SHAPE}
        for side, known in zip((base, head), facts, strict=True)
    )
    return [
        f"the target model is another one: {what} is {old[what]} in base and {new[what]} in head"
        for what in old
        if None not in (old[what], new[what]) and old[what] != new[what]
    ]


def held_to_ar(base: RunSnapshot, head: RunSnapshot) -> frozenset[str]:
    """Return the cells of head whose answers must be the baseline's: base's guarantee decides.

    A decoder cannot give a guarantee up unnoticed. With a stored base head's guarantees count
    besides, as near-ties may hide those of base.
    """
    return base.same_as_ar | (head.same_as_ar if base.summary is not None else frozenset())


def half_precision(base: RunSnapshot, head: RunSnapshot) -> str | None:
    """Return the dtype of a side that is not float32, where equality proves nothing."""
    return next((side.dtype for side in (base, head) if side.dtype != FLOAT32), None)


def same_machine(base: RunSnapshot, head: RunSnapshot) -> bool:
    """Return whether both comparability keys are known and equal."""
    return base.key is not None and base.key == head.key


def interleaved(base: RunSnapshot, head: RunSnapshot) -> bool:
    """Return whether `bench ab` measured both together."""
    return base.status.ab is not None and base.status.ab == head.status.ab


def changes(base: RunSnapshot, head: RunSnapshot) -> list[str]:
    """List other differences of two comparable runs, which are told and not judged."""
    lines = []
    if base.key != head.key:
        lines.append(f"comparability key: {base.key} -> {head.key}")
    for what, read in (("", _settings), ("", _models), ("package ", _packages)):
        old, new = read(base), read(head)
        lines += [
            f"{what}{key}: {old.get(key)} -> {new.get(key)}"
            for key in dict.fromkeys([*old, *new])
            if old.get(key) != new.get(key)
        ]
    return lines


def option_changes(base: RunSnapshot, head: RunSnapshot, cell: str) -> list[str]:
    """List the changed options of one decoder, as ``k: 4 -> 5``."""
    old, new = base.cells.get(cell, {}), head.cells.get(cell, {})
    return [
        f"{key}: {old.get(key, 'unset')} -> {new.get(key, 'unset')}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _settings(side: RunSnapshot) -> dict[str, Any]:
    left_out = ("decoders", "run_name", "adapters")
    return {key: value for key, value in side.config.items() if key not in left_out}


def _models(side: RunSnapshot) -> dict[str, Any]:
    return dict(_hashes(asdict(side.env.models), ""))


def _hashes(facts: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _hashes(value, f"{prefix}{key}.")
        elif key == "weights_sha256" and value:
            kind, colon, digits = str(value).rpartition(":")
            yield f"{prefix}{key}", f"{kind}{colon}{digits[:12]}"


def _packages(side: RunSnapshot) -> dict[str, Any]:
    return dict(side.env.packages)

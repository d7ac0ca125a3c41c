"""Two runs side by side: whether they can be compared, and what differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from bench.stats.limit import SHAPE
from bench.stats.side import RunSnapshot

_DISTRIBUTION = ("temperature", "top_p", "top_k", "max_new_tokens", "fixed_length")
"""Settings that decide the answers to a prompt, beside decoder (and seed, when sampling)."""
_WORK = ("reuse_prefix",)
"""Settings that decide how much of it is timed."""
_NOT_SETTINGS = ("decoders", "primary", "run_name", "adapters")


@dataclass(frozen=True)
class RunPair:
    """The two sides of a comparison, and how they relate."""

    base: RunSnapshot
    head: RunSnapshot

    @property
    def sides(self) -> dict[str, RunSnapshot]:
        """Return both by name."""
        return {"base": self.base, "head": self.head}

    @property
    def same_machine(self) -> bool:
        """Return whether both comparability keys are known and equal."""
        return self.base.key is not None and self.base.key == self.head.key

    @property
    def interleaved(self) -> bool:
        """Return whether `bench ab` measured both together."""
        return self.base.status.ab is not None and self.base.status.ab == self.head.status.ab

    def exact(self, cell: str) -> bool:
        """Return whether equal work of a cell gives equal numbers: one machine, one rounding."""
        same_tile = self.base.config.get("tile") == self.head.config.get("tile")
        return self.same_machine and same_tile and self.rounded(cell) is None

    def rounded(self, cell: str) -> str | None:
        """Return the dtype of a side in which rounding may change a cell's tokens, or None."""
        sides = self.sides.values()
        return next((side.dtype for side in sides if not side.is_exact(cell)), None)

    @property
    def held_to_ar(self) -> frozenset[str]:
        """Return the cells of head whose answers must be the baseline's: base's guarantee decides.

        A decoder cannot give a guarantee up unnoticed.
        """
        return self.base.same_as_ar

    @cached_property
    def unlike(self) -> list[str]:
        """List why the runs are not about the same thing; empty where they are."""
        base, head = self.base.config, self.head.config
        lines = [
            f"{key} is {base[key]} in base and {head[key]} in head"
            for key in (*_DISTRIBUTION, *_WORK, *(["seed"] if base.get("temperature") else []))
            if key in base and key in head and base[key] != head[key]
        ]
        return [*lines, *(f"the target model is another one{why}" for why in self._other_target())]

    def _other_target(self) -> list[str]:
        """Say why the targets are two models, by weights, else by name and shape.

        The hash is of a checkpoint's files: packed weights (`--quantize`) are another model.
        """
        facts = [side.env.models.target or {} for side in self.sides.values()]
        widths = [known.get("quantized") or "not packed" for known in facts]
        if all(facts) and widths[0] != widths[1]:
            return [f": its weights are {widths[0]} in base and {widths[1]} in head"]
        hashes = [known.get("weights_sha256") for known in facts]
        if all(hashes):
            return [""] if hashes[0] != hashes[1] else []
        old, new = (
            {"name": side.config.get("model")} | {fact: known.get(fact) for fact in SHAPE}
            for side, known in zip(self.sides.values(), facts, strict=True)
        )
        return [
            f": {fact} is {old[fact]} in base and {new[fact]} in head"
            for fact in old
            if None not in (old[fact], new[fact]) and old[fact] != new[fact]
        ]

    def changes(self) -> list[str]:
        """List other differences of two comparable runs, which are told and not judged."""
        groups = zip(*map(_facts, self.sides.values()), strict=True)
        return [line for old, new in groups for line in _changes(old, new)]

    def option_changes(self, cell: str) -> list[str]:
        """List the changed options of one decoder, as ``k: 4 -> 5``."""
        old, new = (side.cells.get(cell, {}) for side in self.sides.values())
        return list(_changes(old, new, missing="unset"))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], missing: Any = None) -> Iterator[str]:
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"{key}: {old.get(key, missing)} -> {new.get(key, missing)}"


def _facts(side: RunSnapshot) -> list[dict[str, Any]]:
    return [
        {"comparability key": side.key},
        {key: value for key, value in side.config.items() if key not in _NOT_SETTINGS},
        dict(_hashes(asdict(side.env.models), "")),
        {f"package {name}": version for name, version in side.env.packages.items()},
    ]


def _hashes(facts: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield shortened hashes of the weights by model."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _hashes(value, f"{prefix}{key}.")
        elif key == "weights_sha256" and value:
            kind, colon, digits = str(value).rpartition(":")
            yield f"{prefix}{key}", f"{kind}{colon}{digits[:12]}"

"""Makes the table of architectures from the verdicts that `tests/architectures` stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from decoders.core.hf.llama import FAMILY
from docs.generate.places import DOCS
from docs.generate.tables import code, table

STORED = DOCS / "architectures.json"
DECODE = "decode"
KINDS = ("ptp", "refine", "isd", "medusa", "eagle")
"""Adapters by the verb that trains them; for `bench train idlm`, its objective."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a checkpoint of an architecture can do.

    Attributes:
        architecture: class name in transformers.
        refusals: error lines by kind of adapter, or by `DECODE`, which rules out training too.
    """

    architecture: str
    refusals: Mapping[str, str] = field(default_factory=dict)


def read_verdicts() -> dict[str, Verdict]:
    """Return the stored verdicts by checkpoint name: a model type, plus any special feature."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    return {name: Verdict(**verdict) for name, verdict in stored.items()}


def write_verdicts(verdicts: Mapping[str, Verdict]) -> None:
    """Store verdicts, sorted by name."""
    plain = {name: asdict(verdicts[name]) for name in sorted(verdicts)}
    STORED.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def architectures() -> str:
    """Return a table of all verdicts."""
    rows = []
    for name, verdict in read_verdicts().items():
        decodes = DECODE not in verdict.refusals
        trained = [kind for kind in KINDS if decodes and kind not in verdict.refusals]
        trains = "all" if len(trained) == len(KINDS) else ", ".join(trained) or "no"
        by_line: dict[str, list[str]] = {}
        for kind, line in verdict.refusals.items():
            by_line.setdefault(line, []).append(kind)
        why = "<br>".join(f"{', '.join(kinds)}: {line}" for line, kinds in by_line.items())
        forward = "own" if verdict.architecture in FAMILY else "transformers"
        decides = "yes" if decodes else "no"
        rows.append((code(verdict.architecture), name, forward, decides, trains, why))
    headings = ("architecture", "checkpoint", "forward", "decodes", "trains", "why not")
    return table(headings, rows)

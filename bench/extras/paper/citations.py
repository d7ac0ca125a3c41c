"""Find BibTeX entries for the decoders, models and data of runs, and for this harness.

``references.bib`` has every known entry, ``citations.toml`` the use of each.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bench.extras.paper.table import packaged
from bench.extras.together.runs import NamedRun
from bench.text import latex, portable
from specbench_tasks.task import EMBEDDED

HARNESS = "decoding_bench"


@cache
def _keys() -> dict[str, Any]:
    """Return the BibTeX keys of decoders, refinement, loops, models and Spec-Bench's prompts."""
    return tomllib.loads(packaged("citations.toml"))


@cache
def entries() -> dict[str, str]:
    """Return every known entry by its key."""
    _, *texts = re.split("^(?=@)", packaged("references.bib"), flags=re.MULTILINE)
    return {re.split("[{,]", text, maxsplit=2)[1]: text.strip() for text in texts}


def decoder_keys(cell: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys of a decoder as configured, none for a user's own decoder."""
    name = cell.split("@")[0]
    if name == "idlm" and options.get("mode") == "refine":
        rules = _keys()["refinement"]
        return tuple(rules.get(options.get("commit", ""), rules["cmlm"]))
    loop = _keys()["loops"].get(options.get("kind", ""), ()) if name == "hf" else ()
    return (*_keys()["decoders"].get(name, ()), *loop)


def model_keys(name: object) -> tuple[str, ...]:
    """Return the key of a model, none for an unknown model."""
    stem = portable(str(name)).rpartition("/")[2].lower() if name else ""
    return next(((key,) for start, key in _keys()["models"].items() if stem.startswith(start)), ())


def task_keys(tasks: object) -> tuple[str, ...]:
    """Return the keys of the prompts, none for a file or a data set of the hub."""
    source = str(tasks or "").partition("=")[0]
    if source == "specbench":
        return tuple(_keys()["specbench"])
    return (HARNESS,) if {each.strip() for each in source.split(",")} <= EMBEDDED else ()


def bibliography(members: Sequence[NamedRun]) -> tuple[str, list[str]]:
    """Return the entries for the runs, and the names without an entry."""
    keys: dict[str, None] = {HARNESS: None}
    missing: list[str] = []
    for member in members:
        config = member.side.config
        for cell, options in member.side.cells.items():
            keys |= dict.fromkeys(decoder_keys(cell, options))
            if cell.split("@")[0] not in _keys()["decoders"]:
                missing.append(f"decoder {portable(cell)}")
        adapters = config.get("adapters") or {}
        models = (config.get("model"), config.get("draft"), *filter(model_keys, adapters.values()))
        used = [("model", str(name), model_keys(name)) for name in models if name]
        if tasks := config.get("tasks"):
            used.append(("tasks", str(tasks), task_keys(tasks)))
        for kind, name, cited in used:
            keys |= dict.fromkeys(cited)
            if not cited:
                missing.append(f"{kind} {portable(name)}")
    missing = list(dict.fromkeys(missing))
    lines = [f"% no entry is known for {latex(name)}: add yours" for name in missing]
    commits = dict.fromkeys(
        f"commit {latex(git.commit[:12])}" + " with uncommitted changes" * bool(git.dirty)
        for git in (member.side.env.git for member in members)
        if git.commit
    )
    note = ", ".join(["Apache-2.0", *commits])
    texts = {**entries(), HARNESS: entries()[HARNESS].replace("Apache-2.0", note)}
    return "\n".join([*lines, *(f"{texts[key]}\n" for key in keys)]) + "\n", missing

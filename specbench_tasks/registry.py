"""From the text of ``--tasks`` to the conversations of a run: one source, a fixed seeded subset.

===================  ===============================================================================
``zoo``              all six embedded families (the default)
``qa,translation``   these families of the zoo
``copy,shuffle``     lists (copy, replace, shuffle), alone or with families of the zoo
``specbench[=PATH]`` Spec-Bench's 480 questions: a file, or downloaded once and cached
``jsonl=PATH``       any JSONL file (column mapping: `specbench_tasks.tabular`)
``hf=ID``            any Hugging Face dataset: a hub id, or a local file or folder
===================  ===============================================================================

A run has one source: mixing two would average unlike prompts under one family's name. Which
conversations are chosen depends on the source, the seed and the limit alone, and a smaller limit's
choice is contained in a larger one's. No package but ours (`datasets` for ``hf=`` alone).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decoders.core.nearest import nearest
from specbench_tasks.generators import NUM_ZOO_CONVERSATIONS, zoo_conversations
from specbench_tasks.loaders import load_hf, load_jsonl, load_specbench
from specbench_tasks.specbench import NUM_QUESTIONS
from specbench_tasks.subset import held_out, spread
from specbench_tasks.task import FAMILIES, LISTS, OTHER, Conversation

_DEFAULT_ZOO_LIMIT = 24
_DEFAULT_QUALITY_LIMIT = 40
_SOURCES = ("zoo", "specbench", "jsonl", "hf")
_HF_KEYS = ("config", "split")
_NAMED = (*FAMILIES, *LISTS)
"""Embedded families that may be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """What a run measures: conversations for the timed pass and for the quality pass.

    `timing` goes round the families, so that a run cut short has seen all of them; `quality` goes
    family by family and holds scorable conversations only. `families` are those of either, in
    `FAMILIES`' order, lists and ``other`` last. `name` has no absolute path in it.
    """

    name: str
    timing: tuple[Conversation, ...]
    quality: tuple[Conversation, ...]
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskInfo:
    """One line of ``bench ls tasks``; `num_conversations` is None where only the data knows."""

    name: str
    families: tuple[str, ...]
    num_conversations: int | None
    source: str
    licence: str


def load_tasks(
    spec: str = "zoo",
    *,
    limit: int | None = None,
    quality_limit: int | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
) -> TaskSet:
    """The conversations that `spec` names (see the top of this file).

    Args:
        spec: a source, or names of embedded families, separated by commas.
        limit: conversations to time, spread evenly over the families; None is 24 for the zoo and
            all of any other source.
        quality_limit: prompts (turns) per family in the quality pass; None is 40, 0 is none. At
            least one conversation is taken, even if it has more turns than that.
        seed: chooses the subset.
        columns: for ``jsonl=`` and ``hf=``: `tabular.COLUMNS` to column names; for ``hf=`` also
            ``config`` and ``split``.

    Raises:
        DataUnavailable: data that would have to be downloaded cannot be.
        ValueError: unknown or mixed names, a bad limit, or a source that cannot be read.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it must be at least 1 (conversations in total)")
    if quality_limit is not None and quality_limit < 0:
        raise ValueError(f"quality limit is {quality_limit}; it must be 0 (none) or above")
    name, conversations = _conversations(spec, columns or {})
    by_family = {
        family: [c for c in conversations if c.family == family]
        for family in (*_NAMED, OTHER)
        if any(c.family == family for c in conversations)
    }
    if limit is None:
        limit = _DEFAULT_ZOO_LIMIT if name.partition(":")[0] == "zoo" else len(conversations)
    wanted = _DEFAULT_QUALITY_LIMIT if quality_limit is None else quality_limit
    return TaskSet(
        name=name,
        timing=tuple(spread(by_family, limit, seed)),
        quality=tuple(c for pool in by_family.values() for c in held_out(pool, wanted, seed)),
        families=tuple(by_family),
    )


def list_tasks() -> tuple[_TaskInfo, ...]:
    """Every name ``--tasks`` takes, without reading or downloading anything."""
    zoo = [
        _TaskInfo(
            name=family,
            families=(family,),
            num_conversations=NUM_ZOO_CONVERSATIONS,
            source="embedded",
            licence="Apache-2.0",
        )
        for family in _NAMED
    ]
    return (
        _TaskInfo(
            name="zoo",
            families=FAMILIES,
            num_conversations=NUM_ZOO_CONVERSATIONS * len(FAMILIES),
            source="embedded, the default",
            licence="Apache-2.0",
        ),
        *zoo,
        _TaskInfo(
            name="specbench[=PATH]",
            families=FAMILIES,
            num_conversations=NUM_QUESTIONS,
            source="github.com/hemingkx/Spec-Bench",
            licence="Apache-2.0, texts: own terms",
        ),
        _TaskInfo(
            name="jsonl=PATH",
            families=(),
            num_conversations=None,
            source="a file of yours",
            licence="the file's",
        ),
        _TaskInfo(
            name="hf=ID",
            families=(),
            num_conversations=None,
            source="huggingface.co/datasets",
            licence="the dataset's",
        ),
    )


# ---------------------------------------------------------------- sources


def _conversations(spec: str, columns: Mapping[str, str]) -> tuple[str, list[Conversation]]:
    """The canonical name of `spec` and all its conversations."""
    names = [name.strip() for name in spec.split(",") if name.strip()]
    for name in names:
        _check_name(name)
    if names and all(name in _NAMED for name in names):
        chosen = [family for family in _NAMED if family in names]
        name = "zoo" if tuple(chosen) == FAMILIES else f"zoo:{','.join(chosen)}"
        return name, [c for family in chosen for c in zoo_conversations(family)]
    if len(names) != 1:
        raise ValueError(
            f"--tasks got {spec!r}; give one source ({', '.join(_spelled())}), or names of zoo "
            f"families ({', '.join(_NAMED)}), not both"
        )
    source, _, value = names[0].partition("=")
    if source == "jsonl":
        path = Path(value).expanduser()
        return f"jsonl:{path.stem}", load_jsonl(path, columns)
    if source == "hf":
        shown = Path(value).name if Path(value).expanduser().exists() else value
        mapping = {key: column for key, column in columns.items() if key not in _HF_KEYS}
        options = {key: columns.get(key) for key in _HF_KEYS}
        return f"hf:{shown}", load_hf(value, mapping, **options)
    if source == "specbench":
        return "specbench", load_specbench(Path(value).expanduser() if value else None)
    return "zoo", [c for family in FAMILIES for c in zoo_conversations(family)]


def _spelled() -> tuple[str, ...]:
    return ("zoo", "specbench[=PATH]", "jsonl=PATH", "hf=ID")


def _check_name(name: str) -> None:
    source, equals, value = name.partition("=")
    allowed = (*_SOURCES, *_NAMED)
    if source not in allowed:
        known = ", ".join((*_spelled(), *_NAMED))
        raise ValueError(f"unknown task {source!r}; {nearest(source, allowed)}available: {known}")
    if source in ("jsonl", "hf") and not value:
        raise ValueError(
            f"task {name!r} needs a value: {'jsonl=PATH' if source == 'jsonl' else 'hf=ID'}"
        )
    if equals and source not in ("specbench", "jsonl", "hf"):
        raise ValueError(f"task {source!r} takes no value; got {name!r}")

"""Turn the text of ``--tasks`` into the conversations of a run: a seeded subset of one source.

===================  ===============================================================================
``zoo``              all six embedded families (the default)
``qa,translation``   these families of the zoo
``copy,shuffle``     lists (copy, replace, shuffle), alone or with families of the zoo
``specbench[=PATH]`` Spec-Bench's 480 questions: a file, or downloaded once and cached
``PATH``             any file of `specbench_tasks.tables` (columns: `specbench_tasks.tabular`), or a
                     folder of a dataset; ``jsonl=PATH`` is a file, too
``hf=ID``            any Hugging Face dataset: a hub id, or a local file or folder
``gsm8k=PATH,…``     files of gsm8k, math500, mtbench, humaneval, mbpp: each a family of its own
===================  ===============================================================================

A run has one source (or several of the last kind), because mixing two would average unlike prompts
under one family's name. The choice of conversations depends only on the source, the split, the seed
and the limit. A larger limit includes the conversations of a smaller one.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from decoders.core.nearest import nearest
from specbench_tasks.generators import NUM_ZOO_CONVERSATIONS, zoo_conversations
from specbench_tasks.tables import SUFFIXES, exists, short
from specbench_tasks.task import FAMILIES, LISTS, OTHER, SETS, Conversation, Reading

_DEFAULT_ZOO_LIMIT = 24
_NUM_SPECBENCH = 480
_SOURCES = ("zoo", "specbench", "jsonl", "hf")
_NAMED = (*FAMILIES, *LISTS)
"""Embedded families that may be named."""
_NAMES = (*_SOURCES, *_NAMED, *SETS)
_SPELLED = ("zoo", "specbench[=PATH]", "PATH", "jsonl=PATH", "hf=ID", *(f"{s}=PATH" for s in SETS))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """Hold the conversations of a run, for the timed pass and for the quality pass.

    `timing` alternates between the families, so that a run cut short covers all of them. `quality`
    goes family by family and has only scorable conversations. `name` contains no absolute path.
    `notes` tell the user how a file was read.
    """

    name: str
    timing: tuple[Conversation, ...]
    quality: tuple[Conversation, ...]
    families: tuple[str, ...]
    notes: tuple[str, ...] = ()


class _TaskInfo(NamedTuple):
    """Hold one line of ``bench ls tasks``, without `conversations` if they depend on the data."""

    task: str
    families: tuple[str, ...]
    conversations: int | None
    source: str
    licence: str


def load_tasks(
    spec: str = "zoo",
    *,
    split: str | None = None,
    limit: int | None = None,
    quality_limit: int = 40,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
) -> TaskSet:
    """Load the conversations that `spec` names (see the module's docstring).

    Args:
        spec: a source, or names of embedded families, separated by commas.
        split: keeps only the conversations of this part (`tuning_split`); None keeps all.
        limit: number of conversations to time, spread evenly over the families; None is 24 for the
            zoo and all for any other source.
        quality_limit: prompts (turns) per family in the quality pass; 0 is none. Above 0, a family
            has at least one conversation, even if it has more turns than the limit.
        seed: chooses the subset.
        columns: for files and datasets, column names by key of `tabular.COLUMNS`; for datasets also
            ``config`` and ``split``.

    Raises:
        DataUnavailable: the data cannot be downloaded.
        ValueError: unknown or mixed names, or a source that cannot be read.
    """
    name, reading = _read(spec, columns or {})
    notes = reading.notes
    conversations = [c for c in reading.conversations if split in (None, tuning_split(c))]
    if not conversations and reading.conversations:
        raise ValueError(f"no conversation of {name} is in the split {split}; leave --split out")
    present = dict.fromkeys(c.family for c in conversations)
    usual = [family for family in (*_NAMED, OTHER) if family in present]
    by_family = {
        family: [c for c in conversations if c.family == family]
        for family in dict.fromkeys((*usual, *present))
    }
    if limit is not None and limit > len(conversations):
        notes += (f"--limit {limit} exceeds the source: all {len(conversations)} are used",)
    if limit is None:
        limit = _DEFAULT_ZOO_LIMIT if name.partition(":")[0] == "zoo" else len(conversations)
    candidates = [c for pool in by_family.values() for c in held_out(pool, quality_limit, seed)]
    quality, reasons = readable(candidates)
    if reasons:
        num = f"{len(reasons)} of {len(candidates)} conversations chosen for quality"
        notes += (f"{num} cannot be scored and are left out of it: {reasons[0]}",)
    return TaskSet(
        name=name,
        timing=tuple(spread(by_family, limit, seed)),
        quality=tuple(quality),
        families=tuple(by_family),
        notes=notes,
    )


def list_tasks() -> tuple[_TaskInfo, ...]:
    """List every name that ``--tasks`` accepts, without reading or downloading anything."""
    each, whole = NUM_ZOO_CONVERSATIONS, NUM_ZOO_CONVERSATIONS * len(FAMILIES)
    specbench = ("github.com/hemingkx/Spec-Bench", "Apache-2.0, texts: own terms")
    return (
        _TaskInfo("zoo", FAMILIES, whole, "embedded, the default", "Apache-2.0"),
        *(_TaskInfo(name, (name,), each, "embedded", "Apache-2.0") for name in _NAMED),
        _TaskInfo("specbench[=PATH]", FAMILIES, _NUM_SPECBENCH, *specbench),
        *(_TaskInfo(n, (), None, "your own file", "the file's") for n in ("PATH", "jsonl=PATH")),
        _TaskInfo("hf=ID", (), None, "huggingface.co/datasets", "the dataset's"),
        *(_TaskInfo(f"{s}=PATH", (s,), None, "your copy of the set", "the set's") for s in SETS),
    )


def _read(spec: str, columns: Mapping[str, str]) -> tuple[str, Reading]:
    text, path = spec.strip(), Path(spec.strip()).expanduser()
    named = all(name.partition("=")[0].strip() in _NAMES for name in text.split(","))
    looks = not {*"=,"} & {*text} and ("/" in text or path.suffix in SUFFIXES)
    if text and not named and (looks or exists(path)):
        from specbench_tasks.loaders import load_path  # imports readers of tables: only for data

        return f"file:{path.name}", load_path(path, columns)
    names = [name.strip() for name in spec.split(",") if name.strip()]
    for name in names:
        source, _, value = name.partition("=")
        valid = ", ".join((*_SPELLED, *_NAMED))
        if source not in _NAMES:
            near = nearest(source, _NAMES)
            raise ValueError(f"unknown task {source!r}; {near}available: {valid}")
        if source != "specbench" and bool(value) != (source in ("jsonl", "hf", *SETS)):
            raise ValueError(f"task {name!r}: use one of {valid}")
    if names and all(name in _NAMED for name in names):
        families = [family for family in _NAMED if family in names]
        name = "zoo" if tuple(families) == FAMILIES else f"zoo:{','.join(families)}"
        return name, _load_zoo(families)
    if names and all(name.partition("=")[0] in SETS for name in names):
        from specbench_tasks.tables import read_table
        from specbench_tasks.tabular import published_set

        paths = dict(name.split("=", 1) for name in names)
        if len(paths) < len(names) or columns:
            why = "takes no [columns]" if columns else "is named twice"
            raise ValueError(
                f"one of {', '.join(paths)} {why}; give each set one file, as published"
            )
        readings = [published_set(read_table(Path(p).expanduser()), n) for n, p in paths.items()]
        conversations = [one for reading in readings for one in reading.conversations]
        notes = tuple(note for reading in readings for note in reading.notes)
        return ",".join(paths), Reading(conversations=conversations, notes=notes)
    if len(names) != 1:
        raise ValueError(
            f"--tasks got {spec!r}; give one source ({', '.join(_SPELLED)}), or names of zoo "
            f"families ({', '.join(_NAMED)}), not both"
        )
    source, _, value = names[0].partition("=")
    if source == "zoo":
        return "zoo", _load_zoo(FAMILIES)
    from specbench_tasks.loaders import load_file, load_hf, load_specbench

    path = Path(value).expanduser()
    if source == "jsonl":
        return f"jsonl:{path.stem}", load_file(path, columns)
    if source == "hf":
        return f"hf:{path.name if exists(path) else value}", load_hf(value, columns)
    return "specbench", load_specbench(path if value else None)


def _load_zoo(families: Sequence[str]) -> Reading:
    questions = [c for family in families for c in zoo_conversations(family)]
    return Reading(conversations=questions, notes=())


def tuning_split(conversation: Conversation) -> str:
    """Return ``tune`` (a quarter of all) or ``test``, by the SHA-256 of the turns' text."""
    text = "\n".join(conversation.turns).encode(errors="surrogatepass")
    return "tune" if hashlib.sha256(text).digest()[0] < 64 else "test"


def scorable(conversation: Conversation) -> bool:
    """Return whether any turn has a reference for its family's scorer (``other`` has none)."""
    return conversation.family != OTHER and any(
        reference is not None
        and (reference.constraints if conversation.family == "mt_bench" else reference.answers)
        for reference in conversation.references
    )


def spread(
    by_family: Mapping[str, list[Conversation]], limit: int, seed: int
) -> list[Conversation]:
    """Choose `limit` conversations in rounds over the families, evenly until a family runs out."""
    pools = [_shuffled(pool, seed, "timing") for pool in by_family.values()]
    rounds = (c for turn in itertools.zip_longest(*pools) for c in turn if c is not None)
    return list(itertools.islice(rounds, limit))


def held_out(pool: Sequence[Conversation], budget: int, seed: int) -> list[Conversation]:
    """Choose scorable conversations of one family with about `budget` turns in all."""
    selection: list[Conversation] = []
    num_turns = 0
    for conversation in _shuffled([c for c in pool if scorable(c)], seed, "quality"):
        if budget == 0 or (selection and num_turns + len(conversation.turns) > budget):
            break
        selection.append(conversation)
        num_turns += len(conversation.turns)
    return selection


def readable(conversations: Sequence[Conversation]) -> tuple[list[Conversation], list[str]]:
    """Remove references that the family's scorer cannot read, as no answer could be right.

    Returns:
        The conversations without such references, and a reason for each removed reference.
    """
    from specbench_tasks.scorers import unreadable

    kept, reasons = [], []
    for one in conversations:
        golds = [gold and unreadable(one.family, gold) for gold in one.references]
        if text := next(filter(None, golds), None):
            reason = f"the reference {short(text)} of {one.id} is nothing that the scorer of"
            reasons.append(f"{reason} {one.family} can compare (docs/adding-a-task.md)")
            pairs = zip(one.references, golds, strict=True)
            one = replace(one, references=tuple(None if bad else gold for gold, bad in pairs))
        if scorable(one):
            kept.append(one)
    return kept, reasons


def _shuffled(pool: Sequence[Conversation], seed: int, use: str) -> list[Conversation]:
    shuffled = list(pool)
    if pool:
        random.Random(f"{seed} {use} {pool[0].family}").shuffle(shuffled)
    return shuffled

"""Tables for ``bench ls decoders|tasks|runs`` and the prompts for ``bench show-prompts``.

Each table has its rows as data too (`decoder_facts`, `task_facts`, `run_facts`). No torch here
(a decoder's own file may import it).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bench.errors import BenchError
from bench.plan.named_models import MODELS, folder_of
from bench.records.plan import read_plan
from bench.records.run_folder import read_config
from bench.records.status import read_status
from bench.report.page.history import num_records_of, run_folders, run_verdict
from bench.stats.validity import VALID
from decoders.core import registry
from decoders.core.decoder import Decoder
from decoders.core.types import DecoderSpec
from specbench_tasks.registry import TaskSet
from specbench_tasks.registry import list_tasks as task_infos
from specbench_tasks.task import Conversation, GoldAnswer

T = TypeVar("T")
_MAX_TEXT = 600
"""Characters of a turn or reference that `show_prompts` prints at most."""
_ANY_WIDTH = 1_000_000


def list_decoders() -> Table:
    """Every decoder by name: what it is, whether it is lossless, what it needs, its options."""
    table = _table("decoder", "what it does", "lossless", "needs", "options")
    for facts in decoder_facts():
        if "error" in facts:
            why = Text(f"cannot be loaded: {facts['error']}", style="red")
            table.add_row(facts["decoder"], why, "", "", "")
            continue
        written = [*facts["required"], *(f"{k}={v}" for k, v in facts["options"].items())]
        table.add_row(
            facts["decoder"],
            facts["does"],
            facts["lossless"],
            ", ".join(facts["needs"]) or "-",
            "\n".join(written) or "-",
        )
    return table


def decoder_facts() -> list[dict[str, Any]]:
    """Every decoder as JSON data, options with their defaults apart from those it must be given.

    One whose file or package cannot be imported has its name and the reason, as ``error``.
    """
    facts: list[dict[str, Any]] = []
    for name in registry.names():
        try:
            cls = registry.resolve(DecoderSpec(name=name))
        except (ImportError, ValueError) as error:
            facts.append({"decoder": name, "error": str(error)})
            continue
        fields = {field.name: field.default for field in dataclasses.fields(cls)}
        facts.append(
            {
                "decoder": name,
                "does": _first_line(cls),
                "lossless": lossless(cls),
                "needs": needs(cls),
                "required": [k for k, v in fields.items() if v is dataclasses.MISSING],
                "options": {k: v for k, v in fields.items() if v is not dataclasses.MISSING},
            }
        )
    return facts


def print_table(table: Table, console: Console) -> None:
    """Print a listing: folded to a terminal's width, as wide as it is where it is piped."""
    if not console.is_terminal:
        wide = console.options.update(width=_ANY_WIDTH)
        console.width = Measurement.get(console, wide, table).maximum
    console.print(table)


def _first_line(cls: type[Decoder]) -> str:
    """The first line of a decoder's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]


def lossless(cls: type[Decoder]) -> str:
    """Whether a decoder keeps the target's distribution, in a word."""
    fact: object = cls.lossless
    if isinstance(fact, property):
        return "yes" if fact is vars(Decoder)["lossless"] else "by options"
    return "yes" if fact else "no"


def needs(cls: type[Decoder]) -> list[str]:
    """What a decoder asks for beside the target, an adapter with its default name."""
    asked: object = cls.needs
    if isinstance(asked, property):
        return [] if asked is vars(Decoder)["needs"] else ["by options"]
    assert isinstance(asked, tuple)
    names = {field.name: field.default for field in dataclasses.fields(cls)}
    return [f"{need} {names[need]}".strip() if need == "adapter" else need for need in asked]


def list_tasks() -> Table:
    """Every name that ``--tasks`` takes."""
    table = _table("task", "families", "conversations", "source", "licence")
    for info in task_infos():
        families = "all six" if len(info.families) > 1 else "".join(info.families) or "as given"
        num = "as given" if info.num_conversations is None else str(info.num_conversations)
        table.add_row(Text(info.name), families, num, Text(info.source), info.licence)
    return table


def task_facts() -> list[dict[str, Any]]:
    """Every name that ``--tasks`` takes, as JSON data; what is as given is null, or empty."""
    return [
        {
            "task": info.name,
            "families": list(info.families),
            "conversations": info.num_conversations,
            "source": info.source,
            "licence": info.licence,
        }
        for info in task_infos()
    ]


def list_models() -> Table:
    """Every model that has a name, and whether it is here."""
    table = _table("model", "what it is", "weights", "licence", "here", "from")
    for facts in model_facts():
        table.add_row(
            facts["model"],
            facts["about"],
            f"{facts['parameters'] / 1e6:.0f}M",
            facts["licence"],
            "yes" if facts["folder"] else f"bench fetch {facts['model']}",
            f"{facts['package']} or {facts['hub_id']}",
        )
    return table


def model_facts() -> list[dict[str, Any]]:
    """Every model that has a name, as JSON data; `folder` is null where it is not here."""
    facts: list[dict[str, Any]] = []
    for model in MODELS:
        folder = folder_of(model)
        facts.append(
            {
                "model": model.name,
                "about": model.about,
                "parameters": model.parameters,
                "licence": model.licence,
                "hub_id": model.hub_id,
                "package": f"{model.package}=={model.version}",
                "file": model.file,
                "sha256": model.sha256,
                "stop_ids": list(model.stop_ids),
                "folder": str(folder) if folder.is_dir() else None,
            }
        )
    return facts


def list_runs(parent: Path) -> Table:
    """Every run folder under `parent`, oldest first; a run without run.json is unfinished."""
    table = _table("run", "status", "verdict", "model", "tasks", "decoders", "records")
    for facts in run_facts(parent):
        verdict = facts["verdict"]
        table.add_row(
            Text(facts["run"]),
            Text(facts["status"]),
            Text(verdict, style="" if verdict == VALID else "red"),
            Text(_model(facts)),
            Text(facts["tasks"] or "-"),
            Text(", ".join(facts["decoders"]) or "-"),
            str(facts["records"]),
        )
    return table


def run_facts(parent: Path) -> list[dict[str, Any]]:
    """Every run folder under `parent` as JSON data, oldest first; what is not known is null."""
    facts: list[dict[str, Any]] = []
    for folder in run_folders(parent):
        status, plan = _readable(read_status, folder), _readable(read_plan, folder)
        config = _readable(read_config, folder) or {}
        facts.append(
            {
                "run": folder.name,
                "path": str(folder),
                "status": (status and status.status) or "unfinished",
                "verdict": run_verdict(folder, status),
                "model": _text(config.get("model")),
                "quantize": _text(config.get("quantize")),
                "tasks": _text(config.get("tasks")),
                "decoders": [planned.cell for planned in plan.cells] if plan else [],
                "records": num_records_of(folder),
            }
        )
    return facts


def _model(facts: Mapping[str, Any]) -> str:
    """The model of a run, and how its weights are packed if they are."""
    name, width = facts["model"] or "-", facts["quantize"]
    return f"{name} ({width})" if width else name


def _text(value: object) -> str | None:
    return str(value) if value else None


def show_prompts(task_set: TaskSet, console: Console, limit: int | None = None) -> None:
    """Print what a run would ask: every turn of the timed conversations, with its reference.

    Args:
        task_set: what `specbench_tasks.registry.load_tasks` returned.
        console: where to print.
        limit: conversations printed; None is all.
    """
    for note in task_set.notes:
        console.print(Text(note, style="dim"))
    counts = Counter(c.family for c in task_set.timing)
    per_family = ", ".join(f"{family} {counts[family]}" for family in task_set.families)
    chosen = task_set.timing[:limit]
    for conversation in chosen:
        _show(conversation, console)
    console.print(
        Text(
            f"{task_set.name}: {len(chosen)} of {len(task_set.timing)} timed conversations shown "
            f"({per_family}); {len(task_set.quality)} for quality",
            style="dim",
        )
    )


def _show(conversation: Conversation, console: Console) -> None:
    console.print(Text(f"{conversation.id}  {conversation.family}", style="bold"))
    if conversation.system is not None:
        console.print(Text(f"  system: {_shortened(conversation.system)}", style="dim"))
    pairs = zip(conversation.turns, conversation.references, strict=True)
    for turn, (text, reference) in enumerate(pairs, start=1):
        console.print(Text(f"  #{turn} {_shortened(text)}"))
        console.print(Text(f"     = {_reference(reference)}", style="green"))
    console.print()


def _reference(reference: GoldAnswer | None) -> str:
    if reference is None:
        return "no reference"
    parts = [_shortened(answer) for answer in reference.answers]
    parts += [f"{c.kind}: {c.value}" for c in reference.constraints]
    return " | ".join(parts)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


_SHORT = ("decoder", "task", "status", "verdict", "records")
"""Columns that are never broken over lines."""


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading in _SHORT)
    return table


def _readable(read: Callable[[Path], T], folder: Path) -> T | None:
    """What a file of a run folder says, None where it is damaged: one run never fails a listing."""
    try:
        return read(folder)
    except BenchError:
        return None

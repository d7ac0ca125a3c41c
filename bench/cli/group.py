"""The group of all verbs: headings in order, empty arguments refused, Ctrl-C as one line.

Help is plain text: importing rich would make up most of the time that it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from typer.core import TyperCommand, TyperGroup

from bench.errors import InterruptedRunError, UsageError


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn an interruption that nobody handled into a line with its exit code."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise InterruptedRunError("interrupted") from stop


class Verb(TyperCommand):
    """A verb of many options, which its help lists under their ``rich_help_panel``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per heading, in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            panel = str(getattr(parameter, "rich_help_panel", None) or "Other options")
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(panel, []).append(record)
        for panel, rows in sections.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


class VerbGroup(TyperGroup):
    """Commands under headings, in the order they are added."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line."""
        with _stoppable():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse empty arguments, such as a script's unset variable."""
        for before, given in pairwise(["bench", *args]):
            name, equals, value = given.partition("=")
            written = value if name.startswith("--") and equals else given
            if not written.strip():
                at = name if name.startswith("--") else f"what follows {before}"
                line = f"{at} is empty; give a value, or leave it out"
                raise UsageError(line)
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _stoppable():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return names in order."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = str(getattr(command, "rich_help_panel", None) or "Commands")
            sections.setdefault(panel, []).append((name, command.get_short_help_str(limit=500)))
        for panel, rows in sections.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

"""Group all verbs: order headings, refuse empty arguments, report Ctrl-C in one line.

Help is plain text, because importing rich would take most of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from inspect import getdoc
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

from typer import Option, Typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_command_name, get_group, solve_typer_info_help

from bench.errors import BenchError, Exit, UsageError, did_you_mean
from bench.registry import Group, extras, find


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn an unhandled interruption into a one-line error with its exit code."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise BenchError("interrupted", exit_code=Exit.INTERRUPTED) from stop


def _write_sections(formatter: Any, rows: Iterable[tuple[Any, Any]], rest: str) -> None:
    """Write rows under the ``rich_help_panel`` of their owners, or under the heading `rest`."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for owner, row in rows:
        sections.setdefault(str(getattr(owner, "rich_help_panel", None) or rest), []).append(row)
    for panel, shown in sections.items():
        with formatter.section(panel):
            formatter.write_dl(shown)


Arguments = Annotated[Mapping[str, Any], Option(parser=dict)]
"""Parameter that a `Configured` verb replaces by options, and that receives their values."""


class Configured(TyperCommand):
    """Define a verb whose parameter `arguments` stands for the options that a callable declares.

    The callable is made only when its options are needed: a configuration is slow to import.
    """

    declare: Callable[[], Callable[..., object]]

    @classmethod
    def by(cls, declare: Callable[[], Callable[..., object]]) -> type[Self]:
        """Return the class of verbs with the options of one callable, e.g. of a dataclass."""
        return type(cls.__name__, (cls,), {"declare": staticmethod(declare)})

    @cached_property
    def _added(self) -> Any:
        declared = Typer(add_completion=False)
        declared.command()(self.declare())
        return get_command(declared)

    @property
    def params(self) -> list[Any]:
        """The verb's own parameters, with those of the callable in place of `arguments`."""
        if "arguments" in (names := [each.name for each in self._params]):
            self._params[(at := names.index("arguments")) : at + 1] = self._added.params
        return self._params

    @params.setter
    def params(self, params: list[Any]) -> None:
        self._params = params

    def invoke(self, ctx: Any) -> Any:
        """Run the verb with a table of the values of the added options."""
        values = {each.name: ctx.params.pop(each.name) for each in self._added.params}
        ctx.params["arguments"] = vars(self._added.callback(**values))
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per ``rich_help_panel``, in the order of their first options."""
        records = [(each, each.get_help_record(ctx)) for each in self.get_params(ctx)]
        shown = [(each, record) for each, record in records if record is not None]
        _write_sections(formatter, shown, "Other options")


HEADINGS = (
    *("Measure", "Read results", "Find the limit", "Make models and adapters"),
    "Guard against regressions",
)
"""Headings of `bench --help` in order; headings of other packages follow."""


class VerbGroup(TyperGroup):
    """Group commands under headings, in the order in which they are added."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line."""
        with _interruptible():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse empty arguments, such as an unset variable of a script."""
        for before, argument in pairwise(["bench", *args]):
            name, equals, value = argument.partition("=")
            written = value if name.startswith("--") and equals else argument
            if not written.strip():
                at = name if name.startswith("--") else f"what follows {before}"
                raise UsageError(f"{at} is empty; give a value, or leave it out")
        return list(super().parse_args(ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command, or name the nearest one to an unknown name (`UsageError`)."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            hint = did_you_mean(args[0], self.list_commands(ctx))
            raise UsageError(f"there is no verb {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _interruptible():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per heading."""
        self.list_commands(ctx)
        texts = {name: each.get_short_help_str(limit=500) for name, each in self.commands.items()}
        shown = zip(self.commands.values(), texts.items(), strict=True)
        _write_sections(formatter, shown, "Commands")


class _Outline(TyperCommand):
    """Show a verb's name and help in `bench --help` without making the verb's options."""

    verbs: Typer


def _outlines(verbs: Typer) -> Iterator[_Outline]:
    for verb in verbs.registered_commands:
        text = verb.help or getdoc(verb.callback)
        name = verb.name or get_command_name(getattr(verb.callback, "__name__", ""))
        yield _Outline(name, help=text, rich_help_panel=verb.rich_help_panel)
    for group in verbs.registered_groups:
        text = solve_typer_info_help(group)
        yield _Outline(group.name, help=text, rich_help_panel=group.rich_help_panel)


class AllVerbs(VerbGroup):
    """Group the verbs of the core and of the extras, which are imported only when needed.

    They are sorted by `HEADINGS`, and under one heading in the order in which they are added.
    """

    group: ClassVar[Group] = "bench.verbs"

    def to_verbs(self, registered: Any) -> Any:
        """Return the verbs that an extra registered."""
        return registered

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the verb of this name, of the core or of an extra, or None."""
        listed = self.commands.get(cmd_name)
        verbs = find(self.group, cmd_name) if listed is None else getattr(listed, "verbs", None)
        if verbs is not None:
            verbs = self.to_verbs(verbs)
            verbs.rich_markup_mode = None  # help is plain text
            for name, command in get_group(verbs).commands.items():
                if isinstance(self.commands.get(name), _Outline | None):
                    self.commands[name] = command
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """List all verbs in the order of the help."""
        for verbs in dict.fromkeys(map(self.to_verbs, extras(self.group).values())):
            for outline in _outlines(verbs):
                outline.verbs = verbs
                self.commands.setdefault(str(outline.name), outline)
        place = {heading: number for number, heading in enumerate(HEADINGS)}

        def rank(item: tuple[str, Any]) -> int:
            return place.get(str(getattr(item[1], "rich_help_panel", None)), len(place))

        self.commands = dict(sorted(self.commands.items(), key=rank))
        return super().list_commands(ctx)

"""Every `bench` command that a page shows is one that the command line takes."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import cli
from bench.cli.options import configuration
from bench.plan.select import build_decoder
from bench.settings.config import RunConfig
from bench.settings.setting import field_settings
from docs.generate.places import pages, text_of

ROOT = Path(__file__).parents[2]
TEXTS = pages() | {path: text_of(path) for path in ("README.md", "CONTRIBUTING.md")}
WORKFLOWS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / "examples" / "gate.yml")
}


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of the commands of code blocks, and of a workflow's steps."""
    blocks = re.findall(
        r"^ *```(?:sh|yaml)(?: title=[^\n]*)?\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE
    )
    for block in blocks:
        joined = re.sub(r"\\\n\s*", " ", block)
        for line in re.findall(r"^\s*(?:- )?(?:run: )?(?:\.venv/bin/)?bench (.*)$", joined, re.M):
            yield from alternatives(shlex.split(line, comments=True))


def alternatives(arguments: list[str]) -> Iterator[list[str]]:
    """`a|b` stands for two commands."""
    for place, argument in enumerate(arguments):
        if "|" in argument:
            for word in argument.split("|"):
                yield from alternatives([*arguments[:place], word, *arguments[place + 1 :]])
            return
    yield arguments


@cache
def command_line() -> Any:
    return get_command(cli.app)


def accept(arguments: list[str]) -> None:
    """Raise unless the command line parses them, and what they configure is valid."""
    group = command_line()
    context = group.make_context("bench", list(arguments))
    name, command, rest = group.resolve_command(context, arguments)
    while hasattr(command, "commands"):
        context = command.make_context(name, list(rest), parent=context)
        name, command, rest = command.resolve_command(context, rest)
    given = command.make_context(name, list(rest), parent=context).params
    values = {key: given[key] for key in (*field_settings(RunConfig), "allow") if key in given}
    if "decoders" in given and name != "show":  # there they are cells of a run
        for spec in configuration({"config": None, **values}).specs:
            if ".py:" not in spec.name:
                costs = dict.fromkeys(("row_cost", "draft_cost"), "auto").items()  # of a folder
                options = {k: v for k, v in spec.options.items() if (k, v) not in costs}
                build_decoder(spec.cell, options)


CASES = [(path, c) for path, text in TEXTS.items() for c in commands(text)]
CASES += [(path, c) for path, text in WORKFLOWS.items() for c in commands(f"```yaml\n{text}\n```")]


@pytest.mark.parametrize(("path", "arguments"), CASES, ids=[f"{p}-{' '.join(a)}" for p, a in CASES])
def test_a_command_that_is_shown_is_accepted(path: str, arguments: list[str]) -> None:
    accept(arguments)


def test_commands_are_found_over_several_lines_with_comments_and_in_workflow_steps() -> None:
    text = (
        "```sh\nbench run --model M \\\n  -d ar  # all\nls\n.venv/bin/bench ls a|b\n```\nbench x\n"
    )
    assert list(commands(text)) == [["run", "--model", "M", "-d", "ar"], ["ls", "a"], ["ls", "b"]]
    assert list(commands("```yaml\n  - run: bench doctor\n```")) == [["doctor"]]
    shown = {path for path, _ in CASES}
    assert {"README.md", "docs/ci.md", "docs/README.md", ".github/workflows/bench.yml"} <= shown
    assert len(CASES) > 60


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("run --nothing 1", "No such option: --nothing"),
        ("verb", "there is no verb 'verb'"),
        ("run -d spec:q=2", "unknown option 'q' of decoder 'spec'"),
        ("run --temperature -1", "temperature"),
        ("ls dekoders", "decoders"),
        ("train ptp x", "unexpected extra argument"),
        ("paper", "Missing parameter: runs"),
    ],
)
def test_an_invalid_command_is_refused(line: str, reason: str) -> None:
    with pytest.raises(Exception, match=re.escape(reason)):
        accept(shlex.split(line))

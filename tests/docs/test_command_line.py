"""The page of the command line holds every verb and option that there is."""

from typer.main import get_command

import cli
from docs.generate import command_line
from docs.generate.tables import table

PAGE = command_line.command_line()


def section(title: str) -> str:
    return PAGE.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]


def test_every_verb_has_a_section_with_its_help_and_every_option() -> None:
    group = get_command(cli.app)
    found = list(command_line.verbs(group))
    names = {words[0] for words, _, _ in found}
    assert names == set(group.commands)  # type: ignore[attr-defined]
    assert ("train", "ptp") in [words for words, _, _ in found]
    for words, command, _ in found:
        text = section(f"bench {' '.join(words)}")
        assert f"```text\nbench {' '.join(words)} [OPTIONS]" in text
        assert " ".join(command.help.split("\n\n")[0].split()) in text.replace("&lt;", "<")
        for parameter in command.params:
            shown = parameter.opts[0] if parameter.opts[0].startswith("-") else "` | "
            assert shown in text, f"{words} {parameter.name}"


def test_verbs_stand_under_the_headings_of_the_help() -> None:
    headings = [line for line in PAGE.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Measure",
        "## Read results",
        "## Find the limit",
        "## Make models and adapters",
        "## Guard against regressions",
    ]
    assert PAGE.index("### bench run") < PAGE.index("## Read results") < PAGE.index("bench show\n")


def test_parameters_are_those_of_the_verb_that_is_named() -> None:
    assert "k" not in [p.name for p in command_line.parameters("run")]
    assert "venue" in [p.name for p in command_line.parameters("paper")]
    assert "objective" in [p.name for p in command_line.parameters("train", "idlm")]


def test_a_table_is_one_line_a_row_and_escapes_bars() -> None:
    assert table(("a", "b"), [("`x|y`", "two\nlines | bar")]) == (
        "| a | b |\n| --- | --- |\n| `x\\|y` | two lines &#124; bar |\n"
    )

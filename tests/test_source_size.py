"""The source stays small enough for a small team to hold in mind."""

from pathlib import Path

from tests.source_size import code_lines, num_lines, source_files

MOST_LINES = 48_600
"""A ceiling that may only be lowered."""


def test_the_source_is_no_longer_than_its_ceiling() -> None:
    files = [file for files in source_files().values() for file in files]
    assert sum(map(num_lines, files)) <= MOST_LINES


def test_code_lines_are_those_with_code(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    lines = (
        '"""A module.', "", "More of it.", '"""', "", "# a comment",
        "X = (", "    1,", ")", '"""Its docstring."""', "",
        "def f() -> str:", '    """Say it."""', '    return """two', 'lines"""  # and why',
    )  # fmt: skip
    file.write_text("\n".join(lines), encoding="utf-8")
    assert code_lines(file) == 3 + 1 + 2

"""Print lines and code lines of the source per folder: ``python -m tests.source_size``.

Code lines are those that hold something other than a comment, a docstring or nothing.
"""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ("bench", "decoders", "specbench_tasks", "training", "cli.py")
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(file: Path) -> int:
    """Count the lines of a Python file that hold code."""
    with tokenize.open(file) as text:
        source = text.read()
    described = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            described |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    with file.open("rb") as raw:
        tokens = [each for each in tokenize.tokenize(raw.readline) if each.type not in _SILENT]
    held = {line for each in tokens for line in range(each.start[0], each.end[0] + 1)}
    return len(held - described)


def source_files() -> dict[str, list[Path]]:
    """Return the Python files of the source by folder, subfolders apart."""
    by_folder: dict[str, list[Path]] = {}
    for name in SOURCE:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            by_folder.setdefault(str(file.parent.relative_to(ROOT)), []).append(file)
    return by_folder


def num_lines(file: Path) -> int:
    """Count all lines of a file."""
    return len(file.read_text(encoding="utf-8").splitlines())


def is_extra(folder: str) -> bool:
    """Tell whether a folder hangs on the core from outside (docs/adr/0035)."""
    return folder.startswith(("training", "bench/extras", "decoders/extras"))


def main() -> None:
    """Print a table of the folders, and their sum."""
    table = {
        folder: (sum(map(num_lines, files)), sum(map(code_lines, files)))
        for folder, files in sorted(source_files().items())
    }
    table["all"] = (
        sum(each for each, _ in table.values()),
        sum(each for _, each in table.values()),
    )
    for folder, (num, num_code) in table.items():
        print(f"{folder:32}{num:8,}{num_code:8,}")


if __name__ == "__main__":
    main()

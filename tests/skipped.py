"""Run the tests again that a run skipped: `python -m tests.skipped REPORT.xml`.

CI runs the tests with the packages of `[test]` alone, as the README says, and skips what needs
another package as its oracle. Once the packages of `[dev]` and `[docs]` are installed, this runs
exactly those tests, and fails if one of them still misses a package.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]


def skipped(report: Path, root: Path = ROOT) -> dict[str, str]:
    """Return the reasons of skipped tests by node id; a skipped module is its file."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if (reason := case.find("skipped")) is not None:
            node = _node(case.get("classname", ""), case.get("name", ""), root)
            found[node] = f"{reason.get('message')} {reason.text}"
    return found


def _node(dotted: str, name: str, root: Path) -> str:
    """Return the node id of a test of a module or class, or of a whole module (`dotted` empty)."""
    parts, inside = (dotted or name).split("."), [name] if dotted else []
    while parts and not (root / Path(*parts)).with_suffix(".py").is_file():
        inside.insert(0, parts.pop())
    return "::".join([f"{'/'.join(parts)}.py", *inside])


def lacking(reasons: dict[str, str]) -> Iterator[str]:
    """Yield tests that were skipped for want of a package that can be installed."""
    for node, reason in reasons.items():
        misses = "pip install" in reason or "could not import" in reason
        if misses:
            yield f"{node}: {reason}"


def main(arguments: Sequence[str]) -> int:
    """Run the skipped tests of a JUnit report; return pytest's exit code, 1 if a package lacks."""
    nodes = skipped(Path(arguments[0]))
    if not nodes:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "again.xml"
        code = pytest.main(["-q", f"--junitxml={again}", "-m", "not slow and not gpu", *nodes])
        left = list(lacking(skipped(again)))
    sys.stderr.write("".join(f"still skipped: {line}\n" for line in left))
    return int(code) or int(bool(left))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

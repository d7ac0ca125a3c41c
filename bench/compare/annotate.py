"""Write a comparison for continuous integration: JUnit XML, annotations of GitHub workflows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as xml

from bench.compare.judge import Comparison, Regression
from bench.compare.show import both_sides, measure_heading
from bench.machine.env import repository_root
from bench.records.plan import Cell
from bench.text import printable

_ELEMENTS = {
    Regression.wrong: "failure",
    Regression.regressed: "failure",
    Regression.not_comparable: "error",
    Regression.inconclusive: "skipped",
}
_SUITE = "bench gate"


@dataclass(frozen=True, slots=True)
class Place:
    """Hold a decoder's file, relative to the root of its repository, and the line of its class."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Annotation:
    """Describe one judged aspect of one decoder, with a `text` unless it passed."""

    cell: str
    aspect: str
    verdict: Regression
    text: str = ""


def findings(comparison: Comparison) -> Iterator[Annotation]:
    """Yield every judged measure, decoders that cannot be judged, and sides that are invalid."""
    for line in (*comparison.unlike, *comparison.invalid):
        yield Annotation("the runs", "comparable", Regression.not_comparable, line)
    for cell in comparison.cells:
        notes = "; ".join(cell.notes)
        if cell.verdict is Regression.wrong:
            yield Annotation(cell.cell, "lossless", cell.verdict, notes)
        if cell.verdict is Regression.not_comparable and not comparison.unlike:
            yield Annotation(cell.cell, "comparable", cell.verdict, notes)
        for measure in cell.measures:
            remarks = (both_sides(measure), measure.note) if measure.verdict in _ELEMENTS else ()
            text = "; ".join(filter(None, remarks))
            yield Annotation(cell.cell, measure_heading(measure.name), measure.verdict, text)


def to_junit(comparison: Comparison, places: Mapping[str, Place]) -> str:
    """Return JUnit XML: a test case for each annotation.

    An inconclusive annotation counts as skipped, or as failed if the gate demands a decision.
    """
    suite = xml.Element("testsuite", name=_SUITE)
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for annotation in findings(comparison):
        case = xml.SubElement(suite, "testcase", classname=annotation.cell, name=annotation.aspect)
        if place := places.get(annotation.cell):
            case.set("file", place.file)
            case.set("line", str(place.line))
        counts["tests"] += 1
        if kind := _element(annotation, comparison):
            xml.SubElement(case, kind, message=printable(annotation.text))
            counts[kind if kind == "skipped" else f"{kind}s"] += 1
    for name, number in counts.items():
        suite.set(name, str(number))
    xml.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(suite, "unicode") + "\n"


def github_commands(comparison: Comparison, places: Mapping[str, Place]) -> list[str]:
    """Return the workflow commands that show failures beside the code on GitHub."""
    lines, wrong = [], {c.cell for c in comparison.cells if c.verdict is Regression.wrong}
    for annotation in findings(comparison):
        if annotation.cell in wrong and annotation.verdict is not Regression.wrong:
            continue  # a consequence
        if kind := _element(annotation, comparison):
            level, place = "warning" if kind == "skipped" else "error", places.get(annotation.cell)
            at = f"file={_property(place.file)},line={place.line}," if place else ""
            title = _property(
                f"{_SUITE}: {annotation.cell}: {annotation.aspect} {annotation.verdict}"
            )
            lines.append(f"::{level} {at}title={title}::{_data(annotation.text)}")
    return lines


def locate_decoders(cells: Iterable[Cell], folder: Path) -> dict[str, Place]:
    """Return the places of decoders named by files of the repository around a folder."""
    root, places = repository_root(folder), dict[str, Place]()
    for cell in cells:
        file, _, name = (cell.name or "").rpartition(":")
        if root is None or not file or Path(file).is_absolute() or not (root / file).is_file():
            continue
        lines = (root / file).read_text(encoding="utf-8", errors="replace").splitlines()
        starts = rf"class {re.escape(name)}\b"
        numbers = (number for number, line in enumerate(lines, 1) if re.match(starts, line))
        places[cell.cell] = Place(Path(file).as_posix(), next(numbers, 1))
    return places


def _element(annotation: Annotation, comparison: Comparison) -> str | None:
    if annotation.verdict is Regression.inconclusive and comparison.gate.strict:
        return "failure"
    return _ELEMENTS.get(annotation.verdict)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

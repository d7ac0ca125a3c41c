"""A decoder whose drafts all fail is told, and only such a decoder."""

from __future__ import annotations

from collections.abc import Callable

from bench.records.plan import Cell
from bench.records.record import SampleRecord
from bench.stats.adapter_fit import draft_warnings

Make = Callable[..., SampleRecord]


def cell(name: str = "spec", *, drafts: bool | None = True, lossless: bool = True) -> Cell:
    return Cell(cell=name, lossless=lossless, drafts=drafts)


def test_drafts_that_are_never_accepted_are_reported(record: Make) -> None:
    lost = record("spec", drafted=(0, 4, 4), accepted=(0, 0, 0))
    (line,) = draft_warnings([cell()], [lost, record("spec", kind="quality", drafted=(0, 4, 9))])
    assert line.startswith("spec: none of 8 drafts was accepted")
    held = record("spec", drafted=(0, 4, 4), accepted=(0, 0, 1), repeat=1)
    assert draft_warnings([cell()], [lost, held]) == []


def test_a_decoder_that_needs_no_drafts_gets_no_warning(record: Make) -> None:
    plain = [record("ar"), record("nar", emitted=(1, 8)), record("refine")]
    cells = [cell("ar", drafts=False), cell("nar"), cell("refine", lossless=False)]
    assert draft_warnings(cells, plain) == []
    assert draft_warnings([cell("old", drafts=None)], [record("old")]) == []


def test_answers_of_a_single_step_give_no_warning(record: Make) -> None:
    assert draft_warnings([cell()], [record("spec", emitted=(1,))]) == []

"""Confidences of drafts against their acceptance, by hand and on drafters that are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.extras.sections.drafts import calibration, calibration_figure, calibration_table
from bench.records.record import LEVELS, SampleRecord
from bench.records.run_folder import load_run
from bench.report.figures.gallery import draw_all
from bench.report.findings import Findings
from bench.report.write import table_files
from bench.stats.calibration import BINS, NUM_BINS, calibrate, count_drafts
from bench.stats.counters import Tally
from bench.stats.metric import CellData, compute
from bench.stats.metrics import METRICS
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import DraftCall
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, Generation, Sampling
from decoders.eagle import Eagle
from decoders.isd import StridedDecoding
from decoders.lookup import PromptLookup
from decoders.shallow import Shallow
from tests.answer_records import record_of
from tests.bench.conftest import tables_of

Make = Callable[..., SampleRecord]
SURE, HALF = LEVELS, 64
"""Levels of confidence 1 and 64/127, in bins 15 and 8."""


def with_drafts(record: SampleRecord, *steps: Sequence[tuple[int, bool]]) -> SampleRecord:
    """The record with the confidences (levels) and outcomes of each step's drafts."""
    codes = [tuple(2 * level + stood for level, stood in drafts) for drafts in steps]
    assert record.steps is not None
    columns = dataclasses.replace(record.steps, confidence=tuple(codes))
    return dataclasses.replace(record, steps=columns)


@pytest.fixture
def drafted(record: Make) -> SampleRecord:
    """Four sure drafts, of which three were accepted, and four at a half, of which one was."""
    first = [(SURE, True), (SURE, True), (HALF, False)]
    second = [(HALF, False), (HALF, False), (SURE, True), (SURE, False)]
    return with_drafts(record(), (), first, [*second, (HALF, True)])


def test_both_calibration_errors_equal_values_computed_by_hand(drafted: SampleRecord) -> None:
    half = HALF / LEVELS
    ece, brier = calibrate([drafted])
    assert ece.value == pytest.approx((abs(3 - 4) + abs(1 - 4 * half)) / 8)
    assert brier.value == pytest.approx((1 + 3 * half**2 + (1 - half) ** 2) / 8)
    assert ece.low is None  # one conversation has no interval


def test_gaps_cancel_within_a_bin_and_not_between_bins(record: Make) -> None:
    """Levels 17 to 25 share a bin: in (2/15, 3/15]."""
    within, _ = calibrate([with_drafts(record(), [(17, False)] * 4 + [(25, True)], (), ())])
    assert within.value == pytest.approx(abs(1 - (4 * 17 + 25) / LEVELS) / 5)
    apart, _ = calibrate([with_drafts(record(), [(0, False), (0, True), (SURE, True)], (), ())])
    assert apart.value == pytest.approx(1 / 3)


def test_bins_have_equal_width_and_include_their_upper_end() -> None:
    assert NUM_BINS == 15
    assert (BINS[0], BINS[1], BINS[8], BINS[9], BINS[LEVELS]) == (0, 0, 0, 1, 14)
    assert set(np.bincount(BINS)) <= {8, 9}


def test_the_position_of_a_draft_counts_the_accepted_drafts_before_it(
    drafted: SampleRecord,
) -> None:
    counts = {position: each.sum(1).tolist() for position, each in count_drafts([drafted]).items()}
    assert counts == {1: [2, 2], 2: [1, 2], 3: [1, 0]}


def test_conversations_are_the_units_of_an_interval(record: Make) -> None:
    some = [
        with_drafts(record(conversation=f"c{n}", turn=turn), [(SURE, n % 2 == 0)] * 4, (), ())
        for n in range(8)
        for turn in (1, 2)
    ]
    ece, _ = calibrate(some)
    assert ece.value == pytest.approx(0.5)
    assert ece.clusters == 8
    assert ece.low is not None
    assert ece.high is not None
    assert 0 < ece.low < 0.5 < ece.high


def test_intervals_of_calibration_errors_end_at_0_and_1(record: Make) -> None:
    sure = [with_drafts(record(conversation=f"c{n}"), [(SURE, not n)], (), ()) for n in range(2)]
    assert [(each.low, each.high) for each in calibrate(sure)] == [(0, 1), (0, 1)]


def test_a_decoder_without_confidences_has_no_calibration_errors(record: Make) -> None:
    row = compute(CellData(decoder="lookup", family="all", records=[record()]), METRICS)
    assert (row["ece"], row["brier"], row["ece_low"]) == (None, None, None)
    assert calibration_table([record()], ["ar"]).empty


def test_the_table_has_overall_means_and_means_by_position(drafted: SampleRecord) -> None:
    table = calibration_table([drafted], ["ar"])
    assert table["drafts"].sum() == 8
    row = compute(CellData(decoder="ar", family="all", records=[drafted]), METRICS)
    summary = pd.DataFrame([row])
    printed = calibration(summary, table)
    assert printed is not None
    texts = [[cell.text for cell in line] for line in printed.rows]
    means = ["0.752", "0.752", "0.835", "0.504"]
    assert texts[0] == ["ar", "8", "0.252", "0.251", "confidence", *means]
    assert texts[1] == ["ar", "8", "", "", "accepted", "0.500", "0.500", "0.667", "0.000"]
    figure = calibration_figure(table, summary)
    assert figure is not None
    assert list(figure[1]["accepted"]) == [0.25, 0.75]
    (axes,) = (each for each in figure[0].axes if each.get_visible())
    assert axes.get_title() == "ar\nECE 0.252"  # above the panel, where no curve goes
    assert not axes.texts
    assert calibration_figure(table.iloc[:0], summary) is None


def test_a_report_has_the_calibration_section_its_table_file_and_the_figure(
    synthetic_run: Callable[..., Path],
) -> None:
    run = load_run(synthetic_run({"spec": 3.0, "ptp": 2.0}))
    records = []
    for record in run.records:
        assert record.steps is not None
        empty = [()] * (len(record.steps.emitted) - 1)
        sure = [[(SURE, True)] * 3 + [(SURE, False)], *empty]
        records.append(with_drafts(record, *sure) if record.decoder == "spec" else record)
    findings = Findings(dataclasses.replace(run, records=tuple(records)))
    (table,) = tables_of(findings)["calibration"]
    assert {row[0].text for row in table.rows} == {"spec"}
    assert table.rows[0][2].text.startswith("0.250")
    assert "calibration" in draw_all(findings).plots
    lines = table_files(findings)["tables/calibration.csv"].decode().splitlines()
    assert lines[0] == "decoder,position,bin,drafts,accepted,confidence"
    assert [line.split(",")[:3] for line in lines[1:]] == [
        ["spec", str(n), "15"] for n in range(1, 5)
    ]


# --- drafters that are right, or not, by construction ---


class Overconfident(TableModel):
    """Its slots are as often wrong, and say that they never are."""

    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        results = super().draft(calls)
        return [dataclasses.replace(r, confidences=(1.0,) * len(r.picks)) for r in results]


def answered(
    decoder: Decoder, model: TableModel, sampling: Sampling, num: int | None = None
) -> list[SampleRecord]:
    """Records of many prompts (or the first `num`), each a conversation."""
    prompts = [[a, b, c] for a in range(6) for b in range(6) for c in range(3)][:num]
    answers = Scheduler(decoder, Models(target=model), sampling, 16).run(prompts)
    records = []
    for number, answer in enumerate(answers):
        assert isinstance(answer, Generation), answer
        name = f"c{number}"
        records.append(record_of("any", answer, conversation=name, prompt_hash=name))
    return records


WARM = Sampling(temperature=1.0, max_new_tokens=40)


def model_with(name: str, variant: Any, error: float, kind: type[TableModel] = TableModel) -> Any:
    model = kind(7, seed=1, scale=1.5, order=3)
    model.attach(name, error, variant)
    return model


@pytest.mark.slow
def test_a_layer_with_the_targets_distributions_is_calibrated_and_a_wrong_one_is_not() -> None:
    """The target picks a token as often as a distribution says that is its own."""
    decoder = Eagle(nodes=12, width=4, depth=3)
    right, _ = calibrate(answered(decoder, model_with("eagle", "eagle", 0.0), WARM))
    wrong, _ = calibrate(answered(decoder, model_with("eagle", "eagle", 1.0), WARM))
    assert right.value is not None
    assert right.value < 0.02
    assert wrong.value is not None
    assert wrong.value > 0.1


def test_slots_that_know_their_error_rate_are_calibrated_and_overconfident_slots_are_not() -> None:
    modest, _ = calibrate(answered(Shallow(stop=0.0), model_with("shallow", "shallow", 0.3), WARM))
    boaster = model_with("shallow", "shallow", 0.3, Overconfident)
    errors, _ = calibrate(answered(Shallow(stop=0.0), boaster, WARM))
    assert modest.value is not None
    assert modest.value < 0.05
    assert errors.value == pytest.approx(0.3, abs=0.05)


def test_confidences_mark_the_accepted_drafts_of_every_step() -> None:
    """A step has as many odd numbers as accepted drafts, apart from the cut at the end."""
    for decoder, variant in ((Eagle(), "eagle"), (StridedDecoding(), "isd")):
        model = model_with(decoder.name, variant, 0.3)
        for record in answered(decoder, model, WARM, 20):
            assert record.steps is not None
            assert Tally.of(record).accepted
            columns = zip(record.steps.confidence, record.steps.accepted, strict=True)
            stood = [(sum(code % 2 for code in codes), a) for codes, a in columns]
            assert all(seen == a for seen, a in stood[:-1])


def test_a_drafter_without_probabilities_stores_no_confidences() -> None:
    records = answered(PromptLookup(), TableModel(7, seed=1), Sampling(max_new_tokens=30))
    assert Tally.pool(records).drafted
    assert all(record.steps and record.steps.confidence == () for record in records)
    assert calibrate(records)[0].value is None


def test_an_interval_of_an_error_does_not_go_below_zero(record: Make) -> None:
    some = [
        with_drafts(record(conversation=f"c{n}"), [(SURE, n > 0)] * 4, (), ()) for n in range(3)
    ]
    for error in calibrate(some):
        assert error.value == pytest.approx(1 / 3, abs=0.01)
        assert error.low == 0.0

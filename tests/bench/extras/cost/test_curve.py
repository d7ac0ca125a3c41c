import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.extras.cost.curve import (
    CostCurve,
    break_even_rate,
    cost_table,
    load_cost,
    median_interval,
    tokens_per_step,
    with_readings,
)
from bench.extras.cost.records import (
    CURVE,
    Calls,
    CallWork,
    CostCell,
    CostFacts,
    Grid,
    Measured,
    write_facts,
)
from bench.records.frames import csv_bytes

WORK = CallWork(weight_bytes=1000, token_bytes=10, row_flops=500, pair_flops=2)
GRID = Grid(rows=(1, 4, 16), sequences=(1, 4), contexts=(100, 200), rounds=7, longest_s=1.0)
FACTS = CostFacts(name="made up", work=WORK, grid=GRID)


def truth(cell):
    """Seconds linear along each axis: interpolation must be exact."""
    return 1 + 0.1 * cell.rows + 0.01 * cell.context + 0.5 * cell.sequences


CURVE_OF_TRUTH = CostCurve(points={cell: truth(cell) for cell in GRID.cells})


def cell(rows, context=100, sequences=1):
    return CostCell(rows=rows, context=context, sequences=sequences)


def times(cells=GRID.cells, value=truth):
    return {cell: [value(cell)] * GRID.rounds for cell in cells}


@pytest.mark.parametrize("at", [(1, 100, 1), (7, 130, 2), (16, 200, 4), (40, 900, 9)])
def test_interpolation_and_extrapolation_are_exact_for_costs_linear_along_each_axis(at):
    rows, context, sequences = at
    expected = truth(cell(rows, context, sequences))
    assert CURVE_OF_TRUTH.seconds(rows, context, sequences) == pytest.approx(expected)


@pytest.mark.parametrize("at", [(4, 100, 1), (7, 130, 2), (16, 200, 4)])
def test_a_relative_cost_refers_to_a_one_row_call_with_equal_sequences_and_context(at):
    rows, context, sequences = at
    expected = truth(cell(rows, context, sequences)) / truth(cell(1, context, sequences))
    assert CURVE_OF_TRUTH.relative(*at) == pytest.approx(expected)


def test_below_the_smallest_context_a_call_takes_as_long_as_at_the_smallest_context():
    assert CURVE_OF_TRUTH.seconds(4, 3) == pytest.approx(truth(cell(4)))


def test_noise_at_the_end_of_a_curve_never_makes_larger_calls_cheaper():
    curve = CostCurve(points={cell(1): 1.0, cell(2): 3.0, cell(4): 2.0})
    assert curve.seconds(400, 100) == 2.0
    assert curve.seconds(3, 100) == 2.5


def test_the_cost_of_a_row_is_the_slope_divided_by_the_time_of_a_one_row_call():
    one = truth(cell(1))
    assert CURVE_OF_TRUTH.row_cost(100) == pytest.approx(0.1 / one)
    assert CostCurve(points={cell(1): 2.0}).row_cost(100) == 0


def test_limits_are_bytes_over_bandwidth_and_operations_over_rate():
    facts = replace(FACTS, bandwidth=Measured(value=100.0), matrix_rate=Measured(value=50.0))
    call = cell(4, context=100, sequences=2)
    assert facts.memory_s(call) == pytest.approx((1000 + 2 * 104 * 10) / 100)
    # a row attends to the context, itself and the rows before it: 102.5 tokens on average
    assert facts.compute_s(call) == pytest.approx(8 * (500 + 102.5 * 2) / 50)
    assert (FACTS.memory_s(call), FACTS.compute_s(call)) == (None, None)


@pytest.mark.parametrize(("rate", "drafts"), [(0.5, 1), (0.7, 4), (0.93, 12)])
def test_at_the_break_even_rate_tokens_per_step_equal_the_relative_cost_of_a_step(rate, drafts):
    geometric = (1 - rate ** (drafts + 1)) / (1 - rate)
    assert tokens_per_step(rate, drafts) == pytest.approx(geometric)
    assert break_even_rate(geometric, drafts) == pytest.approx(rate)


def test_too_costly_drafts_never_break_even_and_free_drafts_always_do():
    assert break_even_rate(5.01, 4) is None
    assert break_even_rate(5.0, 4) == pytest.approx(1)
    assert break_even_rate(1.0, 4) == 0


def test_the_interval_of_a_median_lies_between_order_statistics_and_needs_six_values():
    assert median_interval([3.0, 1.0, 2.0]) == Measured(value=2.0, num=3)
    six = median_interval([6.0, 1.0, 5.0, 2.0, 4.0, 3.0])
    assert six == Measured(value=3.5, low=1, high=6, num=6)
    ten = median_interval([float(v) for v in range(1, 11)])
    assert ten == Measured(value=5.5, low=2, high=9, num=10)
    # below the low end lie fewer than 2 of 10 with probability 11/1024, below the third 56/1024
    assert sum(math.comb(10, k) for k in range(2)) / 1024 < 0.025
    assert sum(math.comb(10, k) for k in range(3)) / 1024 > 0.025
    assert median_interval([]) is None


def test_the_table_has_medians_and_the_reason_for_each_cell_left_out():
    large = cell(16, 200, 4)
    known = [c for c in GRID.cells if c != large]
    disturbed = times(known) | {cell(4): [*[truth(cell(4))] * GRID.rounds, 99.0]}
    table = cost_table(FACTS, Calls(seconds=disturbed, left_out={large: "dear"}))
    assert len(table) == len(GRID.cells)
    row = table[(table["rows"] == 4) & (table["context"] == 100) & (table["sequences"] == 1)]
    assert row["seconds"].item() == pytest.approx(truth(cell(4)))
    assert row["rounds"].item() == 8
    assert row["relative"].item() == pytest.approx(truth(cell(4)) / truth(cell(1)))
    for made in table.dropna(subset="seconds").to_dict("records"):
        of_one = truth(cell(1, made["context"], made["sequences"]))
        assert made["relative"] == pytest.approx(made["seconds"] / of_one)
    assert table["left_out"].dropna().tolist() == ["dear"]
    assert table["seconds"].isna().sum() == 1


def written(folder, table):
    write_facts(folder, FACTS)
    (folder / CURVE).write_bytes(csv_bytes(table, "%.9g"))
    return folder


def test_a_cost_folder_is_read_back_as_it_was_written(tmp_path: Path):
    table = cost_table(FACTS, Calls(seconds=times()))
    cost = load_cost(written(tmp_path, table))
    assert cost.facts == FACTS
    assert cost.curve.points == pytest.approx(dict(CURVE_OF_TRUTH.points))


def test_a_folder_with_a_missing_or_damaged_curve_is_refused(tmp_path: Path):
    with pytest.raises(BenchError, match="not a cost folder") as missing:
        load_cost(tmp_path)
    assert missing.value.exit_code == 2
    table = cost_table(FACTS, Calls(seconds=times([c for c in GRID.cells if c.rows > 1])))
    with pytest.raises(BenchError, match="lacks positive times of one-row calls") as damaged:
        load_cost(written(tmp_path, table))
    assert damaged.value.exit_code == 4
    (tmp_path / CURVE).write_text("rows\n1\n")
    with pytest.raises(BenchError, match="damaged"):
        load_cost(tmp_path)


def test_readings_of_the_machine_become_medians():
    values = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0]
    calls = Calls(readings={"bandwidth": values})
    assert with_readings(FACTS, calls).bandwidth == Measured(value=3.5, low=1, high=6, num=6)

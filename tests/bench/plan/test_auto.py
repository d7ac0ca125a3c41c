from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.extras.cost.records import CostCell, write_draft_costs
from bench.plan.select import choose_decoders, resolve_auto
from bench.settings.config import load_config
from decoders.spec import Speculative
from tests.made_up_cost import seconds, write_cost_folder


def config_of(decoders, cost=None, **values):
    return load_config(None, {"decoders": decoders, "cost": cost and str(cost), **values})


@pytest.fixture
def cost(tmp_path: Path) -> Path:
    return write_cost_folder(tmp_path / "cost")


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_cost_of_a_row_is_read_off_the_curve_at_the_runs_batch_size(cost, batch_size):
    notes: list[str] = []
    config = config_of("ptp:row_cost=auto", cost, batch_size=batch_size)
    chosen = choose_decoders(config, notes.append).config
    one, sixteen = (
        seconds(CostCell(rows=rows, sequences=batch_size, context=10)) for rows in (1, 16)
    )
    expected = (sixteen / one - 1) / 15
    assert chosen.decoders is not None
    assert float(chosen.decoders["ptp"]["row_cost"]) == pytest.approx(expected, rel=1e-3)
    assert any(note.startswith("ptp: row_cost=auto is 0.") for note in notes)


def test_draft_cost_auto_takes_the_measured_cost_of_the_cell_or_else_of_its_decoder(cost):
    write_draft_costs(cost, {"spec": 0.25, "spec@long": 0.3125})
    how = "k=auto:draft_cost=auto"
    config = config_of(f"spec:{how},spec@long:{how},spec@other:{how}", cost)
    chosen = resolve_auto(config, lambda note: None)
    costs = {cell: options["draft_cost"] for cell, options in chosen.items()}
    assert costs == {"spec": "0.25", "spec@long": "0.3125", "spec@other": "0.25"}
    assert {options["k"] for options in chosen.values()} == {"auto"}  # decided in every step


def test_an_automatic_number_of_drafts_needs_no_measured_costs():
    chosen = choose_decoders(config_of("spec:k=auto"), lambda note: None)
    assert chosen.decoders["spec"] == Speculative(k="auto")


def test_the_stored_configuration_has_the_resolved_draft_cost_and_resolves_to_itself(cost):
    write_draft_costs(cost, {"spec": 0.25})
    both = "spec:k=auto:row_cost=auto:draft_cost=auto"
    chosen = choose_decoders(config_of(both, cost), lambda note: None).config
    assert chosen.decoders is not None
    assert chosen.decoders["spec"]["draft_cost"] == "0.25"
    assert chosen.to_toml().count("auto") == 1
    assert choose_decoders(chosen, lambda note: None).config == chosen


def test_an_automatic_draft_cost_without_a_cost_folder_or_a_measured_run_is_refused(cost):
    with pytest.raises(BenchError, match="give --cost a folder") as missing:
        choose_decoders(config_of("spec:k=auto:draft_cost=auto"), lambda note: None)
    assert missing.value.exit_code == 2
    with pytest.raises(BenchError, match="bench cost --run RUN") as unknown:
        choose_decoders(config_of("spec:k=auto:draft_cost=auto", cost), lambda note: None)
    assert unknown.value.exit_code == 2


def test_an_invalid_cost_folder_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(BenchError, match="not a cost folder"):
        choose_decoders(config_of("spec", tmp_path), lambda note: None)

"""Who computes in row-invariant numerics, in which tile, and what is refused in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from bench.errors import BenchError, Exit
from bench.machine.env import comparability_key
from bench.plan import numerics
from bench.plan.numerics import describe_numerics
from bench.plan.select import ResolvedRun, choose_decoders
from bench.plan.setup import Setup, open_setup
from bench.records.environment import Environment, ModelFacts
from bench.settings.config import load_config
from decoders.core.engine.models import Models
from decoders.core.hf.model import HFModel
from decoders.core.model import Call
from tests.tiny_models import fresh


def run_of(**values: Any) -> ResolvedRun:
    return choose_decoders(load_config(None, {"dtype": "bfloat16", **values}), lambda _line: None)


@pytest.fixture(scope="module")
def setup() -> Setup:
    cells = "ar,ar@fast:numerics=fast,ptp,ptp@fast:numerics=fast"
    return open_setup(run_of(decoders=cells, numerics="invariant", tile=8))


@pytest.mark.slow
def test_cells_use_the_numerics_of_the_run_unless_an_option_overrides_them(setup: Setup) -> None:
    tiles = {cell: getattr(arm.models.target, "tile", None) for cell, arm in setup.arms.items()}
    assert tiles == {"ar": 8, "ar@fast": None, "ptp": 8, "ptp@fast": None}
    assert setup.models.target is setup.arms["ar"].models.target
    precisions = [setup.precision(cell) for cell in setup.arms]
    assert precisions == ["invariant", "bfloat16", "invariant", "bfloat16"]


@pytest.mark.slow
def test_both_numerics_share_the_weights(setup: Setup) -> None:
    one, other = setup.arms["ar"].models.target, setup.arms["ar@fast"].models.target
    assert one.module is other.module  # type: ignore[attr-defined]
    assert one.weight_bytes == other.weight_bytes


def test_a_run_records_numerics_and_tile_and_the_numerics_that_a_cell_sets(setup: Setup) -> None:
    assert (setup.config.numerics, setup.config.tile) == ("invariant", 8)
    assert setup.facts.target is not None
    assert setup.facts.target["tile"] == 8
    assert setup.arms["ar@fast"].cell.options["numerics"] == "fast"
    assert "numerics" not in setup.arms["ar"].cell.options
    assert ", row-invariant in tiles of 8" in describe_numerics(setup.config, setup.config)
    of_one_cell = setup.config.with_values(numerics="fast")
    assert "partly row-invariant in tiles" in describe_numerics(of_one_cell, of_one_cell)
    again = load_config(None, {"decoders": dict(setup.config.decoders or {})})
    assert (again.decoders or {})["ar@fast"]["numerics"] == "fast"


def test_times_of_other_tiles_are_not_compared() -> None:
    targets: tuple[dict[str, int], ...] = ({}, {"tile": 8}, {"tile": 16})
    envs = [Environment(models=ModelFacts(target=target)) for target in targets]
    assert len({comparability_key(env) for env in envs}) == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"compile": True}, "--compile compiles a graph per shape"),
        ({"decoders": "hf"}, "decoder 'hf' runs its own loop"),
        ({"decoders": "spec:numerics=exact"}, "numerics is 'exact'; allowed: fast, invariant"),
        ({"decoders": "ar:numerics=fast"}, "the baseline 'ar' takes no option"),
        ({"numerics": "exact"}, "fast"),
        ({"tile": 12}, "8, 16 or 32"),
        ({"tile": 16, "numerics": "fast"}, "--tile 16 is for row-invariant numerics"),
    ],
)
def test_settings_that_do_not_fit_row_invariant_numerics_are_refused_in_one_line(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError) as refused:
        open_setup(run_of(**{"numerics": "invariant", "decoders": "ar", **values}))
    assert refused.value.exit_code == Exit.USAGE
    assert message in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("seconds", "tile"), [((1.2, 1.1, 2.4), 16), ((1.0, 1.9, 3.7), 8), ((1.0, 0.9, 0.8), 32)]
)
def test_the_tile_with_the_fastest_calls_is_selected(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], tile: int
) -> None:
    measured = dict(zip(numerics.TILES, seconds, strict=True))
    monkeypatch.setattr(numerics, "_seconds", lambda model: measured[model.tile])
    models, chosen = numerics.in_tiles(Models(target=HFModel(fresh("llama"))), None)
    assert (chosen, models.target.tile) == (tile, tile)  # type: ignore[attr-defined]


def test_calls_of_all_usual_widths_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HFModel(fresh("llama"))
    widths: list[int] = []
    forward = model.forward

    def watched(calls: Sequence[Call]) -> Tensor:
        widths.append(calls[0].num_rows)
        return forward(calls)

    monkeypatch.setattr(model, "forward", watched)
    assert numerics._seconds(model) > 0
    assert sorted(set(widths)) == [1, 5, 9, 17]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_that_is_not_row_invariant_on_this_machine_is_refused(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = {"target": HFModel(fresh("llama")), "draft": HFModel(fresh("llama"))}
    monkeypatch.setattr(numerics, "holds", lambda model: model.module is not roles[role].module)
    with pytest.raises(BenchError, match="not computed identically in tiles of 8") as refused:
        numerics.in_tiles(Models.of(roles), 8)
    assert refused.value.exit_code == Exit.UNAVAILABLE


@pytest.mark.parametrize(("price", "rows"), [(0.05, 16), (0.09, 16), (0.2, 1)])
def test_captured_calls_are_padded_where_that_is_cheap(
    price: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = HFModel(fresh("llama")), []

    def seconds(timed: HFModel, widths: Sequence[int], batch_size: int) -> float:
        seen.append((timed.min_rows, tuple(widths), batch_size))
        return (1 + price if timed.min_rows == 16 else 1.0) + (len(seen) == 1)

    monkeypatch.setattr(numerics, "_seconds", seconds)
    assert numerics.pad_rows(model, None, 4) == (rows, pytest.approx(price))
    assert model.min_rows == rows
    assert seen[:3] == [(1, (1,), 4), (16, (1,), 4), (1, (1,), 4)], "in turn"


def test_an_explicit_number_of_padded_rows_is_used_without_timing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = HFModel(fresh("llama"))
    monkeypatch.setattr(numerics, "_seconds", None)
    assert numerics.pad_rows(model, 8, 1) == (8, None)
    assert model.min_rows == 8


def test_calls_of_several_sequences_are_timed() -> None:
    model = HFModel(fresh("llama"))
    assert numerics._seconds(model, (1,), 3) > 0
    assert model.num_forwards == numerics._TIMED
    assert model.facts.get("padded") is None


def test_pad_rows_are_refused_on_a_cpu() -> None:
    with pytest.raises(BenchError, match="--pad-rows 8 is for calls that a GPU captures") as told:
        open_setup(run_of(decoders="ar", pad_rows=8))
    assert told.value.exit_code == Exit.USAGE

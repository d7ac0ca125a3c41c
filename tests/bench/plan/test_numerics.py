"""Who computes in row-invariant numerics, in which tile, and what is refused in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from bench.errors import BenchError, Exit
from bench.machine.env import comparability_key
from bench.plan import numerics
from bench.plan.numerics import computed_in
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
def test_cells_compute_as_the_run_does_or_as_they_say(setup: Setup) -> None:
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


def test_a_run_records_numerics_tile_and_what_a_cell_chose(setup: Setup) -> None:
    assert (setup.config.numerics, setup.config.tile) == ("invariant", 8)
    assert setup.facts["target"] is not None
    assert setup.facts["target"]["tile"] == 8
    assert setup.arms["ar@fast"].cell.options["numerics"] == "fast"
    assert "numerics" not in setup.arms["ar"].cell.options
    assert "row-invariant in tiles of 8" in computed_in(setup.config, setup.config)
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
        ({"attention": "eager"}, "--attention eager"),
        ({"decoders": "hf"}, "decoder 'hf' runs its own loop"),
        ({"decoders": "spec:numerics=exact"}, "numerics is 'exact'; allowed: fast, invariant"),
        ({"decoders": "ar:numerics=fast"}, "the baseline 'ar' takes no option"),
        ({"numerics": "exact"}, "fast"),
        ({"tile": 12}, "8, 16 or 32"),
        ({"tile": 16, "numerics": "fast"}, "--tile 16 is for row-invariant numerics"),
    ],
)
def test_what_has_no_row_invariant_numerics_says_so_in_one_line(
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
def test_the_tile_is_the_one_whose_calls_take_least(
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


def test_a_machine_on_which_it_does_not_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "holds", lambda _model: False)
    with pytest.raises(BenchError, match="not computed identically in tiles of 8") as refused:
        numerics.in_tiles(Models(target=HFModel(fresh("llama"))), 8)
    assert refused.value.exit_code == Exit.UNAVAILABLE

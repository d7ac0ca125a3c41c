from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from bench.extras.cost.curve import Cost, CostCurve
from bench.extras.cost.limit import limit_lines, mean_context, mismatch
from bench.extras.cost.records import CallWork, CostFacts, Grid, Measured, folder_name
from bench.records.environment import Environment, ModelFacts
from tests.bench.conftest import make_record

TARGET = {
    "architecture": "Llama",
    "layers": 2,
    "hidden_size": 8,
    "vocab_size": 11,
    "parameters": 99,
}
ENV = Environment(models=ModelFacts(target=TARGET), comparability_key="here")
GRID = Grid(rows=(1,), sequences=(1,), contexts=(0, 100), rounds=1, longest_s=1.0)
FACTS = CostFacts(
    name="made up",
    target=TARGET,
    work=CallWork(weight_bytes=1000, token_bytes=10, row_flops=2, pair_flops=0),
    grid=GRID,
    bandwidth=Measured(value=10_000.0),
)
CURVE = CostCurve(points={cell: 1 + 0.01 * cell.context for cell in GRID.cells})
COST = Cost(path=Path("made-up"), facts=FACTS, env=ENV, table=pd.DataFrame(), curve=CURVE)


def run_of(*records, env=ENV) -> Any:
    return SimpleNamespace(records=records, env=env, path=Path("run"))


# ten prompt tokens, then steps with 10, 11, 12 and 13 tokens in the cache
AR = make_record("ar", (1,) * 5, ttft_s=1.0, total_s=1.0 + 4 * 2.0)


def test_compiled_and_eager_times_are_not_compared():
    compiled = replace(COST, facts=replace(FACTS, target=TARGET | {"compiled": True}))
    assert mismatch(COST, ENV) is None
    assert "ran eagerly in the other" in str(mismatch(compiled, ENV))
    assert folder_name(compiled.facts, ENV).endswith("-compiled")


def test_the_mean_context_leaves_out_the_first_call():
    assert mean_context([AR]) == pytest.approx(11.5)
    longer = make_record("ar", (1, 1), num_prompt_tokens=100)
    assert mean_context([AR, longer]) == pytest.approx((4 * 11.5 + 100) / 5)
    assert mean_context([make_record("spec", (1, 1))]) is None


def test_ar_is_compared_with_the_limits_of_a_call_and_of_the_bandwidth():
    (line,) = limit_lines(run_of(AR), COST)
    assert "2000.00 ms per token" in line
    # 11.5 tokens in the cache round to the even 12, and the call reads its own
    assert "5.7 % for reading weights and cache once (113.00 ms)" in line
    assert "55.8 % for only calling the model (1115.00 ms)" in line


def test_costs_of_another_machine_or_model_give_no_share_of_the_limit():
    elsewhere = replace(ENV, comparability_key="there")
    other = replace(ENV, models=ModelFacts(target={**TARGET, "layers": 3}))
    assert mismatch(COST, ENV) is None
    assert "another machine" in str(mismatch(COST, elsewhere))
    assert "layers is 2, in the run 3" in str(mismatch(COST, other))
    (line,) = limit_lines(run_of(AR, env=elsewhere), COST)
    assert "another machine" in line
    assert "%" not in line


def test_the_share_of_the_limit_is_unknown_for_a_batched_run():
    group = make_record("ar", (1,) * 5, batch_size=2, ttft_s=None, total_s=None, group_s=3.0)
    (line,) = limit_lines(run_of(group), COST)
    assert "is unknown" in line

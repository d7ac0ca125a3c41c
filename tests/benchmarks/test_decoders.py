"""Every decoder's whole generation on the zoo under pytest-benchmark, its counters in extra_info.

The default suite runs each once, untimed. Times, and a comparison with an earlier run of them:

python -m pytest tests/benchmarks/test_decoders.py --benchmark-enable --benchmark-autosave
python -m pytest tests/benchmarks/test_decoders.py --benchmark-enable --benchmark-compare
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.plan.make import make_plan
from bench.plan.select import built_in_cells, choose_decoders
from bench.plan.setup import Setup, open_setup
from bench.progress import Progress
from bench.settings.config import load_config
from bench.stats.counters import Tally
from decoders.core.engine.scheduler import Scheduler
from decoders.core.types import Generation
from tests.answer_records import record_of

BUDGET = 32


@pytest.fixture(scope="module")
def zoo() -> tuple[Setup, list[tuple[int, ...]]]:
    """The zoo with every decoder it can run, and one prompt per family."""
    values = {"limit": 6, "quality_limit": 0, "repeats": 1, "max_new_tokens": BUDGET}
    config = load_config(None, {**values, "device": "cpu", "threads": 1})
    setup = open_setup(choose_decoders(config, Progress().note))
    plan, prompts = make_plan(setup, "benchmark", Progress())
    first = {planned.family: prompts[planned.prompt].ids for planned in plan.prompts[::-1]}
    return setup, list(first.values())


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("ar", "spec", "ptp") else pytest.param(name, marks=pytest.mark.slow)
        for name in built_in_cells()
    ],
)
def test_a_whole_generation(
    benchmark: BenchmarkFixture, zoo: tuple[Setup, list[tuple[int, ...]]], name: str
) -> None:
    setup, prompts = zoo
    if name not in setup.arms:
        pytest.skip(f"the zoo does not meet the needs of {name}")
    arm = setup.arm(name)
    scheduler = Scheduler(arm.decoder, arm.models, setup.sampling)
    outcomes = benchmark(scheduler.run, prompts)
    answers = [outcome for outcome in outcomes if isinstance(outcome, Generation)]
    assert len(answers) == len(prompts) == 6, outcomes
    tally = Tally.pool(record_of(name, answer) for answer in answers)
    benchmark.extra_info |= {
        "emitted": tally.emitted,
        "target_calls": tally.target_calls,
        "target_rows_after_prefill": tally.later_rows,
        "accepted": tally.accepted,
        "tokens_per_call": tally.tokens_per_call,
        "acceptance_length": tally.acceptance_length,
    }
    assert 0 < tally.target_calls <= tally.emitted <= 6 * BUDGET

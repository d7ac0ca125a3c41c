"""What a model is computed in by default, and that a run says so before it measures."""

from typing import Any

import pytest

from bench import runs as bench_run
from bench.plan import numerics
from bench.plan.numerics import default_dtype, describe_numerics
from bench.settings.config import RunConfig


@pytest.mark.parametrize(
    ("weights", "instructions", "dtype"),
    [
        (134_515_008, True, "bfloat16"),
        (134_515_008, False, "float32"),
        (50_000_000, True, "float32"),
        (50_000_001, True, "bfloat16"),
        (None, True, "float32"),
    ],
)
def test_large_models_run_in_half_precision_where_a_cpu_has_it(
    weights: int | None, instructions: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "has_bfloat16", lambda: instructions)
    monkeypatch.setattr(numerics, "count_weights", lambda source: weights)
    assert default_dtype(RunConfig(), "cpu", "here") == dtype
    assert default_dtype(RunConfig(), "cuda", "here") == "bfloat16"
    assert default_dtype(RunConfig(protocol="specbench"), "cuda", "here") == "float16"


@pytest.mark.parametrize(
    ("asked", "opened", "said"),
    [
        (
            {},
            {"dtype": "bfloat16", "threads": 2},
            "bfloat16 on cpu, 2 threads: the default for this model and device "
            "(--dtype float32 overrides it)",
        ),
        ({"dtype": "bfloat16"}, {"dtype": "bfloat16", "threads": 2}, "bfloat16 on cpu, 2 threads"),
        ({}, {"dtype": "float32", "threads": 1}, "float32 on cpu, 1 thread"),
        (
            {},
            {"dtype": "bfloat16", "device": "cuda:0"},
            "bfloat16 on cuda:0: the default for this model and device "
            "(--dtype float32 overrides it)",
        ),
    ],
)
def test_a_line_states_dtype_device_and_threads_and_the_option_that_overrides_a_default(
    asked: dict[str, Any], opened: dict[str, Any], said: str
) -> None:
    config = RunConfig(**asked)
    assert describe_numerics(config, config.with_values(**({"device": "cpu"} | opened))) == (
        f"computed in {said}"
    )


def test_a_run_reports_its_dtype_and_device_before_it_measures(
    small: Any, opener: Any, progress: Any, tmp_path: Any
) -> None:
    shown = progress(stop_at=1)
    bench_run.run(small(), tmp_path, shown, opener, report=None)
    assert "computed in float32 on cpu" in shown.notes

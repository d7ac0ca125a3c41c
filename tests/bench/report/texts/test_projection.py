"""A projection is printed as far as the measured curve carries it, and no further."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.run_folder import load_run
from bench.report.texts.projection import projected
from bench.stats.cost_curve import load_cost
from bench.stats.intervals import Estimate
from bench.stats.project import Projection
from tests.made_up_cost import write_cost_folder


@pytest.mark.parametrize(
    ("of_ar", "of_spec", "shown", "said"),
    [
        (0.0, 0.04, "2.00x [1.90, 2.10]", None),
        (0.0, 0.2, "2.00x", "spec: 20.0 % of its calls or ar's lie beyond"),
        (0.3, 0.0, "2.00x", "spec: 30.0 % of its calls or ar's lie beyond"),
        (0.0, 1.0, None, "and it is left out; `bench cost`"),
        (0.9, 0.0, None, "spec: 90.0 % of its calls or ar's"),
    ],
)
def test_beyond_the_curve_there_is_no_interval_and_far_beyond_no_number(
    monkeypatch: pytest.MonkeyPatch,
    synthetic_run: Callable[..., Path],
    tmp_path: Path,
    of_ar: float,
    of_spec: float,
    shown: str | None,
    said: str | None,
) -> None:
    one = Projection(
        decoder="ar",
        speedup=Estimate(value=1.0),
        time_per_token_s=1e-3,
        rows_per_call=1.0,
        beyond=of_ar,
    )
    narrow = Estimate(value=2.0, low=1.9, high=2.1)
    made = [one, replace(one, decoder="spec", speedup=narrow, beyond=of_spec)]
    monkeypatch.setattr("bench.report.texts.projection.project", lambda *_: made)
    run = load_run(synthetic_run({"spec": 2.0}))
    found = projected(run, load_cost(write_cost_folder(tmp_path / "cost")))
    lines = {line[0]: line[1] for line in found.table()}
    assert lines.get("spec") == shown
    notes = " ".join(found.notes)
    assert "lie beyond" not in notes if said is None else said in notes

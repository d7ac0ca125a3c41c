"""The quality pass of the main job: in its batches every decoder answers as it does alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.extras.workers.worker import LineCollector
from bench.measure.quality import score_quality
from bench.plan.make import batch_size, make_plan
from bench.plan.select import choose_decoders
from bench.plan.setup import open_setup
from bench.progress import choose
from bench.records.record import SampleRecord
from bench.settings.config import load_config
from bench.stats.metrics import summary_rows
from bench.stats.summary import summarise
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.types import Generation
from tests.answer_records import run_of


@pytest.mark.slow
@pytest.mark.parametrize("per_family", [1, 6])
def test_greedy_answers_in_full_batches_equal_those_of_each_prompt_alone(per_family: int) -> None:
    """6 a family are more prompts than a batch holds: places are taken over as others end."""
    progress = choose("none")
    values = {"limit": 1, "quality_limit": per_family, "dtype": "float32", "device": "cpu"}
    config = choose_decoders(load_config(None, {**values, "threads": 1}), progress.note)
    setup = open_setup(config)
    plan, prompts = make_plan(setup, "quality", progress)
    asked = [prompts[planned.prompt].ids for planned in plan.in_pass("quality")]
    at_once = batch_size(setup)
    assert at_once == 32
    assert per_family == 1 or len(asked) > at_once
    assert {"ar", "idlm", "idlm@isd", "lookup", "nar", "ptp", "spec"} <= set(setup.arms)
    for cell, arm in setup.arms.items():
        together = Scheduler(arm.decoder, arm.models, setup.sampling, at_once).run(asked)
        for ids, answer in zip(asked, together, strict=True):
            assert isinstance(answer, Generation), cell
            alone = generate(arm.decoder, ids, setup.sampling, arm.models)
            assert answer.tokens == alone.tokens, cell


@pytest.mark.slow
def test_likelihood_distinguishes_lossy_but_not_lossless_decoders_from_ar() -> None:
    progress, taken = choose("none"), LineCollector()
    values = {"tasks": "translation,math_reasoning", "quality_limit": 12, "limit": 1}
    values |= {"dtype": "float32", "device": "cpu", "threads": 1, "max_new_tokens": 64}
    chosen: dict[str, Any] = {"decoders": {"nar": {}, "idlm": {}, "lookup": {}}}
    config = choose_decoders(load_config(None, values | chosen), progress.note)
    setup = open_setup(config)
    plan, prompts = make_plan(setup, "quality", progress)
    asked = [prompts[planned.prompt] for planned in plan.in_pass("quality")]
    score_quality(setup, asked, taken, progress, attempt=0)
    records = [SampleRecord.from_dict(json.loads(line)) for line in taken.lines]
    rows = {row.decoder: row for row in summary_rows(summarise(run_of(records, plan)), "all")}
    lost = {name: row.estimate("nll_over_ar") for name, row in rows.items()}
    assert (lost["lookup"].value, lost["lookup"].low) == (0, None)
    assert (lost["nar"].low or 0) > 5
    assert 0 < (lost["idlm"].low or 0) < (lost["idlm"].high or 0) < (lost["nar"].low or 0)
    assert lost["idlm"].value is not None
    assert rows["ar"].base_nll == pytest.approx((rows["idlm"].base_nll or 0) - lost["idlm"].value)

"""The quality pass of the main job: in its batches every decoder answers as it does alone."""

from __future__ import annotations

import pytest

from bench.plan.make import batch_size, make_plan
from bench.plan.select import choose_decoders
from bench.plan.setup import open_setup
from bench.progress import choose
from bench.settings.config import load_config
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.types import Generation


@pytest.mark.parametrize("per_family", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_greedy_answers_in_batches_of_all_prompts_are_those_of_each_alone(per_family: int) -> None:
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

"""Templates that write a date or draw: one date a job, the same draws in every run."""

import json

import pytest

from bench.records.environment import ENV
from bench.records.run_folder import CONFIG, load_run
from bench.settings.config import read_toml
from specbench_tasks import child
from tests.cases.conftest import Case
from tests.command_line import bench


def hashes(case: Case, output: str = "out") -> list[str]:
    return [prompt.hash for prompt in load_run(case.latest(output)).plan.prompts]


@pytest.mark.slow
def test_a_templates_date_is_reported_recorded_and_reused_by_the_saved_config(
    case: Case, variant, monkeypatch
):
    monkeypatch.setattr("bench.plan.setup.today", lambda: "2026-03-01")
    quick = ("--quality-limit", 0)
    done = case.run(variant("date"), *quick)
    assert done.code == 0, done.err
    assert "may write a date: 2026-03-01 (--date)" in done.err
    assert "written on 2026-03-01" in case.report()
    assert case.env()["models"]["target"]["template"]["date"] == "2026-03-01"
    assert read_toml(case.latest() / CONFIG)["date"] == "2026-03-01"
    monkeypatch.setattr("bench.plan.setup.today", lambda: "2026-03-02")
    assert case.run(variant("date"), *quick, output="later").code == 0
    assert hashes(case, "later") != hashes(case)
    again = ("-c", case.latest() / CONFIG)
    assert case.run(variant("date"), *quick, *again, output="again").code == 0
    assert hashes(case, "again") == hashes(case)

    compared = bench("compare", case.latest(), case.latest("later"))
    assert compared.code == 5
    reason = " ".join((compared.out + compared.err).split())
    assert "date (--date) is 2026-03-01 in base and 2026-03-02 in head" in reason


@pytest.mark.slow
def test_a_template_that_draws_has_the_same_prompts_in_every_process(case: Case, variant):
    first = case.run(variant("drawn"), "--dry-run")
    assert "its chat template draws at random" in first.err

    shown = [line for line in first.out.splitlines() if "Lily" in line or "cat" in line]
    child._child.cache_clear()  # another child, as another process has
    second = case.run(variant("drawn"), "--dry-run")
    assert shown == [line for line in second.out.splitlines() if "Lily" in line or "cat" in line]


@pytest.mark.slow
def test_a_template_without_a_date_is_recorded_without_a_date(case: Case, variant):
    assert case.run(variant("say"), "--quality-limit", 0, "--date", "2026-03-01").code == 0
    found = json.loads((case.latest() / ENV).read_text())["models"]["target"]["template"]
    assert found["date"] is None
    assert found["arguments"] == {}
    assert len(found["sha256"]) == 64
    assert "{{ bos_token }}" in found["text"]


def test_a_template_that_ignores_its_messages_is_reported(case: Case, variant):
    assert "does not write what the user asks" in case.run(variant("constant"), "--dry-run").err


def test_an_invalid_date_is_refused(case: Case, variant):
    done = case.run(variant("date"), "--date", "tomorrow")
    assert done.code == 2
    assert "--date: 'tomorrow' is no date such as 2026-03-01" in done.err

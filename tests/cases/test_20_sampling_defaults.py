"""A generation config that samples or has stop strings is told, recorded and shown."""

import pytest

from tests.cases.conftest import Case


@pytest.mark.slow
def test_sampling_and_stop_strings_of_a_generation_config_are_reported(
    case: Case, variant, stories
):
    done = case.run(variant("sampling"), "--quality-limit", 0)
    assert done.code == 0, done.err
    said = "do_sample=True, temperature=0.6, top_p=0.95, top_k=20, stop_strings=['. He']"
    assert f"its generation config asks for {said}, which no decoder here applies" in done.err
    found = case.env()["models"]["target"]["generation"]
    assert found["do_sample"] is True
    assert found["temperature"] == 0.6
    assert found["stop_strings"] == [". He"]
    assert "temperature=0.6" in case.report()
    assert "its generation config" not in case.run(stories, "--dry-run").err

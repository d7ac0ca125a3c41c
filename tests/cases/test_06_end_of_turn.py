"""Answers that run on: what ends a turn is no stop id, and the limit ends every answer."""

from pathlib import Path

import pytest

from tests.cases.conftest import Case
from tests.cases.variants import SAY, copied, edit, template

TURN = SAY.replace("\n", "{% if m['role'] == 'assistant' %}</s>{% endif %}\n")
NOTE = "ends an answer with </s>, which is no stop id"


@pytest.fixture
def running_on(stories: Path, tmp_path: Path) -> Path:
    """The model with a template that ends answers with </s>, and another stop id."""
    folder = copied(tmp_path / "running_on")
    template(folder, TURN)
    for file in ("config.json", "generation_config.json"):
        edit(folder, file, eos_token_id=0)
    edit(folder, "tokenizer_config.json", eos_token="<unk>")
    return folder


@pytest.mark.slow
def test_an_end_of_turn_token_that_is_no_stop_id_is_reported_and_recorded(
    case: Case, running_on: Path
):
    done = case.run(running_on)
    assert done.code == 0, done.err
    (told,) = [line for line in done.err.splitlines() if NOTE in line]
    assert "(<unk>)" in told
    assert any(NOTE in note for note in case.env()["models"]["target"]["notes"])
    assert "Cut by --max-new-tokens: 100 % of the answers." in case.report()


def test_an_end_of_turn_token_that_is_a_stop_id_is_not_mentioned(case: Case, stories: Path):
    folder = copied(case.folder / "ending")
    template(folder, TURN)
    done = case.run(folder, "--dry-run")
    assert done.code == 0, done.err
    assert "ends an answer" not in done.err

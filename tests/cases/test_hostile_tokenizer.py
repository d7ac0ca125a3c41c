"""A tokenizer or template that fails in any way ends a run with one line, or skips prompts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cases.conftest import Case
from tests.cases.variants import copied, template


def changed(folder: Path, **values: Any) -> Path:
    file = copied(folder) / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


@pytest.mark.parametrize(
    "values",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},  # as it is read
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},  # as a text is encoded
    ],
)
def test_a_panic_of_the_tokenizers_library_ends_with_one_line(
    case: Case, stories, values: dict[str, Any]
):
    done = case.run(changed(case.folder / "model", **values), "--dry-run")
    assert done.code == 5
    assert "its tokenizer fails: " in done.err
    assert "Traceback" not in done.err


def test_a_template_that_fails_ends_the_run_with_its_error(case: Case, stories):
    folder = copied(case.folder / "model")
    template(folder, "{{ 1/0 }}")
    done = case.run(folder, "--dry-run")
    assert done.code == 2
    assert "the chat template refuses it: ZeroDivisionError: division by zero" in done.err


def test_a_template_that_does_not_end_is_refused_in_one_line(case: Case, stories, monkeypatch):
    monkeypatch.setattr("bench.plan.template._CPU_S", 0)
    folder = copied(case.folder / "model")
    template(
        folder, "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    done = case.run(folder, "--dry-run")
    assert done.code == 5
    assert "target refused: the chat template does not end" in done.err

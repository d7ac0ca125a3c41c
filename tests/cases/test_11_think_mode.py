"""Arguments of a template: given, recorded and shown."""

import json

import pytest

from bench.errors import UsageError
from bench.records.run_folder import CONFIG
from bench.settings.config import read_toml
from bench.settings.setting import parse_arguments
from tests.cases.conftest import Case


@pytest.mark.slow
def test_a_template_argument_reaches_the_template_the_run_folder_and_the_report(
    case: Case, variant
):
    off = ("--template-args", "enable_thinking=false", "--quality-limit", 0)
    assert case.run(variant("think"), *off).code == 0
    assert case.env()["models"]["target"]["template"]["arguments"] == {"enable_thinking": False}
    assert read_toml(case.latest() / CONFIG)["template_args"] == {"enable_thinking": False}
    assert "enable_thinking=false" in case.report()
    shown = case.run(variant("think"), *off, "--dry-run").out
    assert "<think></think>" in "".join(shown.split())
    plain = case.run(variant("think"), "--dry-run").out
    assert "</think>" not in "".join(plain.split())


@pytest.mark.parametrize("text", ["enable_thinking", "=1", "a b=1"])
def test_malformed_template_arguments_are_refused(text: str):
    with pytest.raises(UsageError, match="is not NAME=VALUE"):
        parse_arguments([text])


def test_values_are_toml_or_else_text():
    found = parse_arguments(["a=true", "b=3", 'c="x"', "d=high", "e=[1, 2]"])
    assert json.dumps(found) == '{"a": true, "b": 3, "c": "x", "d": "high", "e": [1, 2]}'
    with pytest.raises(UsageError, match="'a' twice"):
        parse_arguments(["a=1", "a=2"])

"""A field of the configuration is declared once, for options, files and documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from typer.main import get_command

import cli
from bench.cli import options
from bench.errors import UsageError
from bench.settings import bounds, config
from bench.settings.config import RunConfig
from bench.settings.setting import PANELS, field_settings, option_type, setting
from docs.generate import schema
from tests import command_line
from tests.command_line import bench


class Wider(RunConfig):
    sharpness: bounds.Count = setting(3, "How sharp.", "-x", panel="Sampling")
    """Sharper is slower."""
    careful: bool = setting(True, "With care. [default: careful]", panel="Sampling")


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (config, schema):
        monkeypatch.setattr(module, "RunConfig", Wider)
    monkeypatch.setattr(command_line, "_get_command", lambda app: get_command(app))


@pytest.mark.usefixtures("wider")
def test_a_new_field_is_in_the_help_the_configuration_and_the_docs() -> None:
    sampling = bench("run", "--help").out.split("Sampling:")[1].split("\n\n")[0]
    lines = [" ".join(line.split()) for line in sampling.splitlines()]
    assert "-x, --sharpness <int> How sharp. [default: 3]" in lines
    assert "--careful / --no-careful With care. [default: careful]" in lines
    assert "--sharpness" not in bench("verify", "--help").out  # it names its options
    given = options.configuration({"sharpness": 5})
    assert "\nsharpness = 5\ncareful = true\n" in given.to_toml()
    row = "| `sharpness` | `--sharpness`, `-x` | `3` | How sharp. [default: 3] Sharper is slower. |"
    assert row in schema.configuration()
    assert "--sharpness: it must be 1 or more (got 0)" in bench("run", "-x", 0, "--dry-run").err


def test_every_field_has_documentation_and_an_existing_heading_of_the_help() -> None:
    for name, about in field_settings(RunConfig).items():
        assert about.help.partition("[default")[0], name
        assert about.panel in (None, *PANELS), name


def test_the_type_of_an_option_is_that_of_its_field() -> None:
    kinds = {name: option_type(f.annotation) for name, f in RunConfig.model_fields.items()}
    assert (kinds["tile"], kinds["limit"], kinds["top_p"]) == (int, int, float)
    assert (kinds["compile"], kinds["overlong"], kinds["decoders"]) == (bool, str, str)
    assert option_type(Literal["a"] | None) is str


def test_a_wrong_adapter_is_refused_under_the_name_of_its_option() -> None:
    with pytest.raises(UsageError, match=r"--adapter\.ptp: it is empty"):
        options.configuration({"adapters": ["ptp= "]})


def test_bench_help_imports_neither_pydantic_nor_the_configuration() -> None:
    code = (
        "import sys, cli\nsys.argv = ['bench', '--help']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "assert not {'pydantic', 'bench.settings.config'} & set(sys.modules)"
    )
    root = Path(cli.__file__).parent
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=root)


def test_a_table_without_a_terminal_is_as_wide_as_a_log_unless_columns_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert options.console().width == 120
    options.console().print("x" * 110)
    assert capsys.readouterr().out == "x" * 110 + "\n"
    monkeypatch.setenv("COLUMNS", "90")
    assert options.console().width == 90

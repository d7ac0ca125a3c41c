"""`bench new-decoder`: what it writes works as it stands, and it destroys nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cli
from bench.errors import BenchError, Exit
from bench.plan.new_decoder import new_decoder
from bench.plan.starter import Starter
from decoders.core.checks import check_decoder

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("k", [1, 4, 40])
def test_the_starter_keeps_the_contract(k: int) -> None:
    check_decoder(Starter(k=k))


@pytest.mark.slow
def test_a_new_decoder_passes_its_generated_test_at_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["new-decoder", "my_decoder", "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    file = tmp_path / "my_decoder.py"
    assert done.output.split("\n")[:3] == [
        str(file),
        str(tmp_path / "test_my_decoder.py"),
        f"bench run --decoders {file}:MyDecoder",
    ]
    assert "starter" not in file.read_text(encoding="utf-8").lower()
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_decoder.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout[-2000:]
    assert "3 passed" in tested.stdout


def test_a_new_decoder_can_be_built_with_its_options(tmp_path: Path) -> None:
    from decoders.core.registry import build, parse_spec

    (file, _), name = new_decoder("copier", tmp_path)
    decoder = build(parse_spec(f"{file}:{name}:k=2"))
    assert vars(decoder) == {"k": 2}
    assert decoder.coupled


@pytest.mark.parametrize("there", ["mine.py", "test_mine.py"])
def test_an_existing_file_is_not_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(BenchError, match="is not overwritten") as caught:
        new_decoder("mine", tmp_path)
    assert caught.value.exit_code == Exit.USAGE
    assert [file.name for file in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("My", "is not a decoder name"),
        ("1st", "is not a decoder name"),
        ("a-b", "is not a decoder name"),
        ("../up", "is not a decoder name"),
        ("class", "'class' is a decoder, a module or a keyword of Python already; use another"),
        ("ptp", "'ptp' is a decoder"),
        ("random", "'random' is a decoder, a module"),
        ("torch", "'torch' is a decoder, a module"),
    ],
)
def test_an_invalid_decoder_name_is_refused_in_one_line(
    tmp_path: Path, name: str, line: str
) -> None:
    with pytest.raises(BenchError, match=line) as caught:
        new_decoder(name, tmp_path)
    assert caught.value.exit_code == Exit.USAGE
    assert "\n" not in caught.value.message
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="there is no such folder"):
        new_decoder("mine", tmp_path / "no")

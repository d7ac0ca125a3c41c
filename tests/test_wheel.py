"""What is installed from a wheel: all data is in it, and the main job runs from any directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("bench", "decoders", "specbench_tasks", "training")
MAX_BYTES = 50_000_000  # the zoo, with adapters of a real model
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "results", "tests")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_data_file_of_a_package_is_declared_and_its_types_are_published(package: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["*"]
    files = [p for p in (ROOT / package).rglob("*") if p.is_file() and p.suffix != ".pyc"]
    data = [path.name for path in files if path.suffix != ".py"]
    assert not [name for name in data if not any(fnmatch(name, pattern) for pattern in patterns)]
    assert "py.typed" in data


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tree: what an earlier build left in it must not get in.

    A release names the one it has built: that very file is tested.
    """
    if given := os.environ.get("DECODING_BENCH_WHEEL"):
        return Path(given)
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "tree", ignore=LEFT_OUT)
    pip(sys.executable, "wheel", "--no-deps", "-w", folder, folder / "tree")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the wheel and what it depends on."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    python, versions = home / "bin" / "python", ROOT / "constraints.txt"
    pip(python, "install", "-c", versions, "torch")
    pip(python, "install", "-c", versions, wheel)
    return home / "bin"


def pip(python: str | Path, *arguments: str | Path) -> None:
    subprocess.run([python, "-m", "pip", "-q", *arguments], check=True, env=alone())


def alone() -> dict[str, str]:
    """The environment without a way to the checkout."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def run(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=folder, env=alone(), capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_wheel_includes_the_zoo_and_only_the_expected_top_level_names(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {*PACKAGES, "cli.py", "zoo"}
    for name in ("target/model.safetensors", "draft/tokenizer.json", "isd/adapter.safetensors"):
        assert f"zoo/{name}" in names
    assert not [name for name in names if name.endswith((".png", ".jsonl"))]
    assert wheel.stat().st_size < MAX_BYTES


@pytest.mark.slow
def test_the_main_job_runs_from_a_wheel_in_another_directory(scripts: Path, tmp_path: Path) -> None:
    small = ("--limit", "6", "--repeats", "1", "--quality-limit", "2", "--max-new-tokens", "32")
    ended = run(tmp_path, scripts / "bench", "run", *small, "--progress", "none")
    assert ended.returncode == 0, ended.stderr
    for name in ("report.md", "report.html", "summary.csv", "figures/speedup.pdf"):
        assert (tmp_path / "results" / "latest" / name).stat().st_size > 0
    for decoder in ("ar", "idlm@isd", "lookup", "nar", "ptp", "spec"):
        assert decoder in ended.stdout


@pytest.mark.slow
def test_a_cli_module_in_the_current_folder_does_not_shadow_the_command_line(
    scripts: Path, tmp_path: Path
) -> None:
    (tmp_path / "cli.py").write_text("def main():\n    print('another cli')\n")
    ended = run(tmp_path, scripts / "python", "-m", "bench", "--version")
    assert ended.stdout.startswith("bench "), ended.stderr


@pytest.mark.slow
def test_an_installed_bench_says_that_revisions_need_a_checkout(
    scripts: Path, tmp_path: Path
) -> None:
    ended = run(tmp_path, scripts / "bench", "ab", "--base", "main")
    assert (ended.returncode, ended.stderr.count("\n")) == (5, 1)
    assert "checkout" in ended.stderr

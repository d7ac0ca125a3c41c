"""Who may import whom (docs/adr/0017): `lint-imports` on what is written, and what gets loaded.

The rules stand in pyproject.toml, ``[tool.importlinter]``.
"""

import ast
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TORCH_FREE = ("settings", "records", "stats", "report", "compare", "extras/sections")
HEAVY = {"torch", "transformers", "datasets", "pandas", "matplotlib", "numpy", "scipy", "rich"}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """`lint-imports` of a tree, with the rules of this one."""
    command: list[str | Path] = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    command += ["--config", ROOT / "pyproject.toml"]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_imports_respect_the_layers_and_form_no_cycle() -> None:
    pytest.importorskip("importlinter", reason="import-linter is a tool of `pip install -e .[dev]`")
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


_PLANTED = (
    ("bench/records/files.py", "from bench.runs import run", "The floors of bench"),
    ("bench/stats/times.py", "import matplotlib", "matplotlib stays"),
    ("decoders/core/engine/readout.py", "import transformers", "transformers stays"),
    (
        "decoders/core/masks.py",
        "import decoders.extras.library.peft",
        "The core of decoders",
    ),
    ("training/text/data.py", "import training.adapter.windows", "The floors of training"),
)


def test_planted_imports_that_break_rules_are_found(tmp_path: Path) -> None:
    pytest.importorskip("importlinter", reason="import-linter is a tool of `pip install -e .[dev]`")
    for package in ("bench", "decoders", "training", "specbench_tasks"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc"))
    for file, line, _ in _PLANTED:
        with (tmp_path / file).open("a", encoding="utf-8") as source:
            source.write(f"\n\ndef planted() -> None:\n    {line}\n")
    done = lint(tmp_path)
    broken = {row for row in done.stdout.splitlines() if "BROKEN" in row}
    assert done.returncode == 1
    for _, _, rule in _PLANTED:  # no other plant breaks it
        assert any(row.startswith(rule) for row in broken), done.stdout[-3000:]


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    code += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_modules_that_only_read_records_import_no_torch() -> None:
    lines = ["import sys"]
    for floor in TORCH_FREE:
        files = sorted((ROOT / "bench" / floor).rglob("[!_]*.py"))
        modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
        assert modules
        lines += [f"import {', '.join(modules)}", f"assert 'torch' not in sys.modules, {floor!r}"]
    assert "torch" not in loaded_by("\n".join(lines))


def test_the_command_line_loads_nothing_heavy_until_a_verb_runs() -> None:
    assert not loaded_by("import cli") & HEAVY


DECODERS = [
    file for place in ("", "extras") for file in (ROOT / "decoders" / place).glob("[!_]*.py")
]


@pytest.mark.parametrize("path", DECODERS, ids=lambda p: p.stem)
def test_a_decoder_imports_neither_time_nor_random(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    outside = {name.split(".")[0] for name in names} - {"decoders", "torch"}
    assert outside <= set(sys.stdlib_module_names) - {"time", "random"}, outside
    ours = {name for name in names if name.startswith("decoders")}
    assert all(name.startswith(("decoders.core", "decoders.extras.library")) for name in ours), ours


def test_help_answers_in_under_300_milliseconds() -> None:
    def seconds(*command: str | Path) -> float:  # of the processor: the machine may be busy
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # on a slow or busy machine: what its libraries take to be imported, and as much again
    needed = ("-c", "import typer.main, importlib.metadata")
    pairs = ((seconds(ROOT / "cli.py", "--help"), seconds(*needed)) for _ in range(15))
    assert any(ours < max(0.3, 2 * libraries) for ours, libraries in pairs)

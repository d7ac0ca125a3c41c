"""Who may import whom (docs/adr/0001): checked on the imports as written, wherever they stand."""

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "datasets", "pandas", "matplotlib", "numpy", "scipy", "rich"}
TORCH_FREE = (
    *("report", "plots", "metrics", "stats", "records", "summary", "rundir"),
    *(f"reporting.{name}" for name in ("show", "listing", "explain", "export", "paper")),
    *(f"regress.{name}" for name in ("compare", "show_comparison", "diff", "noise", "doctor")),
)


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Full dotted names of the modules a file imports (type-checking blocks left out)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else [n for n in ast.walk(tree) if not guarded(n, tree)]
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def guarded(node: ast.AST, tree: ast.Module) -> bool:
    """Whether a node stands in an ``if TYPE_CHECKING`` block at module level."""
    blocks = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    return any(node is inner for block in blocks for inner in ast.walk(block))


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", sorted((ROOT / "decoders").glob("*.py")), ids=lambda p: p.stem)
def test_a_decoder_imports_core_and_torch_only(path: Path) -> None:
    names = imports(path)
    ours = {n for n in names if n.split(".")[0] in ("decoders", "bench", "specbench_tasks")}
    assert all(name.startswith("decoders.core") for name in ours), ours
    outside = roots(names) - {"decoders", "torch"} - set(sys.stdlib_module_names)
    assert not outside, outside
    assert not roots(names) & {"time", "random"}, "a decoder keeps no time and draws no numbers"


def test_transformers_stays_in_two_files_of_the_core() -> None:
    files = (ROOT / "decoders").rglob("*.py")
    users = {p.name for p in files if "transformers" in roots(imports(p))}
    assert users == {"hf.py", "gguf.py"}


def test_matplotlib_stays_in_plots() -> None:
    users = [p.name for p in (ROOT / "bench").rglob("*.py") if "matplotlib" in roots(imports(p))]
    assert users == ["plots.py"]


def test_core_imports_neither_bench_nor_tasks() -> None:
    for path in (ROOT / "decoders" / "core").glob("*.py"):
        assert not roots(imports(path)) & {"bench", "specbench_tasks", "cli", "training"}, path


def test_tasks_import_no_torch() -> None:
    for path in (ROOT / "specbench_tasks").rglob("*.py"):
        assert not roots(imports(path)) & {"torch", "transformers", "bench", "decoders"}, path


def test_the_command_line_imports_nothing_heavy_at_module_level() -> None:
    assert not roots(imports(ROOT / "cli.py", top_level_only=True)) & HEAVY


@pytest.mark.parametrize("module", TORCH_FREE)
def test_reports_run_without_torch(module: str) -> None:
    code = f"import sys, bench.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_training_asks_bench_for_the_command_line_alone() -> None:
    users = {p.name for p in (ROOT / "training").glob("*.py") if "bench" in roots(imports(p))}
    assert users == {"commands.py"}


def test_help_answers_in_under_300_milliseconds() -> None:
    def seconds() -> float:  # of the processor: the machine may be busy
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, ROOT / "cli.py", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # busy neighbours slow a processor too: what counts is that it can
    assert any(seconds() < 0.3 for _ in range(15))

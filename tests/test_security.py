"""What SECURITY.md promises of the sources: nothing unpickled, no shell, loaders that are safe."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FOLDERS = ("bench", "decoders", "specbench_tasks", "training", "examples", "docs")
SOURCES = [
    ROOT / "cli.py",
    *(p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))),
]
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
REMOTE_CODE = "decoders/extras/library/loops.py"
"""The one file that lets transformers run a loop's code: of a folder that the user names."""
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}


def breaches(text: str, name: str) -> Iterator[str]:
    """What a source does that it must not, in words."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            asked = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            asked += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (f"imports {m}" for m in asked if m.split(".")[0] in UNPICKLERS)
        if isinstance(node, ast.Call):
            yield from _of_call(node, name)


def _of_call(node: ast.Call, name: str) -> Iterator[str]:
    called = ast.unparse(node.func)
    given = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if called in ("eval", "exec", "compile", "os.system", "os.popen"):
        yield f"calls {called}"
    if called == "torch.load" and given.get("weights_only") != "True":
        yield "calls torch.load without weights_only=True"
    if re.fullmatch(r"yaml\.\w*load\w*", called) and called != "yaml.safe_load":
        yield f"calls {called}"
    if given.get("shell", "False") != "False":
        yield "opens a shell"
    if given.get("allow_pickle", "False") != "False":
        yield "allows pickles"
    if given.get("trust_remote_code", "False") != "False" and name != REMOTE_CODE:
        yield "trusts remote code"
    if called.endswith(".from_pretrained") and "Model" in called:
        safe = given.get("use_safetensors") == "True" or "quantization_config" in given  # GGUF
        if not safe:
            yield f"{called} may read a pickle"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_source_unpickles_evaluates_or_trusts_foreign_code(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    assert not list(breaches(path.read_text(encoding="utf-8"), name))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import pickle", "imports pickle"),
        ("from dill import loads", "imports dill"),
        ("eval(x)", "calls eval"),
        ("torch.load(p)", "without weights_only"),
        ("torch.load(p, weights_only=False)", "without weights_only"),
        ("yaml.load(x)", "calls yaml.load"),
        ("yaml.unsafe_load(x)", "calls yaml.unsafe_load"),
        ("subprocess.run(x, shell=True)", "opens a shell"),
        ("numpy.load(x, allow_pickle=True)", "allows pickles"),
        ("AutoTokenizer.from_pretrained(x, trust_remote_code=True)", "trusts remote code"),
        ("AutoModelForCausalLM.from_pretrained(x)", "may read a pickle"),
    ],
)
def test_planted_breaches_are_found(text: str, told: str) -> None:
    (breach,) = breaches(text, "somewhere.py")
    assert told in breach


def test_downloads_are_pinned_by_hashes_in_the_files_that_the_security_page_names() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"SHA-256 in `([\w/.]+)`", page)
    assert len(named) == 2
    for file in named:
        assert re.search(r'"[0-9a-f]{64}"', (ROOT / file).read_text(encoding="utf-8"))
    opened = [
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if "urlopen(" in path.read_text(encoding="utf-8")
    ]
    # the first asks for a page's head alone, to know whether there is a network
    assert opened == ["decoders/core/hf/checkpoint.py", "specbench_tasks/loaders.py"]


def test_every_file_named_in_security_md_exists() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w./-]+\.(?:py|yml|txt|cff))`", page):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("name", ["audit", "release", "versions"])
def test_audit_release_and_versions_workflows_are_read_only_and_run_no_expressions_in_scripts(
    name: str,
) -> None:
    workflow: dict[str, Any] = WORKFLOWS[name]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("${{" in step.get("run", "") for step in steps)
    checkouts = [step for step in steps if "checkout" in step.get("uses", "")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_the_audit_checks_the_pinned_versions_on_a_schedule() -> None:
    workflow = WORKFLOWS["audit"]
    scripts = "\n".join(s.get("run", "") for j in workflow["jobs"].values() for s in j["steps"])
    assert "pip-audit" in scripts
    assert "constraints.txt" in scripts
    assert workflow[True]["schedule"], "YAML takes the key `on` for true"


def test_a_release_is_built_tested_from_its_wheel_and_has_a_bill_of_materials() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    scripts = {
        name: "\n".join(s.get("run", "") for s in job["steps"]) for name, job in jobs.items()
    }
    assert "-m build" in scripts["build"]
    assert "tests/test_wheel.py" in scripts["test"]
    assert "cyclonedx-py" in scripts["build"]
    assert jobs["test"]["needs"] == "build"
    assert set(jobs["publish"]["needs"]) == {"build", "test"}

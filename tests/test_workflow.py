"""The workflow for CI: it runs verbs that exist, and no text of a pull request reaches a shell."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.command_line import all_verbs

ROOT = Path(__file__).parents[1]
WORKFLOW: dict[str, Any] = yaml.safe_load(
    (ROOT / ".github" / "workflows" / "bench.yml").read_text(encoding="utf-8")
)
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
SCRIPTS = [step["run"] for step in STEPS if "run" in step]


def test_every_bench_verb_and_option_in_the_workflow_exists() -> None:
    commands = all_verbs()
    used = [
        line for script in SCRIPTS for line in re.findall(r"bench (\w+)((?:.*\\\n)*.*)", script)
    ]
    assert {verb for verb, _ in used} == {"doctor", "ab"}
    for verb, rest in used:
        known = {name for parameter in commands[verb].params for name in parameter.opts}
        assert set(re.findall(r"(?<= )--[\w-]+", rest)) <= known


def test_the_make_targets_of_the_workflow_exist() -> None:
    made = {target for script in SCRIPTS for target in re.findall(r"make ([a-z-]+)", script)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert made == {"install", "gate", "hot-paths"}
    assert all(f"\n{target}:" in makefile for target in made)


def test_scripts_hold_no_expressions_and_the_workflow_has_read_only_permissions() -> None:
    assert not any("${{" in script for script in SCRIPTS)
    assert WORKFLOW["permissions"] == {"contents": "read"}
    checkouts = [step for step in STEPS if "checkout" in step.get("uses", "")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_the_gpu_runs_no_code_of_a_fork() -> None:
    condition = WORKFLOW["jobs"]["gpu"]["if"]
    assert "head.repo.full_name == github.repository" in condition
    assert "bench-gpu" in condition


def test_the_docs_workflow_builds_the_page_of_runs_with_existing_verbs_and_options() -> None:
    docs = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text(encoding="utf-8"))
    commands = all_verbs()
    scripts = [step.get("run", "") for step in docs["jobs"]["build"]["steps"]]
    used = [pair for script in scripts for pair in re.findall(r"bin/bench (\w+)(.*)", script)]
    assert [verb for verb, _ in used] == ["run", "index"]
    for verb, rest in used:
        known = {name for parameter in commands[verb].params for name in parameter.opts}
        assert set(re.findall(r"(?<= )--[\w-]+", rest)) <= known
    assert not any("${{" in script for script in scripts)
    assert docs["permissions"] == {"contents": "read"}


def test_the_newest_and_the_lowest_versions_are_tested_without_constraints_on_a_schedule() -> None:
    path = ROOT / ".github" / "workflows" / "versions.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    job = workflow["jobs"]["versions"]
    assert workflow[True]["schedule"], "YAML takes the key `on` for true"
    resolutions = {each["resolution"] for each in job["strategy"]["matrix"]["include"]}
    assert resolutions == {"highest", "lowest-direct"}
    scripts = "\n".join(step.get("run", "") for step in job["steps"])
    assert "constraints" not in scripts
    assert "-m pytest" in scripts

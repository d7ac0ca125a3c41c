"""The README tells the truth: its tree is complete, its links and commands exist."""

import csv
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LISTED = ("cli.py", "bench", "decoders", "specbench_tasks", "training", "examples")


def tree() -> set[str]:
    """Paths of the tree in the README, from its indentation."""
    block = README.split("<!-- tree")[1].split("```")[1]
    paths, folders = set(), []
    for line in block.strip("\n").splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[:depth], name.rstrip("/")]
        paths.add("/".join(folders))
    return paths


def test_every_path_of_the_tree_exists() -> None:
    missing = [path for path in tree() if not (ROOT / path).exists()]
    assert not missing, missing


def test_every_source_file_is_in_the_tree() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *LISTED],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    sources = [f for f in tracked if f.endswith((".py", ".toml")) and "__init__" not in f]
    missing = [f for f in sources if f not in tree()]
    assert not missing, missing


def test_every_relative_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert all((ROOT / link).exists() for link in links), links


@pytest.mark.parametrize("marker", ["main", "tests"])
def test_both_commands_can_be_read_by_ci(marker: str) -> None:
    block = README.split(f"<!-- {marker} -->")[1].split("```")[1]
    assert block.startswith("sh\n")
    assert "-c constraints.txt" in block


def test_every_command_named_exists() -> None:
    from typer.main import get_command

    import cli

    known = set(get_command(cli.app).commands)  # type: ignore[attr-defined]
    named = set(re.findall(r"^bench (\w[\w-]*)", README, flags=re.MULTILINE))
    assert named
    assert named <= known


def reference(name: str) -> list[dict[str, str]]:
    path = ROOT / "results" / "reference" / name / "summary.csv"
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["cpu-zoo", "cpu-zoo-t07"])
def test_the_tables_say_what_the_reference_runs_measured(name: str) -> None:
    rows = [row for row in reference(name) if row["family"] == "all"]
    assert {"ar", "nar", "idlm", "idlm@isd", "spec", "ptp"} == {row["decoder"] for row in rows}
    for row in rows:
        interval = ""
        if row["speedup_low"] and row["decoder"] != "ar":
            interval = " [{:.2f}, {:.2f}]".format(
                *map(float, (row["speedup_low"], row["speedup_high"]))
            )
        same = row["identical_to_ar"]
        cells = [
            row["decoder"],
            f"{float(row['speedup']):.2f}x{interval}",
            f"{float(row['acceptance_length']):.2f}",
            f"{float(row['tokens_per_call']):.2f}",
            f"{float(row['quality']):.3f}",
            f"{float(same):.0%}" if same else "-",
        ]
        assert f"| {' | '.join(cells)} |" in README


def test_the_quality_of_families_is_that_of_both_reference_runs() -> None:
    greedy, sampled = (
        {(row["decoder"], row["family"]): float(row["quality"]) for row in reference(name)}
        for name in ("cpu-zoo", "cpu-zoo-t07")
    )
    (heading,) = re.findall(r"^\| decoder \| (mt_bench .*) \|$", README, flags=re.MULTILINE)
    for decoder in dict.fromkeys(decoder for decoder, _ in greedy):
        places = [(decoder, family) for family in heading.split(" | ")]
        cells = [f"{greedy[place]:.2f} / {sampled[place]:.2f}" for place in places]
        assert f"| {decoder} | {' | '.join(cells)} |" in README

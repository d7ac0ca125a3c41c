"""The README tells the truth: its tree is complete, its links and commands exist."""

import csv
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from bench.plan.select import build_decoder
from bench.records.plan import Cell, guarantee_rank
from bench.settings.config import as_text
from bench.text import percent
from decoders.core.types import Sampling
from tests.command_line import all_verbs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STORED = (ROOT / "results" / "reference" / "README.md").read_text(encoding="utf-8")
MORE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
LISTED = ("cli.py", "bench", "decoders", "specbench_tasks", "training", "examples")


def tree() -> set[str]:
    """Paths of the tree in the README, from its indentation."""
    block = README.split("<!-- tree")[1].split("```")[1]
    paths: set[str] = set()
    folders: list[str] = []
    for line in block.strip("\n").splitlines():
        name, _, about = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[:depth], name.rstrip("/")]
        paths.add("/".join(folders))
        if name == "extras/":  # its folders are listed behind it
            paths |= {"/".join([*folders, each]) for each in about.partition(": ")[2].split(", ")}
    return paths


def test_every_path_of_the_tree_exists() -> None:
    missing = [path for path in tree() if not (ROOT / path).exists()]
    assert not missing, missing


def test_every_folder_with_source_is_in_the_tree() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *LISTED],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    sources = [Path(f) for f in tracked if f.endswith((".py", ".toml")) and (ROOT / f).exists()]
    folders = {str(f.parent) for f in sources if f.parent != Path()}
    assert not folders - tree(), folders - tree()


def test_every_relative_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert all((ROOT / link).exists() for link in links), links


@pytest.mark.parametrize("marker", ["main", "tests", "real"])
def test_both_commands_can_be_read_by_ci(marker: str) -> None:
    block = README.split(f"<!-- {marker} -->")[1].split("```")[1]
    assert block.startswith("sh\n")
    assert ("-c constraints.txt" in block) == (marker != "real")  # whose package brings no others


def test_every_command_named_exists() -> None:
    known = set(all_verbs())
    named = {
        page: set(re.findall(r"^bench (\w[\w-]*)", page, re.MULTILINE)) for page in (README, MORE)
    }
    assert all(named.values())
    assert known == set().union(*named.values()) | {"fetch"}  # fetch: in a sentence of running.md


def reference(name: str) -> list[dict[str, str]]:
    path = ROOT / "results" / "reference" / name / "summary.csv"
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def guaranteed(name: str) -> dict[str, str]:
    """What the decoders of a reference run guarantee, by their code and its temperature."""
    config = tomllib.loads((ROOT / "results" / "reference" / name / "config.toml").read_text())
    found = {}
    for cell, options in config["decoders"].items():
        decoder = build_decoder(cell, {key: as_text(value) for key, value in options.items()})
        comparable = decoder.comparable_to_ar(Sampling(temperature=config["temperature"]))
        found[cell] = Cell(
            cell=cell, lossless=decoder.lossless, comparable_to_ar=comparable
        ).guarantee
    return found


HEADINGS = (
    "| decoder | guarantee | speed-up [95 %] | tokens per call | tokens per step "
    "| calls per step | entropy | quality | identical to AR |"
)


def main_table(name: str) -> str:
    """The README's table of a reference run, from its summary. In brackets: emitted."""
    promises = guaranteed(name)
    rows = [row for row in reference(name) if row["family"] == "all"]
    rows.sort(key=lambda row: (row["decoder"] != "ar", guarantee_rank(promises[row["decoder"]])))
    lines = [HEADINGS, "| --- | --- |" + " ---: |" * 7]
    for row in rows:
        stated = row.get("guarantee") or str(promises[row["decoder"]])
        assert stated in (promises[row["decoder"]], "not verified")
        interval = ""
        if row["speedup_low"] and row["decoder"] != "ar":
            interval = " [{:.2f}, {:.2f}]".format(
                *map(float, (row["speedup_low"], row["speedup_high"]))
            )
        same = row["identical_to_ar"]
        length = f"{float(row['acceptance_length']):.2f}"
        verified = row["decoder"] == "ar" or row["acceptance_rate"]
        cells = [
            row["decoder"],
            stated,
            f"{float(row['speedup']):.2f}x{interval}",
            f"{float(row['tokens_per_call']):.2f}",
            length if verified else f"({length})",
            f"{float(row['acceptance_length']) / float(row['tpf']):.2f}",
            f"{float(row['base_entropy']):.2f}" if row["base_entropy"] else "-",
            percent(float(row["quality"])) if row["quality"] else "-",
            percent(float(same)) if same else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_every_table_of_the_readme_says_what_its_adapters_cost() -> None:
    for table in README.split(HEADINGS)[:-1]:
        introduction = table.strip().rpartition("\n\n")[2]
        assert "minutes" in introduction
        assert "([budgets](docs/" in introduction


def test_the_readme_is_a_front_door_and_not_a_house() -> None:
    assert len(README.splitlines()) <= 150


LOSSLESS = {"ar", "idlm@isd", "spec", "ptp", "lookup", "lookahead"}
REAL = LOSSLESS | {"eagle", "hybrid"}
ZOO = {"ar", "nar", "idlm", "idlm@isd", "spec", "ptp", "lookup"}


@pytest.mark.parametrize(
    ("name", "page", "decoders"),
    [
        ("cpu-smollm2", README, REAL | {"nar", "idlm"}),
        ("cpu-smollm2-invariant", STORED, LOSSLESS | {"ar@fast"}),
        ("cpu-smollm2-t07", STORED, REAL | {"eagle@tree"}),
        ("cpu-zoo", README, ZOO),
        ("cpu-zoo-t07", STORED, ZOO),
    ],
)
def test_the_tables_say_what_the_reference_runs_measured(
    name: str, page: str, decoders: set[str]
) -> None:
    assert {row["decoder"] for row in reference(name)} == decoders
    assert main_table(name) in page, f"the page should hold:\n{main_table(name)}"


def _score(quality: str) -> str:
    return percent(float(quality), "") if quality else "-"  # a family without gold answers


def family_table(families: list[str], *names: str) -> str:
    """Quality by family of one reference run, or of two: greedy / sampled."""
    runs = [
        {(row["decoder"], row["family"]): row["quality"] for row in reference(name)}
        for name in names
    ]
    promises = guaranteed(names[0])
    decoders = dict.fromkeys(decoder for decoder, _ in runs[0])
    lines = []
    for decoder in sorted(decoders, key=lambda d: (d != "ar", guarantee_rank(promises[d]))):
        places = [(decoder, family) for family in families]
        cells = [" / ".join(_score(run[place]) for run in runs) for place in places]
        lines.append(f"| {decoder} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_quality_of_families_is_that_of_the_reference_runs() -> None:
    real, zoo = re.findall(
        r"^\| decoder \| ((?!guarantee)[a-z_]+ \| .*) \|$", STORED, flags=re.MULTILINE
    )
    for heading, names in ((zoo, ("cpu-zoo", "cpu-zoo-t07")), (real, ("cpu-smollm2",))):
        table = family_table(heading.split(" | "), *names)
        assert table in STORED, f"results/reference/README.md should hold:\n{table}"

"""The README tells the truth: its tree is complete, its links, commands and decoder work."""

import re
import subprocess
from pathlib import Path

import pytest

from decoders.core.checks import check_decoder
from decoders.core.decoder import Decoder
from decoders.core.engine.scheduler import generate
from decoders.core.registry import build, parse_spec
from decoders.core.testing.check_models import tables
from decoders.core.types import Sampling
from docs.generate.runs import OTHER, TABLE, UNSTEADY
from tests.command_line import all_verbs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MORE = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("running.md", "cli.md")]
LISTED = ("bench", "decoders", "specbench_tasks", "training", "examples")


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
        if inner := about.partition(": ")[2]:  # its folders are listed behind it
            paths |= {"/".join([*folders, each]) for each in inner.split(", ")}
    return paths


def test_every_path_of_the_tree_exists() -> None:
    missing = [path for path in tree() if not (ROOT / path).exists()]
    assert not missing, missing


def test_every_folder_with_source_is_in_the_tree_down_to_the_second_level() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *LISTED],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    sources = [Path(f) for f in tracked if f.endswith((".py", ".toml")) and (ROOT / f).exists()]
    folders = {"/".join(f.parent.parts[:2]) for f in sources}
    assert not folders - tree(), folders - tree()


def test_every_relative_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)|<img src=\"([^\"]+)\"", README)
    links = ["".join(each) for each in links]
    assert links
    assert all((ROOT / link).exists() for link in links), links


@pytest.mark.parametrize("marker", ["main", "tests", "real"])
def test_marked_commands_are_shell_blocks_that_ci_can_extract(marker: str) -> None:
    block = README.split(f"<!-- {marker} -->")[1].split("```")[1]
    assert block.startswith("sh\n")
    assert ("-c constraints.txt" in block) == (marker != "real")  # whose package brings no others


def test_the_docs_name_exactly_the_commands_that_exist() -> None:
    known = set(all_verbs())
    named = [set(re.findall(r"^bench (\w[\w-]*)", p, re.MULTILINE)) for p in (README, *MORE)]
    assert all(named)
    assert known == set().union(*named)


def test_the_readme_takes_three_minutes_to_read() -> None:
    """The table by machine apart, whose columns grow when runs are submitted: now 212 words."""
    assert len(README.splitlines()) <= 100
    assert len(TABLE.sub("", README).split()) <= 800 - 212


def test_the_readmes_decoder_of_ten_lines_meets_the_contract(tmp_path: Path) -> None:
    source = README.split("```python\n")[1].split("```")[0]
    assert len([line for line in source.splitlines() if line]) <= 10
    file = tmp_path / "echo.py"
    file.write_text(source, encoding="utf-8")
    decoder: Decoder = build(parse_spec(f"{file}:Echo"))
    assert decoder.lossless
    assert decoder.coupled
    check_decoder(decoder)
    sampling, models = Sampling(max_new_tokens=40), tables(decoder)
    answer = generate(decoder, [1, 2, 3, 1, 2], sampling, models)
    assert 1 <= max(step.drafted for step in answer.steps) <= 4, "long chains are slower than none"


def test_the_readmes_table_has_two_kinds_of_processor_and_a_gpu_and_explains_its_marks() -> None:
    (table,) = TABLE.finditer(README)
    assert table["name"] == "machines"
    for machine in ("AMD EPYC", "Intel Xeon", "NVIDIA"):
        assert machine in table[0].splitlines()[1]
    rest = README[table.end() :]
    for mark in (OTHER, UNSTEADY):
        assert (mark in table[0]) == (f"{mark} " in rest)
    assert "](docs/smollm2.md#the-adapters)" in rest.split("## ")[0], "say what training cost"
    assert "Not measured yet: 1B to 8B models with trained drafters." in rest

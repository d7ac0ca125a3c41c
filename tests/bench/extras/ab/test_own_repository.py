"""`bench ab` and `bench gate` in a repository of one's own decoders: which code each side runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.extras.ab.checkout import SideProcess, Tree, checkout, compared_repository
from bench.machine.env import ROOT
from tests.toy_package import DECODER, Toy


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    made = Toy.written(tmp_path / "toy")
    monkeypatch.chdir(made.root)
    return made


def test_the_current_folder_decides_which_repository_is_compared(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared_repository(("HEAD", ".")) == toy.root
    monkeypatch.chdir(toy.root / "src")
    assert compared_repository(("HEAD", ".")) == toy.root
    assert compared_repository((str(ROOT), str(ROOT))) == ROOT, (
        "checkouts of the benchmark are compared"
    )
    monkeypatch.chdir(tmp_path)
    assert compared_repository(("HEAD", ".")) == ROOT


@pytest.mark.parametrize("here", [".", "src"])
def test_each_side_has_its_own_commit_and_both_use_the_installed_benchmark(
    toy: Toy, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.change("k: int = 5", "k: int = 2")
    monkeypatch.chdir(toy.root / here)
    with checkout("HEAD", toy.root) as base, checkout(".", toy.root) as head:
        assert "k: int = 5" in toy.source(base.folder)
        assert head.folder == toy.root
        for tree in (base, head):
            assert tree.bench == ROOT
            assert tree.imports[0] == str(tree.folder / "src")
            assert str(tree.folder) in tree.imports
    assert not base.folder.exists()
    assert toy.git("worktree", "list").count("\n") == 1


def test_an_import_path_inside_the_repository_points_to_the_checkout_of_each_side(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (toy.root / "python").mkdir()
    (toy.root / "python" / "kept").write_text("")
    toy.commit()
    monkeypatch.syspath_prepend(toy.root / "python")
    with checkout("HEAD", toy.root) as base:
        assert str(base.folder / "python") in base.imports
        assert str(toy.root / "python") not in base.imports


def test_a_revision_that_is_not_fetched_is_refused_with_a_hint_how_to_fetch_it(toy: Toy) -> None:
    with (
        pytest.raises(
            BenchError, match=r"'origin/main' is neither a folder nor a revision"
        ) as refused,
        checkout("origin/main", toy.root),
    ):
        pass
    assert refused.value.exit_code == Exit.USAGE
    assert "fetch-depth: 0" in refused.value.message


def test_a_worker_runs_in_the_folder_of_its_side_with_its_import_path(
    toy: Toy, tmp_path: Path
) -> None:
    script = tmp_path / "bench" / "bench" / "extras" / "ab" / "worker.py"
    script.parent.mkdir(parents=True)
    script.write_text(
        "import json, os, sys\ninput()\n"
        "print(json.dumps({'imports': sys.argv[1:], 'folder': os.getcwd()}))\n"
    )
    with checkout("HEAD", toy.root) as base:
        side = Tree(base.folder, tmp_path / "bench", base.imports)
        with SideProcess("base", side) as process:
            asked = process.ask("look")
        assert asked == {"imports": list(base.imports), "folder": str(base.folder)}


def gate(
    toy: Toy, *arguments: object, decoder: str = DECODER, path: str = str(ROOT)
) -> tuple[int, dict[str, Any], str]:
    """Exit code, comparison and annotations of `bench gate` on the zoo: it accepts drafts."""
    files = toy.root.parent / "gate.json", toy.root.parent / "gate.xml"
    done = subprocess.run(
        [
            sys.executable, ROOT / "cli.py", "gate", "-d", decoder, "--threads", "1", "--json",
            files[0], "--junit", files[1], "-o", toy.root.parent / "r", "--progress", "none",
            *map(str, arguments or ("--base", "HEAD")),
        ],
        capture_output=True, text=True, check=False, cwd=toy.root,
        env={**os.environ, "PYTHONPATH": path, "GITHUB_ACTIONS": "true"},
    )  # fmt: skip
    assert files[0].is_file(), done.stderr
    noted = "\n".join(line for line in done.stdout.splitlines() if line.startswith("::"))
    assert ("<failure" in files[1].read_text()) == ("::error" in noted)
    return done.returncode, json.loads(files[0].read_text()), noted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "regressed"),
    [
        ("toy.py", "k: int = 5", "k: int = 2", "calls"),
        ("match.py", "range(longest, 0, -1)", "range(1, longest + 1)", "calls"),
        (
            "toy.py",
            "        return tuple(followers",
            "        __import__('time').sleep(5e-3)\n        return tuple(followers",
            "time",
        ),
    ],
    ids=["shorter drafts", "another match", "five milliseconds"],
)
def test_the_gate_catches_a_regression_of_a_decoder_in_the_users_repository(
    toy: Toy, file: str, old: str, new: str, regressed: str
) -> None:
    toy.change(old, new, file)
    code, found, noted = gate(toy)
    assert code == Exit.REGRESSION
    (mine,) = [cell for cell in found["cells"] if cell["cell"] == DECODER]
    verdicts = {m["name"]: m["verdict"] for m in mine["measures"]}
    assert verdicts[regressed] == "regressed", verdicts
    assert mine["base_code"] != mine["head_code"]
    assert "::error file=src/toydec/toy.py,line=" in noted
    assert found["base_code"].startswith(toy.git("rev-parse", "HEAD")[:9])
    assert found["head_code"].endswith("with uncommitted changes")


@pytest.mark.slow
def test_the_gate_passes_if_the_code_of_the_decoder_is_unchanged(toy: Toy) -> None:
    (toy.root / "README.md").write_text("words alone")
    toy.commit()
    code, found, noted = gate(toy, "--base", "HEAD~1")
    assert code == Exit.DONE
    assert "::error" not in noted
    (mine,) = [cell for cell in found["cells"] if cell["cell"] == DECODER]
    assert mine["base_code"] == mine["head_code"]


@pytest.mark.slow
def test_the_code_of_an_installed_package_comes_from_the_checkout_of_each_side(toy: Toy) -> None:
    """Its entry point is found where it is installed, its code in the commit."""
    info = toy.root.parent / "site" / "toydec-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text("[bench.decoders]\ntoy = toydec.toy:Toy\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toydec\nVersion: 1\n")
    toy.change("k: int = 5", "k: int = 2")
    path = os.pathsep.join(map(str, (ROOT, info.parent)))
    code, found, noted = gate(toy, decoder="toy", path=path)
    assert code == Exit.REGRESSION
    assert {cell["cell"] for cell in found["cells"]} == {"ar", "toy"}
    assert "::error title=bench gate%3A toy%3A calls regressed" in noted


def test_only_pythonpath_folders_outside_of_the_repository_are_kept(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", f"{tmp_path}/x", f"{toy.root}/src")))
    with checkout("HEAD", toy.root) as base:
        assert base.python_path == (f"{tmp_path}/x",)
        assert base.imports[0] == f"{base.folder}/src"

"""A decoder's own code: which files count, and the state of the repository that they are in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.machine.env import ROOT, git_state
from bench.plan.code import code_hash, own_files, repository_state, resume_command
from bench.records.environment import GitState
from bench.settings.config import load_config
from decoders.core.decoder import Decoder
from decoders.core.registry import build, parse_spec
from tests.toy_package import Toy


@pytest.fixture(autouse=True)
def forget_the_toy() -> Iterator[None]:
    """A process has one package of a name."""
    yield
    for name in [name for name in sys.modules if name.startswith("toydec")]:
        del sys.modules[name]


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy.written(tmp_path / "toy")


def decoder(toy: Toy) -> Decoder:
    return build(parse_spec(f"{toy.root}/src/toydec/toy.py:Toy"))


def test_the_modules_that_a_decoder_imports_from_its_package_are_its_code(toy: Toy) -> None:
    (toy.root / "src" / "toydec" / "unused.py").write_text("")
    names = {file.name for file in own_files(decoder(toy))}
    assert names == {"toy.py", "match.py"}


def test_the_code_hash_changes_only_with_the_modules_that_the_decoder_imports(
    tmp_path: Path,
) -> None:
    toys = [Toy.written(tmp_path / name) for name in ("one", "two", "three")]
    toys[1].change("LONGEST = 3", "LONGEST = 4", file="match.py")
    (toys[2].root / "src" / "toydec" / "unused.py").write_text("")
    hashes = []
    for number, toy in enumerate(toys):  # a process has one package of a name
        package = toy.root / "src" / f"toydec{number}"
        (toy.root / "src" / "toydec").rename(package)
        hashes.append(code_hash(build(parse_spec(f"{package}/toy.py:Toy"))))
    assert hashes[0] == hashes[2] != hashes[1]
    assert None not in hashes


def test_the_command_to_resume_allows_the_decoder_files_of_the_run(tmp_path: Path) -> None:
    decoders: dict[str, dict[str, str]] = {"spec": {}, "b c.py:Mine": {}, "a.py:Mine": {}}
    config = load_config(None, {"decoders": decoders})
    code = "--allow 'b c.py' --allow a.py"
    assert resume_command(tmp_path, config) == f"bench resume {tmp_path} {code}"
    assert resume_command(tmp_path, load_config(None, {})) == f"bench resume {tmp_path}"


def test_the_code_of_a_built_in_decoder_is_its_file_and_the_building_blocks_of_drafting() -> None:
    files = {file.relative_to(ROOT).as_posix() for file in own_files(build(parse_spec("spec")))}
    assert {"decoders/spec.py", "decoders/core/drafting/verification.py"} <= files
    assert not any(file.startswith("decoders/core/engine") for file in files)


def test_the_loop_that_an_option_names_is_code_of_the_decoder(tmp_path: Path) -> None:
    loop = tmp_path / "loop.py"
    loop.write_text("def generate(*_, **__): ...\n")
    assert loop in own_files(build(parse_spec(f"hf:custom={loop}")))


def test_the_parts_of_a_hybrid_are_its_code(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    lookup = (ROOT / "decoders" / "lookup.py").read_text(encoding="utf-8")
    mine.write_text(lookup.replace('@register("lookup")\n', ""), encoding="utf-8")
    files = own_files(
        build(parse_spec(f"hybrid:first=suffix+answers=false:then={mine}+PromptLookup"))
    )
    names = {"hybrid.py", "suffix.py", "drafter.py"}
    assert names <= {file.name for file in files}
    assert files.count(mine.resolve()) == 1


def test_the_code_of_a_single_file_includes_imported_neighbours_and_no_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the environment lies beside it, as `.venv` does."""
    for folder in (tmp_path / ".venv", tmp_path):
        folder.mkdir(exist_ok=True)
        monkeypatch.syspath_prepend(folder)
    (tmp_path / ".venv" / "library.py").write_text("")
    (tmp_path / "neighbour.py").write_text("")
    file = tmp_path / "mine.py"
    file.write_text(
        "import library\nimport neighbour\nfrom decoders.ar import Autoregressive\n"
        "class Mine(Autoregressive): ...\n"
    )
    monkeypatch.setattr("bench.machine.env._places", lambda: {tmp_path / ".venv"})
    made = build(parse_spec(f"{file}:Mine"))
    assert own_files(made) == [file, tmp_path / "neighbour.py"]


def test_the_repository_of_decoders_is_dirty_only_if_their_code_has_changed(toy: Toy) -> None:
    state = repository_state([decoder(toy)])
    assert state == GitState(
        commit=toy.git("rev-parse", "HEAD").strip(), branch="main", dirty=False
    )
    (toy.root / "results").mkdir()
    (toy.root / "results" / "samples.jsonl").write_text("")
    assert repository_state([decoder(toy)]) == state, "results are no change of code"
    toy.change("k: int = 5", "k: int = 2")
    changed = repository_state([decoder(toy)])
    assert changed is not None
    assert changed.dirty


def test_decoders_in_no_repository_have_a_state_without_a_commit(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from decoders.ar import Autoregressive\nclass Mine(Autoregressive): ...\n")
    assert repository_state([build(parse_spec(f"{file}:Mine"))]) == GitState()


def test_an_untracked_decoder_makes_its_repository_dirty(toy: Toy) -> None:
    file = toy.root / "src" / "toydec" / "toy.py"
    assert git_state(toy.root, [file]).dirty is False
    new = file.with_name("new.py")
    new.write_text("")
    assert git_state(toy.root, [file, new]).dirty is True


def test_built_in_decoders_come_from_no_other_repository() -> None:
    assert repository_state([build(parse_spec("spec"))]) is None

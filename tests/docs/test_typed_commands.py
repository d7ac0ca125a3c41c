"""Every command of the pages runs: typed here in small, run by a test that is named, or marked.

A page's commands are typed in their order, in a folder that has the files they name: a model is the
zoo, and options that make a run long are overridden. A command that needs the network or a GPU says
so in the title of its block (README's three minutes have no room for one, so its text says it).
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command_line import all_verbs, bench
from tests.docs.test_commands import TEXTS, alternatives

ROOT = Path(__file__).parents[2]
NEEDS = {
    "network": r"\bpip install|^hf download|\b(Qwen|meta-llama|mistralai|google)/"
    r"|--protocol specbench|--tasks specbench( |$)|smollm2-135m|llamacpp|engine vllm|ifeval"
    r"|my_task|--tasks gsm8k --dec"
    r"|mlflow ui",
    "GPU": r"--device cuda|bench\.extras\.gpu(?!.*rehearse)|^make gpu|MACHINE|gpus_per_node",
}
"""Commands that need more than the checkout, by the word that the title of their block has."""
ELSEWHERE = {
    r"^(python3 -m venv|source|\.venv/bin/(bench run|python -m pytest))": ".ci/run",
    r"^pytest test_my_decoder\.py": "tests/bench/plan/test_new_decoder.py",
    r"^python -m bench\.extras\.gpu --rehearse": "tests/bench/extras/gpu/test_gpu.py",
    r"^bench (gate|ab) ": "tests/bench/extras/ab/test_own_repository.py",
    r"^bench doctor": "tests/bench/extras/ab/test_doctor.py",
    r"--gate gate\.toml": "tests/bench/compare/test_compare.py",
    r"--(workers|executor) ": "tests/bench/extras/workers/test_clusters.py",
    r"^bench pool": "tests/bench/extras/sessions/test_pool.py",
    r"--allow ": "tests/robustness/test_named_code.py",
    r"--sessions ": "tests/bench/extras/sessions/test_sessions.py",
    r"^bench (run --part|merge)": "tests/bench/extras/workers/test_merge.py",
    r"--device-map": "tests/core/hf/test_placed.py",
    r"^bench train (ptp|idlm)": "tests/training/adapter/test_train.py",
    r"--model MODEL --adapter ptp=results": "tests/training/adapter/test_train.py",
    r"^bench import idlm|imported": "tests/training/importers/test_idlm.py",
    r"ptp-draft=": "tests/decoders/test_ptp_spec.py",
    r"shallow=results": "tests/training/heads/test_parallel_job.py",
    r"custom=loops": "tests/decoders/extras/test_hf.py",
    r"--decoders mtp": "tests/decoders/test_mtp.py",
    r"--model MODEL --decoders dllm@": "tests/decoders/test_dllm.py",
    r"gsm8k=test\.jsonl": "tests/specbench_tasks/test_registry.py",
    r"^bench submit": "tests/bench/extras/submit/test_submission.py",
    r"export latest --to mlflow": "tests/bench/extras/exports/test_mlflow.py",
    r"export zoo/ptp": "tests/decoders/extras/library/test_peft.py",
}
"""Tests that run what a command does, by a pattern of the command."""
STAND_INS = {
    r"\bMODEL\b|\bLARGE\b|\bpath/or/hub-id\b": "zoo",
    r"\b(DRAFT|SMALLER|SMALL|MIDDLE)\b": "zoo/draft",
    r"--draft zoo\b(?!/)": "--draft zoo/draft",
    r"=FOLDER\b": "=zoo/ptp",
    r"results/reference/cpu-zoo latest": "latest latest",  # of as many prompts
    r"cpu-compiled": "cpu",
    r"results/(RUN|PART)[12]?\b|\bRUN(_A|_B)?\b|\bBASE\b|\bHEAD\b": "latest",
}
SMALL = {
    "--limit": "1",
    "--repeats": "1",
    "--quality-limit": "0",
    "--phase-limit": "1",
    "--max-new-tokens": "4",
    "--draws": "500",
    "--rounds": "1",
    "--rows": "1,2",
    "--sequences": "1",
    "--contexts": "8",
    "--no-compile": "",
    "--no-self-check": "",
    "--progress": "none",
}
ACCEPTED = (0, 3, 4)
"""Exit codes of a command that did its work: runs of one prompt may be inconclusive or unfit."""


@dataclass(frozen=True)
class Shown:
    """A command of a page, and the title of its block."""

    command: str
    title: str

    @property
    def needs(self) -> list[str]:
        return [need for need, pattern in NEEDS.items() if re.search(pattern, self.command)]

    @property
    def elsewhere(self) -> str | None:
        return next((test for p, test in ELSEWHERE.items() if re.search(p, self.command)), None)


def shown(text: str) -> Iterator[Shown]:
    """Yield the commands of a page's shell blocks."""
    blocks = re.findall(
        r'^ *```sh(?: title="(.*?)")?\n(.*?)^ *```', text, flags=re.DOTALL | re.MULTILINE
    )
    for title, block in blocks:
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if command := re.sub(r"\s+# .*|^#.*", "", line).strip():
                yield Shown(command, title)


PAGES = {path: list(shown(text)) for path, text in TEXTS.items()}
TYPED = [path for path, all_of in PAGES.items() if all_of]


@pytest.mark.parametrize("path", TYPED)
def test_commands_are_marked_exactly_if_they_need_the_network_or_a_gpu(path: str) -> None:
    for each in PAGES[path]:
        lacking = [need for need in each.needs if need not in each.title]
        assert not lacking or path == "README.md", (
            f'{path}: {each.command}: write ```sh title="needs …" with {lacking}'
        )
    for need in NEEDS:
        titles = {each.title for each in PAGES[path] if need in each.title}
        used = {each.title for each in PAGES[path] if need in each.needs}
        assert titles <= used, f"{path}: {titles - used}: no command of the block needs it"


def test_every_test_named_for_a_command_exists_and_every_pattern_matches_a_shown_command() -> None:
    rest = [each for all_of in PAGES.values() for each in all_of if not each.needs]
    for pattern, test in ELSEWHERE.items():
        assert (ROOT / test).is_file(), test
        assert any(re.search(pattern, each.command) for each in rest), f"{pattern} is not shown"


def small(command: str) -> list[str]:
    """The arguments of a `bench` command with stand-ins, and options that make it short."""
    for pattern, stand_in in STAND_INS.items():
        command = re.sub(pattern, stand_in, command)
    _, verb, *rest = shlex.split(command)
    taken = {opt for p in all_verbs()[verb].params for opt in (*p.opts, *p.secondary_opts)}
    more = [word for option, value in SMALL.items() if option in taken for word in (option, value)]
    return [verb, *rest, *filter(None, more)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with one run."""
    results = tmp_path_factory.mktemp("typed") / "results"
    ended = bench(*small("bench run --decoders spec,ptp"), "--output", results)
    assert ended.code == 0, ended.err
    return results


@pytest.fixture
def checkout(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that pages name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path / "cache"))
    shutil.copytree(finished, "results", symlinks=True)
    (tmp_path / "results/reference").symlink_to(ROOT / "results/reference")
    for name in ("examples", "zoo"):
        (tmp_path / name).symlink_to(ROOT / name)
    echo = TEXTS["README.md"].split("```python\n")[1].split("```")[0]
    for name in ("mine.py", "path/to/mine.py", "src/my_package/mine.py", "echo.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(echo if name == "echo.py" else echo.replace("class Echo", "class Mine"))
    asked = {"prompt": "What is 2 + 2?", "reference": "4", "family": "math_reasoning"}
    (tmp_path / "my.jsonl").write_text(json.dumps(asked) + "\n")
    (tmp_path / "run.toml").write_text("limit = 1\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/sweep.toml").write_text(
        'model = "zoo"\ndecoders = ["spec"]\ntasks = "qa"\nlimit = 1\nquality_limit = 0\n'
        "phase_limit = 0\nrepeats = 1\nmax_new_tokens = 4\ncompile = false\n"
        "[sweep]\nspec.k = [2, 4]\n"
    )
    return tmp_path


HERE = {
    path: [each.command for each in all_of if not each.needs and each.elsewhere is None]
    for path, all_of in PAGES.items()
}


def test_every_shown_command_without_another_test_is_a_bench_command() -> None:
    others = {c for all_of in HERE.values() for c in all_of if not c.startswith("bench ")}
    assert not others, f"name a test that runs them in ELSEWHERE: {others}"
    assert sum(map(len, HERE.values())) > 40


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path, typed in HERE.items() if typed])
@pytest.mark.usefixtures("checkout")
def test_the_commands_of_a_page_run_in_their_order(path: str) -> None:
    for command in HERE[path]:
        for arguments in alternatives(small(command)):
            ended = bench(*arguments)
            assert ended.code in ACCEPTED, f"{path}: {command}\n{ended.err[-1500:]}"
            assert "Traceback" not in ended.err

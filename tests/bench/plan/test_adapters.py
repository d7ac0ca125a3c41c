"""Adapters of a run: which are found, who is refused, what is recorded, counted and warned of."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.machine.usage import PeakMemory
from bench.plan.identity import setup_identity
from bench.plan.select import ResolvedRun, choose_decoders, stored_decoders
from bench.plan.setup import Setup, assemble
from bench.plan.sources import adapter_folder
from bench.records.environment import AdapterFacts, ModelFacts
from bench.records.files import parse
from bench.records.run_folder import load_run
from bench.stats.adapter_fit import model_warnings
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.testing.table_model import TableModel
from decoders.ptp import ParallelTokenPrediction
from tests.pretended_allocator import allocator

pytestmark = pytest.mark.usefixtures("quick")

TARGET = {"vocab_size": 128, "weights_sha256": "aa"}
TRAINED = {
    "models": ["target"],
    "temperatures": [0.5, 1.0],
    "top_ps": [0.95, 1.0],
    "top_k": 0,
    "greedy": True,
    "base_weights_sha256": "aa",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree whose zoo has an adapter `ptp`, another being trained, a target and a draft.

    For a named model it holds an adapter `isd` and a draft.
    """
    named = "smollm2-135m"
    for name in ("ptp", "unfinished", "target", "draft", f"{named}/isd", f"{named}/draft"):
        (tmp_path / "tree" / "zoo" / name).mkdir(parents=True)
    (tmp_path / "tree" / "zoo" / named / "isd" / "adapter.json").write_text("{}")
    (tmp_path / "tree" / "zoo" / "ptp" / "adapter.json").write_text("{}")
    (tmp_path / "tree" / "training" / "recipes").mkdir(parents=True)
    monkeypatch.setattr("bench.plan.sources.ROOT", tmp_path / "tree")
    return tmp_path / "tree"


@pytest.fixture
def with_adapter(opener: Any) -> Callable[[ResolvedRun], Setup]:
    """Opens two tables, the target's with a student for every adapter of the configuration."""

    def open_(run: ResolvedRun, **trained: Any) -> Setup:
        setup = opener(stored_decoders(run.config.with_values(decoders={"ar": {}})))
        target = setup.models.target
        assert isinstance(target, TableModel)
        for name in run.config.adapters:
            target.attach(name, 0.2)
        return assemble(
            run.with_values(device="cpu", dtype="float32"),
            setup.models,
            setup.tokenizer,
            stop_ids=setup.sampling.stop_ids,
            clock=setup.clock,
            facts=ModelFacts(
                target=TARGET,
                adapters=dict.fromkeys(
                    run.config.adapters, parse(AdapterFacts, TRAINED | trained, "adapter")
                ),
            ),
        )

    return open_


# ---------------------------------------------------------------- which are found


def test_an_embedded_adapter_is_offered_to_the_zoo_target_by_the_name_of_its_folder(
    root: Path, small: Any
) -> None:
    config = choose_decoders(small(model="zoo", decoders="ptp"), print).config
    assert config.adapters == {"ptp": "zoo"}
    assert str(root) not in config.to_toml()
    assert tomllib.loads(config.to_toml())["adapters"] == {"ptp": "zoo"}
    assert choose_decoders(config, print).config == config


def test_a_named_model_gets_its_embedded_adapters_and_draft_model(root: Path, small: Any) -> None:
    asked = small(model="smollm2-135m", decoders="idlm:mode=isd,spec", draft=None)
    config = choose_decoders(asked, print).config
    assert config.adapters == {"isd": "zoo/smollm2-135m"}
    assert config.draft == "zoo/smollm2-135m"
    assert str(root) not in config.to_toml()
    assert choose_decoders(config, print).config == config
    assert adapter_folder("isd", "zoo/smollm2-135m") == root / "zoo" / "smollm2-135m" / "isd"
    with pytest.raises(BenchError, match=r"there is no folder '.*zoo/smollm2-135m/ptp'"):
        adapter_folder("ptp", "zoo/smollm2-135m")
    with pytest.raises(BenchError, match="'ptp' needs an adapter named 'ptp'"):
        choose_decoders(small(model="smollm2-135m", decoders="ptp"), print)


def test_another_model_is_offered_no_embedded_adapter(root: Path, small: Any) -> None:
    notes: list[str] = []
    run = choose_decoders(small(decoders=None), notes.append)
    assert "ptp" not in run.decoders
    assert any(
        note.startswith("ptp is skipped: it needs an adapter named 'ptp' of the target; pass ")
        for note in notes
    ), notes


def test_without_named_decoders_both_modes_of_idlm_run(root: Path, small: Any) -> None:
    for name in ("refine", "isd"):
        (root / "zoo" / name).mkdir()
        (root / "zoo" / name / "adapter.json").write_text("{}")
    cells = choose_decoders(small(model="zoo", decoders=None), print).config.decoders or {}
    assert [*cells] == ["ar", "idlm", "idlm@isd", "lookup", "nar", "ptp", "spec"]
    assert (cells["idlm"]["mode"], cells["idlm@isd"]["mode"]) == ("refine", "isd")


def test_explicit_adapters_and_draft_models_take_precedence_over_embedded_ones(
    root: Path, small: Any
) -> None:
    asked = small(model="zoo", decoders="ptp", adapters={"ptp": "mine"})
    assert choose_decoders(asked, print).config.adapters == {"ptp": "mine"}
    asked = small(model="smollm2-135m", decoders="spec", draft="mine")
    assert choose_decoders(asked, print).config.draft == "mine"


@pytest.mark.usefixtures("root")
def test_an_adapter_that_no_decoder_needs_is_not_opened(small: Any) -> None:
    assert choose_decoders(small(model="zoo"), print).config.adapters == {}


def test_an_adapter_can_have_any_name(small: Any) -> None:
    config = choose_decoders(small(decoders="ptp:adapter=b", adapters={"b": "x"}), print).config
    assert config.adapters == {"b": "x"}
    with pytest.raises(BenchError, match="'ptp' needs an adapter named 'b'"):
        choose_decoders(small(decoders="ptp:adapter=b", adapters={"ptp": "x"}), print)


@pytest.mark.parametrize(
    ("decoder", "adapter", "model"),
    [
        ("ptp", "ptp", "target"),
        ("ptp_spec", "ptp-draft", "draft"),
        ("nar", "refine", "target"),
        ("idlm:mode=isd", "isd", "target"),
    ],
)
def test_a_decoder_without_its_adapter_is_refused_with_the_option_to_pass_or_command_to_train(
    small: Any, decoder: str, adapter: str, model: str
) -> None:
    with pytest.raises(BenchError) as refused:
        choose_decoders(small(decoders=decoder, draft="somewhere"), print)
    assert refused.value.exit_code == Exit.USAGE
    assert refused.value.message == (
        f"decoder {decoder.split(':')[0]!r} needs an adapter named {adapter!r} of the {model}; "
        f"pass --adapter {adapter}=PATH, or train one (`bench train --help`)"
    )


def test_an_adapter_that_no_decoder_needs_is_refused_by_its_name(small: Any) -> None:
    given = {"ptp": "a", "spare": "b"}
    with pytest.raises(BenchError, match="--adapter spare=…: none of ar, ptp needs it"):
        choose_decoders(small(decoders="ptp", adapters=given), print)


# ---------------------------------------------------------------- a run


def test_a_run_with_an_adapter_repeats_the_baselines_tokens_and_records_the_adapter(
    small: Any, with_adapter: Any, progress: Any, tmp_path: Path
) -> None:
    config = small(decoders="ptp", adapters={"ptp": "somewhere"})
    ended = bench_run.run(config, tmp_path / "results", progress(), with_adapter, report=None)
    run = load_run(ended.run_dir)
    assert ended.exit_code == Exit.DONE
    assert run.status.verdict == "VALID"
    assert not [line for line in run.status.warnings if "adapter" in line]
    assert run.env.models == parse(ModelFacts, {"target": TARGET, "adapters": {"ptp": TRAINED}}, "")
    assert run.config["adapters"] == {"ptp": "somewhere"}
    by_key: dict[Any, dict[str, Any]] = {}
    for record in run.records:
        by_key.setdefault((record.kind, record.prompt, record.repeat), {})[record.decoder] = record
    assert all(found["ptp"].tokens == found["ar"].tokens for found in by_key.values())
    calls = {
        cell: sum(sum(found[cell].steps.target_calls) for found in by_key.values())
        for cell in ("ar", "ptp")
    }
    assert calls["ptp"] < calls["ar"]


def test_an_interrupted_run_resumes_with_its_adapter_and_refuses_a_changed_adapter(
    small: Any, with_adapter: Any, progress: Any, tmp_path: Path
) -> None:
    config = small(decoders="ptp", adapters={"ptp": "somewhere"})
    ended = bench_run.run(
        config, tmp_path / "results", progress(stop_at=9), with_adapter, report=None
    )
    assert ended.exit_code == Exit.INTERRUPTED
    with pytest.raises(BenchError, match="the adapter has changed since the run began"):
        bench_run.resume(
            ended.run_dir, progress(), lambda c: with_adapter(c, weights_sha256="b"), report=None
        )
    assert (
        bench_run.resume(ended.run_dir, progress(), with_adapter, report=None).exit_code
        == Exit.DONE
    )
    run = load_run(ended.run_dir)
    assert (run.status.verdict, len(run.records)) == ("VALID", 4 * 2 * 3 + 4 * 2)


def test_the_identity_of_a_run_is_another_with_another_adapter(
    small: Any, with_adapter: Any
) -> None:
    run = choose_decoders(small(decoders="ptp", adapters={"ptp": "x"}), print)
    first, other = with_adapter(run), with_adapter(run, weights_sha256="other")
    assert setup_identity(first)["adapter"] != setup_identity(other)["adapter"]
    assert setup_identity(first) == setup_identity(with_adapter(run))


def test_an_arm_whose_model_lacks_its_adapter_is_refused_in_one_line(
    small: Any, opener: Any
) -> None:
    run = choose_decoders(small(decoders="ptp", adapters={"ptp": "x"}), print)
    with pytest.raises(BenchError, match="needs an adapter named 'ptp' of the target") as refused:
        opener(run.with_values(adapters={}))
    assert refused.value.exit_code == Exit.USAGE


# ---------------------------------------------------------------- outside its training


@pytest.mark.parametrize(
    ("distribution", "trained", "said"),
    [
        ({"temperature": 1.5}, {}, "temperature 1.5, trained 0.5 to 1"),
        ({"temperature": 0.4}, {}, "temperature 0.4, trained 0.5 to 1"),
        ({"temperature": 0.7, "top_p": 0.8}, {}, "top-p 0.8, trained 0.95, 1"),
        ({"temperature": 0.7, "top_k": 50}, {}, "top-k 50, trained 0"),
        ({"temperature": 0.0}, {"greedy": False}, "temperature 0, trained without greedy text"),
        ({"temperature": 0.0}, {"base_weights_sha256": "bb"}, "trained with other target weights"),
        ({}, {"base_weights_sha256": "bb"}, "trained with other target weights"),  # lost settings
    ],
)
def test_an_adapter_used_outside_its_training_is_reported_with_the_settings_that_differ(
    distribution: dict[str, Any], trained: dict[str, Any], said: str
) -> None:
    config = {"top_p": 1.0, "top_k": 0} | distribution
    models = parse(ModelFacts, {"target": TARGET, "adapters": {"ptp": TRAINED | trained}}, "")
    assert model_warnings(config, models, []) == [
        f"adapter 'ptp' is used outside its training ({said}): its proposals may be worse"
    ]


@pytest.mark.parametrize(
    ("distribution", "trained"),
    [
        ({"temperature": 0.5}, {}),
        ({"temperature": 1.0, "top_p": 0.9}, {}),
        ({"temperature": 0.0, "top_p": 0.5, "top_k": 50}, {}),
        ({"temperature": 0.7}, {"greedy": False}),
        ({"temperature": 0.7}, {"base_weights_sha256": None}),
        ({"temperature": 0.7}, {"models": ["draft"], "base_weights_sha256": "bb"}),
        ({"temperature": 1.5, "top_k": 50}, {"masked": True}),
    ],
)
def test_an_adapter_within_its_training_or_with_unknown_training_causes_no_warning(
    distribution: dict[str, Any], trained: dict[str, Any]
) -> None:
    config = {"top_p": 1.0, "top_k": 0} | distribution
    models = parse(ModelFacts, {"target": TARGET, "adapters": {"ptp": TRAINED | trained}}, "")
    assert model_warnings(config, models, []) == []


def test_adapter_warnings_are_shown_at_the_start_and_stored_in_the_run(
    small: Any, with_adapter: Any, progress: Any, tmp_path: Path
) -> None:
    config = small(decoders="ptp", adapters={"ptp": "x"}, temperature=1.2, top_p=0.5)
    shown = progress()
    ended = bench_run.run(config, tmp_path / "results", shown, with_adapter, report=None)
    (line,) = [note for note in shown.notes if "outside its training" in note]
    assert "temperature 1.2, trained 0.5 to 1; top-p 0.5, trained 0.95, 1" in line
    status = json.loads((ended.run_dir / "run.json").read_text())
    assert status["verdict"] == "VALID"
    assert [kept for kept in status["warnings"] if "adapter" in kept] == [line]


# ---------------------------------------------------------------- memory


class Weighed:
    """A model of given weights that holds two adapters."""

    def __init__(self, device: str, weights: int) -> None:
        self.device = type("Device", (), {"type": device})()
        self.weight_bytes, self.adapters = weights, {"a": None, "b": None}

    def cache_bytes(self) -> int:
        return 10

    def adapter_bytes(self, name: str) -> int:
        return {"a": 1, "b": 5}[name]


def models(target: Weighed, draft: Weighed | None = None) -> Any:
    return Models(target=target, draft=draft)  # type: ignore[arg-type]


@pytest.mark.parametrize("uses_draft", [False, True])
def test_peak_memory_counts_the_adapter_of_an_arm_that_uses_it_and_no_other(
    uses_draft: bool,
) -> None:
    target, draft = Weighed("cpu", 100), Weighed("cpu", 20)
    loaded, used = models(target, draft), models(target, draft if uses_draft else None)
    plain = 110 + (30 if uses_draft else 0)
    assert PeakMemory(loaded, used, Autoregressive()).peak_bytes() == plain
    for name, size in (("a", 1), ("b", 5)):
        decoder = ParallelTokenPrediction(adapter=name)
        assert PeakMemory(loaded, used, decoder).peak_bytes() == plain + size


def test_the_peak_on_a_gpu_leaves_out_models_and_adapters_that_the_decoder_does_not_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocator(monkeypatch, (900, 1000))
    target, draft = Weighed("cuda", 100), Weighed("cuda", 20)
    loaded, used = models(target, draft), models(target)
    assert PeakMemory(loaded, used, Autoregressive()).peak_bytes() == 110 + 100
    one = ParallelTokenPrediction(adapter="b")
    assert PeakMemory(loaded, used, one).peak_bytes() == 110 + 5 + 100

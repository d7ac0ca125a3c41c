"""MTP layers of checkpoints: drafts of a plain reference, AR's tokens, counts, memory, refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from bench.machine.usage import PeakMemory
from decoders import transformers_generate
from decoders.ar import Autoregressive
from decoders.core.checks import check_draws
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.checkpoint import tensor_files
from decoders.core.hf.compiled import Backend
from decoders.core.hf.model import HFModel
from decoders.core.model import DraftCall
from decoders.core.plugins import NETWORKS
from decoders.core.registry import build, parse_spec
from decoders.core.testing.goodness import Draws
from decoders.core.types import MAX_DRAFTS, CallResult, Generation, Sampling
from decoders.extras.mtp import MultiTokenPrediction, _find_prefix
from tests.command_line import bench
from tests.tiny_checkpoint import save_tokenizer
from tests.tiny_models import fresh
from tests.tiny_mtp import KINDS, WIDTH, in_shards, plain_drafts, save_mtp

PROMPTS = [[5, 3, 1, 6], [4, 4], [1], [3, 0, 5, 5, 6, 1, 2]]
GREEDY = Sampling(max_new_tokens=16)
WARM = Sampling(temperature=0.8, max_new_tokens=16, seed=3)


class Recording:
    """A model whose draft calls and their results are remembered."""

    def __init__(self, model: HFModel) -> None:
        self.pairs: list[tuple[DraftCall, CallResult]] = []
        self.num_merged, self._draft = 0, model.draft
        model.draft = self.draft  # type: ignore[method-assign]

    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        results = self._draft(calls)
        self.pairs += zip(calls, results, strict=True)
        self.num_merged = max(self.num_merged, len(calls))
        return results


@pytest.fixture(scope="module", params=KINDS)
def stored(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("mtp") / request.param
    return folder, save_mtp(folder, request.param)


def opened(folder: Path, **options: Any) -> Models:
    return Models(target=HFModel.load(folder, dtype=torch.float32, **options))


def accepted(answer: Generation) -> int:
    return sum(step.accepted for step in answer.steps)


@pytest.mark.parametrize("k", [1, 3])
def test_drafts_are_those_of_a_plain_pass_without_a_cache(
    stored: tuple[Path, dict[str, Any]], k: int
) -> None:
    folder, parts = stored
    models = opened(folder)
    recording, num = Recording(models.target), 0  # type: ignore[arg-type]
    for prompt in PROMPTS:
        recording.pairs.clear()
        answer = generate(MultiTokenPrediction(k=k), prompt, GREEDY, models)
        assert len(recording.pairs) >= len(answer.steps) - 2
        text = list(prompt)
        for step, (call, result) in zip(answer.steps, recording.pairs, strict=False):
            text += step.tokens
            logits = plain_drafts(parts, text, min(k, call.max_depth))
            assert result.picks == tuple(logits.argmax(-1).tolist())
            chances = logits.softmax(-1).max(-1).values.cumprod(0)
            assert torch.allclose(torch.tensor(result.confidences).float(), chances, atol=1e-5)
            num += len(result.picks)
    assert num > 10 * k


@pytest.mark.parametrize(
    ("k", "sampling"),
    [
        pytest.param(1, GREEDY, id="1-greedy"),
        pytest.param(4, WARM, id="4-sampled"),
        pytest.param(1, WARM, id="1-sampled", marks=pytest.mark.slow),
        pytest.param(4, GREEDY, id="4-greedy", marks=pytest.mark.slow),
    ],
)
def test_tokens_are_those_of_ar_alone_and_in_a_batch(
    stored: tuple[Path, dict[str, Any]], sampling: Sampling, k: int
) -> None:
    models, decoder, total = opened(stored[0]), MultiTokenPrediction(k=k), 0
    recording = Recording(models.target)  # type: ignore[arg-type]
    alone = [generate(decoder, prompt, sampling, models) for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, alone, strict=True):
        assert answer.tokens == generate(Autoregressive(), prompt, sampling, models).tokens
        total += accepted(answer)
    assert total > 2
    assert recording.num_merged == 1
    together = Scheduler(decoder, models, sampling, 4).run(PROMPTS)
    assert recording.num_merged > 1
    for answer, outcome in zip(alone, together, strict=True):
        assert isinstance(outcome, Generation)
        assert outcome.tokens == answer.tokens
        assert [step.drafted for step in outcome.steps] == [s.drafted for s in answer.steps]


def test_each_draft_is_a_run_of_the_layer_and_each_row_is_fed_once(
    stored: tuple[Path, dict[str, Any]],
) -> None:
    answer = generate(MultiTokenPrediction(k=3), PROMPTS[0], GREEDY, opened(stored[0]))
    first, *steps = answer.steps
    assert (first.draft_calls, first.draft_rows) == (0, 0)
    fed = len(PROMPTS[0])  # states of the prompt, and the token that each predicted
    for step in steps:
        assert step.draft_calls == step.drafted <= 3
        assert step.draft_rows == (fed + step.drafted - 1 if step.drafted else 0)
        fed = len(step.tokens)
    assert max(step.drafted for step in steps) == 3


@pytest.mark.slow
@pytest.mark.parametrize("verify", ["rejection", "block"])
@pytest.mark.parametrize("kind", ["qwen", "deepseek"])
def test_drawn_drafts_keep_the_targets_distribution(tmp_path: Path, kind: str, verify: Any) -> None:
    save_mtp(tmp_path, kind)
    decoder, sampling = (
        MultiTokenPrediction(k=2, verify=verify),
        Sampling(temperature=0.9, max_new_tokens=4),
    )
    models = opened(tmp_path)
    check_draws(Draws(decoder, models, [1, 2], sampling, 1500, beginning=3), str(decoder))


@pytest.mark.slow
def test_wrong_draft_probabilities_are_detected(tmp_path: Path) -> None:
    save_mtp(tmp_path, "qwen")
    models = opened(tmp_path)
    draft: Any = models.target.draft

    def wrong(calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        return [replace(each, probs=each.probs.roll(1, -1)) for each in draft(calls)]

    models.target.draft = wrong  # type: ignore[method-assign]
    decoder = MultiTokenPrediction(k=2, verify="rejection")
    sampling = Sampling(temperature=0.9, max_new_tokens=4)
    with pytest.raises(AssertionError, match="does not follow the target's distribution"):
        check_draws(Draws(decoder, models, [1, 2], sampling, 1500, beginning=3), str(decoder))


def test_a_checkpoint_in_shards_has_the_same_drafts(tmp_path: Path) -> None:
    parts = save_mtp(tmp_path, "qwen")
    whole = generate(MultiTokenPrediction(k=2), PROMPTS[0], GREEDY, opened(tmp_path))
    in_shards(tmp_path)
    assert {file.name for file in tensor_files(tmp_path).values()} == {
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    }  # fmt: skip
    models = opened(tmp_path)
    assert generate(MultiTokenPrediction(k=2), PROMPTS[0], GREEDY, models) == whole
    built: Any = models.target._drafts["mtp"]._work.layers  # type: ignore[attr-defined]
    assert torch.equal(built.join.weight, parts["join"])


def test_a_hybrid_drafts_with_the_mtp_layer_where_the_text_does_not_repeat(tmp_path: Path) -> None:
    save_mtp(tmp_path, "qwen")
    decoder: Decoder = build(parse_spec("hybrid:first=lookup+shortest=3:then=mtp+k=2"))
    models = opened(tmp_path)
    answer = generate(decoder, PROMPTS[3], WARM, models)
    assert answer.tokens == generate(Autoregressive(), PROMPTS[3], WARM, models).tokens
    assert sum(step.draft_calls for step in answer.steps) > 0


@pytest.mark.parametrize("kind", ["qwen", "deepseek"])
def test_mtp_decodes_in_half_precision(tmp_path: Path, kind: str) -> None:
    save_mtp(tmp_path, kind)
    models = Models(target=HFModel.load(tmp_path, dtype=torch.bfloat16))
    answer = generate(MultiTokenPrediction(k=2), PROMPTS[0], GREEDY, models)
    built: Any = models.target._drafts["mtp"]._work.layers  # type: ignore[attr-defined]
    assert built.join.weight.dtype == torch.bfloat16
    old: Any = models.target.module.model.layers[1].state_dict()  # type: ignore[attr-defined]
    new = built.layer.state_dict()
    assert {name: each.dtype for name, each in old.items()} == {n: e.dtype for n, e in new.items()}
    assert sum(step.drafted for step in answer.steps) > 5


@pytest.mark.parametrize("backend", ["eager", pytest.param("export", marks=pytest.mark.slow)])
def test_graphs_draft_as_the_plain_layer(tmp_path: Path, backend: Backend) -> None:
    save_mtp(tmp_path, "qwen")
    expected = generate(MultiTokenPrediction(k=3), PROMPTS[3], GREEDY, opened(tmp_path))
    models = opened(tmp_path)
    compiled = HFModel(models.target.library_module, compile=True, backend=backend)
    answer = generate(MultiTokenPrediction(k=3), PROMPTS[3], GREEDY, Models(target=compiled))
    assert answer.tokens == expected.tokens
    drafted = [[step.drafted for step in each.steps] for each in (answer, expected)]
    assert drafted[0] == drafted[1]
    drafts: Any = compiled._drafts["mtp"].graphs
    assert 0 < drafts.num_graphs < compiled.num_graphs


@pytest.mark.parametrize("kind", KINDS)
def test_memory_counts_the_layer_and_its_cache_once(tmp_path: Path, kind: str) -> None:
    parts = save_mtp(tmp_path, kind)
    models, decoder = opened(tmp_path), MultiTokenPrediction()
    generate(decoder, PROMPTS[0], GREEDY, models)
    weights = [*parts["layer"].parameters(), *parts["layer"].buffers()]
    weights += [parts[name] for name in ("token_norm", "state_norm", "join", "norm")]
    config = parts["target"].config
    heads, width = config.num_key_value_heads, 2 * config.head_dim  # keys and values
    if kind == "deepseek":
        heads, width = 1, config.kv_lora_rank + config.qk_rope_head_dim
    capacity = models.target._size[1] + 2 * (MAX_DRAFTS + 1)
    planes = 4 * heads * width * capacity
    layer = sum(each.nbytes for each in weights)
    assert models.target.adapter_bytes("mtp") == layer + planes
    used = PeakMemory(models, models, decoder).peak_bytes()
    plain = PeakMemory(models, models, Autoregressive()).peak_bytes()
    assert used is not None
    assert plain is not None
    assert used - plain == layer + planes


def test_a_target_without_the_layer_is_refused_in_one_line(tmp_path: Path) -> None:
    line = "the model's files have no MTP layer (no model.layers.N.enorm.weight as in DeepSeek-V3, "
    with pytest.raises(ValueError, match="no MTP layer") as raised:
        generate(MultiTokenPrediction(), [1], GREEDY, Models(target=HFModel(fresh("qwen3"))))
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    ended = bench("run", "--decoders", "mtp", "--dry-run", "--progress", "none")
    assert ended.code == 2
    assert (
        ended.err == f"bench: {line}no mtp.fc.weight as in Qwen3-Next); leave out the decoder mtp\n"
    )


def changed(folder: Path, **tensors: Tensor | None) -> None:
    """Add, replace or (None) drop tensors of a checkpoint."""
    file = folder / "model.safetensors"
    new = {**load_file(file), **tensors}
    save_file({name: each for name, each in new.items() if each is not None}, file)


BREAKS: dict[str, tuple[dict[str, Any], str]] = {
    "quantised": (
        {"mtp.layers.0.mlp.down_proj.weight_scale_inv": torch.ones(1, 1)},
        r"the MTP layer mtp\.\* is like no layer of the model, see layer\.mlp\.down_proj\."
        "weight_scale_inv; quantised weights, and those that --quantize packs, are not read",
    ),
    "another shape": (
        {"mtp.layers.0.mlp.up_proj.weight": torch.ones(3, WIDTH)},
        r"is like no layer of the model, see layer\.mlp\.up_proj\.weight",
    ),
    "a norm less": ({"mtp.pre_fc_norm_hidden.weight": None}, "Missing key.*state_norm.weight"),
    "another join": ({"mtp.fc.weight": torch.ones(WIDTH, WIDTH)}, "size mismatch for join.weight"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_layer_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, broken: str) -> None:
    save_mtp(tmp_path, "qwen")
    tensors, line = BREAKS[broken]
    changed(tmp_path, **tensors)
    with pytest.raises(ValueError, match=line) as raised:
        generate(MultiTokenPrediction(), [1], GREEDY, opened(tmp_path))
    assert str(raised.value).startswith("network 'mtp' cannot be built: ")
    assert "\n" not in str(raised.value)


def test_a_layer_that_needs_further_arguments_is_refused_in_one_line() -> None:
    """Gemma 3 rotates by the kind of a layer."""
    target = HFModel(fresh("gemma3-window"))
    layer = target.module.model.layers[0].state_dict()
    target.tensors = {f"mtp.layers.0.{name}": tensor for name, tensor in layer.items()}
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        target.tensors |= {f"mtp.{name}.weight": torch.ones(WIDTH)}
    target.tensors |= {"mtp.fc.weight": torch.ones(WIDTH, 2 * WIDTH)}
    with pytest.raises(ValueError, match=r"network 'mtp' cannot be built: .*'layer_type'"):
        Scheduler(MultiTokenPrediction(), Models(target=target), GREEDY)


def test_mtp_layers_after_the_first_are_ignored(tmp_path: Path) -> None:
    save_mtp(tmp_path, "qwen")
    expected = generate(MultiTokenPrediction(k=2), PROMPTS[0], GREEDY, opened(tmp_path))
    changed(tmp_path, **{"mtp.layers.1.mlp.up_proj.weight": torch.ones(3, 3)})
    assert generate(MultiTokenPrediction(k=2), PROMPTS[0], GREEDY, opened(tmp_path)) == expected


def test_an_unreadable_index_or_weights_file_is_refused_in_one_line(tmp_path: Path) -> None:
    save_mtp(tmp_path, "qwen")
    (tmp_path / "model.safetensors").write_bytes(b"\x10")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read: "):
        tensor_files(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ValueError, match=r"index\.json cannot be read: "):
        tensor_files(tmp_path)
    assert tensor_files("nobody/nothing") == {}


@pytest.mark.slow
def test_bench_verify_and_bench_run_work_with_mtp(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_mtp(folder, "qwen", save_tokenizer(folder))
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("ab c", "xyz")))
    options: Any = ("--model", folder, "--decoders", "mtp:k=2", "--tasks", tasks, "--no-compile")
    options = (*options, "--max-new-tokens", 12, "--progress", "none")
    ended = bench("verify", *options)
    assert ended.code == 0, ended.err + ended.out
    assert "lossless" in ended.out
    ended = bench("run", *options, "--fixed-length", "--output", tmp_path / "run")
    assert ended.code == 0, ended.err + ended.out
    (samples,) = (tmp_path / "run").glob("2*/samples.jsonl")
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    by_cell = {cell: [r for r in rows if r.get("decoder") == cell] for cell in ("ar", "mtp")}
    assert len(by_cell["mtp"]) == len(by_cell["ar"]) > 0
    assert all(sum(row["steps"]["draft_calls"]) > 0 for row in by_cell["mtp"])
    peaks = {cell: by_cell[cell][0]["peak_memory_bytes"] for cell in by_cell}
    assert peaks["mtp"] > peaks["ar"]


def test_a_network_whose_code_fails_is_refused_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    source = (Path(__file__).parents[2] / "examples" / "sure.py").read_text(encoding="utf-8")
    file.write_text(source.replace("target.head ", "target.heads "), encoding="utf-8")
    decoder: Decoder = build(parse_spec(f"{file}:SureLookup"))
    models = Models(target=HFModel(fresh("llama")))
    with pytest.raises(ValueError, match=r"^network 'certainty' cannot be built: .*'heads'$"):
        generate(decoder, [1, 2], GREEDY, models)
    file.write_text(source.replace('    variants = ("certainty",)\n', ""), encoding="utf-8")
    with pytest.raises(ValueError, match=r"SureLookup' needs a network; name it as in variants = "):
        build(parse_spec(f"{file}:SureLookup"))
    NETWORKS.pop("certainty")


def test_a_confidence_head_decides_the_number_of_drafts_and_takes_no_memory() -> None:
    path = Path(__file__).parents[2] / "examples" / "sure.py"
    models = Models(target=HFModel(fresh("llama")))
    drafted = []
    for sure in (0.0, 0.2, 2.0):
        decoder: Decoder = build(parse_spec(f"{path}:SureLookup:sure={sure}"))
        answer = generate(decoder, [5, 6, 5, 6, 5], GREEDY, models)
        assert answer.tokens == generate(Autoregressive(), [5, 6, 5, 6, 5], GREEDY, models).tokens
        assert sum(step.draft_calls for step in answer.steps) == len(answer.steps) - 1
        drafted.append(sum(step.drafted for step in answer.steps))
    assert drafted[0] > drafted[1] > drafted[2] == 0
    assert models.target.adapter_bytes("certainty") == 0
    NETWORKS.pop("certainty")


def test_transformers_generate_runs_mtp_on_a_model_loaded_from_a_folder(tmp_path: Path) -> None:
    save_mtp(tmp_path, "qwen")
    module: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    usual: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    ids = torch.tensor([PROMPTS[0]])
    mask = torch.ones_like(ids)
    loop = transformers_generate("mtp:k=2")
    answers = [
        module.generate(ids, attention_mask=mask, **usual, **more)
        for more in ({}, {"custom_generate": loop})
    ]
    assert torch.equal(*answers)
    with pytest.raises(ValueError, match="no MTP layer"):
        fresh("qwen3").generate(ids, attention_mask=mask, **usual, custom_generate=loop)


def test_the_page_shows_the_network_of_the_example() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "interface.md").read_text(encoding="utf-8")
    (shown,) = (part for part in page.split("```") if "class Certainty(" in part)
    example = (root / "examples" / "sure.py").read_text(encoding="utf-8")
    for line in shown.splitlines()[1:]:
        assert line.partition("  #")[0] in example


def test_the_first_layer_is_the_one_of_the_lowest_number() -> None:
    names = [f"model.layers.{number}.enorm.weight" for number in (10, 9, 11)]
    assert _find_prefix(names) == "model.layers.9."
    assert _find_prefix(["lm_head.weight", "mtp.fc.weight"]) == "mtp."
    with pytest.raises(ValueError, match="no MTP layer"):
        _find_prefix(["model.layers.0.fc.weight", "model.layers.0.mlp.enorm.weight"])

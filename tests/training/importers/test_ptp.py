"""Importing PTP checkpoints: every key layout they come in, the same numbers, clear refusals."""

from __future__ import annotations

import copy
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)
from typer.testing import CliRunner

import cli
from decoders.core.adapter.gating import GatedModule, layer_shapes, linear_layers
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter.weights import Deltas, MergedWeights, UnmergedWeights
from training.importers.ptp import import_ptp

WIDTH, RANK = 16, 4
State = dict[str, Any]

LORA: State = {"r": RANK, "target_modules": "all-linear"}
TRAIN: State = {
    "model": {
        "_target_": "ptp.lit.ParallelSamplingLightningModule",
        "model": {
            "_target_": "ptp.transformer.MixedTransformerModel",
            "model_id": "lmsys/vicuna-7b-v1.5",
            "lora_config": LORA,
        },
    },
    "data": {"_target_": "os.abort", "train_completion_len": 12},
}
WARP = {"generate": {"temperature": 0.7, "top_k": 50, "top_p": 0.95, "num_completions": 32}}


@pytest.fixture(scope="module")
def llama() -> Any:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def whole(module: Any, prefix: str = "model.") -> State:
    """A full checkpoint of a module: base weights as PEFT names them, LoRA, a binary embedding."""
    generator = torch.Generator().manual_seed(1)
    layers = linear_layers(module)
    state: State = {}
    for key, value in module.state_dict().items():
        name, kind = key.rsplit(".", 1)
        middle = ".base_layer" if name in layers else ""
        state[f"{prefix}model.base_model.model.{name}{middle}.{kind}"] = value.clone()
    for name, (num_in, num_out) in layer_shapes(module).items():
        path = f"{prefix}model.base_model.model.{name}"
        state[f"{path}.lora_A.default.weight"] = torch.randn(RANK, num_in, generator=generator)
        state[f"{path}.lora_B.default.weight"] = torch.randn(num_out, RANK, generator=generator)
    state[f"{prefix}u_embed.u_adapter.weight"] = torch.randn(WIDTH, 32, generator=generator)
    state[f"{prefix}u_embed.u_adapter.bias"] = torch.randn(WIDTH, generator=generator)
    return state


def trained(state: State) -> State:
    """What an adapter-only file keeps."""
    return {k: v for k, v in state.items() if "lora_" in k or ".u_embed." in k}


def embedded_by(state: State, **weights: Tensor) -> State:
    """The same with another embedding of u."""
    kept = {k: v for k, v in state.items() if ".u_embed." not in k}
    return kept | {f"model.u_embed.{k.replace('__', '.')}": v for k, v in weights.items()}


def written(folder: Path, state: State, **files: Any) -> Path:
    """An experiment folder as the authors' training leaves it."""
    folder.mkdir(exist_ok=True)
    lightning = {"epoch": 3, "state_dict": state, "callbacks": {"best": torch.tensor(0.5)}}
    torch.save(lightning, folder / "last.ckpt")
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder


def imported(folder: Path, state: State, **files: Any) -> SlotAdapter:
    import_ptp(written(folder, state, **files), folder / "adapter")
    return SlotAdapter.load(folder / "adapter")


def refusal(folder: Path, state: State, **files: Any) -> str:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        imported(folder, state, **files)
    return str(caught.value)


def changed(state: State, ending: str, change: Callable[[Tensor], Any]) -> tuple[str, State]:
    """The state with one weight changed (None: left out), and that weight's key."""
    key = next(key for key in state if key.endswith(ending))
    new = {**state, key: change(state[key])}
    return key, {k: v for k, v in new.items() if v is not None}


def bits_of(u: float) -> Tensor:
    """The 32 bits of a float32, the sign first."""
    (pattern,) = struct.unpack(">I", struct.pack(">f", u))
    return torch.tensor([float(digit) for digit in f"{pattern:032b}"])


def by_hand(module: Any, state: State, scale: float, first: int, fed: Tensor) -> Tensor:
    """Logits with ``y += scale B A x`` on rows `first` and later, from the raw weights."""
    module = copy.deepcopy(module)

    def hook(name: str) -> Any:
        low = state[f"model.model.base_model.model.{name}.lora_A.default.weight"]
        high = state[f"model.model.base_model.model.{name}.lora_B.default.weight"]

        def add(_layer: Any, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
            delta = scale * (args[0] @ low.T) @ high.T
            delta[:, :first] = 0
            return y + delta

        return add

    for name, layer in linear_layers(module).items():
        layer.register_forward_hook(hook(name))
    logits: Tensor = module(inputs_embeds=fed).logits
    return logits


@torch.no_grad()
@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("alpha", [None, 3])
def test_gated_rows_give_what_the_raw_checkpoint_gives(
    llama: Any, tmp_path: Path, merged: bool, alpha: int | None
) -> None:
    state = whole(llama)
    lora = LORA if alpha is None else {**LORA, "lora_alpha": alpha}
    network = {**TRAIN["model"]["model"], "lora_config": lora}
    adapter = imported(tmp_path, state, train={**TRAIN, "model": {"model": network}})
    us = [0.0, 0.1, 0.3, 0.5, 0.999]
    slots = adapter.embedding(torch.tensor(us, dtype=torch.float64), torch.ones(len(us), 2))
    weight, bias = (state[f"model.u_embed.u_adapter.{kind}"] for kind in ("weight", "bias"))
    expected_slots = torch.stack([bits_of(u) for u in us]) @ weight.T + bias
    torch.testing.assert_close(slots, expected_slots)

    tokens = llama.get_input_embeddings()(torch.tensor([3, 1, 4]))
    fed = torch.cat([tokens, expected_slots])[None]
    expected = by_hand(llama, state, (alpha or 8) / RANK, len(tokens), fed)
    module = copy.deepcopy(llama)
    gated = GatedModule(module)
    deltas = Deltas(gated, adapter.factors(torch.float32))
    way = MergedWeights(deltas, torch.float32) if merged else UnmergedWeights(deltas)
    with gated.active(way.tail(len(tokens), fed.shape[1])):
        found = module(inputs_embeds=fed).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    plain = llama(inputs_embeds=fed).logits
    torch.testing.assert_close(found[:, :3], plain[:, :3], atol=1e-4, rtol=1e-4)
    assert (found[:, 3:] - plain[:, 3:]).abs().max() > 0.1


def test_the_configuration_the_warp_and_the_histogram_are_recorded(
    llama: Any, tmp_path: Path
) -> None:
    shares = torch.zeros(21, dtype=torch.float64)
    shares[0], shares[1], shares[12] = 0.2, 0.5, 0.3
    folder = written(tmp_path, whole(llama), train=TRAIN, pregenerate=WARP)
    torch.save(shares, folder / "correct_count_hist.pt")
    line = import_ptp(folder, folder / "adapter")
    config = SlotAdapter.load(folder / "adapter").config
    assert "o-ptp, rank 4, 14 layers, code float-bits, 12 slots" in line
    assert (config.num_slots, config.alpha, config.scale, config.width) == (12, 8.0, 2.0, WIDTH)
    assert (config.temperatures, config.top_ps, config.top_k) == ((0.7, 0.7), (0.95,), 50)
    assert config.base == {"model": "lmsys/vicuna-7b-v1.5"}
    assert not config.greedy
    assert config.layers == layer_shapes(llama)
    survival = config.measured["survival"]
    assert survival == pytest.approx([0.8, *[0.3] * 11, *[0.0] * 8])


def test_a_lone_checkpoint_gets_the_authors_defaults(llama: Any, tmp_path: Path) -> None:
    config = imported(tmp_path, whole(llama)).config
    assert (config.num_slots, config.alpha, config.top_k) == (16, 8.0, 0)
    assert (config.temperatures, config.top_ps) == ((1.0, 1.0), (1.0,))
    assert config.base == {}
    assert config.measured == {}


def test_every_key_layout_gives_the_same_adapter(llama: Any, tmp_path: Path) -> None:
    new, old = whole(llama), whole(llama, "student.")
    layouts = {
        "full": new,
        "student": old,
        "oldest": {k.replace(".u_embed.", ".u_adapter."): v for k, v in old.items()},
        "teacher": {**old, "teacher.x.lora_A.default.weight": torch.zeros(2)},
        "adapter only": trained(new),
        "old adapter only": trained(old),
    }
    expected = imported(tmp_path / "reference", new).state_dict()
    for name, state in layouts.items():
        found = imported(tmp_path / name, state).state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected), name


def test_a_safetensors_file_a_single_named_file_and_a_bare_state_dict_work(
    llama: Any, tmp_path: Path
) -> None:
    state = trained(whole(llama))
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "weights.safetensors")
    assert "14 layers" in import_ptp(tmp_path / "weights.safetensors", tmp_path / "a")
    assert "14 layers" in import_ptp(tmp_path, tmp_path / "b")
    torch.save(state, tmp_path / "tinyllama-code-step=10.ckpt")
    assert "tinyllama-code-step=10.ckpt" in import_ptp(tmp_path, tmp_path / "c")
    torch.save(state, tmp_path / "legacy.ckpt", _use_new_zipfile_serialization=False)
    assert "14 layers" in import_ptp(tmp_path / "legacy.ckpt", tmp_path / "d")


def test_a_configuration_elsewhere_brings_its_warp(llama: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "weights", whole(llama))
    other = written(tmp_path / "experiment", {}, train=TRAIN, pregenerate=WARP)
    import_ptp(folder, tmp_path / "adapter", other / "train.yaml")
    config = SlotAdapter.load(tmp_path / "adapter").config
    assert (config.num_slots, config.top_k) == (12, 50)


@pytest.mark.parametrize("kind", ["neox", "gpt2"])
def test_other_architectures_keep_their_layer_names(kind: str, tmp_path: Path) -> None:
    if kind == "neox":
        neox = GPTNeoXConfig(
            hidden_size=WIDTH,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            vocab_size=32,
            max_position_embeddings=64,
        )
        module: Any = GPTNeoXForCausalLM(neox)
    else:
        gpt2 = GPT2Config(n_embd=WIDTH, n_layer=1, n_head=2, vocab_size=32, n_positions=64)
        module = GPT2LMHeadModel(gpt2)
    adapter = imported(tmp_path, whole(module))
    adapter.check_fits(module)
    assert adapter.config.layers == layer_shapes(module)
    if kind == "neox":
        assert "gpt_neox.layers.0.attention.query_key_value" in adapter.config.layers


def test_three_anchors_interpolate_and_the_blank_is_zero(llama: Any, tmp_path: Path) -> None:
    anchors = torch.randn(3, WIDTH)
    adapter = imported(tmp_path, embedded_by(whole(llama), embedding__weight=anchors))
    assert adapter.config.code == "interpolation"
    u = torch.tensor([0.0, 0.25, 0.5, 0.9, -1.0], dtype=torch.float64)
    expected = torch.stack(
        [
            anchors[0],
            (anchors[0] + anchors[1]) / 2,
            anchors[1],
            0.2 * anchors[1] + 0.8 * anchors[2],
            torch.zeros(WIDTH),
        ]
    )
    torch.testing.assert_close(adapter.embedding(u, torch.ones(5, 2)), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_half_on_disk_and_loses_nothing(
    llama: Any, tmp_path: Path, dtype: torch.dtype
) -> None:
    state = {key: value.to(dtype) for key, value in whole(llama).items()}
    adapter = imported(tmp_path, state)
    low = state["model.model.base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight"]
    assert torch.equal(adapter.lora_a["model/layers/0/mlp/up_proj"], low.float())
    stored = load_file(tmp_path / "adapter" / "adapter.safetensors")
    assert {value.dtype for value in stored.values()} == {dtype}


def test_other_embeddings_of_u_are_named_and_refused(llama: Any, tmp_path: Path) -> None:
    wide, bias = torch.randn(WIDTH, 32), torch.randn(WIDTH)
    sawtooth = embedded_by(whole(llama), embedding__weight=wide, embedding__bias=bias)
    assert "sawtooth or quarter_cos" in refusal(tmp_path, sawtooth)
    named = {"model": {"model": {"adapter_name": "quarter_cos"}}}
    assert "quarter_cos by the configuration" in refusal(tmp_path, sawtooth, train=named)
    rounded = embedded_by(whole(llama), embedding__weight=torch.randn(32, WIDTH))
    assert "embedding is round" in refusal(tmp_path / "32", rounded)
    three = embedded_by(whole(llama), embedding__weight=torch.randn(3, WIDTH))
    named = {"model": {"model": {"adapter_name": "round"}}}
    assert "round by the configuration" in refusal(tmp_path / "3", three, train=named)
    five = embedded_by(whole(llama), embedding__weight=torch.randn(5, WIDTH))
    assert "(5, 16)" in refusal(tmp_path / "5", five)
    assert "missing" in refusal(tmp_path / "none", embedded_by(whole(llama)))
    narrow = embedded_by(whole(llama), u_adapter__weight=torch.randn(7, 32), u_adapter__bias=bias)
    assert "u embedding is unknown" in refusal(tmp_path / "7", narrow)


def test_an_embedding_of_another_model_or_configuration_is_refused(
    llama: Any, tmp_path: Path
) -> None:
    other = embedded_by(whole(llama), embedding__weight=torch.randn(3, 20))
    assert "20 wide" in refusal(tmp_path, other)
    named = {"model": {"model": {"adapter_name": "linear_interpolation"}}}
    assert "linear_interpolation" in refusal(tmp_path / "named", whole(llama), train=named)


@pytest.mark.parametrize(
    ("ending", "change", "expected"),
    [
        ("q_proj.lora_A.default.weight", lambda x: x * float("nan"), "NaN"),
        ("u_embed.u_adapter.bias", lambda x: x / 0, "NaN or infinite"),
        ("q_proj.lora_A.default.weight", lambda x: x[:3], "differ in rank"),
        ("q_proj.lora_B.default.weight", lambda _: None, "lora_B is missing"),
        ("q_proj.lora_A.default.weight", lambda _: None, "lora_A is missing"),
        ("q_proj.lora_A.default.weight", lambda x: x[0], "must be a matrix"),
        ("q_proj.lora_A.default.weight", lambda x: x.long(), "floating-point"),
        ("q_proj.lora_B.default.weight", lambda _: "text", "floating-point"),
    ],
)
def test_a_malformed_weight_is_named(
    llama: Any, tmp_path: Path, ending: str, change: Callable[[Tensor], Any], expected: str
) -> None:
    key, state = changed(whole(llama), ending, change)
    message = refusal(tmp_path, state)
    assert expected in message
    layer = key.removeprefix("model.model.base_model.model.").split(".lora_")[0]
    assert layer in message


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("model.model.base_model.model.model.layers.0.adaLN_modulation.1.weight", "norm patching"),
        ("model.model.base_model.model.lm_head.lora_A.default.weight", "output head"),
        ("model.model.base_model.model.x.lora_A.other.weight", "lora_"),
        ("model.model.base_model.model.x.lora_magnitude_vector.default.weight", "lora_"),
        ("model.model.base_model.model.x.lora_embedding_A.default", "lora_"),
        ("model.u_embed.u_embed.weight", "u_embed"),
        ("model.u_scale_embed.weight", "u_scale_embed"),
        (
            "student.model.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
            "twice",
        ),
    ],
)
def test_a_weight_without_a_place_is_named(
    llama: Any, tmp_path: Path, key: str, expected: str
) -> None:
    message = refusal(tmp_path, {**whole(llama), key: torch.zeros(RANK, WIDTH)})
    assert key in message
    assert expected in message


def test_ranks_must_agree_between_layers_and_with_the_configuration(
    llama: Any, tmp_path: Path
) -> None:
    _, state = changed(whole(llama), "layers.1.mlp.up_proj.lora_A.default.weight", lambda x: x[:3])
    _, state = changed(state, "layers.1.mlp.up_proj.lora_B.default.weight", lambda x: x[:, :3])
    message = refusal(tmp_path, state)
    assert "model.layers.1.mlp.up_proj" in message
    assert "rank 3" in message
    train = {"model": {"model": {"lora_config": {"r": 128}}}}
    assert "128" in refusal(tmp_path / "configured", whole(llama), train=train)


def test_a_whole_model_without_lora_is_told_what_to_do(llama: Any, tmp_path: Path) -> None:
    state = {f"model.model.{key}": value for key, value in llama.state_dict().items()}
    state["model.u_embed.embedding.weight"] = torch.randn(3, WIDTH)
    message = refusal(tmp_path, state)
    assert "whole model" in message
    assert "bench train ptp" in message
    assert "there is none" in refusal(tmp_path / "empty", {})


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"model": {"model": {"shift_positions": False}}}, "shift_positions"),
        ({"model": {"student": {"model_id": "x"}}}, "shift_positions"),
        ({"model": {"loss_type": "kl_rev"}}, "kl_rev"),
        ({"model": {"model": {"lora_config": {"use_rslora": True}}}}, "use_rslora"),
        ({"model": {"model": {"lora_config": {"bias": "all"}}}}, "biases"),
        ({"model": {"model": {"lora_config": {"lora_alpha": 0}}}}, "lora_alpha"),
        ({"data": {"train_completion_len": "${len}"}}, "train_completion_len"),
        ({"data": {"train_completion_len": 0}}, "train_completion_len"),
        ({"data": [1]}, "data"),
        (["model"], "mapping"),
    ],
)
def test_a_training_that_cannot_be_reproduced_is_refused(
    llama: Any, tmp_path: Path, train: Any, expected: str
) -> None:
    assert expected in refusal(tmp_path, whole(llama), train=train)


def test_an_older_training_with_shifted_positions_is_imported(llama: Any, tmp_path: Path) -> None:
    student = {"model_id": "x", "shift_positions": True, "lora_config": LORA}
    train = {"model": {"loss_type": "bce", "student": student}}
    adapter = imported(tmp_path, whole(llama, "student."), train=train)
    assert adapter.config.base == {"model": "x"}


@pytest.mark.parametrize(
    "drawn", [{"temperature": 0}, {"top_p": 1.5}, {"top_k": -1}, {"temperature": True}]
)
def test_a_warp_out_of_range_is_refused(llama: Any, tmp_path: Path, drawn: State) -> None:
    message = refusal(tmp_path, whole(llama), pregenerate={"generate": drawn})
    assert next(iter(drawn)) in message


@pytest.mark.parametrize("text", ["a: [", "a: 2020-13-45", "[" * 1000])
def test_a_damaged_configuration_is_refused(llama: Any, tmp_path: Path, text: str) -> None:
    folder = written(tmp_path, whole(llama))
    (folder / "train.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"\A.*train\.yaml' cannot be read[^\n]*\Z"):
        import_ptp(folder, folder / "adapter")


def test_yaml_names_no_python_objects(llama: Any, tmp_path: Path) -> None:
    folder = written(tmp_path, whole(llama))
    code = f"model: !!python/object/apply:os.mkdir [{tmp_path / 'ran'}]\n"
    (folder / "train.yaml").write_text(code, encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be read"):
        import_ptp(folder, folder / "adapter")
    assert not (tmp_path / "ran").exists()


class Payload:
    """Unpickled without restriction, this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("place", ["weights", "beside them", "histogram"])
def test_a_pickle_with_code_is_refused_and_does_not_run(
    llama: Any, tmp_path: Path, place: str
) -> None:
    ran = tmp_path / "ran"
    state = whole(llama)
    folder = written(tmp_path, state)
    if place == "histogram":
        torch.save(Payload(ran), folder / "correct_count_hist.pt")
    elif place == "weights":
        torch.save({"state_dict": {**state, "x": Payload(ran)}}, folder / "last.ckpt")
    else:
        torch.save({"state_dict": state, "hyper_parameters": Payload(ran)}, folder / "last.ckpt")
    with pytest.raises(ValueError, match=r"refused.*mkdir") as caught:
        import_ptp(folder, folder / "adapter")
    assert "\n" not in str(caught.value)
    assert not ran.exists()
    assert not (folder / "adapter").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("last.ckpt", b"hello"), ("last.ckpt", b""), ("a.safetensors", b"hello")]
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|cannot be read"):
        import_ptp(tmp_path, tmp_path / "adapter")


def test_a_histogram_must_be_a_distribution(llama: Any, tmp_path: Path) -> None:
    folder = written(tmp_path, whole(llama))
    for wrong in (torch.ones(21), torch.ones(16) / 16, torch.full((21,), float("nan")), [1.0]):
        torch.save(wrong, folder / "correct_count_hist.pt")
        with pytest.raises(ValueError, match="21 shares that sum to 1"):
            import_ptp(folder, folder / "adapter")


def test_the_checkpoint_must_be_found_and_be_the_only_one(llama: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        import_ptp(tmp_path / "nowhere", tmp_path / "adapter")
    with pytest.raises(ValueError, match="found: none"):
        import_ptp(tmp_path, tmp_path / "adapter")
    for name in ("a.ckpt", "b.ckpt"):
        torch.save({"state_dict": whole(llama)}, tmp_path / name)
    with pytest.raises(ValueError, match=r"found: a\.ckpt, b\.ckpt"):
        import_ptp(tmp_path, tmp_path / "adapter")
    (tmp_path / "last.ckpt").mkdir()
    with pytest.raises(ValueError, match="sharded"):
        import_ptp(tmp_path, tmp_path / "adapter")
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(ValueError, match="no `state_dict`"):
        import_ptp(tmp_path / "list.ckpt", tmp_path / "adapter")


def test_an_adapter_is_never_overwritten(llama: Any, tmp_path: Path) -> None:
    folder = written(tmp_path, whole(llama))
    import_ptp(folder, folder / "adapter")
    with pytest.raises(ValueError, match="in use"):
        import_ptp(folder, folder / "adapter")
    with pytest.raises(ValueError, match="cannot be written"):
        import_ptp(folder, folder / "last.ckpt" / "adapter")


def test_the_command_prints_what_it_found(llama: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", whole(llama), train=TRAIN)
    arguments = ["import", "ptp", str(folder), str(tmp_path / "adapter")]
    ended = CliRunner().invoke(cli.app, [*arguments, "--config", str(folder / "train.yaml")])
    assert ended.exit_code == 0
    assert ended.stdout.startswith("imported last.ckpt: o-ptp, rank 4, 14 layers")
    assert (tmp_path / "adapter" / "adapter.json").is_file()


def test_the_command_ends_with_one_line_and_code_2_on_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "import", "ptp", str(tmp_path / "x"), "out"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith("bench: checkpoint ")
    assert err.count("\n") == 1

"""To PEFT's format, against `peft` itself: its logits of slots are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

import cli
from bench.errors import BenchError, Exit
from decoders.core.adapter.module import SlotAdapter
from decoders.core.hf.model import HFModel
from decoders.core.types import NO_UNIFORM, Slots
from decoders.extras.library.peft import to_peft
from tests.tiny_models import embedded_slots, fresh, slot_adapter

# of peft's own making: a name transformers will drop, and that GPT-2's layers are transposed
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),
]
TEXT = [5, 11, 3, 30, 7, 90, 2]
UNIFORMS = (0.1234, NO_UNIFORM, 0.9, 0.5)
WARP = (0.7, 0.9)
TOLERANCE = 2e-5
MODELS = ("llama", "llama-gqa", "qwen2", "gpt-neox", "gpt2")
KINDS: dict[str, dict[str, Any]] = {
    "o-ptp": {"conditioned": True, "embedding_hidden": 8, "anchored": True, "numbered": True},
    "isd": {"variant": "isd", "code": "constant", "numbered": True},
}
CASES = [(name, "o-ptp") for name in MODELS] + [("llama", "isd")]


@pytest.fixture(params=CASES, ids="-".join)
def exported(request: Any, tmp_path: Path) -> tuple[str, Path, Path]:
    """A model's name, an adapter's folder, and the same adapter in PEFT's format."""
    name, kind = request.param
    adapter = slot_adapter(fresh(name), measured={"survival": [0.5]}, **KINDS[kind])
    adapter.save(tmp_path / "ours")
    to_peft(tmp_path / "ours", tmp_path / "peft")
    return name, tmp_path / "ours", tmp_path / "peft"


def in_peft(folder: Path, base: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft is of `pip install -e .[dev]`")
    return peft.PeftModel.from_pretrained(base, folder).eval()


def slots_embedded(module: Any, adapter: SlotAdapter) -> Tensor:
    """What slots are fed ``[K, D]``, the uniforms at the middle of their level as in a call."""
    from decoders.core.adapter.embedding import NUM_LEVELS

    middles = [u if u == NO_UNIFORM else (int(u * NUM_LEVELS) + 0.5) / NUM_LEVELS for u in UNIFORMS]
    count = len(UNIFORMS)
    return embedded_slots(
        adapter,
        torch.tensor(middles, dtype=torch.float64),
        torch.tensor([WARP]).expand(count, 2),
        torch.arange(count),
        module.get_input_embeddings().weight[TEXT[-1]].expand(count, -1),
    )


@torch.no_grad()
def by_peft(model: Any, adapter: SlotAdapter) -> Tensor:
    """Logits ``[T + K, V]`` of the text and of slots behind it."""
    tokens = model.get_input_embeddings().weight[torch.tensor(TEXT)]
    rows = torch.cat([tokens, slots_embedded(model, adapter)])[None]
    logits: Tensor = model(
        inputs_embeds=rows,
        position_ids=torch.arange(rows.shape[1])[None],
        alora_offsets=[len(UNIFORMS)],
    ).logits[0]
    return logits


@torch.no_grad()
def by_us(name: str, adapter: SlotAdapter) -> Tensor:
    """The same by a call with slots."""
    model = HFModel(fresh(name))
    model.attach("mine", adapter)
    model.reserve(1, 64)
    slots = Slots(
        adapter="mine",
        uniforms=UNIFORMS,
        sizes=(len(UNIFORMS),),
        anchors=(TEXT[-1],),
        read=tuple(range(len(UNIFORMS))),
        warp=WARP,
    )
    call = model.open().call(
        TEXT, read=range(len(TEXT)), slots=slots, positions=range(len(TEXT) + len(UNIFORMS))
    )
    return model.forward([call])


def test_peft_and_the_bench_compute_the_same_logits_of_tokens_and_slots(
    exported: tuple[str, Path, Path],
) -> None:
    name, ours, folder = exported
    adapter = SlotAdapter.load(ours)
    got, wanted = by_peft(in_peft(folder, fresh(name)), adapter), by_us(name, adapter)
    difference = float((got - wanted).abs().max())
    print(f"{name}: largest logit difference {difference:.2g}")  # noqa: T201
    assert difference < TOLERANCE
    with torch.no_grad():
        tokens = fresh(name)(torch.tensor([TEXT])).logits[0]
    torch.testing.assert_close(got[: len(TEXT)], tokens, rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_in_peft_a_text_without_slots_has_the_base_models_logits(
    exported: tuple[str, Path, Path],
) -> None:
    name, _, folder = exported
    model, ids = in_peft(folder, fresh(name)), torch.tensor([TEXT])
    assert torch.equal(model(input_ids=ids).logits, fresh(name)(ids).logits)
    open_gate = model(input_ids=ids, alora_offsets=[len(TEXT)]).logits
    assert (open_gate - fresh(name)(ids).logits).abs().max() > 0.01, "so the gate shuts"


def test_the_files_have_every_weight_once(exported: tuple[str, Path, Path]) -> None:
    _, ours, folder = exported
    factors = load_file(folder / "adapter_model.safetensors")
    slots = load_file(folder / "slots.safetensors")
    state = SlotAdapter.load(ours).state_dict()
    assert {name for name in state if not name.startswith("lora_")} == set(slots)
    assert all(torch.equal(slots[name], state[name]) for name in slots)
    assert len(factors) + len(slots) == len(state)
    assert (folder / "slots.json").read_bytes() == (ours / "adapter.json").read_bytes()


def small(tmp_path: Path, **options: Any) -> Path:
    slot_adapter(fresh("llama"), **options).save(tmp_path / "ours")
    return tmp_path / "ours"


@pytest.mark.parametrize(
    ("options", "line"), [({"rank": 0}, "is of full rank"), ({"enter": 1}, "enter at layer 1")]
)
def test_adapters_that_peft_cannot_represent_are_refused(
    tmp_path: Path, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(ValueError, match=line):
        to_peft(small(tmp_path, **options), tmp_path / "peft")
    assert not (tmp_path / "peft").exists()


def test_bench_export_converts_to_peft_and_refuses_a_used_folder_and_a_foreign_option(
    tmp_path: Path,
) -> None:
    ours, run = small(tmp_path), CliRunner()
    done = run.invoke(cli.app, ["export", str(ours), "--to", "peft"])
    assert done.exit_code == 0, done.output
    folder = ours / "export" / "peft"
    assert done.output.split()[0] == str(folder / "adapter_config.json")
    for arguments, line in (
        (["export", str(ours), "--to", "peft"], "is in use"),
        (["export", str(ours), "--to", "peft", "--figure", "x"], "--figure is for --to"),
    ):
        refused = run.invoke(cli.app, arguments)
        assert isinstance(refused.exception, BenchError)
        assert line in refused.exception.message
        assert refused.exception.exit_code == Exit.USAGE

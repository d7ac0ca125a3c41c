"""Heads on a hidden state: their blocks, their files, the models they fit, the states they read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from decoders.core import masks
from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter.module import SlotAdapter, read_adapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.engine.forward import PREFILL_CHUNK
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel
from decoders.core.types import DraftShape, Sampling
from decoders.medusa import Medusa
from tests.tiny_models import SIZES, VOCAB, WIDTH, fresh, slot_adapter


def config_of(**options: Any) -> AdapterConfig:
    chosen = {"num_slots": 3, "rank": 5, "width": WIDTH, **options}
    return AdapterConfig(variant="medusa", code="constant", layers={}, **chosen)


def filled(**options: Any) -> DraftHeads:
    heads = DraftHeads(config_of(**options), seed=1)
    generator = torch.Generator().manual_seed(4)
    for part in (heads.up, heads.bias):
        part.data = 0.2 * torch.randn(part.shape, generator=generator)
    return heads.eval().requires_grad_(False)


def test_each_head_is_a_separate_residual_block() -> None:
    heads, hidden = filled(), torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(2))
    out = heads(hidden)
    assert out.shape == (4, 3, WIDTH)
    for row in range(4):
        for head in range(3):
            inner = heads.down[head] @ hidden[row] + heads.bias[head]
            expected = hidden[row] + heads.up[head] @ torch.nn.functional.silu(inner)
            torch.testing.assert_close(out[row, head], expected)


def test_untrained_heads_draft_the_likeliest_token_of_the_models_output_head() -> None:
    model = HFModel(fresh("llama"))
    model.attach("medusa", DraftHeads(config_of()))
    model.reserve(1, 20)
    session = model.open()
    logits = model.forward([session.call([5, 6, 7], read=[1, 2], hidden=True)])
    assert session.hidden is not None
    shape = DraftShape(depth=3, width=VOCAB, nodes=1)
    for row in range(2):
        call = session.draft("medusa", session.hidden[: row + 1], [1], shape, Sampling())
        (drafts,) = model.draft([call])
        likeliest = float(logits[row].softmax(-1).max())
        assert drafts.picks == (int(logits[row].argmax()),)
        assert drafts.confidences == pytest.approx((likeliest,), rel=1e-5)


@torch.inference_mode()
def states_of(model: HFModel, tokens: list[int]) -> torch.Tensor:
    """What the head reads at every place in a full forward without cache, by a hook."""
    seen: list[torch.Tensor] = []
    hook = model.module.get_output_embeddings().register_forward_pre_hook(
        lambda _module, args: seen.append(args[0])
    )
    model.module(torch.tensor([tokens]), use_cache=False)
    hook.remove()
    return seen[0][0]


@pytest.mark.parametrize("name", ["llama", "qwen2-window", "gpt2"])
def test_hidden_states_are_the_inputs_of_the_output_head_in_single_and_merged_calls(
    name: str,
) -> None:
    model = HFModel(fresh(name))
    model.attach("ptp", slot_adapter(model.module))
    model.reserve(3, 60)
    prompts = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    sessions = [model.open() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        model.forward([session.call(prompt, hidden=True)])
        assert session.hidden is not None
        torch.testing.assert_close(session.hidden, states_of(model, prompt)[-1:])
    parents = (masks.ROOT, 0, 0, 2)
    rows = [20, 21, 22, 23]
    calls = [
        session.call(
            rows,
            read=[1, 3],
            mask=masks.tree(parents),
            positions=[session.length + depth for depth in masks.depths(parents)],
            hidden=number != 1,
        )
        for number, session in enumerate(sessions)
    ]
    model.forward(calls)
    assert sessions[1].hidden is None
    for number in (0, 2):
        got, prompt = sessions[number].hidden, prompts[number]
        assert got is not None
        torch.testing.assert_close(got[:1], states_of(model, [*prompt, 20, 21])[-1:])
        torch.testing.assert_close(got[1:], states_of(model, [*prompt, 20, 22, 23])[-1:])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "export", "eager", "tiles"])
def test_hidden_states_are_available_for_rows_whose_logits_are_not_read(way: str) -> None:
    compiled: dict[str, Any] = {"compile": True, "backend": way} if way[0] == "e" else {}
    model = HFModel(fresh("llama"), **compiled)
    model = model.in_tiles(8) if way == "tiles" else model
    model.reserve(3, 60)
    prompts = [[5, 6, 7, 8, 9], [9, 10], [11, 12, 13]]
    sessions = [model.open() for _ in prompts]
    (alone, *others), (first, *rest) = sessions, prompts
    logits = model.forward([alone.call(first, hidden=range(1, 4))])
    assert logits.shape == (1, VOCAB)
    assert alone.hidden is not None
    expected = HFModel(fresh("llama"))
    torch.testing.assert_close(alone.hidden, states_of(expected, first)[1:4])
    calls = [one.call(prompt, hidden=[-2]) for one, prompt in zip(others, rest, strict=True)]
    calls.insert(1, alone.call([3]))
    assert model.forward(calls).shape == (3, VOCAB)
    assert alone.hidden is None
    for session, prompt in zip(others, rest, strict=True):
        assert session.hidden is not None
        torch.testing.assert_close(session.hidden, states_of(expected, prompt)[-2:-1])


def test_a_long_prompt_gives_the_states_of_its_last_rows() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    long = {**SIZES, "max_position_embeddings": 1200}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = HFModel(LlamaForCausalLM(LlamaConfig(**long)))
    heads = filled()
    model.attach("medusa", heads)
    prompt = torch.randint(
        3, VOCAB, (PREFILL_CHUNK + 40,), generator=torch.Generator().manual_seed(3)
    ).tolist()
    asked: list[torch.Tensor] = []
    draft = model.draft
    model.draft = lambda calls: (asked.append(calls[0].states), draft(calls))[1]  # type: ignore[method-assign, func-returns-value]
    generate(Medusa(), prompt, Sampling(max_new_tokens=3), Models(target=model))
    torch.testing.assert_close(asked[0], states_of(model, prompt)[-1:], atol=1e-4, rtol=1e-4)


def test_heads_are_refused_for_a_model_that_caps_its_logits() -> None:
    model = HFModel(fresh("gemma2-window"))
    line = "Gemma2ForCausalLM computes its logits by more than its head"
    with pytest.raises(ValueError, match=line):
        model.attach("medusa", DraftHeads(config_of()))
    model.reserve(1, 20)
    with pytest.raises(ValueError, match="use a decoder without heads"):
        model.forward([model.open().call([5, 6], hidden=True)])


def test_heads_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=f"a model 40 wide, not {WIDTH}"):
        HFModel(fresh("llama")).attach("medusa", DraftHeads(config_of(width=40)))


def test_saved_heads_load_unchanged_up_to_the_saved_precision(tmp_path: Path) -> None:
    heads = filled(base={"weights_sha256": "ab"}, measured={"accuracy": [0.5]})
    heads.save(tmp_path / "a")
    loaded = read_adapter(tmp_path / "a")
    assert isinstance(loaded, DraftHeads)
    assert loaded.config == heads.config
    for name, value in heads.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    heads.save(tmp_path / "half", torch.float16)
    half = DraftHeads.load(tmp_path / "half")
    assert torch.equal(half.down, heads.down.half().float())
    assert loaded.num_parameters == 3 * (2 * 5 * WIDTH + 5)


def test_adapter_files_load_only_as_the_kind_that_was_saved(tmp_path: Path) -> None:
    slot_adapter(fresh("llama")).save(tmp_path / "slots")
    filled().save(tmp_path / "heads")
    assert isinstance(read_adapter(tmp_path / "slots"), SlotAdapter)
    with pytest.raises(ValueError, match=r"cannot be loaded: it has heads \(medusa\)"):
        SlotAdapter.load(tmp_path / "heads")
    with pytest.raises(ValueError, match="of variant o-ptp, but medusa is needed here"):
        DraftHeads.load(tmp_path / "slots")
    with pytest.raises(ValueError, match=r"No such file .*adapter\.json"):
        read_adapter(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 0}, "'rank' is 0; it must be 1 or above where there are heads"),
        ({"layers": {"a": [2, 2]}}, "'layers' is .* it must be empty where there are heads"),
        ({"code": "dyadic"}, "'code' is 'dyadic'; it must be constant"),
        ({"num_slots": 4}, r"size mismatch for down: .*\[3, 5, 32\].*\[4, 5, 32\]"),
        ({"rank": 10**9}, "size mismatch for"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    filled().save(tmp_path)
    file = tmp_path / "adapter.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message) as caught:
        DraftHeads.load(tmp_path)
    assert "\n" not in str(caught.value)

"""Row-invariant numerics: a row's bits are its own, whatever call, batch or tree it is in."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from bench.plan.numerics import holds
from decoders.core import masks, products
from decoders.core.adapter import gating
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf import runner, tiles
from decoders.core.hf.model import HFModel
from decoders.core.model import Session
from decoders.core.registry import build, parse_spec
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling, Slots
from tests.tiny_models import GQA, MODELS, SIZES, VOCAB, fresh, slot_adapter

TILE = 8
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTH = 70


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 32 entries, so that a tiny context goes on over several."""
    monkeypatch.setattr(tiles, "BLOCK", 32)


@functools.cache
def plain(name: str, dtype: str) -> HFModel:
    return HFModel(fresh(name).to(DTYPES[dtype]))


def ids(seed: int, count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits(model: HFModel, text: Sequence[int], width: int) -> Tensor:
    """Logits ``[T, V]`` of a text fed in calls of so many rows."""
    Models(target=model).ensure(1, LENGTH)
    session = model.open()
    parts = []
    for first in range(0, len(text), width):
        part = text[first : first + width]
        parts.append(model.forward([session.call(part, output="logits", read=range(len(part)))]))
    model.close(session)
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if fast else pytest.mark.slow)
        for name in MODELS
        for dtype in DTYPES
        for fast in [dtype == "bfloat16" or name == "llama-gqa"]
    ],
)
def test_a_row_has_the_same_bits_in_every_call(name: str, dtype: str) -> None:
    model, text = plain(name, dtype).in_tiles(TILE), ids(1, LENGTH)
    whole = logits(model, text, LENGTH)
    for width in (1, 5, 17):
        assert torch.equal(logits(model, text, width), whole), width
    expected = logits(plain(name, dtype), text, LENGTH)
    assert (whole - expected).abs().max() < (1e-4 if dtype == "float32" else 0.5)


def test_a_model_with_its_own_attention_code_is_refused() -> None:
    config = FalconConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    with pytest.raises(ValueError, match="FalconForCausalLM has its own attention code"):
        HFModel(FalconForCausalLM(config).eval()).in_tiles(TILE)


def test_without_tiles_bits_depend_on_the_call() -> None:
    model, text = plain("llama", "bfloat16"), ids(1, LENGTH)
    assert not torch.equal(logits(model, text, 1), logits(model, text, LENGTH))


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gpt2"])
def test_other_sequences_of_a_call_change_no_bit(name: str) -> None:
    model = plain(name, "bfloat16").in_tiles(TILE)
    texts = [ids(seed, LENGTH) for seed in range(3)]
    alone = [logits(model, text, LENGTH) for text in texts]
    model.reserve(3, LENGTH)
    sessions = [model.open() for _ in texts]
    starts, widths = (40, 3, 61), (5, 1, 9)
    begun = zip(sessions, texts, starts, strict=True)
    model.forward([s.call(text[:start], read=()) for s, text, start in begun])
    calls = [
        session.call(text[start : start + width], output="logits", read=range(width))
        for session, text, start, width in zip(sessions, texts, starts, widths, strict=True)
    ]
    found = model.forward(calls).split(widths)  # type: ignore[no-untyped-call]
    for part, whole, start, width in zip(found, alone, starts, widths, strict=True):
        assert torch.equal(part, whole[start : start + width])
    for session in reversed(sessions):
        model.close(session)


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gpt2", "gemma3-window"])
def test_a_row_of_a_tree_has_the_bits_that_its_branch_has_alone(name: str) -> None:
    model, text = plain(name, "bfloat16").in_tiles(TILE), ids(1, LENGTH)
    whole = logits(model, text, LENGTH)
    parents = [-1, -1, 1, 1, 3, 0, 4, 4, 7]
    fed = [9, text[30], 11, text[31], text[32], 13, 14, text[33], text[34]]
    session = model.open()
    model.forward([session.call(text[:30], read=())])
    places = [30 + depth for depth in masks.depths(parents)]
    call = session.call(
        fed, output="logits", read=range(9), positions=places, mask=masks.tree(parents)
    )
    assert torch.equal(model.forward([call])[[1, 3, 4, 7, 8]], whole[30:35])
    session.select_rows([1, 3, 4, 7, 8])
    after = model.forward([session.call(text[35:40], output="logits", read=range(5))])
    assert torch.equal(after, whole[35:40])
    model.close(session)


@pytest.mark.parametrize("kind", [{"anchored": True}, {"enter": 1}])
@pytest.mark.parametrize("in_place", [True, False])
def test_slots_change_no_bit_of_tokens_and_have_the_same_bits_in_every_call(
    kind: dict[str, Any], in_place: bool
) -> None:
    module = fresh("llama-gqa")
    adapter = slot_adapter(module, **kind)
    model = HFModel(module.to(torch.bfloat16), in_place=in_place).in_tiles(TILE)
    model.attach("ptp", adapter)
    text = ids(1, LENGTH)
    whole = logits(model, text, LENGTH)
    found = []
    for begin in (40, 42):  # the same slots after calls of five tokens, and of three
        session = model.open()
        model.forward([session.call(text[:begin], read=())])
        slots = Slots(
            uniforms=(0.1, 0.5, 0.9), read=(0, 1, 2), output="probs", adapter="ptp",
            warp=(1.0, 1.0), sizes=(3,), anchors=(text[44],), slot_tokens=(-1, -1, -1),
        )  # fmt: skip
        num = 45 - begin
        call = session.call(text[begin:45], output="logits", read=range(num), slots=slots)
        made = model.forward([call])
        assert torch.equal(made[:num], whole[begin:45])
        found.append(made[num:])
        model.close(session)
    assert torch.equal(found[0], found[1])


SPECS = ("spec:verify=coupled:k=3", "lookup", "jacobi", "lookahead")
KINDS = [
    *((name, "bfloat16") for name in ("llama-gqa", "qwen2", "qwen3", "gemma", "gpt-neox", "gpt2")),
    *(("llama-gqa", "float32"), ("qwen2", "float32"), ("gpt-neox", "float16")),
]


PAIRWISE = [
    (*kind, temperature, 1 if (number + place) % 2 else 3)
    for number, kind in enumerate(KINDS)
    for place, temperature in enumerate((0.0, 0.7))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "temperature", "batch"),
    [
        pytest.param(*given, marks=pytest.mark.slow if number % 4 in (0, 3) else ())
        for number, given in enumerate(PAIRWISE)  # a half: each kind once, at either temperature
    ],
)
def test_lossless_decoders_give_the_very_tokens_of_ar(
    name: str, dtype: str, temperature: float, batch: int
) -> None:
    """A model that drafts for itself has every draft accepted."""
    model = plain(name, dtype).in_tiles(TILE)
    models = Models(target=model, draft=model)
    models.reserve(2 * batch, LENGTH)
    prompts = [ids(seed, 30 + seed) for seed in range(3)]
    sampling = Sampling(temperature=temperature, max_new_tokens=12)
    expected = answers("ar", models, prompts, sampling, 1)
    for spec in SPECS:
        found = answers(spec, models, prompts, sampling, batch)
        assert [answer.tokens for answer in found] == [answer.tokens for answer in expected], spec
        if spec.startswith("spec"):
            fell = [s.drafted - s.accepted for answer in found for s in answer.steps[:-1]]
            assert not any(fell)


def answers(
    spec: str, models: Models, prompts: list[list[int]], sampling: Sampling, batch: int
) -> list[Generation]:
    found = Scheduler(build(parse_spec(spec)), models, sampling, batch).run(prompts)
    assert all(isinstance(answer, Generation) for answer in found), found
    return found  # type: ignore[return-value]


def test_an_answer_after_a_cached_prefix_has_the_same_tokens_as_one_from_scratch() -> None:
    model = plain("llama-gqa", "bfloat16").in_tiles(TILE)
    text, decoder = ids(1, 50), build(parse_spec("lookup"))
    sampling = Sampling(max_new_tokens=20, temperature=0.7)
    (scratch,) = Scheduler(decoder, Models(target=model), sampling).run([text])
    kept = Scheduler(decoder, Models(target=model), sampling)
    kept.prefill_prefix(text, 37)
    (found,) = kept.run([text])
    assert isinstance(found, Generation)
    assert isinstance(scratch, Generation)
    assert found.tokens == scratch.tokens


def test_tiles_stay_row_invariant_in_a_context_longer_than_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiles, "BLOCK", 256)
    config = MODELS["llama-gqa"]()[1]
    config.max_position_embeddings = 700
    torch.manual_seed(0)
    module: Any = LlamaForCausalLM(config)
    assert holds(HFModel(module.to(torch.bfloat16)).in_tiles(16))


# ---------------------------------------------------------------- plants


def shaped(forward: Any) -> Any:
    """A layer whose numbers depend on how many rows it is given, as a kernel's rounding does."""
    return lambda x: forward(x) * (1 + x.shape[0 if x.dim() == 2 else 1] / 1000)


def planted(kind: str, *, in_tiles: bool) -> HFModel:
    module = fresh("llama-gqa")
    layer = module.model.layers[1]
    part = {"layer": layer.mlp.up_proj, "norm": layer.input_layernorm, "head": module.lm_head}[kind]
    if in_tiles:
        part.forward = shaped(part.forward)
    model = HFModel(module, in_place=False).in_tiles(TILE)
    if not in_tiles:  # around the tiles, not inside
        part.forward = shaped(part.forward)
    return model


@pytest.mark.parametrize("kind", ["layer", "norm", "head"])
def test_a_layer_that_does_not_run_in_tiles_is_detected(kind: str) -> None:
    assert holds(planted(kind, in_tiles=True))
    assert not holds(planted(kind, in_tiles=False))


def test_attention_that_depends_on_the_length_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = plain("llama-gqa", "float32").in_tiles(TILE)
    assert holds(model)
    monkeypatch.setattr(tiles, "_attend", lambda *given: attend_by_length(*given))
    assert not holds(model)


def attend_by_length(scores: Tensor, values: Tensor, before: Any) -> Any:
    """Each block rescales what was before it by a little: so do kernels of other lengths."""
    most, total, mixed = ATTEND(scores, values, before)
    return most, total, mixed if before is None else mixed * 1.001


ATTEND = tiles._attend


def test_outside_of_a_pass_nothing_runs_in_tiles() -> None:
    model = plain("gpt-neox", "float32")
    model.in_tiles(TILE)
    assert gating.tile_rows is None
    shapes = []
    hook = model.module.gpt_neox.final_layer_norm.register_forward_hook(
        lambda _m, a, _o: shapes.append(a[0].shape)
    )
    logits(model, ids(1, 40), 40)
    hook.remove()
    assert [shape[1] for shape in shapes] == [40]
    assert model.module.config._attn_implementation == "sdpa"


def test_a_model_in_tiles_leaves_the_one_it_is_made_of_as_it_was() -> None:
    model = HFModel(fresh("llama"))
    before = logits(model, ids(1, 40), 40)
    tiled = model.in_tiles(TILE)
    assert (model.facts["forward"], tiled.facts["forward"]) == ("own", "transformers")
    logits(tiled, ids(1, 40), 40)
    assert torch.equal(logits(model, ids(1, 40), 40), before)
    assert model.module.config._attn_implementation == "sdpa"


def test_the_head_of_the_model_it_is_made_of_stays_one_product_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else graphs of a run with both numerics would multiply by the library, for later runs too."""
    model, sizes = HFModel(fresh("llama")), list[int]()

    def counted(x: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(x))
        return products.product(x, *rest)

    monkeypatch.setattr(runner, "product", counted)
    model.in_tiles(TILE)
    logits(model, ids(1, 40), 40)
    assert sizes == [40]


def test_a_tiled_model_does_not_share_adapters_with_the_original() -> None:
    module = fresh("llama-gqa")
    adapter = slot_adapter(module)
    model = HFModel(module)
    model.attach("ptp", adapter)
    tiled = model.in_tiles(TILE)
    assert tiled.adapters == {}
    tiled.attach("other", adapter)
    assert [*model.adapters] == ["ptp"]


# ---------------------------------------------------------------- what has none


def test_tiles_are_refused_for_models_with_experts() -> None:
    sizes = {**SIZES, **GQA, "num_local_experts": 2, "num_experts_per_tok": 1}
    module = MixtralForCausalLM(MixtralConfig(**sizes, sliding_window=None)).eval()
    with pytest.raises(ValueError, match="routes rows to experts"):
        HFModel(module).in_tiles(TILE)


@pytest.mark.parametrize("option", ["position_bias", "s_aux"])
def test_options_of_attention_that_tiles_do_not_compute_are_refused(option: str) -> None:
    query, mask = torch.zeros(1, 2, TILE, 4), torch.zeros(1, 1, TILE, tiles.BLOCK)
    plane = torch.zeros(1, 1, tiles.BLOCK, 4)
    options: dict[str, Any] = {option: plane}
    with pytest.raises(ValueError, match=f"Identity attends with {option}"):
        tiles._tiled_attention(nn.Identity(), query, plane, plane, mask, **options)


@pytest.mark.parametrize("width", ["int8", "int4"])
def test_packed_weights_run_in_tiles(width: Any) -> None:
    model = HFModel(fresh("llama-gqa").to(torch.bfloat16), quantized=width).in_tiles(TILE)
    text = ids(1, LENGTH)
    whole = logits(model, text, LENGTH)
    assert all(torch.equal(logits(model, text, width), whole) for width in (1, 5, 17))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama-gqa", "qwen3", "mistral-window", "gpt-neox", "gpt2"])
def test_on_a_gpu_a_row_has_the_same_bits_in_every_call(name: str, dtype: str) -> None:
    model = HFModel(fresh(name).to("cuda", DTYPES[dtype])).in_tiles(16)
    text = ids(1, LENGTH)
    whole = logits(model, text, LENGTH)
    assert all(torch.equal(logits(model, text, width), whole) for width in (1, 5, 17))


def test_linear_layers_norms_and_the_head_run_only_on_whole_tiles() -> None:
    """Whatever its call is like, each is given one number of rows."""
    module = fresh("qwen3")
    seen: set[tuple[str, int]] = set()

    def noted(part: nn.Module, forward: Any) -> Any:
        def run(x: Tensor) -> Tensor:
            seen.add((type(part).__name__, x.shape[0 if x.dim() == 2 else 1]))
            return forward(x)

        return run

    for part in module.modules():
        if isinstance(part, nn.Linear) or "Norm" in type(part).__name__:
            part.forward = noted(part, part.forward)
    model = HFModel(module, in_place=False)
    tiled = model.in_tiles(TILE)
    seen.clear()
    for width in (1, 5, LENGTH):
        logits(tiled, ids(1, LENGTH), width)
    assert seen == {("Linear", TILE), ("Qwen3RMSNorm", TILE)}


def test_a_tree_is_packed_with_a_context_for_each_branch_and_one_in_plain_order() -> None:
    session = Session(TableModel(5), 0, 64)
    sees = [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 3, 4}, {0, 2, 5}]  # two branches behind row 0
    mask = torch.tensor([[column in row for column in range(6)] for row in sees])
    _, (block,) = tiles.pack([session.call([1] * 6, mask=mask)], 8)
    assert len(block.contexts) == 3, "one of each branch, and the plain order of rows 0 and 1"

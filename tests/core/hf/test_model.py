"""`HFModel` against the plain module: every cached call equals a cold full forward without cache.

Weights are random and larger than usual, so that a wrong mask or position moves logits by far more
than the tolerance; a negative control checks that it does.
"""

import dataclasses
import functools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decoders.core import masks
from decoders.core.engine.models import Models
from decoders.core.hf.model import HFModel, stop_ids
from tests.tiny_models import EAGER, MODELS, SIZES, VOCAB, WINDOW, fresh
from tests.versions import older

TOLERANCE = 2e-5
PAIRS = [
    (name, attention)
    for name in MODELS
    for attention in ("sdpa", "eager")
    if attention == "eager" or name not in EAGER
]
WINDOWED = [(name, attention) for name, attention in PAIRS if name.endswith("-window")]


@functools.cache
def shared(name, attention):
    return HFModel(fresh(name, attention))


@pytest.fixture(params=PAIRS, ids="-".join)
def model(request):
    """A model whose cache holds what tests before have left there."""
    made = shared(*request.param)
    made.reserve(4, 120)
    yield made
    for session in list(made._open):
        made.close(session)


@pytest.fixture
def llama():
    made = HFModel(fresh("llama", "sdpa"))
    made.reserve(4, 120)
    return made


def ids(seed, count):
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def cold(model, tokens):
    """Logits ``[N, V]`` of a full forward without cache, mask or positions."""
    device = next(model.module.parameters()).device
    return model.module(torch.tensor([tokens], device=device), use_cache=False).logits[0].float()


def opened(model, *prompts):
    """Sessions filled with prompts, each by a call of its own."""
    sessions = [model.open() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        model.forward([session.call(prompt)])
    return sessions


def feed(session, tokens, **options):
    """A call that reads all its rows, run alone."""
    return session.model.forward([session.call(tokens, read=range(len(tokens)), **options)])


def gap(got, expected):
    assert got.shape == expected.shape
    assert got.dtype == torch.float32
    return (got - expected).abs().max().item()


def check_paths(model, prompt, rows, parents, logits):
    """Each row of a tree must predict what its own path predicts in a cold forward."""
    worst = 0.0
    for row in range(len(rows)):
        path, place = [], row
        while place != masks.ROOT:
            path.append(rows[place])
            place = parents[place]
        expected = cold(model, prompt + path[::-1])[-1:]
        worst = max(worst, gap(logits[row : row + 1], expected))
    return worst


# One sequence.


def test_prefill_and_blocks_and_single_rows_equal_a_cold_forward(model):
    tokens = ids(1, 40)
    expected = cold(model, tokens)
    session = model.open()
    for start, stop in [(0, 11), (11, 12), (12, 17), (17, 18), (18, 19), (19, 40)]:
        assert gap(feed(session, tokens[start:stop]), expected[start:stop]) < TOLERANCE
    assert session.length == session.rows == 40


def test_after_truncate_stale_entries_are_not_seen(model):
    tokens, other = ids(2, 30), ids(3, 30)
    (session,) = opened(model, tokens[:10] + other[:20])
    session.truncate(10)
    assert gap(feed(session, tokens[10:15]), cold(model, tokens[:15])[10:]) < TOLERANCE
    session.truncate(12)
    assert gap(feed(session, other[:1]), cold(model, tokens[:12] + other[:1])[12:]) < TOLERANCE
    session.truncate(0)
    assert gap(feed(session, other), cold(model, other)) < TOLERANCE


def test_tree_rows_predict_the_same_as_their_paths_fed_alone(model):
    prompt, rows = ids(4, 9), ids(5, 7)
    parents = (masks.ROOT, 0, 0, 1, 2, 2, masks.ROOT)
    (session,) = opened(model, prompt)
    positions = [len(prompt) + depth for depth in masks.depths(parents)]
    logits = feed(session, rows, mask=masks.tree(parents), positions=positions)
    assert check_paths(model, prompt, rows, parents, logits) < TOLERANCE


def test_kept_tree_path_continues_like_a_cold_forward(model):
    prompt, rows, after = ids(6, 9), ids(7, 6), ids(8, 8)
    parents = (masks.ROOT, 0, 0, 1, 2, 4)
    (session,) = opened(model, prompt)
    positions = [len(prompt) + depth for depth in masks.depths(parents)]
    feed(session, rows, mask=masks.tree(parents), positions=positions)
    session.select_rows((0, 2, 4))
    text = [*prompt, rows[0], rows[2], rows[4], *after]
    assert session.length == 12
    assert gap(feed(session, after[:1]), cold(model, text)[12:13]) < TOLERANCE
    assert gap(feed(session, after[1:]), cold(model, text)[13:]) < TOLERANCE


def test_keeping_the_first_rows_of_a_call_only_changes_the_length(model):
    tokens = ids(9, 20)
    (session,) = opened(model, tokens[:8])
    feed(session, tokens[8:10] + ids(10, 5))
    session.select_rows((0, 1))
    assert gap(feed(session, tokens[10:]), cold(model, tokens)[10:]) < TOLERANCE


def test_branches_do_not_see_one_another(model):
    prompt, stem, chains = ids(11, 8), ids(12, 1), ids(13, 6)
    (session,) = opened(model, prompt)
    parents = (masks.ROOT, 0, 1, 2, 0, 4, 5)
    positions = [8, 9, 10, 11, 9, 10, 11]
    logits = feed(session, stem + chains, mask=masks.tree(parents), positions=positions)
    assert check_paths(model, prompt, stem + chains, parents, logits) < TOLERANCE


def test_tree_as_the_very_first_call_needs_no_prefix(model):
    rows, parents = ids(14, 5), (masks.ROOT, 0, 0, 2, 1)
    positions = masks.depths(parents)
    logits = feed(model.open(), rows, mask=masks.tree(parents), positions=positions)
    assert check_paths(model, [], rows, parents, logits) < TOLERANCE


def test_explicit_positions_are_respected_in_single_and_merged_calls(model):
    prompt, token = ids(15, 6), ids(16, 1)
    first, second = opened(model, prompt, ids(17, 4))
    near = feed(first, token)
    first.truncate(6)
    far = feed(first, token, positions=[20])
    assert gap(far, near) > 1e-3
    first.truncate(6)
    calls = [first.call(token, positions=[20]), second.call(ids(18, 2))]
    assert gap(model.forward(calls)[:1], far) < TOLERANCE


def test_a_wide_call_after_a_prefix_is_causal(model):
    tokens = ids(19, 79)
    (session,) = opened(model, tokens[:10])
    assert gap(feed(session, tokens[10:]), cold(model, tokens)[10:]) < TOLERANCE


def test_a_call_of_many_rows_attends_by_its_mask(llama):
    prompt, rows = ids(20, 5), ids(21, 70)
    parents = (masks.ROOT, *range(len(rows) - 1))
    (session,) = opened(llama, prompt)
    logits = feed(session, rows, mask=masks.tree(parents))
    assert gap(logits, cold(llama, prompt + rows)[5:]) < TOLERANCE


def test_block_mask_lets_rows_see_each_other_both_ways(model):
    prompt, rows = ids(22, 6), ids(23, 4)
    (session,) = opened(model, prompt)
    before = feed(session, rows, mask=masks.block(3, stem=1))
    session.truncate(6)
    after = feed(session, [*rows[:3], 5], mask=masks.block(3, stem=1))
    assert gap(before[:1], cold(model, prompt + rows[:1])[6:]) < TOLERANCE  # the stem
    assert gap(before[1:2], after[1:2]) > 1e-3  # an earlier row sees the later change
    session.truncate(6)
    merged = model.forward(
        [
            session.call([*rows[:3], 5], read=range(4), mask=masks.block(3, stem=1)),
            model.open().call(ids(24, 6)),
        ]
    )
    assert gap(merged[:4], after) < TOLERANCE


@pytest.mark.parametrize(("name", "attention"), PAIRS)
def test_a_wrong_mask_is_caught_by_the_oracle(name, attention):
    made = HFModel(fresh(name, attention))
    made.reserve(2, 60)
    prompt, rows = ids(4, 9), ids(5, 7)
    parents = (masks.ROOT, 0, 0, 1, 2, 2, masks.ROOT)
    wrong = masks.tree(parents)
    wrong[3, 2] = True  # a row that sees its uncle
    (session,) = opened(made, prompt)
    positions = [len(prompt) + depth for depth in masks.depths(parents)]
    logits = feed(session, rows, mask=wrong, positions=positions)
    assert check_paths(made, prompt, rows, parents, logits) > 100 * TOLERANCE


# Several sequences.


def test_ragged_batch_equals_cold_forwards(model):
    texts = [ids(30, 25), ids(31, 14), ids(32, 20)]
    lengths, before = (13, 2, 7), model.num_padded_rows
    sessions = [model.open() for _ in texts]
    # Merged prefill of three lengths, given in another order than their rows.
    calls = [
        s.call(text[:length], read=range(length))
        for s, text, length in zip(sessions, texts, lengths, strict=True)
    ]
    logits = model.forward([calls[2], calls[0], calls[1]])
    expected = [cold(model, text) for text in texts]
    parts = logits.split([7, 13, 2])
    for place, part in zip((2, 0, 1), parts, strict=True):
        assert gap(part, expected[place][: lengths[place]]) < TOLERANCE
    assert model.num_padded_rows - before == (0 if model.merges else 11 + 6)
    # Then widths 5, 1 and 3, then one row each.
    for widths in ((5, 1, 3), (1, 1, 1)):
        calls, wanted = [], []
        for session, text, full, width in zip(sessions, texts, expected, widths, strict=True):
            start = session.length
            calls.append(session.call(text[start : start + width], read=range(width)))
            wanted.append(full[start : start + width])
        assert gap(model.forward(calls), torch.cat(wanted)) < TOLERANCE
    assert [s.length for s in sessions] == [19, 4, 11]
    assert [s.rows for s in sessions] == [19, 4, 11]


def test_ragged_batch_of_trees_equals_cold_forwards(model):
    prompts = [ids(33, 12), ids(34, 5), ids(35, 9)]
    sessions = opened(model, *prompts)
    shapes = ((-1, 0, 0, 1), (-1, 0), (-1, -1, 1, 1, 2, 3))
    rows = [ids(36 + i, len(parents)) for i, parents in enumerate(shapes)]
    calls = [
        s.call(
            fed,
            read=range(len(fed)),
            mask=masks.tree(parents),
            positions=[s.length + depth for depth in masks.depths(parents)],
        )
        for s, fed, parents in zip(sessions, rows, shapes, strict=True)
    ]
    parts = model.forward(calls).split([4, 2, 6])
    for prompt, fed, parents, part in zip(prompts, rows, shapes, parts, strict=True):
        assert check_paths(model, prompt, fed, parents, part) < TOLERANCE
    sessions[2].select_rows((1, 2, 4))
    text = [*prompts[2], rows[2][1], rows[2][2], rows[2][4], *ids(39, 3)]
    calls = [
        sessions[0].call(ids(40, 1)),
        sessions[2].call(text[12:], read=range(3)),
    ]
    assert gap(model.forward(calls)[1:], cold(model, text)[12:]) < TOLERANCE


def test_closing_a_session_moves_the_last_one_into_its_row(model):
    texts = [ids(41, 20), ids(42, 24), ids(43, 30)]
    first, second, third = opened(model, texts[0][:10], texts[1][:9], texts[2][:17])
    model.close(first)
    assert (second.row, third.row) == (1, 0)
    calls = [second.call(texts[1][9:13]), third.call(texts[2][17:19], read=(0, 1))]
    wanted = torch.cat([cold(model, texts[1][:13])[-1:], cold(model, texts[2][:19])[-2:]])
    assert gap(model.forward(calls), wanted) < TOLERANCE
    newcomer = model.open()
    assert newcomer.row == 2
    assert gap(feed(newcomer, texts[0]), cold(model, texts[0])) < TOLERANCE
    model.close(newcomer)  # the last row: nobody moves
    assert gap(feed(third, texts[2][19:]), cold(model, texts[2])[19:]) < TOLERANCE


def test_merged_calls_write_to_the_right_cache_rows_despite_gaps_between_rows(model):
    texts = [ids(44 + i, 25) for i in range(4)]
    sessions = opened(model, *(text[: 8 + 2 * i] for i, text in enumerate(texts)))
    for widths in ({0: 2, 2: 3, 3: 1}, {1: 1, 3: 1}, {0: 1, 1: 4, 2: 1, 3: 2}):
        calls, wanted = [], []
        for place, width in widths.items():
            session, start = sessions[place], sessions[place].length
            fed = texts[place][start : start + width]
            calls.append(session.call(fed, read=range(width)))
            wanted.append(cold(model, texts[place])[start : start + width])
        assert gap(model.forward(calls), torch.cat(wanted)) < TOLERANCE


def test_padding_never_reaches_entries_that_count(llama):
    """A short call near the end of the cache, padded to a wide one, spills nowhere."""
    llama.reserve(2, 24)
    texts = [ids(50, 24), ids(51, 24)]
    first, second = opened(llama, texts[0][:22], texts[1][:4])
    calls = [first.call(texts[0][22:23]), second.call(texts[1][4:20])]
    wanted = [cold(llama, texts[0][:23])[-1:], cold(llama, texts[1][:20])[-1:]]
    assert gap(llama.forward(calls), torch.cat(wanted)) < TOLERANCE
    assert gap(feed(first, texts[0][23:]), cold(llama, texts[0])[-1:]) < TOLERANCE
    assert gap(feed(second, texts[1][20:]), cold(llama, texts[1])[20:]) < TOLERANCE


# What is read, and what it costs.


def test_a_call_returns_only_the_logits_of_rows_that_are_read(model):
    tokens, other = ids(52, 12), ids(53, 8)
    first, second = opened(model, tokens[:7], other[:5])
    whole, last = cold(model, tokens)[7:], cold(model, other)[-1:]
    for read in ((4,), (1, 3), (0, 1, 2), (2, 3, 4), ()):
        expected = whole[list(read)]
        alone = model.forward([first.call(tokens[7:], read=read)])
        assert alone.shape == expected.shape
        assert torch.allclose(alone, expected, rtol=0, atol=TOLERANCE)
        first.truncate(7)
        merged = model.forward([second.call(other[5:]), first.call(tokens[7:], read=read)])
        assert gap(merged, torch.cat([last, expected])) < TOLERANCE
        first.truncate(7)
        second.truncate(5)


@pytest.mark.parametrize("attention", ["eager", None])
@pytest.mark.parametrize("name", MODELS)
def test_the_head_runs_only_on_rows_that_are_read(name, attention, monkeypatch):
    made = HFModel(fresh(name, attention))
    made.reserve(2, 40)
    (session,) = opened(made, ids(54, 5))
    rows = []
    plain = torch.nn.functional.linear

    def noted(states, weight, *rest):
        if len(weight) == VOCAB:
            rows.append(states.numel() // 32)
        return plain(states, weight, *rest)

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    made.forward([session.call(ids(55, 9), read=(2, 8))])
    assert rows == [2]


def test_passes_rows_and_padding_are_counted_separately(llama):
    first, second = opened(llama, ids(56, 6), ids(57, 3))
    assert (llama.num_forwards, llama.num_padded_rows) == (2, 0)
    llama.forward([first.call(ids(58, 4)), second.call(ids(59, 1))])
    assert (llama.num_forwards, llama.num_padded_rows) == (3, 0 if llama.merges else 3)
    assert (first.calls, first.rows, second.calls, second.rows) == (2, 10, 2, 4)


def test_bytes_are_those_of_weights_and_cache():
    tied = HFModel(fresh("llama-gqa", "sdpa"))
    distinct = {p.data_ptr(): p.nbytes for p in tied.module.parameters()}
    assert tied.weight_bytes == tied.facts["read_bytes"] == sum(distinct.values())
    untied = HFModel(fresh("llama"))
    table = untied.module.get_input_embeddings().weight
    assert untied.facts["read_bytes"] == untied.weight_bytes - table.nbytes
    placed = HFModel(fresh("gpt2"))
    places = placed.module.transformer.wpe.weight
    assert placed.facts["read_bytes"] == placed.weight_bytes - places.nbytes
    assert tied.cache_bytes() == 0
    tied.reserve(3, 50)
    assert tied.cache_bytes() == 2 * 2 * 3 * 2 * 51 * 8 * 4  # one scrap entry a row
    again = tied._layout
    tied.reserve(3, 50)
    assert tied._layout is again
    tied.reserve(1, 20)
    assert tied.cache_bytes() == 2 * 2 * 1 * 2 * 21 * 8 * 4


def test_the_lowest_free_cache_row_is_used_first_and_rows_can_run_out(llama):
    llama.reserve(2, 20)
    assert [llama.open().row, llama.open().row] == [0, 1]
    with pytest.raises(AssertionError, match="all 2 rows are taken"):
        llama.open()
    with pytest.raises(AssertionError, match="sessions are open"):
        llama.reserve(3, 20)


def test_after_a_cache_for_which_there_is_no_room_a_smaller_one_is_allocated(llama, monkeypatch):
    def no_room(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("decoders.core.hf.model.Layout", no_room)
        with pytest.raises(MemoryError):
            llama.reserve(64, 1000)
    Models(target=llama).ensure(1, 4)
    assert llama.forward([llama.open().call([5, 6])]).shape == (1, VOCAB)


def test_two_calls_of_one_session_do_not_merge(llama):
    (session,) = opened(llama, ids(60, 4))
    with pytest.raises(AssertionError, match="two calls of one session"):
        llama.forward([session.call([5]), session.call([6])])


def test_logits_of_half_precision_are_float32_and_close():
    module = LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.bfloat16)  # type: ignore[arg-type]
    made = HFModel(module)
    made.reserve(2, 40)
    tokens = ids(61, 12)
    first, second = opened(made, tokens[:6], ids(62, 3))
    logits = made.forward([first.call(tokens[6:], read=range(6)), second.call([5])])
    assert gap(logits[:6], cold(made, tokens)[6:]) < 0.1 * cold(made, tokens).abs().max()


# Windows, positions and shapes.


@pytest.mark.parametrize(("name", "attention"), WINDOWED)
def test_ignoring_the_attention_window_changes_the_logits(name, attention):
    """Negative control: the oracle tests above would notice a window that is not applied."""
    made = HFModel(fresh(name, attention))
    made.reserve(1, 60)
    assert WINDOW in made.architecture.windows.values()
    tokens = ids(63, 30)
    expected = cold(made, tokens)
    layout = made._layout
    assert layout is not None
    layout.window = 0  # forget it: ready masks then bypass the module's own window
    layout.masks._windows = dict.fromkeys(made.architecture.windows)
    (session,) = opened(made, tokens[:10])
    assert gap(feed(session, tokens[10:]), expected[10:]) > 100 * TOLERANCE


@pytest.mark.parametrize(("name", "attention"), WINDOWED)
def test_the_window_of_a_deep_branch_counts_positions_and_not_cache_entries(name, attention):
    model, prompt, depth = HFModel(fresh(name, attention)), ids(74, 4), WINDOW + 3
    model.reserve(1, 4 + 2 * depth)
    (session,) = opened(model, prompt)
    chains, parents = ids(75, 2 * depth), [*range(-1, depth - 1), -1, *range(depth, 2 * depth - 1)]
    positions = [*range(4, 4 + depth)] * 2
    logits = feed(session, chains, mask=masks.tree(parents), positions=positions)
    assert check_paths(model, prompt, chains, parents, logits) < TOLERANCE


def test_drafts_past_the_last_learned_position_do_not_crash():
    made = HFModel(fresh("gpt2", "sdpa"))
    made.reserve(2, 136)
    tokens = ids(64, 132)
    first, second = opened(made, tokens[:126], ids(65, 3))
    logits = feed(first, tokens[126:132])  # positions 126 to 131 of 128
    assert gap(logits[:2], cold(made, tokens[:128])[126:]) < TOLERANCE
    first.truncate(126)
    merged = made.forward([first.call(tokens[126:], read=(0, 1)), second.call([5])])
    assert gap(merged[:2], cold(made, tokens[:128])[126:]) < TOLERANCE


def test_bucketed_shapes_of_the_compiled_path_give_the_same_logits():
    made = HFModel(fresh("llama-gqa", "sdpa"), compile=True, backend="eager")
    made.reserve(2, 150)
    texts = [ids(66, 40), ids(67, 30)]
    first, second = opened(made, texts[0][:10], texts[1][:3])
    assert made.num_padded_rows == 6 + (1 + 4)  # the second call brings the first row along
    assert gap(feed(first, texts[0][10:15]), cold(made, texts[0])[10:15]) < TOLERANCE
    for place in range(2):
        calls = [
            first.call(texts[0][15 + place : 16 + place]),
            second.call(texts[1][3 + place : 4 + place]),
        ]
        wanted = [cold(made, text)[place + at] for text, at in zip(texts, (15, 3), strict=True)]
        assert gap(made.forward(calls), torch.stack(wanted)) < TOLERANCE
    torch.compiler.reset()


# Loading.


def test_a_saved_checkpoint_loads_in_the_requested_dtype(tmp_path):
    fresh("llama", "sdpa").save_pretrained(tmp_path)
    made = HFModel.load(tmp_path, dtype=torch.float32, device="cpu")
    made.reserve(1, 20)
    assert (made.vocab_size, made.max_length, made.dtype) == (VOCAB, 128, torch.float32)
    assert made.facts["architecture"] == "LlamaForCausalLM"
    assert made.facts["attention"] == "sdpa"
    tokens = ids(68, 10)
    assert gap(feed(made.open(), tokens), cold(made, tokens)) < TOLERANCE
    half = HFModel.load(tmp_path, dtype=torch.bfloat16, device="cpu")
    assert half.dtype == torch.bfloat16
    assert half.weight_bytes * 2 == made.weight_bytes


@pytest.mark.skipif(older("transformers", (5, 23)), reason="others give Gemma 2 sdpa")
def test_attention_falls_back_to_eager_where_there_is_no_sdpa(tmp_path):
    fresh("gemma2-window", "eager").save_pretrained(tmp_path)
    made = HFModel.load(tmp_path, dtype=torch.float32, device="cpu")
    assert made.facts["attention"] == "eager"
    assert not made.architecture.reads_hidden  # its logits are capped after the head


def test_stop_ids_come_from_configs_and_tokenizer(tmp_path):
    @dataclasses.dataclass
    class Tokenizer:
        eos_token_id: int

    made = HFModel(fresh("llama", "sdpa"))
    assert stop_ids(made, Tokenizer(None)) == {2}  # type: ignore[arg-type]
    assert stop_ids(made, Tokenizer(9)) == {2, 9}  # type: ignore[arg-type]


def test_an_unknown_kind_of_layer_is_refused():
    module = LlamaForCausalLM(LlamaConfig(**SIZES))
    module.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(ValueError, match="chunked_attention"):
        HFModel(module)


# On a GPU.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_on_a_gpu_ragged_batches_and_trees_equal_cold_forwards(compiled):
    module = LlamaForCausalLM(LlamaConfig(**SIZES)).to("cuda").eval()  # type: ignore[arg-type]
    made = HFModel(module, compile=compiled)
    made.reserve(3, 100)
    texts = [ids(70, 40), ids(71, 30)]
    first, second = opened(made, texts[0][:20], texts[1][:7])
    expected = [cold(made, text) for text in texts]
    for width in (1, 1, 5, 2):
        starts = (first.length, second.length)
        logits = made.forward(
            [
                first.call(texts[0][starts[0] : starts[0] + width], read=range(width)),
                second.call(texts[1][starts[1] : starts[1] + 1]),
            ]
        )
        assert gap(logits[:width], expected[0][starts[0] : starts[0] + width]) < 1e-4
        assert gap(logits[width:], expected[1][starts[1] : starts[1] + 1]) < 1e-4
    for _ in range(3):
        start = first.length
        alone = feed(first, texts[0][start : start + 1])
        assert gap(alone, expected[0][start : start + 1]) < 1e-4
    prompt = texts[0][: first.length]
    parents = (masks.ROOT, 0, 0, 1, 2)
    rows = ids(72, 5)
    positions = [first.length + depth for depth in masks.depths(parents)]
    logits = feed(first, rows, mask=masks.tree(parents), positions=positions)
    assert check_paths(made, prompt, rows, parents, logits) < 1e-4

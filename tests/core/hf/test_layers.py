"""States of chosen layers, and vectors as rows, held against transformers' own forward pass."""

import dataclasses
import itertools

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core import masks
from decoders.core.decoder import Decoder
from decoders.core.drafting.mask_slots import branch_positions
from decoders.core.drafting.mask_slots import vector_slots as slots_or_none
from decoders.core.engine.forward import PREFILL_CHUNK, forward
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.sampling import Uniforms, pick, warp
from decoders.core.testing.table_model import TableModel
from decoders.core.testing.tiny_llama import tiny_models
from decoders.core.types import Emit, Sampling, Slots
from tests.tiny_models import EAGER, MODELS, VOCAB, fresh, slot_adapter
from tests.versions import older

exported = pytest.mark.skipif(
    older("torch", (2, 13)), reason="torch 2.11 exports layers' states for one size; runs are eager"
)

TOLERANCE = 3e-5
NUM_LAYERS = 2
LAYERS = (2, 0, 1, -1)
NAMES = sorted(MODELS)


def opened(name, *, rows=3, **options):
    model = HFModel(fresh(name, "eager" if name in EAGER else "sdpa"), **options)
    model.reserve(rows, 120)
    return model


def ids(seed, count):
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def vector_slots(vectors, **options) -> Slots:
    slots = slots_or_none(vectors, **options)
    assert slots is not None
    return slots


@torch.inference_mode()
def transformers_states(model, tokens):
    """States ``[N, L, D]`` of layers 0 to the last by transformers, the first as embedded."""
    fed = torch.tensor([tokens])
    out = model.module(fed, use_cache=False, output_hidden_states=True)
    embedded = model.module.get_input_embeddings()(fed)
    return torch.stack((embedded, *out.hidden_states[1:]), 2)[0]


def states_of(session, tokens, layers=LAYERS, **options):
    call = session.call(tokens, hidden=range(len(tokens)), hidden_layers=layers, **options)
    session.model.forward([call])
    return session.hidden


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gemma2-window"])
def test_hidden_states_equal_those_of_transformers_also_after_a_prefix(name):
    model, tokens = opened(name), ids(1, 17)
    session = model.open()
    expected = transformers_states(model, tokens)[:, LAYERS]
    first, rest = states_of(session, tokens[:9]), states_of(session, tokens[9:])
    assert first.shape == (9, len(LAYERS), expected.shape[-1])
    torch.testing.assert_close(torch.cat((first, rest)), expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (expected[:, 1] - expected[:, 2]).abs().max() > 0.01  # another layer would show


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gemma3-window", "gpt-neox"])
def test_merged_calls_get_the_layers_and_rows_that_each_call_requests(name):
    model, texts = opened(name), [ids(2, 8), ids(3, 5), ids(4, 11)]
    rows, layers = [(1, 6), (), (0, 10, 3)], [(1,), (), (-1, 0)]
    calls = [
        model.open().call(text, hidden=each, hidden_layers=numbers)
        for text, each, numbers in zip(texts, rows, layers, strict=True)
    ]
    plain = dataclasses.replace(calls[0], session=calls[0].session)
    model.forward(calls)
    for text, call in zip(texts, calls, strict=True):
        expected = transformers_states(model, text)
        if call.hidden:
            part = expected[list(call.hidden)][:, list(call.hidden_layers)]
            torch.testing.assert_close(call.session.hidden, part, atol=TOLERANCE, rtol=TOLERANCE)
        else:
            assert call.session.hidden is None
    assert plain.hidden_layers == (1,)
    assert calls[2].hidden_layers == (2, 0)


def test_layer_minus_one_gives_the_hidden_states_returned_without_layers():
    for name in ("llama", "gpt2"):
        session, tokens = opened(name).open(), ids(5, 7)
        layered = states_of(session, tokens, layers=(-1,))
        session.truncate(0)
        session.model.forward([session.call(tokens, hidden=range(7))])
        assert session.hidden.shape == layered[:, 0].shape
        assert torch.equal(session.hidden, layered[:, 0])


def test_a_model_that_hides_its_last_states_shows_those_of_lower_layers():
    model, tokens = opened("gemma2-window"), ids(6, 7)
    session = model.open()
    assert not model.architecture.reads_hidden
    expected = transformers_states(model, tokens)
    found = states_of(session, tokens, layers=(1, 0))
    torch.testing.assert_close(found, expected[:, (1, 0)], atol=TOLERANCE, rtol=TOLERANCE)
    with pytest.raises(ValueError, match="hidden states cannot be read"):
        states_of(session, tokens, layers=(-1,))


@pytest.mark.parametrize(
    "wanted",
    [
        range(PREFILL_CHUNK, PREFILL_CHUNK + 300),
        range(PREFILL_CHUNK - 90, 2 * PREFILL_CHUNK + 40),  # of three chunks
        range(PREFILL_CHUNK - 90, PREFILL_CHUNK + 9),  # none of the last
        (PREFILL_CHUNK + 9, 3),
    ],
)
def test_a_long_prompt_in_chunks_has_the_states_of_all_its_rows(wanted, monkeypatch):
    model = tiny_models(VOCAB, 2000).target
    model.reserve(1, 1500)
    session, tokens = model.open(), ids(7, 2 * PREFILL_CHUNK + 40)
    passes, run = [], model.forward

    def noted(calls):
        passes.append(calls[0].num_rows)
        return run(calls)

    monkeypatch.setattr(model, "forward", noted)
    forward([session.call(tokens, hidden=wanted, hidden_layers=(0, 1))])
    expected = transformers_states(model, tokens)[list(wanted)][:, :2]
    torch.testing.assert_close(session.hidden, expected, atol=TOLERANCE, rtol=TOLERANCE)
    if isinstance(wanted, range):  # as in a call without states, whose rows have the same bits
        assert passes == [PREFILL_CHUNK, PREFILL_CHUNK, 40]
    assert (session.calls, session.length) == (1, len(tokens))


@exported
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *itertools.product(("llama", "gpt-neox", "gemma2-window"), ["eager"]),
        ("llama", "export"),
        pytest.param("gemma2-window", "export", marks=pytest.mark.slow),
        pytest.param("gpt-neox", "export", marks=pytest.mark.slow),
    ],
)
def test_graphs_return_the_hidden_states_of_requested_layers(name, backend):
    model, tokens = opened(name, compile=True, backend=backend), ids(8, 6)
    session, expected = model.open(), transformers_states(model, tokens)
    shown = (1, -1, 0) if model.architecture.reads_hidden else (1, 0)
    for layers, num_graphs in ((shown, 1), ((1, 0), 1), ((0,), 2), ((), 2)):
        session.truncate(0)
        call = session.call(tokens, read=(5,), hidden=range(6), hidden_layers=layers)
        if not (layers or model.architecture.reads_hidden):
            call = session.call(tokens, read=(5,))
        model.forward([call])
        # a graph of fixed shapes also has a fixed number of rows whose states are read
        fixed = backend == "eager" and not call.hidden
        assert model.num_graphs == num_graphs + fixed
        if layers:
            wanted = expected[:, layers]
            torch.testing.assert_close(session.hidden, wanted, atol=TOLERANCE, rtol=TOLERANCE)
        elif call.hidden:
            wanted = expected[:, -1]
            torch.testing.assert_close(session.hidden, wanted, atol=TOLERANCE, rtol=TOLERANCE)


@exported
@pytest.mark.parametrize(
    "name", [pytest.param("llama-gqa", marks=pytest.mark.slow), "mistral-window"]
)
def test_a_graph_of_several_sequences_has_the_layers_that_any_of_them_names(name):
    model = opened(name, compile=True, backend="export")
    texts, layers = [ids(2, 8), ids(3, 5)], [(1,), (-1, 0)]
    calls = [
        model.open().call(text, hidden=(0, 3), hidden_layers=numbers)
        for text, numbers in zip(texts, layers, strict=True)
    ]
    model.forward(calls)
    assert model.num_graphs == 1
    for text, call in zip(texts, calls, strict=True):
        wanted = transformers_states(model, text)[[0, 3]][:, list(call.hidden_layers)]
        torch.testing.assert_close(call.session.hidden, wanted, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_model_in_tiles_returns_the_same_hidden_states():
    model = HFModel(fresh("llama", "eager")).in_tiles(4)
    model.reserve(2, 60)
    texts = [ids(9, 9), ids(10, 5)]
    calls = [model.open().call(t, hidden=range(len(t)), hidden_layers=LAYERS) for t in texts]
    model.forward(calls)
    for call, text in zip(calls, texts, strict=True):
        expected = transformers_states(model, text)[:, LAYERS]
        torch.testing.assert_close(call.session.hidden, expected, atol=TOLERANCE, rtol=TOLERANCE)


@exported
@pytest.mark.parametrize(
    ("backend", "name", "enter"),
    [
        *itertools.product((None, "eager"), ("llama-gqa", "gpt-neox"), (0, 1)),
        ("export", "llama-gqa", 1),
        pytest.param("export", "gpt-neox", 0, marks=pytest.mark.slow),
        pytest.param("export", "llama-gqa", 0, marks=pytest.mark.slow),
        pytest.param("export", "gpt-neox", 1, marks=pytest.mark.slow),
    ],
)
def test_slots_in_a_call_do_not_change_the_hidden_states_of_its_tokens(name, enter, backend):
    model, tokens = opened(name, compile=bool(backend), backend=backend or "eager"), ids(11, 6)
    model.attach("ptp", slot_adapter(model.module, enter=enter))
    session = model.open()
    slots = vector_slots(torch.zeros(3, 1), anchors=(tokens[-1],))
    slots = dataclasses.replace(slots, adapter="ptp", vectors=None)
    found = states_of(session, tokens, slots=slots)
    expected = transformers_states(model, tokens)[:, LAYERS]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert model.num_graphs == bool(backend)
    model.attach("ptp", slot_adapter(model.module, enter=enter))  # another one of this name
    session.truncate(0)
    states_of(session, tokens, slots=slots)
    assert model.num_graphs == 2 * bool(backend)


# Vectors as rows.


def embedding(model, tokens):
    return model.module.get_input_embeddings()(torch.tensor(tokens)).detach()


@torch.inference_mode()
def cold(model, tokens, vectors, positions=None, mask=None):
    """Logits of all rows of tokens and vectors without a cache, by transformers."""
    rows = torch.cat((model.module.get_input_embeddings()(torch.tensor(tokens)), vectors))
    given = {}
    if mask is not None:
        added = torch.zeros(1, 1, len(rows), len(rows)).masked_fill(~mask, -1e9)
        kinds = {*(getattr(model.module.config, "layer_types", None) or ["full_attention"])}
        given["attention_mask"] = added if len(kinds) == 1 else dict.fromkeys(kinds, added)
        given["position_ids"] = torch.tensor([positions])
    return model.module(inputs_embeds=rows[None], use_cache=False, **given).logits[0].float()


def mixed(model, seed, count):
    """Vectors that are no token's: means of pairs of embeddings."""
    tokens = ids(seed, 2 * count)
    return (embedding(model, tokens[:count]) + embedding(model, tokens[count:])) / 2


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_vectors_equal_a_cold_forward_of_the_same_embeddings(name):
    model, prompt, tokens = opened(name), ids(12, 9), ids(13, 3)
    session, vectors = model.open(), mixed(model, 14, 3)
    model.forward([session.call(prompt)])
    slots = vector_slots(vectors)
    positions = branch_positions(9, 3, slots.sizes)
    call = session.call(tokens, read=range(3), slots=slots, positions=positions)
    expected = cold(model, prompt + tokens, vectors)[9:]
    torch.testing.assert_close(model.forward([call]), expected, atol=TOLERANCE, rtol=TOLERANCE)
    # the rows leave nothing behind
    assert session.length == 12
    after = model.forward([session.call([5, 6], read=(0, 1))])
    expected = cold(model, [*prompt, *tokens, 5, 6], vectors[:0])[-2:]
    torch.testing.assert_close(after, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (session.calls, session.rows) == (3, 9 + 6 + 2)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3", "gpt2", "gemma"])
def test_a_row_with_a_tokens_embedding_is_that_token(name):
    model, prompt = opened(name), ids(15, 6)
    one, other = model.open(), model.open()
    for session in (one, other):
        model.forward([session.call(prompt)])
    slots = vector_slots(embedding(model, [7, 8]))
    positions = branch_positions(6, 1, slots.sizes)
    rows = model.forward([one.call([4], read=(0,), slots=slots, positions=positions)])
    plain = model.forward([other.call([4, 7, 8], read=range(3))])
    torch.testing.assert_close(rows, plain, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt-neox"])
@pytest.mark.parametrize("compiled", [False, True])
def test_branches_of_vectors_in_merged_calls_equal_cold_forwards(name, compiled):
    model = opened(name, compile=compiled, backend="eager")
    prompts, tokens, counts = [ids(16, 7), ids(17, 10)], [ids(18, 3), ids(19, 2)], [2, 1]
    calls, expected = [], []
    for prompt, fed, count in zip(prompts, tokens, counts, strict=True):
        session, sizes = model.open(), [count] * len(fed)
        model.forward([session.call(prompt)])
        vectors = mixed(model, 20 + count, sum(sizes))
        positions = branch_positions(len(prompt), len(fed), sizes)
        mask = masks.branches(sizes)
        slots = vector_slots(vectors, sizes=sizes)
        calls.append(
            session.call(fed, read=range(len(fed)), slots=slots, positions=positions, mask=mask)
        )
        stem = len(prompt)
        whole = torch.ones(stem + len(mask), stem + len(mask), dtype=torch.bool).tril()
        whole[stem:, stem:] = mask
        places = [*range(stem), *positions]
        expected.append(cold(model, prompt + fed, vectors, places, whole)[stem:])
    calls.append(model.open().call(ids(22, 4), read=(3,)))  # one without vectors
    found = model.forward(calls)
    want = torch.cat((*expected, cold(model, ids(22, 4), mixed(model, 1, 1)[:0])[-1:]))
    torch.testing.assert_close(found, want, atol=TOLERANCE, rtol=TOLERANCE)
    assert (model.num_graphs > 0) == compiled


@exported
def test_graphs_of_tokens_and_graphs_of_vectors_are_kept_apart():
    model = opened("llama", compile=True, backend="export")
    session, prompt = model.open(), ids(23, 5)
    vectors = mixed(model, 24, 2)
    model.forward([session.call(prompt)])
    for _ in range(2):
        session.truncate(5)
        slots = vector_slots(vectors)
        call = session.call([9], slots=slots, positions=branch_positions(5, 1, slots.sizes))
        found = model.forward([call])
        expected = cold(model, [*prompt, 9], vectors)[-3:]
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
        session.truncate(5)
        plain = model.forward([session.call([9, 8, 7], read=range(3))])
        expected = cold(model, [*prompt, 9, 8, 7], vectors[:0])[-3:]
        torch.testing.assert_close(plain, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gpt2"])
@pytest.mark.parametrize("compiled", [False, True])
def test_vectors_alone_run_without_tokens(name, compiled):
    model, prompt = opened(name, compile=compiled, backend="eager"), ids(28, 9)
    session = model.open()
    model.forward([session.call(prompt)])
    for count in (1, 2):
        vectors = mixed(model, 29 + count, count)
        call = session.call((), slots=vector_slots(vectors), positions=range(9, 9 + count))
        found = model.forward([call])
        expected = cold(model, prompt, vectors)[9:]
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
        assert session.length == 9


def test_vectors_support_the_outputs_of_slots_with_the_uniforms_of_their_positions():
    model, prompt, sampling = opened("llama"), ids(33, 6), Sampling(temperature=0.8, top_p=0.9)
    vectors, results = mixed(model, 34, 2), []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Reading(Decoder):
        lossless = False

        def steps(self, request):
            for output in (("probs", "entropy"), ("draws", "topk:2")):
                request.target.truncate(0)
                slots = vector_slots(vectors, output=output, barred=frozenset({3}))
                positions = branch_positions(0, len(prompt), slots.sizes)
                results.append(
                    (yield request.target.call(prompt, slots=slots, positions=positions))
                )
            yield Emit(tokens=(1,))

    generate(
        Reading(), prompt, dataclasses.replace(sampling, max_new_tokens=1), Models(target=model)
    )
    logits = cold(model, prompt, vectors)[-2:]
    barred = logits.index_fill(-1, torch.tensor([3]), -torch.inf)
    law, uniforms = warp(barred, sampling), Uniforms(0, prompt)
    drawn = pick(law, torch.tensor([uniforms.at("draw", n) for n in (1, 2)], dtype=torch.float64))
    first, second = (result.slots for result in results)
    torch.testing.assert_close(first.probs, law, atol=1e-4, rtol=1e-4)
    assert first.picks == second.picks == tuple(drawn.tolist()) == results[0].slot_picks
    chances = law.gather(-1, drawn[:, None]).squeeze(-1).tolist()
    assert second.confidences == pytest.approx(chances, abs=1e-4)
    entropies = torch.distributions.Categorical(logits=barred).entropy()
    assert first.entropies == pytest.approx(entropies.tolist(), abs=1e-4)
    assert [list(row) for row in second.top_ids] == barred.topk(2).indices.tolist()
    mass = torch.softmax(logits, -1)[:, 3].tolist()
    assert results[0].slot_barred == first.barred == pytest.approx(mass, abs=1e-5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Both(Decoder):
    """AR whose calls have vectors after prompts of odd length, else an adapter's slots."""

    coupled = True
    drafts = False

    def steps(self, request):
        tokens, vectors = request.prompt_ids, mixed(request.target.model, 25, 2)
        while True:
            slots = vector_slots(vectors, anchors=tokens[-1:])
            if not len(request.prompt_ids) % 2:
                slots = dataclasses.replace(slots, adapter="ptp", vectors=None)
            result = yield request.target.call(tokens, slots=slots)
            assert len(result.slots.confidences) == 2
            yield Emit(tokens=result.picks)
            tokens = result.picks


def test_vector_slots_and_adapter_slots_give_the_same_answers_alone_and_in_a_batch():
    """Sequences whose calls cannot share a pass are run one after the other."""
    model = opened("llama", rows=2)
    model.attach("ptp", slot_adapter(model.module))
    models, sampling = Models(target=model), Sampling(max_new_tokens=6)
    for prompts in ([ids(26, 4), ids(27, 4)], [ids(26, 5), ids(27, 5)], [ids(26, 4), ids(27, 5)]):
        alone = [generate(Both(), prompt, sampling, models) for prompt in prompts]
        assert Scheduler(Both(), models, sampling, 2).run(prompts) == alone
        for prompt, answer in zip(prompts, alone, strict=True):
            plain = generate(Autoregressive(), prompt, sampling, models)
            assert answer.tokens == plain.tokens
            assert [step.target_rows for step in answer.steps] == [len(prompt) + 2, *[3] * 5]


def test_vectors_of_another_shape_are_refused_in_one_line():
    session = opened("llama").open()
    for shape in ([2, 5], [3, 32], [2]):
        slots = dataclasses.replace(vector_slots(torch.zeros(2, 5)), vectors=torch.zeros(shape))
        with pytest.raises(
            ValueError, match=rf"vectors are .{str(shape)[1:-1]}.; .* reads .2, 32."
        ):
            session.model.forward([session.call([1], slots=slots)])


def test_an_empty_tensor_of_vectors_gives_no_slots():
    assert slots_or_none(torch.zeros(0, 32)) is None


# The table that the contract's checks run on.


def test_a_table_reads_the_embedding_of_a_token_as_that_token():
    model = TableModel(7, seed=1, order=3)
    model.reserve(1, 60)
    session = model.open()
    states = states_of(session, [3, 1, 4, 5], layers=(0, 1, -1))
    assert states[:, 0, -1].tolist() == [3, 1, 4, 5]
    assert states[:, 1, -2:].tolist() == [[-1, 3], [3, 1], [1, 4], [4, 5]]
    assert states[3, 2, -3:].tolist() == [1, 4, 5]
    session.model.forward([session.call([2], hidden=True)])
    assert session.hidden is not None
    assert session.hidden[0, -3:].tolist() == [4, 5, 2]
    slots = vector_slots(states[:2, 0])
    found = model.forward([session.call([6], slots=slots, positions=[5, 6, 7])])
    text = [3, 1, 4, 5, 2, 6]
    expected = [model.logits([*text, *after]) for after in ([], [3], [3, 1])]
    assert torch.equal(found, torch.stack(expected))
    assert session.length == 6

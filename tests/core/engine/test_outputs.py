"""Several outputs of a row, and barred ids: each is what it is alone, and what is defined."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.extras.cost.scripted import Scripted
from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.rules import RULES
from decoders.core.engine.models import Models
from decoders.core.engine.readout import has_nan, read_out
from decoders.core.engine.reads import readouts
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.model import Call
from decoders.core.sampling import Uniforms, warp
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, Emit, Sampling, Slots
from decoders.hybrid import FirstMatch

VOCAB, PROMPT = 11, 3
WARM = Sampling(temperature=0.7, top_k=6, top_p=0.9)
GREEDY = Sampling()


def call(num_rows: int = 4, *, vocab: int = VOCAB, **options: Any) -> Call:
    """A call after a prompt of three tokens that reads all its rows."""
    model = TableModel(vocab)
    model.reserve(1, 60)
    session = model.open()
    session.length = PROMPT
    return session.call([1] * num_rows, read=range(num_rows), **options)


def logits_of(num_rows: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def read(logits: Tensor, *calls: Call, sampling: Sampling = WARM) -> list[CallResult]:
    parts = [part for each in calls for part in readouts(each, Uniforms(3, [1]), PROMPT)]
    return list(read_out(logits, parts, sampling))


@pytest.mark.parametrize("sampling", [WARM, GREEDY], ids=["warm", "greedy"])
def test_entropy_and_likeliest_tokens_are_of_the_distribution_before_warping(
    sampling: Sampling,
) -> None:
    logits = logits_of(4)
    (result,) = read(logits, call(output=("entropy", "topk:3")), sampling=sampling)
    probs = torch.softmax(logits.double(), -1)
    expected = torch.distributions.Categorical(probs=probs).entropy()
    assert result.entropies == pytest.approx(expected.tolist(), abs=1e-6)
    ranked = probs.sort(-1, descending=True)
    assert [list(ids) for ids in result.top_ids] == ranked.indices[:, :3].tolist()
    assert [list(row) for row in result.top_probs] == [
        pytest.approx(row, abs=1e-6) for row in ranked.values[:, :3].tolist()
    ]
    assert (result.picks, result.probs, result.confidences) == ((), None, ())


def test_a_distribution_that_a_law_makes_certain_has_no_entropy() -> None:
    def only_two(_answer: tuple[int, ...], logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor(2), 0.0)

    sampling = dataclasses.replace(WARM, law=only_two)
    asked = call(output=("entropy", "topk:2", "picks"))
    asked.session.committed(asked)
    (result,) = read(logits_of(4), asked, sampling=sampling)
    assert result.entropies == (0.0,) * 4
    assert [ids[0] for ids in result.top_ids] == [2] * 4 == list(result.picks)
    assert [row[1] for row in result.top_probs] == [0.0] * 4


FORMS: list[tuple[str, ...]] = [
    ("picks", "topk:8", "entropy", "probs"),
    ("entropy", "argmax", "logits"),
    ("acceptance", "topk:2", "picks"),
    ("block", "entropy", "draws"),
    ("probs", "acceptance"),
]


@pytest.mark.parametrize("forms", FORMS, ids="+".join)
@pytest.mark.parametrize("sampling", [WARM, GREEDY], ids=["warm", "greedy"])
def test_outputs_read_together_equal_each_output_read_alone_also_in_a_batch(
    forms: tuple[str, ...], sampling: Sampling
) -> None:
    logits = logits_of(9)
    options: dict[str, Any] = {"drafts": [4, 4, 2]}
    (result,) = read(logits[:4], call(output=forms, **options), sampling=sampling)
    rest = [call(3, output="entropy"), call(2, output=("picks", "topk:8"))]
    for order in (0, 1, 2):
        calls = [*rest[:order], call(output=forms, **options), *rest[order:]]
        first = sum(len(each.read) for each in calls[:order])
        mixed = torch.cat((logits[4 : 4 + first], logits[:4], logits[4 + first :]))
        check_same(read(mixed, *calls, sampling=sampling)[order], result)
    for form in forms:
        (alone,) = read(logits[:4], call(output=form, **options), sampling=sampling)
        check_same(dataclasses.replace(result, **filled(alone)), result)
        assert filled(alone)


def filled(result: CallResult) -> dict[str, Any]:
    fields = {each.name: getattr(result, each.name) for each in dataclasses.fields(result)}
    return {n: v for n, v in fields.items() if isinstance(v, Tensor) or (v is not None and v != ())}


def check_same(one: CallResult, other: CallResult) -> None:
    """All fields are exactly equal."""
    first, second = filled(one), filled(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, second[name]), name
        elif name == "acceptance":
            assert dataclasses.astuple(value) == dataclasses.astuple(second[name])
        else:
            assert value == second[name], name


def test_all_numbers_of_a_call_reach_the_host_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    plain = Tensor.tolist
    counted = [
        call(output=("picks", "entropy", "topk:3", "probs"), barred={2}),
        call(2, output=("acceptance", "topk:4"), drafts=[3]),
    ]
    parts = [part for each in counted for part in readouts(each, Uniforms(3, [1]), PROMPT)]

    def tolist(self: Tensor) -> Any:
        copies.append(1)
        return plain(self)

    monkeypatch.setattr(Tensor, "tolist", tolist)
    read_out(logits_of(6), parts, WARM)
    assert len(copies) == 1


# Barred ids.


@pytest.mark.parametrize("sampling", [WARM, GREEDY], ids=["warm", "greedy"])
@pytest.mark.parametrize("form", ["picks", "argmax", "probs", "topk:5", "acceptance", "block"])
def test_barred_ids_are_never_predicted_in_any_output_form(form: str, sampling: Sampling) -> None:
    logits, barred = logits_of(4), {int(token) for token in logits_of(4).argmax(-1)} | {0}
    output = (form, "entropy") if form == "topk:5" else form
    asked = call(output=output, barred=barred, drafts=[0, 0, 0])
    (result,) = read(logits, asked, sampling=sampling)
    ids = sorted(barred)
    lawful = logits.index_fill(-1, torch.tensor(ids), -torch.inf)
    tokens = [*result.picks, *(token for row in result.top_ids for token in row)]
    tokens += [] if result.acceptance is None else [result.acceptance.token]
    assert tokens
    assert not barred.intersection(tokens)
    if result.acceptance is not None:
        assert result.acceptance.accepted == 0  # the drafts are barred
    if result.probs is not None:
        torch.testing.assert_close(result.probs, warp(lawful, sampling))
    mass = torch.softmax(logits, -1)[:, ids].sum(-1)
    assert result.barred == pytest.approx(mass.tolist())
    assert has_nan([result], VOCAB) is False


def test_barred_ids_of_one_call_do_not_affect_other_calls() -> None:
    logits = logits_of(8)
    free, barred = call(output=("picks", "entropy")), call(output=("picks", "entropy"), barred={1})
    alone = [read(logits[:4], free)[0], read(logits[4:], barred)[0]]
    for result, expected in zip(read(logits, free, barred), alone, strict=True):
        check_same(result, expected)
    assert (alone[0].barred, len(alone[1].barred)) == ((), 4)


def test_tokens_and_slots_have_barred_ids_and_outputs_of_their_own() -> None:
    logits = logits_of(5)
    slots = Slots(
        adapter="",
        uniforms=(-1.0,) * 2,
        sizes=(2,),
        anchors=(),
        read=(0, 1),
        output=("argmax", "topk:2", "entropy"),
        barred=frozenset({3}),
    )
    both = call(3, output=("picks", "entropy"), barred={1}, slots=slots)
    tokens, of_slots = read(logits, both)
    (alone,) = read(logits[:3], call(3, output=("picks", "entropy"), barred={1}))
    check_same(tokens, alone)
    free = logits[3:].index_fill(-1, torch.tensor([3]), -torch.inf)
    assert of_slots.picks == tuple(free.argmax(-1).tolist())
    assert [row[0] for row in of_slots.top_ids] == free.argmax(-1).tolist()
    assert of_slots.barred == pytest.approx(torch.softmax(logits[3:], -1)[:, 3].tolist())


def test_a_row_whose_only_lawful_ids_are_barred_counts_as_nan() -> None:
    def only_two(_answer: tuple[int, ...], logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor(2), 0.0)

    for sampling in (WARM, GREEDY):
        asked = call(1, barred={2})
        asked.session.committed(asked)
        (result,) = read(logits_of(1), asked, sampling=dataclasses.replace(sampling, law=only_two))
        assert has_nan([result], VOCAB)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Without(Decoder):
    """Sampling that never says some ids."""

    lossless = False
    barred: str = "2"

    def steps(self, request: Request) -> Steps:
        tokens: Sequence[int] = request.prompt_ids
        while True:
            result = yield request.target.call(tokens, barred={int(self.barred)})
            tokens = result.picks
            yield Emit(tokens=result.picks)


class Barred(TableModel):
    """A table that gives id 2 no probability."""

    def logits(self, context: Sequence[int]) -> Tensor:
        return super().logits(context).index_fill(0, torch.tensor(2), -torch.inf)


@pytest.mark.parametrize("sampling", [WARM, GREEDY], ids=["warm", "greedy"])
def test_answers_with_a_barred_id_are_those_of_a_model_that_lacks_it(sampling: Sampling) -> None:
    plain, barred = (Models(target=kind(VOCAB, seed=1)) for kind in (TableModel, Barred))
    for seed in range(8):
        drawn = dataclasses.replace(sampling, seed=seed, max_new_tokens=20)
        found = generate(Without(), [1, 5], drawn, plain)
        assert found == generate(Autoregressive(), [1, 5], drawn, barred)
        assert 2 not in found.tokens


# What a drafter asks for.


class Curious(Drafter):
    """Drafts the likeliest tokens of the row before, and keeps each result."""

    outputs: str | Sequence[str] = ("entropy", "topk:2")

    def __init__(self, seen: list[Verdict]) -> None:
        self.seen = seen

    def propose(self, text: Text, most: int) -> list[int]:
        return [*self.seen[-1].result.top_ids[-1]]

    def observe(self, text: Text, verdict: Verdict) -> None:
        self.seen.append(verdict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking(DraftAndVerify):
    verify: str = "coupled"
    seen: Any = dataclasses.field(default_factory=list)

    def drafter(self, request: Request) -> Drafter:
        return Curious(self.seen)


@pytest.mark.parametrize("verify", [*RULES])
@pytest.mark.parametrize("sampling", [WARM, GREEDY], ids=["warm", "greedy"])
def test_a_drafter_gets_its_outputs_beside_those_of_the_rule(
    verify: str, sampling: Sampling
) -> None:
    target, decoder = TableModel(VOCAB, seed=1), Asking(verify=verify)
    sampling = dataclasses.replace(sampling, max_new_tokens=12)
    answer = generate(decoder, [1, 2], sampling, Models(target=target))
    assert len(answer.tokens) == 12
    assert decoder.seen[0].is_prompt
    assert len(decoder.seen[0].result.entropies) == 1
    for verdict in decoder.seen[1:]:
        text = verdict.tree.tokens
        assert len(verdict.result.entropies) == len(verdict.result.top_ids) == len(text)
    tokens, position = [1, 2, *answer.tokens], 2
    for verdict in decoder.seen:  # rows of the accepted path, from the table itself
        for row in verdict.path if not verdict.is_prompt else (0,):
            logits = target.logits(tokens[:position]).double()
            law = torch.distributions.Categorical(logits=logits)
            assert verdict.result.entropies[row] == pytest.approx(float(law.entropy()), abs=1e-5)
            assert verdict.result.top_ids[row] == (*logits.topk(2).indices.tolist(),)
            position += 1
            if position >= len(tokens):
                return


def test_the_outputs_of_a_drafter_do_not_change_the_answer_or_its_steps() -> None:
    class Silent(Curious):
        outputs = "topk:2"

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Quiet(Asking):
        def drafter(self, request: Request) -> Drafter:
            return Silent(self.seen)

    for verify in RULES:
        sampling = dataclasses.replace(WARM, max_new_tokens=16)
        models = Models(target=TableModel(VOCAB, seed=1))
        one, other = (kind(verify=verify) for kind in (Asking, Quiet))
        assert generate(one, [1, 2], sampling, models) == generate(other, [1, 2], sampling, models)


def test_a_batch_of_drafters_with_outputs_answers_as_alone() -> None:
    sampling, prompts = dataclasses.replace(WARM, max_new_tokens=12), ([1], [2, 3], [4, 5, 6])
    models = Models(target=TableModel(VOCAB, seed=1))

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Each(Asking):
        def drafter(self, request: Request) -> Drafter:
            return Curious([])

    alone = [generate(Each(), prompt, sampling, models) for prompt in prompts]
    assert Scheduler(Each(), models, sampling, 3).run(prompts) == alone


def test_combined_drafters_get_the_outputs_and_layers_of_both() -> None:
    class Layers(Drafter):
        hidden, hidden_layers, outputs = 4, (0,), ("probs",)

    class Last(Drafter):
        hidden = 2

    both = FirstMatch({"one": Curious([]), "other": Layers()})
    assert (both.outputs, both.hidden, both.hidden_layers) == (
        ["entropy", "topk:2", "probs", "picks"],
        4,
        (0,),
    )
    with pytest.raises(ValueError, match="other and last read hidden states of different layers"):
        FirstMatch({"other": Layers(), "last": Last()})


def test_scripted_verdicts_keep_outputs_beside_the_acceptance() -> None:
    asked = call(output=("acceptance", "entropy"), drafts=[1, 2, 3])
    parts = readouts(asked, Uniforms(3, [1]), PROMPT)
    (result,) = Scripted([1.0])(logits_of(4), parts, WARM)
    assert result.acceptance is not None
    assert result.acceptance.accepted == 3
    assert len(result.entropies) == 4


# NaN and bad input.


@pytest.mark.parametrize("form", ["entropy", "topk:2"])
def test_nan_is_noticed_in_further_outputs(form: str) -> None:
    logits = logits_of(4)
    logits[2, 5] = torch.nan
    (result,) = read(logits, call(output=form))
    assert has_nan([result], VOCAB)
    assert has_nan([CallResult(slots=result)], VOCAB)
    assert not has_nan(read(logits_of(4), call(output=form))[:1], VOCAB)


def test_topk_beyond_the_vocabulary_size_returns_all_ids() -> None:
    (result,) = read(logits_of(4), call(output="topk:99"))
    assert sorted(result.top_ids[0]) == [*range(VOCAB)]
    assert sum(result.top_probs[0]) == pytest.approx(1)


VERIFIES: dict[str, Any] = {"output": "acceptance", "drafts": [1] * 3}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"output": "pick"}, r"output is 'pick'; it must be one or several of picks, .*, topk:N"),
        ({"output": ("picks", "topk")}, "output is 'topk'"),
        ({"output": "topk:0"}, "output is 'topk:0'"),
        ({"output": "topk:-1"}, "output is 'topk:-1'"),
        ({"output": ()}, "output is ''"),
        ({"output": ("picks", "argmax")}, "picks and argmax, which fill one field; use one"),
        ({"output": ("probs", "argmax", "picks")}, "which fill one field"),
        ({"output": ("topk:2", "topk:3")}, "topk:2 and topk:3, which fill one field"),
        ({"output": ("acceptance", "block"), "drafts": [1] * 3}, "acceptance and block"),
        ({"output": ("topk:2", "acceptance")}, "4 rows are read to verify 0 drafts; read 1"),
        (VERIFIES | {"draft_probs": [torch.ones(VOCAB)] * 2}, "each of the 3 drafts one dis"),
        (VERIFIES | {"draft_probs": [torch.ones(4)] * 3}, r"distribution of shape \[11\]"),
        (VERIFIES | {"draft_probs": [torch.ones(VOCAB), None, None]}, "draft_probs of shapes"),
        ({"barred": {VOCAB}}, r"barred is \[11\]; bar ids below 11, but not all"),
        ({"barred": {-1}}, r"barred is \[-1\]"),
        ({"barred": range(VOCAB)}, "but not all"),
        ({"hidden_layers": (0,)}, "hidden_layers without rows; give hidden"),
        ({"hidden_layers": (4,), "hidden": True}, r"is \(4,\); this model has 0 .* to 3 "),
        ({"hidden_layers": (0, -5), "hidden": True}, r"hidden_layers is \(0, -5\)"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_outputs_barred_ids_and_hidden_layers_are_refused_in_one_line(
    options: dict[str, Any], line: str
) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        call(**options)
    assert "\n" not in str(caught.value)


def test_an_output_that_slots_do_not_support_is_refused() -> None:
    slots = Slots(adapter="", uniforms=(-1.0,), sizes=(1,), anchors=(), read=(0,), output="block")
    with pytest.raises(ValueError, match=r"output is 'block'; .* picks, .*, entropy, topk:N"):
        call(slots=slots)


def test_duplicate_outputs_collapse_and_a_list_of_one_output_is_that_output() -> None:
    assert call(output=["probs"]).output == "probs"
    assert call(output=["probs", "probs", "picks"]).output == ("probs", "picks")

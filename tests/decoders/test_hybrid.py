"""Drafters that compose: who is asked, whose drafts stand, what they need, which are refused."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.extras.sections.parallel import accepted_by_drafter, by_drafter
from bench.plan.select import build_decoder, built_in_cells, choose_decoders
from bench.records.invariants import broken_invariants
from bench.records.record import SampleRecord, StepColumns, drafter_names
from bench.report.page.answers import answer_data
from bench.settings.config import RunConfig
from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder, Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.model import DraftCall
from decoders.core.registry import build, parse_spec
from decoders.core.testing.table_model import TableModel
from decoders.core.types import MAX_DRAFTS, Generation, Sampling
from decoders.hybrid import FirstMatch, Hybrid, Merge
from tests import recording
from tests.answer_records import record_of
from tests.zoo.conftest import ROOT

PROMPT = [1, 2, 3, 1, 2]
GREEDY = Sampling(max_new_tokens=30)
WARM = Sampling(temperature=0.9, max_new_tokens=60, seed=3)


class Recording(recording.Recording):
    """Remembers its calls; has a draft layer and heads that err."""

    def __init__(self) -> None:
        super().__init__(7, seed=1, scale=2.0)
        self.attach("eagle", 0.3, "eagle")
        self.attach("medusa", 0.3, "medusa")


def models() -> Models:
    target = Recording()
    return Models(target=target, draft=TableModel(7, seed=2, agree_with=target, agreement=0.6))


def answer_of(decoder: Decoder, sampling: Sampling = WARM) -> Generation:
    return generate(decoder, PROMPT, sampling, models())


class Fixed(Drafter):
    """Always proposes the same tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens, self.asked = tokens, 0

    def propose(self, text: Text, most: int) -> Sequence[int]:
        self.asked += 1
        return self.tokens[:most]


def scripted(drafter: Drafter) -> Decoder:
    @dataclass(frozen=True, kw_only=True)
    class Scripted(DraftAndVerify):
        def drafter(self, request: Request) -> Drafter:
            return drafter

    return Scripted()


def test_only_the_first_drafter_with_enough_drafts_is_used() -> None:
    short, long, never = Fixed(1), Fixed(2, 3), Fixed(4)
    answer = answer_of(scripted(FirstMatch({"a": short, "b": long, "c": never}, min_run=2)), GREEDY)
    # the last step but one leaves room for a single token: then the last drafter has its turn
    assert short.asked == long.asked == len(answer.steps) - 1
    assert never.asked <= 2
    assert {name for step in answer.steps for name in step.sources} <= {"b", "c"}


class Bush(Drafter):
    """Always proposes three tokens, each in a branch of its own."""

    branches = True

    def propose(self, text: Text, most: int) -> DraftTree:
        tree = DraftTree(text.last)
        for token in (1, 2, 3) if most else ():
            tree.draft(token, 0)
        return tree


@pytest.mark.parametrize(("least", "taken"), [(1, "a"), (2, "b"), (3, "b")])
def test_a_drafter_has_enough_drafts_by_its_longest_path_and_not_by_its_branches(
    least: int, taken: str
) -> None:
    model = Recording()
    first = FirstMatch({"a": Bush(), "b": Fixed(4, 5, 6), "c": Fixed(6)}, min_run=least)
    answer = generate(scripted(first), PROMPT, GREEDY, Models(target=model))
    asked = (1, 2, 3) if taken == "a" else (4, 5, 6)
    assert {call.tokens[1:] for call in model.seen[1:4]} == {asked}
    assert answer.steps[1].depth == (1 if taken == "a" else 3)


def test_equal_drafts_share_one_row_of_the_first_drafter() -> None:
    model = Recording()
    merged = scripted(Merge({"a": Fixed(1, 2, 3), "b": Fixed(1, 2, 5), "c": Fixed(6)}))
    answer = generate(merged, PROMPT, GREEDY, Models(target=model))
    assert model.seen[1].tokens[1:] == (1, 2, 3, 5, 6)
    assert (answer.steps[1].drafted, answer.steps[1].depth) == (5, 3)


class Sure(Drafter):
    """Always proposes the same tokens with the same confidences."""

    def __init__(self, tokens: Sequence[int], confidences: Sequence[float]) -> None:
        self.tokens, self.confidences = tokens, confidences

    def propose(self, text: Text, most: int) -> DraftTree:
        return DraftTree.chain(text.last, self.tokens, self.confidences)


def test_a_shared_draft_has_the_confidence_of_the_first_drafter_that_states_one() -> None:
    request: Any = SimpleNamespace(prompt_ids=(5,), sampling=GREEDY, uniforms=None)
    parts = {"a": Sure((1, 2), (0.5, 0.4)), "b": Sure((1, 3), (0.9, 0.8)), "c": Fixed(3)}
    steps = Merge({**parts, "d": Sure((3,), (0.7,))}).draft(Text(request), 8)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    tree = ended.value.value
    assert tree.tokens == [5, 1, 2, 3, 3]
    assert tree.confidences == {1: 0.5, 2: 0.4, 3: 0.8, 4: 0.7}
    assert list(tree.sources) == ["", "a", "a", "b", "c"]


class Learning(Sure):
    """Keeps the confidences that it may learn from."""

    def __init__(self, tokens: Sequence[int], confidences: Sequence[float]) -> None:
        super().__init__(tokens, confidences)
        self.seen: list[Any] = []

    def observe(self, text: Text, verdict: Verdict) -> None:
        self.seen.append(verdict.tree.tested(verdict.path))


@pytest.mark.parametrize("kind", [FirstMatch, Merge])
def test_a_drafter_learns_from_its_own_confidences_alone(kind: type[FirstMatch]) -> None:
    first, then = Learning((1, 2), (0.5, 0.4)), Learning((1, 3), (0.9, 0.8))
    drafter = kind({"first": first, "then": then})
    generate(scripted(drafter), PROMPT, GREEDY, Models(target=Recording()))
    learnt, other = ({sure for seen in each.seen for sure, _ in seen} for each in (first, then))
    assert learnt
    assert learnt <= {0.5, 0.4}
    assert other <= {0.9, 0.8}
    assert bool(other) == (kind is Merge)


def test_no_more_drafts_are_merged_than_a_cache_has_room_for() -> None:
    model, first, then = Recording(), [1, 2] * 50, [3, 4] * 50
    merged = scripted(Merge({"a": Fixed(*first), "b": Fixed(*then)}))
    sampling = dataclasses.replace(GREEDY, max_new_tokens=150)
    generate(merged, PROMPT, sampling, Models(target=model))
    assert len(model.seen[1].tokens) == 1 + MAX_DRAFTS


@pytest.mark.parametrize("how", ["match", "merge"])
def test_every_accepted_draft_names_its_drafter_in_steps_and_records(how: str) -> None:
    decoder = build(parse_spec(f"hybrid:first=lookup:then=eagle:how={how}"))
    answer = answer_of(decoder)
    assert answer.tokens == answer_of(Autoregressive()).tokens
    assert [len(step.sources) for step in answer.steps] == [step.accepted for step in answer.steps]
    names = drafter_names(answer)
    assert set(names) == {"lookup", "eagle"}
    steps = StepColumns.of(answer)
    told = [tuple(names[place] for place in places) for places in steps.source]
    assert told == [step.sources for step in answer.steps]
    assert answer_of(build(parse_spec("lookup"))).steps[1].sources == ()


def test_the_layer_is_fed_every_token_once_including_drafts_of_other_drafters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed: list[int] = []
    draft = TableModel.draft

    def counting(model: TableModel, calls: Sequence[DraftCall]) -> Any:
        fed.extend(token for call in calls for token in call.tokens)
        return draft(model, calls)

    monkeypatch.setattr(TableModel, "draft", counting)
    answer = answer_of(build(parse_spec("hybrid:first=lookup:then=eagle:least=2")))
    assert {name for step in answer.steps for name in step.sources} == {"lookup", "eagle"}
    text = [*PROMPT[1:], *answer.tokens]
    assert fed == text[: len(fed)]
    assert len(fed) > len(text) - 12


def test_a_draft_models_cache_follows_the_text_also_beside_drafts_of_another_drafter() -> None:
    """A perfect draft model beside wrong drafts, which come first in the tree: all of it stands."""
    target = Recording()
    decoder = build(parse_spec("hybrid:first=lookup:then=spec:how=merge"))
    answer = generate(decoder, PROMPT, GREEDY, Models(target=target, draft=target_alike()))
    assert {len(step.tokens) for step in answer.steps[1:-1]} >= {5}
    assert min(len(step.tokens) for step in answer.steps[1:-1]) >= 5


def target_alike() -> TableModel:
    return TableModel(7, seed=1, scale=2.0)


def test_a_hybrid_has_the_needs_and_adapters_of_both_parts() -> None:
    decoder = build_decoder("hybrid", {"first": "medusa", "then": "spec"})
    assert decoder.needs == ("adapter", "draft")
    both = build_decoder("hybrid", {"first": "medusa", "then": "eagle+nodes=4"})
    taken = {part.adapter_name: part.adapter_of for part in both.parts if part.adapter_name}
    assert taken == {"medusa": "target", "eagle": "target"}
    assert answer_of(both).tokens == answer_of(Autoregressive()).tokens
    config = RunConfig(decoders={"hybrid": {}})
    chosen = choose_decoders(config, lambda _: None)
    assert (chosen.config.adapters, [*chosen.decoders]) == ({"eagle": "zoo"}, ["ar", "hybrid"])
    assert "hybrid" not in built_in_cells()


def test_a_part_may_have_several_sequences_of_an_answer(tmp_path: Path) -> None:
    file = tmp_path / "forks.py"
    file.write_text(
        "from decoders.spec import Speculative\n"
        "class Forks(Speculative):\n"
        "    sequences = 2\n"
        "    def drafter(self, request):\n"
        "        request.draft.fork()\n"
        "        return super().drafter(request)\n"
    )
    decoder = build(parse_spec(f"hybrid:first=lookup:then={file}+Forks"))
    assert answer_of(decoder).tokens == answer_of(Autoregressive()).tokens


def test_parts_of_a_hybrid_take_options_and_use_coupled_verification() -> None:
    decoder = build(parse_spec("hybrid:first=lookup+n=4+k=8:then=spec+k=2"))
    assert isinstance(decoder, Hybrid)
    assert decoder.coupled
    assert [repr(part) for part in decoder.parts] == [
        "PromptLookup(n=4, k=8, shortest=1)",
        "Speculative(k=2, row_cost=0.02, draft_cost=0.2, stop=0.0, verify='coupled', cascade='', "
        "cascade_k=2)",
    ]
    path = ROOT / "examples" / "recycle.py"
    assert build(parse_spec(f"hybrid:first={path}+Recycle+k=2:then=lookup")).needs == ()


def test_a_part_learns_from_the_targets_picks_also_if_drawn_drafts_are_verified() -> None:
    part, accepted = ROOT / "examples" / "recycle.py", []
    for verify in ("coupled", "block"):
        decoder = build(parse_spec(f"hybrid:first={part}+Recycle:then=spec:verify={verify}"))
        steps = answer_of(decoder).steps
        accepted.append(sum(name != "spec" for step in steps for name in step.sources))
    assert accepted[1] >= accepted[0] / 2 > 5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hybrid:first=ar", "option 'first' of decoder 'hybrid' is ar; it must be eagle, jacobi,"),
        (
            "hybrid:then=lookahead",
            "option 'then' of decoder 'hybrid' is lookahead; it must be eagle",
        ),
        ("hybrid:then=hybrid", "option 'then' of decoder 'hybrid' is hybrid; it must be eagle"),
        (
            "hybrid:first=lookup:then=lookup",
            "'then' of decoder 'hybrid' is lookup; .* be a decoder other than",
        ),
        (
            "hybrid:first=spec:then=spec+k=2",
            r"'then' .* is spec\+k=2; it must be a decoder without a draft model",
        ),
        (
            "hybrid:first=suffix+answers=false:then=spec:verify=block",
            "'first' .* must be one of chains with verify=block",
        ),
        ("hybrid:least=0", "'least' of decoder 'hybrid' is 0; it must be 1 or above"),
        ("hybrid:how=merge:least=2", "'least' .* is 2, but it belongs to how=match"),
        ("hybrid:first=lookup+k=0", "option 'k' of decoder 'lookup' is 0; it must be 1 or above"),
        ("hybrid:first=lokup", "unknown decoder 'lokup'; did you mean 'lookup'"),
    ],
)
def test_decoders_and_options_that_cannot_be_combined_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(parse_spec(spec))


def test_the_report_and_the_viewer_show_which_drafter_made_the_accepted_drafts() -> None:
    answer = answer_of(build(parse_spec("hybrid")))
    record = record_of("hybrid", answer, drafters=drafter_names(answer))
    again = SampleRecord.from_dict(json.loads(record.to_json()))
    assert again == record
    assert not broken_invariants(again, WARM.max_new_tokens)
    counts = accepted_by_drafter([again])
    assert sum(counts.values()) == sum(step.accepted for step in answer.steps)
    table = by_drafter([again])
    assert table is not None
    shown = {row[1].text: float(row[2].text) for row in table.rows}
    assert shown == {
        name: round(num / (len(answer.steps) - 1), 2) for name, num in sorted(counts.items())
    }
    assert not by_drafter([dataclasses.replace(again, drafters=(), steps=None)]).rows
    told = answer_data(again, 1)["by"]
    assert [set(words.split(" + ")) - {""} for words in told] == [
        set(step.sources) for step in answer.steps
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"source": ((0,),)}, "a step names drafters, but not one per accepted draft"),
        ({"depth": (9,)}, "the longest path of a step has more drafts than the step"),
        (
            {"depth": (0,)},
            "a step accepted more drafts than it made (in a tree: on its longest path)",
        ),
    ],
)
def test_a_record_with_inconsistent_trees_breaks_an_invariant(changes: Any, line: str) -> None:
    answer = answer_of(build(parse_spec("hybrid")))
    steps = StepColumns.of(answer)
    place = next(i for i, step in enumerate(answer.steps) if step.accepted > 1)
    ((name, (wrong,)),) = changes.items()
    column = [*getattr(steps, name)]
    column[place] = wrong
    record = record_of(
        "hybrid",
        answer,
        steps=dataclasses.replace(steps, **{name: tuple(column)}),
        drafters=drafter_names(answer),
    )
    assert line in broken_invariants(record, WARM.max_new_tokens)

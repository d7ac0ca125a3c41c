"""One tokenizer, two sizes: rows that no token uses are never drafted, and all else is as usual."""

from itertools import chain

import pytest

from tests.cases.conftest import Case
from tests.cases.variants import VOCAB


@pytest.mark.parametrize(
    "sampled",
    [
        pytest.param((), id="greedy"),
        pytest.param(("--temperature", 0.8), id="sampled", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("padded", ["draft", "target"])
def test_a_draft_model_with_the_same_tokenizer_may_have_another_vocabulary_size(
    padded: str, sampled: tuple[object, ...], case: Case, stories, variant
):
    target, draft = stories, variant("padded")
    if padded == "target":
        target, draft = draft, target
    decoders = "spec" if not sampled else "spec:verify=coupled"
    done = case.run(target, "--draft", draft, *sampled, decoders=decoders)
    assert done.code == 0, done.err
    records = [record for record in case.records() if record.decoder == "spec"]
    drafted = [record.steps for record in records if record.steps is not None]
    assert sum(map(sum, (steps.drafted for steps in drafted))) > 10
    accepted = sum(map(sum, (steps.accepted for steps in drafted)))
    assert accepted == sum(map(sum, (steps.drafted for steps in drafted)))  # it is the same model
    assert max(chain(*(record.tokens or () for record in records))) < VOCAB


def test_the_assisted_loop_of_transformers_is_refused_because_of_the_vocabulary_size(
    case: Case, stories, variant
):
    given = ("--draft", variant("padded"))
    done = case.run(stories, *given, decoders="hf@assisted:kind=assisted")
    assert done.code == 2
    assert "a draft with as many rows for tokens as the target (512), not 576" in done.err

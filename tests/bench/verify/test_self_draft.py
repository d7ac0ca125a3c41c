"""Controls of `bench verify` on the instrument itself: drafts of the target, and call shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import Exit
from bench.plan.select import stored_decoders
from bench.verify.divergence import Divergence
from bench.verify.equality import EqualityCheck
from bench.verify.subject import SelfDraft, applies_to
from bench.verify.verdict import Finding, VerifyReport
from bench.verify.verify import verify
from decoders.core.types import Generation, Sampling, StepEvent

PENALISED = '''
from dataclasses import dataclass

import torch

from decoders.core.drafting.chain import ModelDrafter
from decoders.core.drafting.length import Length
from decoders.core.drafting.tree import DraftTree
from decoders.spec import Speculative


@dataclass(frozen=True, kw_only=True)
class Penalised(Speculative):
    """Its draft never says what is likeliest, as if a penalty were applied on one side only."""

    def drafter(self, request):
        return Penalty(request, self.verification, Length(self.k), 0.0)


class Penalty(ModelDrafter):
    def draft(self, text, most):
        drafts, probs = [], {}
        while len(drafts) < min(self._length.limit, most):
            known = self._session.length - len(text.tokens)
            unseen = drafts[known:] if known >= 0 else [*text.tokens[known:], *drafts]
            result = yield self._session.call(unseen, output="logits")
            second = int(result.logits[-1].topk(2).indices[1])
            probs[len(drafts)] = torch.eye(len(result.logits[-1]))[second]
            drafts.append(second)
        self._drafts = drafts
        tree = DraftTree.chain(text.last, drafts)
        tree.probs = probs
        return tree
'''


@pytest.fixture
def report(small: Any, opener: Any, progress: Any) -> Callable[[str], VerifyReport]:
    def run(decoders: str) -> VerifyReport:
        adapters = {"ptp": "tables"} if "ptp" in decoders else {}
        config = small(decoders=decoders, adapters=adapters)
        return verify(config, progress(), num_draws=2000, opener=opener)

    return run


def findings_of(report: VerifyReport, decoder: str, kind: str) -> list[Finding]:
    (examined,) = [e for e in report.examined if e.decoder == decoder]
    return [finding for finding in examined.findings if kind in finding.check]


@pytest.mark.slow
def test_a_target_that_drafts_for_itself_is_always_accepted(
    report: Callable[[str], VerifyReport],
) -> None:
    made = report("spec,spec@coupled:verify=coupled,spec@k7:k=7,ptp")
    assert made.exit_code == Exit.DONE
    for decoder in ("spec", "spec@coupled", "spec@k7"):
        greedy, sampled = findings_of(made, decoder, "own drafts")
        assert (greedy.outcome, sampled.outcome) == ("passed", "passed")
        for finding in (greedy, sampled):
            assert finding.data["rejected"] == 0
            assert finding.data["accepted"] > 10
            assert finding.power.startswith("one rejection in ")
    assert findings_of(made, "ptp", "own drafts") == [], "it drafts with an adapter"


@pytest.mark.slow
def test_a_penalty_on_one_side_alone_shows_though_the_output_is_right(
    report: Callable[[str], VerifyReport], tmp_path: Path
) -> None:
    (tmp_path / "penalised.py").write_text(PENALISED)
    made = report(f"{tmp_path / 'penalised.py'}:Penalised@mine")
    (examined,) = [e for e in made.examined if e.decoder == "mine" or e.decoder.endswith("@mine")]
    outcomes = {finding.check: finding.outcome for finding in examined.findings}
    assert outcomes.pop("greedy, own drafts") == "open"
    assert outcomes.pop("T = 0.8, own drafts") == "open"
    assert set(outcomes.values()) == {"passed"}, "the distribution is kept"
    assert made.exit_code == Exit.INVALID


def generation(*steps: tuple[int, int]) -> Generation:
    events = tuple(
        StepEvent(
            tokens=(1,) * (accepted + 1),
            drafted=drafted,
            accepted=accepted,
            target_calls=1,
            target_rows=drafted + 1,
            draft_calls=drafted,
            draft_rows=drafted,
        )
        for drafted, accepted in steps
    )
    return Generation(tokens=(1,), steps=events, stop="length")


def test_the_last_step_of_an_answer_is_cut_and_does_not_count() -> None:
    control = SelfDraft(Sampling(max_new_tokens=8), "float32")
    control.add("a", generation((0, 0), (4, 4), (4, 1)))
    assert (control.accepted, control.rejected) == (4, 0)
    control.add("b", generation((4, 1), (4, 4), (4, 4)))
    assert (control.accepted, control.rejected) == (9, 1)


@pytest.mark.parametrize(
    ("dtype", "rejected", "outcome"),
    [
        ("float32", 1, "passed"),
        ("float32", 3, "open"),
        ("bfloat16", 90, "passed"),
        ("bfloat16", 120, "open"),
    ],
)
def test_rounding_may_reject_so_many(dtype: str, rejected: int, outcome: str) -> None:
    control = SelfDraft(Sampling(max_new_tokens=8), dtype, accepted=999, rejected=rejected)
    assert control.finding().outcome == outcome


def test_what_fails_or_drafts_nothing_is_open() -> None:
    control = SelfDraft(Sampling(max_new_tokens=8), "float32")
    assert control.finding().outcome == "open"
    control.add("a", ValueError("no room"))
    control.add("b", generation((0, 0), (4, 4), (4, 4)))
    finding = control.finding()
    assert (finding.outcome, "a: " in finding.text) == ("open", True)
    assert "no room" in finding.text


def test_only_lossless_decoders_with_nothing_but_a_draft_are_asked(opener: Any, small: Any) -> None:
    config = small(decoders="spec,ptp", adapters={"ptp": "tables"})
    setup = opener(stored_decoders(config))
    assert [name for name, arm in setup.arms.items() if applies_to(arm)] == ["spec"]


def test_calls_of_another_shape_that_differ_beyond_rounding_leave_ar_open() -> None:
    floor = EqualityCheck(decoder="ar", sampling=Sampling(max_new_tokens=8), precision="float32")
    floor.equal_tokens += [8, 8]
    assert floor.shapes().outcome == "passed"
    near = Divergence(num_equal=2, by="logits", distance=1e-5, margin=1e-3)
    floor.equal_tokens.append(2)
    floor.parted.append(("a", near))
    assert floor.shapes().outcome == "passed"
    assert "1 near-ties" in floor.shapes().text
    floor.equal_tokens.append(3)
    floor.parted.append(("b", Divergence(num_equal=3, by="logits", distance=0.5, margin=1e-3)))
    finding = floor.shapes()
    assert finding.outcome == "open"
    assert "1 differ beyond rounding: token 3 of b" in finding.text

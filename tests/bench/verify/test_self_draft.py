"""Controls of `bench verify` on the instrument itself: drafts of the target, and call shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import Exit
from bench.verify.divergence import Divergence
from bench.verify.equality import EqualityCheck
from bench.verify.verdict import Finding, VerifyReport
from bench.verify.verify import verify
from decoders.core.types import Sampling

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


PERFECT = "perfect drafts on a table"


@pytest.mark.slow
def test_drafts_that_the_target_itself_makes_are_accepted(
    report: Callable[[str], VerifyReport],
) -> None:
    made = report("spec,spec@coupled:verify=coupled,spec@k7:k=7,ptp,lookup")
    assert made.exit_code == Exit.DONE
    for decoder in ("spec", "spec@coupled", "spec@k7", "ptp"):
        (finding,) = findings_of(made, decoder, PERFECT)
        assert finding.outcome == "passed"
    assert findings_of(made, "lookup", PERFECT) == [], "no model drafts for it"


@pytest.mark.slow
def test_a_penalty_on_the_drafts_alone_is_detected_though_the_output_is_right(
    report: Callable[[str], VerifyReport], tmp_path: Path
) -> None:
    (tmp_path / "penalised.py").write_text(PENALISED)
    made = report(f"{tmp_path / 'penalised.py'}:Penalised@mine")
    (examined,) = [e for e in made.examined if e.decoder == "mine" or e.decoder.endswith("@mine")]
    outcomes = {finding.check: finding.outcome for finding in examined.findings}
    assert outcomes.pop(PERFECT) == "open"
    assert set(outcomes.values()) == {"passed"}, "the distribution is kept"
    assert made.exit_code == Exit.INVALID


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

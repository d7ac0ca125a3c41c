"""Every decoder meets the contract of `decoders.core.checks`; broken ones are caught."""

import dataclasses
from pathlib import Path

import pytest

from decoders.core.checks import (
    Check,
    check_decoder,
    check_distribution,
    check_steps_concatenate,
    checks_for,
)
from decoders.core.decoder import Request, Steps
from decoders.core.registry import build, names, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.types import Emit
from decoders.ptp import ParallelTokenPrediction
from decoders.spec import Speculative

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = [
    *names(),
    "spec@coupled:verify=coupled",
    "spec@k1:k=1",
    "spec@k7:k=7",
    "ptp@pqd:mode=pqd",
    "ptp@few:slots=3",
    "ptp@tight:mode=pqd:budget=5:row_cost=0",
    "nar@predicted:length=predicted:block=5",
    "nar@oracle:length=oracle:block=5:picks=argmax",
    "idlm@cmlm:commit=cmlm:block=6:max_passes=3:revise=none",
    "idlm@adaptive:commit=threshold:max_passes=0:revise=remask:confidence=margin",
    "jacobi@b6:block=6",
    "lookup@n1:n=1:k=1",
    "lookup@long:n=5:k=12",
    "idlm@isd:mode=isd",
    "idlm@coupled:mode=isd:verify=coupled:stride=8",
    "idlm@argmax:mode=isd:proposal=argmax:stride=2",
    "idlm@relaxed:mode=isd:verify=relaxed",
    "idlm@topk:mode=isd:verify=topk",
    "idlm@unverified:mode=isd:verify=none",
    f"{EXAMPLES / 'recycle.py'}:Recycle",
    f"{EXAMPLES / 'recycle.py'}:Recycle@k1:k=1",
]
CASES = [(spec, check) for spec in SPECS for check in checks_for(build(parse_spec(spec)))]


@pytest.mark.parametrize(
    ("spec", "check"), CASES, ids=[f"{Path(s).name}-{c.__name__}" for s, c in CASES]
)
def test_decoder_meets_the_contract(spec: str, check: Check) -> None:
    check(build(parse_spec(spec)))


def test_every_file_in_decoders_is_a_decoder_of_its_name() -> None:
    for name in names():
        assert type(build(parse_spec(name))).name == name


def test_check_decoder_runs_every_check() -> None:
    check_decoder(build(parse_spec("ar")))


def test_a_decoder_must_tell_which_of_its_tokens_come_before_the_drafts() -> None:
    class Silent(ParallelTokenPrediction):
        def steps(self, request: Request) -> Steps:
            steps = super().steps(request)
            item = next(steps)
            while True:
                if isinstance(item, Emit):
                    yield dataclasses.replace(item, undrafted=0)
                    item = next(steps)
                else:
                    item = steps.send((yield item))

    with pytest.raises(AssertionError, match="2 tokens are neither drafts that stood"):
        check_steps_concatenate(Silent())


def test_a_decoder_that_never_verifies_fails_the_distribution() -> None:
    with pytest.raises(AssertionError, match="does not follow the target's distribution"):
        check_distribution(build(parse_spec(f"{EXAMPLES / 'wrong.py'}:Unverified")))


def test_an_accept_stream_that_reuses_the_draws_fails_the_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the uniform that drew a draft must not decide whether it stands
    class Reusing(Uniforms):
        def at(self, stream: str, position: int) -> float:  # type: ignore[override]
            return super().at("draw", position)

    monkeypatch.setattr("decoders.core.engine.sequence.Uniforms", Reusing)
    with pytest.raises(AssertionError, match="does not follow the target's distribution"):
        check_distribution(Speculative())

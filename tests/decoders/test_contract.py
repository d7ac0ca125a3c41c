"""Every decoder meets the contract of `decoders.core.checks`; broken ones are caught."""

from pathlib import Path

import pytest

from decoders.core.checks import Check, check_decoder, checks_for
from decoders.core.registry import build, names, parse_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "ngram.py"
SPECS = [
    *names(),
    "spec@coupled:verify=coupled",
    "spec@k1:k=1",
    "spec@k7:k=7",
    f"{EXAMPLE}:NGram",
    f"{EXAMPLE}:NGram@n1:n=1:k=3",
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

"""What `bench verify` says of a decoder that cannot run the checks of the contract."""

from types import SimpleNamespace
from typing import Any

from bench.verify.subject import Subject
from decoders.core.decoder import Decoder


def check_real_tensors(decoder: Decoder) -> None:
    raise IndexError("tuple index out of range")


def test_a_check_that_raises_leaves_the_decision_to_the_model_and_names_the_error() -> None:
    arm: Any = SimpleNamespace(decoder=SimpleNamespace(lossless=True))
    subject = Subject(arm)
    subject.run("equality on a tiny Llama", [check_real_tensors])
    (finding,) = subject.tables
    assert finding.outcome == "elsewhere"
    line = "the model decides, because this check raised IndexError: tuple index out of range"
    assert finding.text == f"real tensors: {line}"

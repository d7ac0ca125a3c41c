"""Every architecture of the catalogue is right, or refused in one line, as the docs say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from decoders.core.hf.layout import Layout
from decoders.core.hf.model import HFModel
from decoders.core.model import Call
from docs.generate.architectures import DECODE, architectures, read_verdicts
from tests.architectures import judge as judging
from tests.architectures.catalogue import CATALOGUE
from tests.architectures.judge import judge

QUICK = ("llama", "mamba")
"""One that runs and one that is refused; all others are slow."""


def cases() -> list[Any]:
    slow = (pytest.mark.slow,)
    return [pytest.param(name, marks=() if name in QUICK else slow) for name in CATALOGUE]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # BitNet's layers are compiled
@pytest.mark.parametrize("name", cases())
def test_an_architecture_is_right_or_refused_as_the_docs_say(name: str, tmp_path: Path) -> None:
    # after a change that is meant: python -m tests.architectures
    assert judge(name, tmp_path) == read_verdicts()[name]


def test_the_docs_have_a_row_for_each_checkpoint() -> None:
    verdicts = read_verdicts()
    assert list(verdicts) == sorted(CATALOGUE)
    lines = architectures().splitlines()[2:]
    assert len(lines) == len(verdicts)
    assert "| llama | own | yes | all |  |" in lines[list(verdicts).index("llama")]
    mamba = lines[list(verdicts).index("mamba")]
    assert "| mamba | transformers | no | no | decode: " in mamba


def test_a_model_that_is_wrong_only_at_late_positions_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At places behind those that the check of a loaded model looks at."""
    monkeypatch.setattr(Layout, "existing", lambda _, positions, __: positions.clamp(max=20))
    with pytest.raises(AssertionError, match="logits are others than those of transformers by"):
        judge("llama", tmp_path)
    monkeypatch.setattr(judging, "_check_logits", lambda _: None)
    with pytest.raises(AssertionError, match=r"ar is not generate\(\) in batches of 1"):
        judge("llama", tmp_path)


@pytest.mark.parametrize(
    ("least", "told"), [((2, 1), "ar is not generate() in batches of 3"), ((1, 2), "lookup is not")]
)
def test_a_model_that_is_wrong_only_for_several_sequences_or_rows_fails(
    least: tuple[int, int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of so many sequences and rows, behind a prefix."""
    right = HFModel.forward

    def wrong(model: HFModel, calls: Sequence[Call]) -> Tensor:
        rows = min(call.num_rows for call in calls)
        behind = all(call.session.length for call in calls)
        logits = right(model, calls)
        return -logits if behind and len(calls) >= least[0] and rows >= least[1] else logits

    monkeypatch.setattr(HFModel, "forward", wrong)
    for check in ("self_check", "_check_logits"):  # they would find it as well
        monkeypatch.setattr(judging, check, lambda _: None)
    with pytest.raises(AssertionError, match=re.escape(told)):
        judge("llama", tmp_path)


def test_an_error_other_than_a_refusal_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        int("none")

    monkeypatch.setattr(judging, "self_check", broken)
    with pytest.raises(AssertionError, match=f"{DECODE}: an error that is no refusal"):
        judge("llama", tmp_path)

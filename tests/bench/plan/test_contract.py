"""What decoders claim is checked before a run, once per code; what fails is WRONG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import Exit
from bench.plan import contract
from bench.plan.contract import Checked, check_cell, examine
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.runs import run
from bench.stats.metrics import summary_rows
from decoders.core.registry import build, parse_spec
from tests.conftest import RecordedProgress

WRONG = Path(__file__).parents[3] / "examples" / "wrong.py"
SUBTLE = ["ReusesDraw", "BlockReusesDraw", "BlockReplaysDrafts", "BlockPositional"]
RIGHT = ["Tampered", "OwnTest", "BlockVerified"]
HEAD = """
from dataclasses import dataclass
from decoders.core.decoder import Decoder
from decoders.core.types import Emit


@dataclass(frozen=True, kw_only=True)
class Mine(Decoder):
    def steps(self, request):
"""


def wrong(name: str) -> Any:
    return build(parse_spec(f"{WRONG}:{name}"))


@pytest.fixture(autouse=True)
def _own_cache(contract: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws that find a gross error, in a fraction of the time."""
    monkeypatch.setattr("decoders.core.checks.NUM_DISTRIBUTION_DRAWS", 1500)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "name",
    [
        "NoResidual",
        "BlockTestsProduct",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                *("Lenient", "PeeksAtTest", "BlockTokenResidual"),
                *("AcceptsAbove", "ReseedsAccept", "WarpsDraft"),
            )
        ),
    ],
)
def test_a_wrong_distribution_is_refuted(name: str) -> None:
    found = examine(wrong(name), sampled=True)
    assert found.outcome == "wrong"
    assert "does not follow the target's distribution" in str(found.note)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBTLE)
def test_a_subtly_wrong_distribution_is_refuted_at_the_defaults(name: str) -> None:
    assert examine(wrong(name), sampled=True).outcome == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*RIGHT, "spec", "spec:verify=block", "isd", "medusa", "eagle:verify=rejection"]
)
def test_right_decoders_are_verified_at_the_defaults(name: str) -> None:
    decoder = wrong(name) if name in RIGHT else build(parse_spec(name))
    assert examine(decoder, sampled=True) == Checked(outcome="verified")


@pytest.mark.parametrize("name", ["Contrastive", "DropsBonus", "LeaksCache"])
def test_wrong_tokens_are_refuted_in_a_greedy_run_too(name: str) -> None:
    assert examine(wrong(name), sampled=False).outcome == "wrong"


@pytest.mark.usefixtures("few")
def test_a_sampled_run_marks_a_wrong_decoder_as_wrong_and_a_right_decoder_as_verified(
    small: Any, opener: Any, progress: Any, tmp_path: Path, undrawn: None
) -> None:
    shown = progress()
    cell = f"{WRONG}:Lenient"
    config = small(decoders=f"spec,{cell}", temperature=0.9, limit=2, quality_limit=0)
    result = run(config, tmp_path, shown, opener)
    assert result.exit_code == Exit.REGRESSION
    found = Findings(load_run(result.run_dir))
    assert found.verdict == "WRONG"
    assert found.wrong == [cell]
    (reason,) = found.validity.reasons
    assert reason.startswith(f"{cell} is WRONG: it claims to be lossless and fails the contract's")
    rows = {row.decoder: row for row in summary_rows(found.summary, "all")}
    assert (rows["spec"].guarantee, rows["spec"].checked) == ("same distribution", "verified")
    assert rows[cell].guarantee == "WRONG"
    report = (result.run_dir / "report.md").read_text(encoding="utf-8")
    assert "same distribution (verified)" in report
    assert any(f"{cell} claims to be lossless and fails its checks" in n for n in shown.notes)


WIDE = """\
        import torch
        own = torch.zeros(64, 64)  # trained for one model
        result = yield request.target.call(request.prompt_ids, hidden=True)
        if request.target.model.vocab_size < 100:
            result.hidden @ own
        while True:
            yield Emit(tokens=result.picks)
            result = yield request.target.call(result.picks)
"""


@pytest.mark.slow
def test_a_decoder_that_fits_only_one_model_stays_claimed_and_a_warning_gives_the_reason(
    small: Any, opener: Any, progress: Any, tmp_path: Path, undrawn: None
) -> None:
    (tmp_path / "wide.py").write_text(HEAD + WIDE)
    cell = f"{tmp_path / 'wide.py'}:Mine"
    config, shown = small(decoders=cell, temperature=0.9, limit=2, quality_limit=0), progress()
    result = run(config, tmp_path, shown, opener)
    assert result.exit_code == Exit.DONE
    found = Findings(load_run(result.run_dir))
    assert any(f"{cell} claims to be lossless, unverified: RuntimeError" in n for n in shown.notes)
    (warning,) = (w for w in found.validity.warnings if "no check verified it" in w)
    assert "mat1 and mat2 shapes cannot be multiplied" in warning
    report = (result.run_dir / "report.md").read_text(encoding="utf-8")
    assert "same distribution (claimed)" in report


MODULE = """\
        head = request.target.model.module.lm_head
        result = yield request.target.call(request.prompt_ids, hidden=True)
        while True:
            assert head.weight.shape[1] == result.hidden.shape[1]
            yield Emit(tokens=result.picks)
            result = yield request.target.call(result.picks, hidden=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_decoder_that_reads_the_models_modules_is_verified_on_the_llama(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(HEAD + MODULE)
    decoder = build(parse_spec(f"{tmp_path / 'module.py'}:Mine"))
    assert examine(decoder, sampled=True) == Checked(outcome="verified")
    sure = MODULE.replace("hidden=True)", 'hidden=True, output="argmax")')
    (tmp_path / "hot.py").write_text(HEAD + sure)
    decoder = build(parse_spec(f"{tmp_path / 'hot.py'}:Mine"))
    assert "does not follow" in str(examine(decoder, sampled=True).note)


def test_a_failed_assertion_in_a_decoder_leaves_its_guarantee_claimed(tmp_path: Path) -> None:
    body = "        assert request.target.model.vocab_size > 100, 'too few words'\n"
    (tmp_path / "large.py").write_text(HEAD + body + PLAIN)
    found = examine(build(parse_spec(f"{tmp_path / 'large.py'}:Mine")), sampled=False)
    assert found.outcome == "claimed"
    assert "too few words" in str(found.note)


IN_PLACE = """\
        import torch
        result = yield request.target.call(request.prompt_ids, output="logits")
        while True:
            token = int(result.logits.mul_(2.0)[-1].argmax())
            yield Emit(tokens=(token,))
            result = yield request.target.call([token], output="logits")
"""


def test_an_in_place_edit_of_logits_fails_in_the_checks_as_in_a_run(tmp_path: Path) -> None:
    (tmp_path / "edits.py").write_text(HEAD + IN_PLACE)
    found = examine(build(parse_spec(f"{tmp_path / 'edits.py'}:Mine")), sampled=False)
    assert found.outcome == "claimed"
    assert "Inplace update to inference tensor" in str(found.note)


def test_an_endless_loop_in_a_decoder_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(contract, "LIMIT_S", 0.3)
    (tmp_path / "mine.py").write_text(
        HEAD + "        while True:\n            pass\n        yield\n"
    )
    decoder = build(parse_spec(f"{tmp_path / 'mine.py'}:Mine"))
    found = check_cell("mine", decoder, False, RecordedProgress())
    assert found.outcome == "claimed"
    assert "not finished after 0.3 s" in str(found.note)


PLAIN = """\
        result = yield request.target.call(request.prompt_ids)
        while True:
            yield Emit(tokens=result.picks)
            result = yield request.target.call(result.picks)
"""


def test_the_outcome_of_a_contract_check_is_cached_until_the_code_or_an_option_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def counted(decoder: Any, sampled: bool) -> Checked:
        asked.append(f"{decoder} {sampled}")
        return Checked(outcome=outcomes[-1])

    outcomes = ["verified"]
    monkeypatch.setattr(contract, "examine", counted)
    folder = tmp_path / "own_decoder"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "helper.py").write_text("WORD = 1\n")
    file = folder / "mine.py"
    head = HEAD.replace("    def steps", "    k: int = 1\n\n    def steps")
    file.write_text(f"from own_decoder import helper\n{head}{PLAIN}")
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_decoder.helper  # type: ignore[import-not-found]
    import own_decoder.mine  # type: ignore[import-not-found]

    def check(k: int = 1, sampled: bool = False) -> Checked:
        return check_cell("mine", own_decoder.mine.Mine(k=k), sampled, RecordedProgress())

    assert check() == check() == Checked(outcome="verified")
    assert len(asked) == 1
    check(k=2)
    check(sampled=True)
    assert len(asked) == 3
    check()
    assert len(asked) == 3
    (folder / "helper.py").write_text("WORD = 2\n")
    check()
    assert len(asked) == 4
    outcomes.append("claimed")  # perhaps a busy machine: it is tried again
    file.write_text(file.read_text() + "\n")
    check()
    check()
    assert len(asked) == 6
    outcomes.append("wrong")
    assert check() == check() == Checked(outcome="wrong")
    assert len(asked) == 7
    for kept in (tmp_path / "cache" / "checked").iterdir():
        kept.write_text("{")  # damaged
    assert check() == Checked(outcome="wrong")
    assert len(asked) == 8


def test_the_option_no_self_check_skips_every_check_and_is_noted(
    small: Any, opener: Callable[..., Any], progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.plan.select import choose_decoders

    monkeypatch.setattr(contract, "examine", lambda *_: pytest.fail("checked"))
    shown = progress()
    setup = opener(choose_decoders(small(self_check=False, temperature=0.5), shown.note))
    ar, spec = contract.check_cells(setup, shown)
    assert (ar.checked, spec.checked) == (None, "claimed")
    assert spec.check_note == "not checked (--no-self-check)"

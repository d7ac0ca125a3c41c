"""`bench verify`: negative controls are caught, honest decoders pass, nothing found is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bench.plan.select import ResolvedRun, choose_decoders
from bench.plan.setup import Arm
from bench.records.files import write_json
from bench.records.prompts import Prompt
from bench.settings.config import RunConfig
from bench.verify import subject
from bench.verify import verify as verifying
from bench.verify.divergence import MARGINS
from bench.verify.subject import FALSE_ALARM, DistributionTest, judge_distributions
from bench.verify.verdict import Examination, Finding, VerifyReport
from bench.verify.verify import NUM_DRAWS, verify
from decoders.ar import Autoregressive
from decoders.core.hf.compiled import NoGraphError
from decoders.core.registry import build, parse_spec
from decoders.core.testing.check_models import table_draws
from decoders.core.types import Outcome, Sampling
from tests.conftest import RecordedProgress

WRONG = Path(__file__).parents[3] / "examples" / "wrong.py"
CONTROLS = {
    "DropsBonus": "greedy, tokens of ar",
    "WarpsDraft": "distribution on a table",
    "ReseedsAccept": "distribution on a table",
    "AcceptsAbove": "distribution on a table",
    "ReusesDraw": "distribution on a table",
    "BlockTestsProduct": "distribution on a table",
    "BlockTokenResidual": "distribution on a table",
    "LeaksCache": "equality on a table",
}
MORE = ("NoResidual", "Lenient", "PeeksAtTest", "Contrastive")
"""Controls that `tests/bench/plan/test_contract.py` runs by default."""
RIGHT = ("Tampered", "OwnTest", "BlockVerified")
HONEST = "spec,spec@coupled:verify=coupled,ptp,ptp@pqd:mode=pqd"
Make = Callable[..., RunConfig]


@pytest.fixture
def examined(small: Make, opener: Any, progress: Any) -> Callable[..., VerifyReport]:
    """Verifies decoders on two small tables."""

    def run(
        decoders: str,
        *,
        shown: Any = None,
        distribution: bool = False,
        draws: int = 1000,
        **values: Any,
    ) -> VerifyReport:
        config = small(decoders=decoders, **values)
        return verify(
            config, shown or progress(), distribution=distribution, num_draws=draws, opener=opener
        )

    return run


def of(report: VerifyReport, decoder: str) -> Examination:
    return next(one for one in report.examined if one.decoder == decoder)


@pytest.fixture(scope="module")
def controls() -> VerifyReport:
    """All negative controls, and what they are made of, examined once."""
    from bench.settings.config import load_config
    from tests.conftest import RecordedProgress, open_tables

    names = ",".join(f"{WRONG}:{name}" for name in (*CONTROLS, *RIGHT))
    values = {"model": "tables", "draft": "tables", "decoders": names, "tasks": "qa"}
    config = load_config(None, {**values, "limit": 2, "max_new_tokens": 12})
    return verify(config, RecordedProgress(), num_draws=1000, opener=open_tables)


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS)
def test_a_negative_control_is_caught(controls: VerifyReport, control: str) -> None:
    found = of(controls, f"{WRONG}:{control}")
    assert found.verdict == "wrong"
    assert CONTROLS[control] in {f.check for f in found.findings if f.outcome == "wrong"}
    assert controls.exit_code == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar", *(f"{WRONG}:{name}" for name in RIGHT)])
def test_the_right_decoders_behind_the_controls_are_lossless(
    controls: VerifyReport, name: str
) -> None:
    assert of(controls, name).verdict == "lossless"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 10**6])
def test_drafts_that_replay_uniforms_are_caught_with_the_default_number_of_draws(
    examined: Callable[..., VerifyReport], seed: int
) -> None:
    subtle = ("BlockReplaysDrafts", "BlockReusesDraw", "BlockVerified")
    names = [f"{WRONG}:{name}" for name in subtle]
    report = examined(",".join(names), limit=2, draws=NUM_DRAWS, seed=seed)
    assert [of(report, name).verdict for name in names] == ["wrong", "wrong", "lossless"]


@pytest.mark.slow
@pytest.mark.parametrize("control", ["WarpsDraft", "ReseedsAccept", "AcceptsAbove"])
def test_the_distance_of_a_control_exceeds_the_stated_detectable_distance(control: str) -> None:
    draws = table_draws(build(parse_spec(f"{WRONG}:{control}")), NUM_DRAWS)
    draws.draw(10_000, 64)
    seen = {cell: draws.counts[cell] / NUM_DRAWS for cell in draws.distribution.cells}
    distance = sum(abs(seen[cell] - mass) for cell, mass in draws.distribution.cells.items()) / 2
    (finding,) = judge_distributions([DistributionTest("on a table", draws)])
    noise = 0.045  # what honest draws of this number show
    assert distance - noise > finding.data["detectable_distance"]


@pytest.mark.slow
def test_honest_decoders_are_lossless(examined: Callable[..., VerifyReport]) -> None:
    report = examined(HONEST, adapters={"ptp": "tables"})
    assert {one.decoder: one.verdict for one in report.examined} == dict.fromkeys(
        ["ar", "spec", "spec@coupled", "ptp", "ptp@pqd"], "lossless"
    )
    assert report.exit_code == 0
    checks = {one.decoder: [f.check for f in one.findings] for one in report.examined}
    both = ["equality on a table", "equality on a tiny Llama"]
    both.append("perfect drafts on a table")
    assert checks["ptp"] == [*both, "greedy, tokens of ar", "T = 0.8, tokens of ar"]
    assert checks["spec"] == [
        *both,
        "greedy, tokens of ar",
        "distribution on a table",
    ]


@pytest.mark.slow
def test_a_drafter_of_25_lines_is_verified(
    examined: Callable[..., VerifyReport], tmp_path: Path
) -> None:
    page = (WRONG.parents[1] / "docs" / "adding-a-decoder.md").read_text(encoding="utf-8")
    source = page.split("```python\n")[1].split("```")[0]
    assert len(source.splitlines()) <= 25
    file = tmp_path / "echo.py"
    file.write_text(source, encoding="utf-8")
    report = examined(f"{file}:Echo", limit=2)
    assert of(report, f"{file}:Echo").verdict == "lossless"
    assert report.exit_code == 0


@pytest.mark.slow
def test_honest_decoders_pass_three_of_three_examinations(
    examined: Callable[..., VerifyReport],
) -> None:
    # in each, ar and spec are tested by their distribution: a false alarm in 1 of 100 runs of this
    # test
    assert 3 * 2 * FALSE_ALARM <= 0.01
    for seed in range(3):
        report = examined(
            HONEST, adapters={"ptp": "tables"}, limit=2, seed=1 + seed * 10**6, draws=NUM_DRAWS
        )
        assert {one.verdict for one in report.examined} == {"lossless"}, seed


@pytest.mark.slow
def test_controls_are_caught_with_every_seed(examined: Callable[..., VerifyReport]) -> None:
    names = [f"{WRONG}:{control}" for control in (*CONTROLS, *MORE)]
    for seed in range(2):
        report = examined(",".join(names), seed=1 + seed * 10**6, limit=2, draws=2000)
        assert [of(report, name).verdict for name in names] == ["wrong"] * len(names), seed


@pytest.mark.slow
def test_a_lossy_decoder_has_its_distance_measured(small: Make, opener: Any, progress: Any) -> None:
    name = f"{WRONG}:Unverified@loose"
    report = verify(
        small(decoders=name), progress(), num_draws=1000, opener=partial(opener, agreement=0.3)
    )
    *contract, finding = of(report, name).findings
    assert of(report, name).verdict == "lossy"
    assert {each.outcome for each in contract} <= {"passed", "measured"}
    assert finding.outcome == "measured"
    assert finding.data["num_identical"] < finding.data["num_answers"]
    assert report.exit_code == 0


@pytest.mark.slow
def test_a_lossy_decoder_that_fails_is_inconclusive(
    examined: Callable[..., VerifyReport], decoder_file: Callable[[str], str]
) -> None:
    spec = decoder_file("raise RuntimeError('broken')\nyield")
    path = Path(spec.partition(":")[0])
    code = path.read_text().replace("    def steps", "    lossless = False\n\n    def steps")
    path.write_text(code)
    report = examined(spec, limit=2, draws=1000)
    (mine,) = (one for one in report.examined if one.decoder != "ar")
    assert not mine.lossless
    assert mine.verdict == "inconclusive"
    finding = mine.findings[-1]  # after those of the contract
    assert finding.outcome == "open"
    assert "0 of 0 answers identical" in finding.text
    assert "2 failed: " in finding.text
    assert report.exit_code == 4


def without_numbers(run: ResolvedRun) -> Any:
    """Tables whose logits are NaN everywhere."""
    from tests.conftest import VOCAB, open_tables

    setup = open_tables(run)
    target: Any = setup.models.target
    target.logits = lambda _context: torch.full((VOCAB,), float("nan"))
    return setup


@pytest.mark.slow
def test_a_model_whose_logits_are_nan_makes_every_decoder_inconclusive(
    small: Make, progress: Any
) -> None:
    report = verify(
        small(decoders="ar,spec", limit=2), progress(), num_draws=1000, opener=without_numbers
    )
    assert {one.decoder: one.verdict for one in report.examined} == dict.fromkeys(
        ["ar", "spec"], "inconclusive"
    )
    assert report.exit_code == 4
    failed = {f.check: f for f in of(report, "ar").findings if f.outcome == "open"}
    assert set(failed) == {"greedy, five rows a call", "T = 0.8, five rows a call"}
    assert "2 failed: " in failed["greedy, five rows a call"].text
    assert "logits are NaN" in failed["greedy, five rows a call"].text


@pytest.mark.slow
def test_prompts_on_which_ar_fails_leave_every_decoder_inconclusive(
    examined: Callable[..., VerifyReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = subject.answer
    first: list[str] = []

    def answer(arm: Arm, sampling: Sampling, prompt: Prompt, *memory: Any) -> Outcome:
        first.append(prompt.name)
        if arm.decoder == Autoregressive() and prompt.name != first[0]:
            return FloatingPointError("no numbers")
        return asked(arm, sampling, prompt, *memory)

    monkeypatch.setattr(verifying, "answer", answer)
    name = f"{WRONG}:Unverified@loose"
    report = examined(f"spec,{name}", limit=4, draws=300)
    for decoder in ("ar", "spec", name):
        assert of(report, decoder).verdict == "inconclusive", decoder
    (finding,) = (f for f in of(report, "spec").findings if f.check == "greedy, tokens of ar")
    assert finding.text.startswith("1 of 1 answers identical")
    assert "; 3 failed: " in finding.text
    assert "ar failed: FloatingPointError: no numbers" in finding.text
    assert report.exit_code == 4


SECOND_IS_LIKELIEST = """\
result = yield request.target.call(request.prompt_ids)
place = 0
while True:
    yield Emit(tokens=result.picks)
    place += 1
    outputs = "argmax" if place == 1 and request.target.model.vocab_size == 128 else "picks"
    result = yield request.target.call(result.picks, output=outputs)
"""


@pytest.mark.slow
def test_the_distribution_option_catches_a_distribution_that_is_wrong_only_on_the_model(
    examined: Callable[..., VerifyReport], decoder_file: Callable[[str], str]
) -> None:
    spec = decoder_file(SECOND_IS_LIKELIEST)
    assert examined(spec, limit=1, tasks="qa").exit_code == 0
    report = examined(spec, limit=1, tasks="qa", distribution=True, draws=1500)
    assert report.exit_code == 3
    (mine,) = (one for one in report.examined if one.decoder != "ar")
    wrong = [finding.check for finding in mine.findings if finding.outcome == "wrong"]
    assert wrong
    assert all(re.match(r"distribution after .+#1\+\d+", check) for check in wrong)
    assert of(report, "ar").verdict == "lossless"


@pytest.mark.slow
def test_too_few_draws_are_inconclusive(examined: Callable[..., VerifyReport]) -> None:
    report = examined("spec", limit=2, draws=200)
    assert of(report, "spec").verdict == "inconclusive"
    assert report.exit_code == 4


@pytest.mark.slow
def test_a_decoder_that_fails_is_inconclusive_and_the_others_are_examined(
    examined: Callable[..., VerifyReport], decoder_file: Callable[[str], str]
) -> None:
    spec = decoder_file("raise RuntimeError('broken')\nyield")
    report = examined(f"{spec},spec:verify=coupled", limit=2, draws=100)
    assert of(report, "spec").verdict == "lossless"
    (mine,) = (one for one in report.examined if one.decoder not in ("ar", "spec"))
    assert mine.verdict == "inconclusive"
    assert any("broken" in finding.text for finding in mine.findings)
    assert report.exit_code == 4


def test_in_half_precision_a_distribution_that_does_not_fit_is_inconclusive() -> None:
    draws = table_draws(build(parse_spec(f"{WRONG}:AcceptsAbove")), 500)
    draws.draw(0, 64)
    assert judge_distributions([DistributionTest("here", draws, exact=False)])[0].outcome == "open"
    assert judge_distributions([DistributionTest("here", draws)])[0].outcome == "wrong"


@pytest.mark.parametrize(
    ("values", "precision"),
    [
        ({"dtype": "bfloat16"}, "invariant"),
        ({"dtype": "bfloat16", "numerics": "fast"}, "float32"),
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "float32", "numerics": "invariant"}, "invariant"),
    ],
)
def test_half_precision_is_examined_without_margins_by_default(
    small: Make, opener: Any, values: dict[str, Any], precision: str
) -> None:
    """What is opened then; tables are of float32, whatever is asked of them."""
    setup = opener(
        verifying.exact_by_default(choose_decoders(small(**values), print), brings_models=True)
    )
    assert setup.precision("ar") == precision
    work = verifying._Work(setup, [], RecordedProgress(), NUM_DRAWS)
    assert work.report().facts["margin_logits"] == MARGINS[precision]
    notes = " ".join(work.report().notes)
    assert ("any difference from ar is wrong" in notes) == (precision == "invariant")


@pytest.mark.slow
def test_verification_compiles_calls_as_a_run_does_or_notes_the_reason_against_it(
    small: Make, opener: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    monkeypatch.setattr("bench.plan.compiling.missing_compiler", lambda: None)
    opened: list[bool | None] = []

    def watched(run: Any) -> Any:
        opened.append(run.config.compile)
        if refuses and run.config.compile:
            raise NoGraphError("it is odd")
        return opener(run)

    for refuses, expected in ((False, [True]), (True, [True, False])):
        opened.clear()
        shown = progress()
        report = verify(small(decoders="lookup", limit=1), shown, num_draws=200, opener=watched)
        assert opened == expected
        assert any("it is odd" in note for note in shown.notes) == refuses
        assert ("compiling" in [phase for phase, *_ in shown.phases]) != refuses
        assert report.examined


@pytest.mark.slow
def test_the_table_shows_verdicts_powers_and_margins(examined: Callable[..., VerifyReport]) -> None:
    console = Console(width=200, record=True)
    examined("spec", limit=2).print(console)
    text = console.export_text()
    assert "\nspec: lossless" in text
    assert re.search(r"a distance of 0\.0\d\d", text)
    assert "greedy, five rows" in text
    assert "0.001 apart" in text
    assert "in 0.1 % of all verifications" in text


def test_the_table_is_printed_in_full_on_a_narrow_terminal() -> None:
    found, power = "5,000 draws, chi-square 44.2, p = 0.26 (Holm)", "one wrong token in 1,482"
    name = "path/of/a/decoder.py:Mine@labelled"
    finding = Finding(
        check="T = 0.8, tokens of ar", outcome="open", text=found, power=power, data={}
    )
    examined = Examination(decoder=name, lossless=True, findings=[finding])
    console = Console(width=80, record=True)
    VerifyReport(examined=[examined], notes=[], facts={}).print(console)
    text = console.export_text()
    assert "…" not in text
    assert text.splitlines()[0].split() == ["check", "found", "would", "catch"]
    assert f"\n{name}: inconclusive" in text
    assert all(word in text for word in f"{finding.check} open: {found} {power}".split())


@pytest.mark.slow
def test_json_holds_every_finding_with_its_data(
    examined: Callable[..., VerifyReport], tmp_path: Path
) -> None:
    report = examined(f"{WRONG}:DropsBonus", limit=2, draws=100)
    write_json(tmp_path / "found.json", report.as_json())
    found = json.loads(
        (tmp_path / "found.json").read_text(), parse_constant=lambda word: pytest.fail(word)
    )
    assert (found["schema"], found["exit_code"], found["dtype"]) == (1, 3, "float32")
    assert found["margin_logits"] == 0.001
    assert [one["verdict"] for one in found["decoders"]] == ["inconclusive", "wrong"]
    findings = found["decoders"][1]["findings"]
    greedy = next(each for each in findings if "num_wrong" in each["data"])
    assert greedy["data"]["num_wrong"] == len(greedy["data"]["divergences"])

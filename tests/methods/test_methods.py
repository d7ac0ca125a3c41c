"""Ten methods from the literature: the contract, counters derived by hand, wrong forms caught.

The table of docs/interface.md lists the files (`docs.generate.methods`).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.errors import Exit
from decoders.core.checks import check_decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.registry import build, parse_spec, parse_specs
from decoders.core.testing.check_models import with_adapters
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, MaskedForm, Sampling
from decoders.extras.dllm import BlockDiffusion
from docs.generate.methods import METHODS
from tests.command_line import Output, bench
from tests.tiny_checkpoint import LETTERS, save_checkpoint

ROOT = Path(__file__).parents[2]
MASK = 31


def named(spec: str) -> Any:
    """A decoder of `tests/methods`, or of `examples`, as ``FILE.py:Class``."""
    folder = next(
        f for f in ("tests/methods", "examples") if (ROOT / f / spec.split(":")[0]).exists()
    )
    return build(parse_spec(f"{ROOT / folder / spec}"))


def test_no_file_of_a_method_exceeds_sixty_lines() -> None:
    sizes = {
        file: len((ROOT / file).read_text(encoding="utf-8").splitlines())
        for method in METHODS
        for file in method.files
    }
    assert len(METHODS) == 10
    assert {file: num for file, num in sizes.items() if num > 60} == {}


MINE = (
    "suffix.py:Suffix",
    "block.py:Block",
    "cascade.py:Cascade",
    "recycling.py:TokenRecycling",
    "typical.py:TypicalAcceptance",
    "bd3lm.py:BD3LM",
    "llada.py:LLaDA",
    "contrastive.py:Contrastive",
    "mtp_head.py:HeadDrafts",
)
"""The methods that no example has."""


@pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=pytest.mark.slow) if s in MINE[:3] else s for s in MINE]
)
def test_a_method_meets_the_contract(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoders.core.checks.NUM_DISTRIBUTION_DRAWS", 1500)
    check_decoder(named(spec))


class Counting(TableModel):
    """Says the next number, of `size` in a circle, but one more after those of `stumbles`."""

    def __init__(self, size: int = 32, *stumbles: int) -> None:
        super().__init__(size)
        self._stumbles = stumbles

    def logits(self, context: Any) -> torch.Tensor:
        after = context[-1] + 1 + (context[-1] in self._stumbles)
        return -200.0 * ((torch.arange(self.vocab_size) - after) % self.vocab_size)


Steps = list[tuple[int, ...]]
"""Of each step: emitted, drafted, accepted; target calls and rows; draft calls and rows."""


def counters(outcome: Any) -> Steps:
    assert isinstance(outcome, Generation), outcome
    return [
        (
            *(len(step.tokens), step.drafted, step.accepted),
            *(step.target_calls, step.target_rows, step.draft_calls, step.draft_rows),
        )
        for step in outcome.steps
    ]


def counted(
    spec: str, prompt: list[int], num: int, *, size: int = 32, temperature: float = 0
) -> Steps:
    """The counters of an answer on counting models, of which drafting ones stumble."""
    decoder = named(spec)
    small = {"small": Counting(size, 4)}
    models = Models(target=Counting(size), draft=Counting(size, 5), named=small)
    models = with_adapters(decoder, models, error=0.0)
    if decoder.target_kind == "masked":
        models.target.masked = MaskedForm(mask_id=MASK, block=4)
    sampling = Sampling(temperature=temperature, max_new_tokens=num)
    return counters(generate(decoder, prompt, sampling, models))


PROMPT, PREFILL, ONE = [0, 1, 2], (1, 0, 0, 1, 3, 0, 0), (1, 0, 0, 1, 1, 0, 0)
SPECULATIVE = [
    PREFILL,  # 3
    (3, 4, 2, 1, 5, 4, 7),  # drafts 4 5 7 8, of which the target corrects 7; the text was unread
    (4, 3, 3, 1, 4, 3, 3),  # drafts 7 8 9, and 10 fills the budget
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", ["block.py:Block", "typical.py:TypicalAcceptance"])
def test_block_and_typical_acceptance_accept_the_drafts_before_the_first_wrong_draft(
    spec: str, temperature: float
) -> None:
    assert counted(spec, PROMPT, 8, temperature=temperature) == SPECULATIVE


def test_a_cascade_counts_the_calls_of_both_models() -> None:
    assert counted("cascade.py:Cascade", PROMPT, 8) == [
        PREFILL,
        # small: 4 6 | 6 | -, in 2 + 1 calls of 4 + 1 + 1 rows; middle: 4 5 | 7 | 8, 6 + 2 + 1 rows
        (3, 4, 2, 1, 5, 6, 15),
        (4, 3, 3, 1, 4, 3, 5),  # small: 7 8; middle: 7 8 9
    ]


def test_token_recycling_verifies_a_tree_of_candidates_of_earlier_tokens() -> None:
    # size 3 with 2 candidates: paths of costs 1; 2, 1+1; 1+2, 2+1, 1+1+1: six drafts, three deep
    assert counted("recycling.py:TokenRecycling:candidates=2:size=3", [0], 9, size=4) == [
        *[ONE] * 4,  # 1 2 3 0: none of the tokens was read before
        (4, 6, 3, 1, 7, 0, 0),
        ONE,
    ]


def test_a_suffix_of_an_earlier_answer_is_drafted_whole() -> None:
    decoder, memory = named("suffix.py:Suffix"), named("suffix.py:Suffix").memory()
    models, sampling = Models(target=Counting()), Sampling(max_new_tokens=9)
    first, second = (
        Scheduler(decoder, models, sampling, memory=memory).run([[5]])[0] for _ in range(2)
    )
    assert counters(first) == [ONE] * 9
    assert counters(second) == [ONE, (8, 7, 7, 1, 8, 0, 0)]


def test_confident_lookup_and_a_head_call_their_networks_once_a_step() -> None:
    # the circle 0 1 2 3 was read, so that 3 0 1 2 0 ... is drafted as far as the text goes
    assert counted("sure.py:SureLookup", [0, 1, 2, 3, 0], 7, size=4) == [
        (1, 0, 0, 1, 5, 0, 0),
        (5, 4, 4, 1, 5, 1, 1),
        (1, 0, 0, 1, 1, 1, 1),
    ]
    assert counted("sure.py:SureLookup:sure=2", [0, 1, 2, 3, 0], 2, size=4)[1] == (
        1, 0, 0, 1, 1, 1, 1,
    )  # fmt: skip
    assert counted("mtp_head.py:HeadDrafts", PROMPT, 4) == [PREFILL, (2, 1, 1, 1, 2, 1, 1), ONE]


def test_block_diffusion_counts_the_calls_and_rows_of_every_pass() -> None:
    prompt = [0, 1, 2, 3, 4]  # a block of four, and the first token of the next
    assert counted("bd3lm.py:BD3LM:threshold=0", prompt, 7) == [
        (3, 0, 0, 1, 8, 0, 0),
        (4, 0, 0, 1, 8, 0, 0),  # the block before is read once more, with its tokens
    ]
    assert counted("bd3lm.py:BD3LM:threshold=2", prompt, 7) == [
        (3, 0, 0, 3, 8 + 4 + 4, 0, 0),
        (4, 0, 0, 4, 8 + 4 + 4 + 4, 0, 0),
    ]
    assert counted("llada.py:LLaDA", prompt, 7) == [
        (4, 0, 0, 2, 2 * 12, 0, 0),
        (3, 0, 0, 2, 2 * 12, 0, 0),
    ]


def test_contrastive_beam_and_best_of_n_count_the_rows_of_all_sequences_and_models() -> None:
    assert counted("contrastive.py:Contrastive", PROMPT, 2) == [
        (1, 0, 0, 1, 3, 1, 3),
        (1, 0, 0, 1, 1, 1, 1),
    ]
    assert counted("beam.py:Beam:width=2", PROMPT, 3) == [
        (0, 0, 0, 1, 3, 0, 0),  # 3 or 4
        (1, 0, 0, 2, 2, 0, 0),  # 3 4 or 3 5: so 3
        (2, 0, 0, 2, 2, 0, 0),
    ]
    assert counted("best_of_n.py:BestOf:n=3", PROMPT, 2) == [
        (0, 0, 0, 1 + 3, 2 + 3, 0, 0),  # the prompt without its last token is read once
        (0, 0, 0, 3, 3, 0, 0),
        (2, 0, 0, 0, 0, 0, 0),
    ]


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("bd3lm.py:BD3LM:threshold=0.2", {"attention": "block", "threshold": 0.2}),
        ("llada.py:LLaDA:passes=3", {"attention": "full", "passes": 3}),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_block_diffusion_emits_the_same_tokens_as_dllm(
    spec: str, options: dict[str, Any], temperature: float
) -> None:
    from decoders.core.testing.tiny_llama import tiny_models

    models = Models(target=tiny_models(32, 128).target)
    models.target.masked = MaskedForm(mask_id=MASK, block=4)
    sampling = Sampling(temperature=temperature, max_new_tokens=13, seed=2)
    for prompt in ([3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7]):
        expected = generate(BlockDiffusion(block=4, **options), prompt, sampling, models)
        assert generate(named(spec), prompt, sampling, models).tokens == expected.tokens


# Real runs on tiny checkpoints


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny random Llamas: `target`, `draft`, `small`, and `masked`, whose last token is a mask."""
    home = tmp_path_factory.mktemp("models")
    for name in ("target", "draft", "small", "masked"):
        save_checkpoint(home / name, int(name == "masked"))
    file = home / "masked" / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    form = {"is_causal": False, "mask_token_id": config["vocab_size"] - 1, "block_size": 4}
    file.write_text(json.dumps(config | form), encoding="utf-8")
    return home


@pytest.fixture(autouse=True)
def _own_cache(
    contract: None, quick: None, undrawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check decoders before each run, by as many draws as show these errors."""
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("decoders.core.checks.NUM_DISTRIBUTION_DRAWS", 1000)


Verb = Callable[..., tuple[Output, dict[str, Any]]]


@pytest.fixture
def verified(folders: Path, tmp_path: Path) -> Verb:
    """`bench verify`, and the verdict of each decoder."""

    def run(decoders: str, *options: object) -> tuple[Output, dict[str, Any]]:
        file = tmp_path / "found.json"
        ended = bench("verify", *asked(folders, decoders), "--draws", 500, "--json", file, *options)
        report = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"decoders": []}
        return ended, {each["decoder"]: each["verdict"] for each in report["decoders"]}

    return run


@pytest.fixture
def measured(folders: Path, tmp_path: Path) -> Verb:
    """`bench run`, and its run.json with the plan and the records."""

    def run(decoders: str, *options: object) -> tuple[Output, dict[str, Any]]:
        more = ("--repeats", 2, "--quality-limit", 0, "--output", tmp_path / "runs")
        ended = bench("run", *asked(folders, decoders), *more, *options)
        (folder,) = (tmp_path / "runs").glob("2*")
        status = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        status["cells"] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))[
            "cells"
        ]
        lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        records = [record for line in lines if "decoder" in (record := json.loads(line))]
        return ended, {**status, "records": records}

    return run


def asked(folders: Path, decoders: str) -> list[object]:
    """The options that all commands share."""
    models: list[object] = ["--model", folders / "target"]
    if any("draft" in build(spec).needs for spec in parse_specs(decoders)):
        models += ["--draft", folders / "draft"]
    if "Cascade" in decoders:
        models += ["--models", f"small={folders / 'small'}"]
    if "BD3LM" in decoders or "LLaDA" in decoders:
        models = ["--model", folders / "masked"]
    size = ["--tasks", "qa", "--limit", 2, "--max-new-tokens", 8, "--temperature", 0.8]
    return ["--decoders", decoders, *models, *size, "--no-compile", "--progress", "none"]


def spelled(*names: str) -> str:
    return ",".join(f"{ROOT / 'tests' / 'methods' / name}" for name in names)


WRONG = {
    "suffix decoding": ["TrustedSuffix"],
    "block verification": ["ShareBlock"],
    "cascade": ["TrustedCascade"],
    "Token Recycling": ["CausalRecycling"],
    "confidence-driven drafts": ["DropsUnsure"],
    "MTP head": ["TrustedHead"],
}
"""Wrong forms of decoders of causal targets, by method."""
MORE = {
    "block verification": ["ResidualBlock"],
    "Token Recycling": ["FlatRecycling"],
    "typical acceptance": ["ClaimingTypical"],
    "contrastive, best-of-n, beam": ["ClaimingContrastive", "ClaimingBestOf", "ClaimingBeam"],
}


def wrong(names: dict[str, list[str]]) -> str:
    return spelled(*(f"wrong.py:{each}" for part in names.values() for each in part))


def check_verify(ended: Output, verdicts: dict[str, Any], cells: str) -> None:
    assert ended.code == Exit.REGRESSION, ended.err
    assert {cell: verdicts[cell] for cell in cells.split(",")} == dict.fromkeys(
        cells.split(","), "wrong"
    )


def check_run(ended: Output, status: dict[str, Any], cells: str) -> None:
    assert (ended.code, status["verdict"]) == (Exit.REGRESSION, "WRONG"), ended.err
    assert {each["cell"] for each in status["differences"] if each.get("check")} == {
        *cells.split(",")
    }


def test_bench_verify_detects_each_wrong_form_of_a_method(verified: Verb) -> None:
    check_verify(*verified(wrong(WRONG)), wrong(WRONG))


@pytest.mark.parametrize(
    "methods",
    [[*WRONG][::2], pytest.param([*WRONG][1::2], marks=pytest.mark.slow)],
    ids=["half", "rest"],
)
def test_bench_run_detects_each_wrong_form_of_a_method(methods: list[str], measured: Verb) -> None:
    names = wrong({method: WRONG[method] for method in methods})
    check_run(*measured(names), names)


@pytest.mark.slow
def test_further_wrong_forms_are_caught_by_more_draws(
    verified: Verb, measured: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_verify(*verified(wrong(MORE), "--draws", 3000), wrong(MORE))
    monkeypatch.setattr("decoders.core.checks.NUM_DISTRIBUTION_DRAWS", 6000)
    check_run(*measured(wrong(MORE)), wrong(MORE))


CAUSAL = spelled(*(name for name in MINE if "BD3LM" not in name and "LLaDA" not in name))


@pytest.mark.slow
def test_right_forms_are_verified(verified: Verb) -> None:
    ended, verdicts = verified(CAUSAL, "--draws", 1000)
    lossy = {name for name in CAUSAL.split(",") if "Typical" in name or "Contrastive" in name}
    assert ended.code == Exit.DONE, ended.out + ended.err
    assert verdicts == {"ar": "lossless"} | {
        name: "lossy" if name in lossy else "lossless" for name in CAUSAL.split(",")
    }


def test_a_run_of_correct_forms_is_valid_and_coupled_forms_emit_ars_tokens(measured: Verb) -> None:
    ended, status = measured(CAUSAL, "--no-self-check")
    assert (ended.code, status["verdict"]) == (Exit.DONE, "VALID"), ended.err
    answers = {(r["decoder"], r["conversation"], r["repeat"]): r for r in status["records"]}
    coupled = {name for name in CAUSAL.split(",") if build(parse_spec(name)).coupled}
    assert len(coupled) == 4
    for cell, *prompt in [key for key in answers if key[0] in coupled]:
        record = answers[cell, *prompt]
        assert record["tokens"] == answers["ar", *prompt]["tokens"]
        assert sum(record["steps"]["emitted"]) == len(record["tokens"])


def test_a_decoder_that_secretly_keeps_earlier_answers_makes_a_run_invalid(measured: Verb) -> None:
    # tokens are right and only steps depend on the past, so `bench verify` remarks it
    ended, status = measured(
        spelled("wrong.py:HiddenSuffix"), "--temperature", 0, "--no-self-check"
    )
    assert (ended.code, status["verdict"]) == (Exit.INVALID, "INVALID"), ended.err


def test_wrong_forms_of_block_diffusion_are_caught(verified: Verb, measured: Verb) -> None:
    wrong = spelled("wrong.py:ClaimingBD3LM", "wrong.py:UnfinishedBD3LM", "wrong.py:TuningLLaDA")
    ended, verdicts = verified(wrong)
    assert ended.code == Exit.REGRESSION, ended.err
    assert verdicts == dict.fromkeys(wrong.split(","), "wrong")
    ended, status = measured(wrong, "--temperature", 0)
    claiming, unfinished, tuning = wrong.split(",")
    assert ended.code == Exit.INVALID, ended.err
    errors = {r["decoder"]: r["error"] for r in status["records"] if r["error"]}
    assert {*errors} == {unfinished}
    assert "decoder emitted the mask token" in errors[unfinished]
    (refuted,) = (each["cell"] for each in status["differences"] if each.get("check"))
    assert refuted == claiming
    assert any(tuning in reason for reason in status["reasons"])


def test_right_forms_of_block_diffusion_are_lossy_and_their_run_is_valid(
    verified: Verb, measured: Verb
) -> None:
    right = spelled("bd3lm.py:BD3LM", "llada.py:LLaDA")
    ended, verdicts = verified(right)
    assert (ended.code, {*verdicts.values()}) == (Exit.DONE, {"lossy"}), ended.err
    assert "the contract alone is checked" in " ".join(ended.out.split())
    ended, status = measured(right)
    assert (ended.code, status["verdict"]) == (Exit.DONE, "VALID"), ended.err


def under(grammar: str) -> tuple[object, ...]:
    law = f"{ROOT / 'tests' / 'methods' / grammar}"
    return ("--law", law, "--max-new-tokens", 24)


def test_answers_under_a_grammar_are_in_its_language_and_equal_ars(
    verified: Verb, measured: Verb
) -> None:
    law = under("grammar.py:Numbers")
    ended, verdicts = verified("lookup,suffix", *law, "--draws", 1000)
    assert (ended.code, {*verdicts.values()}) == (Exit.DONE, {"lossless"}), ended.err
    ended, status = measured("lookup,suffix", *law, "--no-self-check")
    assert (ended.code, status["verdict"]) == (Exit.DONE, "VALID"), ended.err
    texts = ["<s>", "</s>", "<unk>", *LETTERS]
    answers = {(r["decoder"], r["conversation"], r["repeat"]): r for r in status["records"]}
    accepted = 0
    for (cell, *prompt), record in answers.items():
        text = "".join(texts[token] for token in record["tokens"])
        assert re.fullmatch(r"\d\d?(, \d\d?)*(, ?)?", text), (cell, text)
        assert record["tokens"] == answers["ar", *prompt]["tokens"]
        accepted += sum(record["steps"]["accepted"])
    assert accepted > 0


def test_a_grammar_that_keeps_the_state_of_its_last_call_is_caught(
    verified: Verb, measured: Verb
) -> None:
    law = under("wrong.py:StatefulGrammar")
    ended, verdicts = verified("lookup", *law)
    assert ended.code == Exit.REGRESSION, ended.err
    assert verdicts["lookup"] == "wrong"
    ended, status = measured("lookup", *law)
    assert (ended.code, status["verdict"]) == (Exit.REGRESSION, "WRONG"), status


POINTS = """[bench.decoders]
tokentree = tokentree:TokenRecycling
blind = tokentree_blind:Blind
borked = tokentree_borked:Nothing
"""
BLIND = """from dataclasses import dataclass

from tokentree import TokenRecycling
from decoders.core.drafting.verification import Rule


class Trusting(Rule):
    coupled = True

    def decide(self, turn):
        path = [0]
        while children := turn.tree.children(path[-1]):
            path.append(next(iter(children.values())))
        return path, turn.result.picks[path[-1]]


@dataclass(frozen=True, kw_only=True)
class Blind(TokenRecycling):
    verification = Trusting()
"""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with Token Recycling, a wrong form of it, and an entry point to broken code."""
    site = tmp_path / "site"
    info = site / "tokentree-2.1.dist-info"
    info.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "methods" / "recycling.py", site / "tokentree.py")
    (site / "tokentree_blind.py").write_text(BLIND, encoding="utf-8")
    (site / "tokentree_borked.py").write_text("import nowhere_to_be_found", encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tokentree\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in [each for each in sys.modules if each.startswith("tokentree")]:
        del sys.modules[name]


@pytest.mark.usefixtures("_installed")
def test_decoders_of_an_installed_package_are_shown_with_its_name_and_checked(
    verified: Verb, measured: Verb
) -> None:
    listed = {each["decoder"]: each for each in json.loads(bench("ls", "decoders", "--json").out)}
    assert {listed[name]["package"] for name in ("tokentree", "blind", "borked")} == {
        "tokentree 2.1"
    }
    assert "nowhere_to_be_found" in listed["borked"]["error"]
    assert "error" not in listed["tokentree"]
    ended, verdicts = verified("tokentree,blind")
    assert ended.code == Exit.REGRESSION, ended.err
    assert (verdicts["tokentree"], verdicts["blind"]) == ("lossless", "wrong")
    ended, status = measured("tokentree,blind")
    assert (ended.code, status["verdict"]) == (Exit.REGRESSION, "WRONG")
    assert {each["cell"]: each["package"] for each in status["cells"]} == {
        "ar": None, "tokentree": "tokentree 2.1", "blind": "tokentree 2.1"
    }  # fmt: skip
    ended = bench("run", "--decoders", "borked", "--progress", "none", "--dry-run")
    assert (ended.code, ended.err.count("\n")) == (Exit.USAGE, 1)
    assert "'borked' of the installed package 'tokentree' cannot be imported" in ended.err

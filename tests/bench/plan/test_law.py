"""``--law FILE.py:NAME``: what it measures, what it refuses, and whose code it is."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from bench.errors import BenchError, UsageError
from bench.measure.quality import target_scores
from bench.plan.checks import check_first
from bench.plan.code import law_files, load_law
from bench.plan.select import choose_decoders
from bench.records.run_folder import load_run
from bench.runs import resume, run
from bench.settings.config import load_config
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling
from tests.command_line import bench
from tests.conftest import Characters, RecordedProgress

pytestmark = pytest.mark.usefixtures("quick")
PLAIN = "def plain(tokenizer):\n    return lambda answer, logits: logits\n"
METHODS = Path(__file__).parents[2] / "methods"
EXAMPLE = f"{Path(__file__).parents[3] / 'examples' / 'law.py'}:NoRepeats"


def trigrams(tokens: Any) -> Counter[tuple[int, ...]]:
    return Counter(zip(tokens, tokens[1:], tokens[2:], strict=False))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_answer_of_a_run_follows_the_law(
    temperature: float, small: Any, opener: Any, tmp_path: Path
) -> None:
    settings = {"decoders": "lookup,spec:k=3", "max_new_tokens": 60, "temperature": temperature}
    found = {}
    for law in (None, EXAMPLE):
        config = small(**settings, law=law, limit=2, repeats=1, quality_limit=2)
        ended = run(config, tmp_path, RecordedProgress(), opener, report=None)
        assert ended.exit_code == 0
        records = load_run(ended.run_dir).records
        found[law] = max(max(trigrams(r.tokens).values(), default=0) for r in records if r.tokens)
        assert {r.kind for r in records} >= {"timing", "quality"}
        assert all(r.nll is None or r.nll < 100 for r in records)
        status = json.loads((ended.run_dir / "run.json").read_text())
        assert (status["verdict"], status["differences"]) == ("VALID", [])
    assert found[None] > 1
    assert found[EXAMPLE] == 1


@pytest.mark.parametrize("name", ["NoRepeats", "of_library"])
def test_the_example_law_equals_the_no_repeat_ngram_processor_of_transformers(name: str) -> None:
    law = load_law(EXAMPLE.replace("NoRepeats", name), Characters())
    theirs = NoRepeatNGramLogitsProcessor(3)
    for answer in itertools.product(range(3), repeat=5):
        logits = torch.randn(6)
        expected = theirs(torch.tensor([answer]), logits[None].clone())[0]
        assert torch.equal(law(answer, logits.clone()), expected)
    assert law((), torch.zeros(6)).equal(torch.zeros(6))


def test_under_a_law_decoders_that_emit_unverified_tokens_are_skipped_or_refused() -> None:
    notes: list[str] = []
    config = load_config(None, {"law": EXAMPLE})
    resolved = check_first(config, notes.append, brings_models=True)
    assert {"ar", "lookup", "ptp", "spec"} <= {*resolved.decoders}
    assert not {"nar", "idlm", "hf"} & {*resolved.decoders}
    assert any("nar is skipped: it emits tokens that no call of ours verifies" in n for n in notes)
    for decoder in ("nar", "hf", "idlm"):
        with pytest.raises(UsageError, match="no law of --law holds"):
            check_first(
                load_config(None, {"law": EXAMPLE, "decoders": decoder}),
                notes.append,
                brings_models=True,
            )


def test_likelihoods_are_under_the_law() -> None:
    def only(answer: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
        allowed = torch.full_like(logits, -torch.inf)
        allowed[len(answer) % 3] = 0.0
        return allowed

    model = TableModel(5)
    model.reserve(1, 200)
    answer = [number % 3 for number in range(100)]
    plain = target_scores(model, [1, 2], answer)
    lawful = target_scores(model, [1, 2], answer, Sampling(law=only))
    assert lawful == (0.0, 1.0, 0.0)
    assert plain.nll > 0.1
    assert plain.entropy > 0.1


def test_a_run_whose_law_has_changed_is_not_resumed(
    small: Any, opener: Any, tmp_path: Path
) -> None:
    file = tmp_path / "law.py"
    file.write_text(PLAIN)
    named = f"{file}:plain"
    config = small(limit=2, repeats=1, quality_limit=0, law=named)
    stopped = run(config, tmp_path, RecordedProgress(stop_at=3), opener, report=None)
    with pytest.raises(BenchError, match="names code, which runs only if"):
        resume(stopped.run_dir, RecordedProgress(), opener, report=None)
    allowed = (str(file),)
    file.write_text(file.read_text() + "\n")
    with pytest.raises(BenchError, match="the code has changed since the run began"):
        resume(stopped.run_dir, RecordedProgress(), opener, allowed=allowed, report=None)


def test_a_change_to_the_law_changes_the_code_hash_of_every_cell(
    small: Any, opener: Any, tmp_path: Path
) -> None:
    hashes, file = set[Any](), tmp_path / "law.py"
    for comment in ("", "# other\n"):
        file.write_text(PLAIN + comment)
        setup = opener(choose_decoders(small(decoders="lookup", law=f"{file}:plain"), print))
        hashes |= {arm.cell.code for arm in setup.arms.values()}
    assert len(hashes) == 2 * 2


def test_the_files_of_a_law_include_the_modules_that_it_imports() -> None:
    class Sized(Characters):
        eos_token_id = 0

        def __len__(self) -> int:
            return 100

    grammar = f"{METHODS / 'wrong.py'}:StatefulGrammar"
    load_law(grammar, Sized())
    assert {"wrong.py", "grammar.py"} <= {file.name for file in law_files(grammar)}
    assert law_files(None) == []


FAULTS = {
    "grammar": ("", "is not FILE.py:NAME, e.g. grammar.py:Grammar"),
    "nowhere.py:Law": ("", "fails: FileNotFoundError: "),
    "law.py:Law": ("", "fails: AttributeError: module 'bench_law_law' has no attribute 'Law'"),
    "law.py:law": ("def law(tokenizer):\n    return 1 / 0\n", "division by zero (law.py:2)"),
    "law.py:none": ("def none(tokenizer):\n    return 5\n", "gives no function of answer and"),
}


@pytest.mark.parametrize("named", FAULTS)
def test_an_invalid_law_is_refused_in_one_line(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, line = FAULTS[named]
    monkeypatch.chdir(tmp_path)
    Path("law.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_law(named, Characters())
    assert line in caught.value.message
    assert "\n" not in caught.value.message


def test_a_law_named_in_a_config_file_needs_allow_and_a_law_on_the_command_line_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "ran"
    Path("law.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    Path("run.toml").write_text('law = "law.py:Law"\nmodel = "zoo"\ndecoders = ["lookup"]\n')
    dry = ("run", "-c", "run.toml", "--dry-run", "--no-compile", "--progress", "none")
    refused = bench(*dry)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--allow law.py" in refused.err
    assert not mark.exists()
    ended = bench(*dry, "--law", "law.py:Law")
    assert "has no attribute 'Law'" in ended.err
    assert mark.exists()

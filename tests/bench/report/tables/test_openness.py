"""How open the text is and how repetitive the answers: said beside what is accepted of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from bench.records.prompts import Prompt, ids_hash, write_prompts
from bench.records.run_folder import load_run
from bench.report.figures.gallery import draw_all
from bench.report.findings import Findings
from bench.report.tables.conclusion import quality_limits, telling
from bench.report.write import print_findings, write_report
from bench.stats.metrics import summary_rows
from bench.text import percent
from tests.bench.conftest import tables_of

Write = Callable[..., Path]


@pytest.fixture
def looping(synthetic_run: Write) -> Path:
    """Whose `spec` says three words over and over; ar's entropy is 0.25 nats a token, qa's 2."""
    path = synthetic_run({"spec": 3.0, "ptp": 4.0}, conversations=2, quality=2)
    lines = []
    for line in (path / "samples.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("decoder") == "spec" and record.get("tokens"):
            record["tokens"] = [1 + i % 3 for i in range(len(record["tokens"]))]
        if record.get("kind") == "quality":
            record |= {"tokens": [7, 8, 9, 10], "nll": 1.0, "agreement": 1.0}
            record["entropy"] = 2.0 if record["family"] == "qa" else 0.25
        lines.append(json.dumps(record))
    (path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    return path


def test_the_entropy_of_ar_is_shown_wherever_tokens_per_step_are(looping: Path) -> None:
    findings = Findings(load_run(looping))
    assert "along its answers is 0.542 nats" in findings.headline.note  # (2 + 5 x 0.25) / 6
    (table,) = [
        t for t in tables_of(findings)["families"] if t.title == "Tokens per step by family"
    ]
    first = dict(zip(table.headings, (cell.text for cell in table.rows[0]), strict=True))
    assert first["decoder"] == "ar's entropy, nats"
    assert (first["qa"], first["translation"], first["all"]) == ("2", "0.25", "0.542")
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        print_findings(Findings(load_run(looping)), console)
    assert "along its answers is 0.542 nats" in capture.get()


def test_the_share_of_copied_tokens_stands_beside_the_entropy(looping: Path) -> None:
    """Of ar's timed answers, whose ids are 0, 1, 2, …: the first ten are in some prompts."""
    prompts, lines = {}, (looping / "samples.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        ids = tuple(range(10)) if line["family"] == "translation" else (99, 98)
        place = {key: line[key] for key in ("conversation", "turn", "family")}
        prompt = Prompt(**place, ids=ids, hash=ids_hash(ids), reference=None)
        prompts[prompt.name] = prompt
    write_prompts(looping, list(prompts.values()))
    findings = Findings(load_run(looping))
    (table,) = [
        t for t in tables_of(findings)["families"] if t.title == "Tokens per step by family"
    ]
    copies = dict(zip(table.headings, (cell.text for cell in table.rows[1]), strict=True))
    answers = [r for r in findings.run.records if (r.decoder, r.kind) == ("ar", "timing")]
    nums = [len(r.tokens or ()) for r in answers if r.family == "translation" and r.repeat == 0]
    assert (copies["decoder"], copies["mt_bench"]) == ("ar's tokens copied, %", "0.0")
    assert copies["translation"] == percent(10 * len(nums) / sum(nums), "")


def test_text_of_very_low_entropy_is_called_nearly_determined(looping: Path) -> None:
    samples = looping / "samples.jsonl"
    samples.write_text(samples.read_text().replace('"entropy": 2.0', '"entropy": 0.001').replace(
        '"entropy": 0.25', '"entropy": 0.001'))  # fmt: skip
    assert "0.001 nats; the text is nearly determined" in Findings(load_run(looping)).headline.note


def test_without_a_quality_pass_the_entropy_is_reported_as_not_measured(
    synthetic_run: Write,
) -> None:
    for quality, why in ((0, " (no quality pass)"), (4, "")):  # its records have no entropies
        findings = Findings(load_run(synthetic_run(name=f"q{quality}", quality=quality)))
        said = f"The entropy of ar's next token was not measured{why}. "
        assert said in findings.headline.note
    assert not any(t.rows[0][0].text.startswith("ar's") for t in tables_of(findings)["families"])


@pytest.fixture
def floored(looping: Path) -> Path:
    """A run whose ar scores 0 in qa, where `spec`, lossy here, scores 1 by chance."""
    lines = []
    for line in map(json.loads, (looping / "samples.jsonl").read_text().splitlines()):
        if (line.get("kind"), line["family"]) == ("quality", "qa"):
            line["scores"] = {"contains_answer": float(line["decoder"] == "spec")}
        if line.get("kind") == "quality" and line["decoder"] == "spec":
            line["nll"] = 1.5 + 0.1 * (line["conversation"][-1] == "1")
        lines.append(json.dumps(line))
    (looping / "samples.jsonl").write_text("\n".join(lines) + "\n")
    manifest = json.loads((looping / "manifest.json").read_text())
    for cell in manifest["cells"]:
        cell["lossless"] = cell["cell"] != "spec"
    (looping / "manifest.json").write_text(json.dumps(manifest))
    return looping


def test_only_families_above_ars_floor_are_named_as_the_quality(floored: Path) -> None:
    summary = Findings(load_run(floored)).summary
    assert "math_reasoning, rag only (telling_quality of summary.csv), as ar" in telling(summary)
    line = telling(summary[summary["family"].isin(["qa", "all"])])
    assert line.startswith("Quality: none (telling_quality of summary.csv), as ar itself is at")
    assert "at its floor everywhere" in line


@pytest.mark.slow
def test_a_score_at_ars_floor_is_in_brackets_and_in_no_mean_of_the_report(floored: Path) -> None:
    findings = Findings(load_run(floored))
    (line,) = [line for line in findings.caveats if "cannot show a loss" in line]
    assert line.startswith("Scores of qa cannot show a loss: ar's are at their floor")
    (table,) = tables_of(findings)["quality"]
    cells = {row[0].text: row for row in table.rows}
    place, last = table.headings.index("qa"), table.headings.index("all")
    assert [cells[name][place].text for name in ("ar", "spec")] == ["(0.0)", "(100.0)"]
    (spec,) = summary_rows(findings.summary[findings.summary["decoder"] == "spec"], "all")
    assert spec.quality is not None
    assert spec.telling_quality is not None
    assert spec.quality > spec.telling_quality + 0.01
    shown = percent(spec.telling_quality, "")
    assert cells["spec"][last].text.startswith(shown)
    assert f"at quality {shown} %" in findings.conclusion
    assert "under the target, its tokens are on average 0.5" in findings.conclusion
    front = draw_all(findings).plots["quality_speed"][1].set_index("decoder")
    assert front.loc["spec", "quality"] == pytest.approx(spec.telling_quality)
    (likelihood,) = [
        t
        for t in tables_of(findings)["parallel"]
        if t.title == "Likelihood lost against ar by family"
    ]
    of_spec = next(row for row in likelihood.rows if row[0].text == "spec")
    assert of_spec[-1].text.startswith("+0.5")
    assert of_spec[-1].bold
    assert not any(cell.bold for row in likelihood.rows for cell in row if row is not of_spec)


@pytest.mark.usefixtures("undrawn")
def test_loops_are_flagged_in_the_summary_the_tables_and_the_caveats(looping: Path) -> None:
    write_report(looping)
    summary: Any = pd.read_csv(looping / "summary.csv").set_index(["decoder", "family"])
    assert bool(summary.loc[("spec", "all"), "loops"])
    assert not bool(summary.loc[("ar", "all"), "loops"])
    assert not bool(summary.loc[("ptp", "all"), "loops"])
    assert summary.loc[("spec", "all"), "repeated_trigrams"] > 0.7
    report = (looping / "report.md").read_text()
    assert "Repetition by family" in report
    (caveat,) = (line for line in Findings(load_run(looping)).caveats if "loops" in line)
    assert caveat in report
    assert re.search(r"repeat earlier ones of the answer are ar 0 %, spec (7|8|9)\d %\.$", caveat)


def test_families_without_gold_answers_refer_to_the_agreement_with_ar(looping: Path) -> None:
    samples = looping / "samples.jsonl"
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    for line in lines:
        if (line.get("kind"), line.get("family")) == ("quality", "qa"):
            line["scores"] = None
    samples.write_text("\n".join(map(json.dumps, lines)) + "\n")
    findings = Findings(load_run(looping))
    assert "No answer was scored in qa: see the agreement with ar." in findings.caveats
    without_ar = findings.summary[findings.summary["decoder"] != "ar"]
    assert "No answer was scored in qa." in quality_limits(without_ar)
    titled = {table.title: table for table in tables_of(findings)["parallel"]}
    table = titled["Agreement with ar by family"]
    spec = next(row for row in table.rows if row[0].text == "spec")
    assert {cell.text for cell in spec[1:]} == {"0.0 / 0.0"}, "it says 1 2 3, ar 0 1 2"

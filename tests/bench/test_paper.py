"""`bench paper`: a figure at column width with embedded fonts, a table that LaTeX takes."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from bench.errors import BenchError, Exit
from bench.regress.sides import load_side
from bench.reporting.paper import WIDTHS, write_paper

ROOT = Path(__file__).parents[2]


def test_a_run_gives_a_figure_its_numbers_and_a_table(reported_run: Path, tmp_path: Path) -> None:
    side = load_side(str(reported_run), tmp_path)
    pdf, csv, tex = write_paper(side, tmp_path / "icml", "icml")
    content = pdf.read_bytes()
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", content)
    assert box is not None
    assert float(box[1]) / 72 == pytest.approx(WIDTHS["icml"], abs=0.01)
    assert b"/Type3" not in content
    assert list(pd.read_csv(csv)["decoder"]) == ["nar", "spec"]
    text = tex.read_text()
    for needed in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{", r"\label{tab:decoders}"):
        assert needed in text
    assert r"95\,\% t-interval" in text
    assert re.search(r"AR against a second AR in the same run: [\d.]+x \[[\d.]+, [\d.]+\]", text)
    again = write_paper(side, tmp_path / "again", "icml")
    assert [file.read_bytes() for file in again] == [f.read_bytes() for f in (pdf, csv, tex)]


def test_a_stored_reference_is_enough(tmp_path: Path) -> None:
    reference = ROOT / "results" / "reference" / "cpu-zoo"
    rows = pd.read_csv(reference / "summary.csv").set_index(["decoder", "family"])
    side = load_side(str(reference), tmp_path)
    _, _, tex = write_paper(side, tmp_path, "acl")
    text = tex.read_text()
    assert "28 prompts, 3 repeats, temperature 0.0, batch size 1, float32" in text
    assert rf"spec & \textbf{{{rows.loc[('spec', 'all'), 'speedup']:.2f}x" in text


def test_a_run_of_the_baseline_alone_is_refused(synthetic_run: object, tmp_path: Path) -> None:
    run = synthetic_run({}, quality=0)  # type: ignore[operator]
    with pytest.raises(BenchError, match="no speed-up over ar") as refused:
        write_paper(load_side(str(run), tmp_path), tmp_path / "paper", "icml")
    assert refused.value.exit_code == Exit.UNAVAILABLE


def test_wrong_and_lossy_decoders_are_named_and_a_wrong_one_is_not_drawn(
    synthetic_run: object, tmp_path: Path
) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {"status": "complete", "verdict": "VALID", "differences": [left]}
    cells = {"spec": 3.0, "ptp": 4.0, "nar": 5.0}
    run = synthetic_run(cells, status=status, lossy=["nar"])  # type: ignore[operator]
    _, csv, tex = write_paper(load_side(str(run), tmp_path), tmp_path / "paper", "icml")
    assert list(pd.read_csv(csv)["decoder"]) == ["ptp", "nar"]
    text = tex.read_text()
    assert "Lossy, without any guarantee: nar. WRONG, and left out of the figure: spec." in text
    (row,) = [line for line in text.splitlines() if line.startswith("spec (WRONG)")]
    assert "textbf" not in row

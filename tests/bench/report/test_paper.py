"""`bench paper`: a figure at column width with embedded fonts, a table that LaTeX takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from bench.errors import BenchError, Exit
from bench.report.paper import (
    COLUMNS,
    WIDTHS,
    Layout,
    grid,
    latex,
    parse_layout,
    width_of,
    write_paper,
)
from bench.stats.side import load_side

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "results" / "reference" / "cpu-zoo"
LABELS = {"ptp": "PTP (ours)", "idlm@isd": "I-DLM, strided"}
needs_latex = pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="needs pdflatex with booktabs and times"
)


def test_a_run_gives_a_figure_its_numbers_and_a_table(reported_run: Path, tmp_path: Path) -> None:
    side = load_side(str(reported_run), tmp_path)
    pdf, csv, tex = write_paper(side, tmp_path / "icml", Layout(venue="icml"))
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
    again = write_paper(side, tmp_path / "again", Layout(venue="icml"))
    assert [file.read_bytes() for file in again] == [f.read_bytes() for f in (pdf, csv, tex)]


def test_a_stored_reference_is_enough(tmp_path: Path) -> None:
    rows = pd.read_csv(REFERENCE / "summary.csv").set_index(["decoder", "family"])
    side = load_side(str(REFERENCE), tmp_path)
    _, _, tex = write_paper(side, tmp_path, Layout(venue="acl"))
    text = tex.read_text()
    assert "28 prompts, 3 repeats, temperature 0.0, batch size 1, float32" in text
    assert "zoo (2.2M parameters)" in text
    assert rf"spec & {rows['speedup'].loc[('spec', 'all')]:.2f}x" in text


def test_a_run_of_the_baseline_alone_is_refused(synthetic_run: object, tmp_path: Path) -> None:
    run = synthetic_run({}, quality=0)  # type: ignore[operator]
    with pytest.raises(BenchError, match="no speed-up over ar") as refused:
        write_paper(load_side(str(run), tmp_path), tmp_path / "paper", Layout(venue="icml"))
    assert refused.value.exit_code == Exit.UNAVAILABLE


def table(layout: Layout, tmp_path: Path, told: list[str] | None = None) -> str:
    side = load_side(str(REFERENCE), tmp_path)
    assert side.summary is not None
    return latex(side, side.summary, layout, ([] if told is None else told).append)


def test_every_venue_has_a_table_that_fits_it_with_its_caption_above(tmp_path: Path) -> None:
    texts = {venue: table(Layout(venue=venue, labels=LABELS), tmp_path) for venue in WIDTHS}
    assert texts["icml"] != texts["neurips"]
    for text in texts.values():
        assert text.index(r"\caption{") < text.index(r"\begin{tabular}")
    # what does not fit in readable type is left out, and told
    told: list[str] = []
    assert "ms/tok." not in table(Layout(venue="acl", labels=LABELS), tmp_path, told)
    assert told == ["left out, as a column of acl is narrow: time_per_token_s"]
    assert "ms/tok." in texts["neurips"]


def test_columns_that_cannot_fit_are_refused_with_their_width(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"takes \d+ pt .* icml has 230: name fewer") as refused:
        table(Layout(venue="icml", columns=tuple(COLUMNS)), tmp_path)
    assert refused.value.exit_code == Exit.USAGE


def test_columns_labels_and_bold_are_those_that_were_asked_for(tmp_path: Path) -> None:
    layout = parse_layout("neurips", ["ptp=PTP (ours)"], "tokens_per_call,quality,ttft_s", "best")
    text = table(layout, tmp_path)
    assert r"Decoder & Tok./call & Quality & TTFT \\" in text
    assert "\nPTP (ours) & 3.85 & " in text
    assert "Speed-up" not in text
    assert r"\textbf{" in text
    plain = parse_layout("neurips", [], "tokens_per_call", "none")
    assert r"\textbf{" not in table(plain, tmp_path)


def test_the_best_of_a_column_is_bold_and_lossy_decoders_do_not_compete() -> None:
    summary = pd.DataFrame(
        {
            "decoder": ["ar", "a", "b", "nar"],
            "family": "all",
            "tokens_per_call": [1.0, 3.0, 2.0, 9.0],
            "time_per_token_s": [4e-3, 3e-3, 2e-3, 1e-3],
            "quality": [0.9, 0.9, 0.9, 0.5],
            "guarantee": ["same tokens", "same tokens", "same distribution", "none"],
        }
    )
    names = ("tokens_per_call", "time_per_token_s", "quality")
    made = grid(summary, Layout(venue="icml"), names)
    bold = {(row[0].text, i) for row in made for i, entry in enumerate(row) if entry.bold}
    assert bold == {("a", 1), ("b", 2)}
    none = grid(summary, Layout(venue="icml", bold="none"), names)
    assert not any(entry.bold for row in none for entry in row)


@pytest.mark.parametrize(
    ("labels", "columns", "said"),
    [
        (["ptp"], None, "--label ptp: write DECODER=TEXT"),
        (["=x"], None, "write DECODER=TEXT"),
        ([], "speedup,speed", "no column 'speed'; did you mean 'speedup'"),
    ],
)
def test_a_layout_that_cannot_be_is_one_line(
    labels: list[str], columns: str | None, said: str
) -> None:
    with pytest.raises(BenchError, match=re.escape(said)) as refused:
        parse_layout("icml", labels, columns, "best")
    assert refused.value.exit_code == Exit.USAGE


def test_a_label_for_no_decoder_is_refused(tmp_path: Path) -> None:
    side = load_side(str(REFERENCE), tmp_path)
    with pytest.raises(BenchError, match="no such decoder; did you mean 'ptp'"):
        write_paper(side, tmp_path, Layout(venue="icml", labels={"ptpp": "x"}))


def test_a_figure_has_the_labels_of_its_paper(reported_run: Path, tmp_path: Path) -> None:
    side = load_side(str(reported_run), tmp_path)
    plain, csv, _ = write_paper(side, tmp_path / "a", Layout(venue="icml"))
    named = Layout(venue="icml", labels={"spec": "Ours"})
    other, again, _ = write_paper(side, tmp_path / "b", named)
    assert plain.read_bytes() != other.read_bytes()
    assert csv.read_bytes() == again.read_bytes()


@pytest.mark.slow
@needs_latex
@pytest.mark.parametrize("venue", WIDTHS)
@pytest.mark.parametrize("labels", [{}, LABELS])
def test_latex_sets_the_table_within_the_column(
    venue: str, labels: dict[str, str], tmp_path: Path
) -> None:
    """The text block of the venue's style file, in Times: nothing is overfull."""
    side = load_side(str(REFERENCE), tmp_path)
    assert side.summary is not None
    (tmp_path / "main.tex").write_text(
        latex(side, side.summary, Layout(venue=venue, labels=labels))
    )
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{times,booktabs}\n"
        f"\\usepackage[textwidth={WIDTHS[venue]}in]{{geometry}}\n"
        "\\begin{document}\n\\input{main}\n"
        "\\typeout{the column is \\the\\columnwidth}\n\\end{document}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "Overfull" not in ended.stdout, ended.stdout
    column = re.search(r"the column is ([\d.]+)pt", ended.stdout)
    assert column is not None
    assert float(column[1]) == pytest.approx(WIDTHS[venue] * 72.27, abs=0.1)


@needs_latex
@pytest.mark.slow
def test_a_table_is_as_wide_as_it_was_computed_to_be(tmp_path: Path) -> None:
    side = load_side(str(REFERENCE), tmp_path)
    assert side.summary is not None
    text = latex(side, side.summary, Layout(venue="neurips", labels=LABELS))
    tabular = text[text.index(r"\fontsize") : text.index(r"\end{table}")]
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\n\\usepackage{times,booktabs}\n\\newsavebox{\\made}\n"
        f"\\begin{{document}}\n\\savebox{{\\made}}{{{tabular}}}\n"
        "\\typeout{it is \\the\\wd\\made\\space wide}\n\\end{document}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = re.search(r"it is ([\d.]+)pt wide", ended.stdout)
    assert found is not None, ended.stdout
    columns = ("speedup", "tokens_per_call", "acceptance_length", "time_per_token_s", "quality")
    made = grid(side.summary, Layout(venue="neurips", labels=LABELS), columns)
    assert float(found[1]) == pytest.approx(width_of(made, 9, 6), rel=0.02)


def test_wrong_and_lossy_decoders_are_named_and_a_wrong_one_is_not_drawn(
    synthetic_run: object, tmp_path: Path
) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {"status": "complete", "verdict": "VALID", "differences": [left]}
    cells = {"spec": 3.0, "ptp": 4.0, "nar": 5.0}
    run = synthetic_run(cells, status=status, lossy=["nar"])  # type: ignore[operator]
    _, csv, tex = write_paper(
        load_side(str(run), tmp_path), tmp_path / "paper", Layout(venue="icml")
    )
    assert list(pd.read_csv(csv)["decoder"]) == ["ptp", "nar"]
    text = tex.read_text()
    assert "Lossy, without any guarantee: nar. WRONG, and left out of the figure: spec." in text
    (row,) = [line for line in text.splitlines() if line.startswith("spec (WRONG)")]
    assert "textbf" not in row

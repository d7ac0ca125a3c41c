"""`bench paper`: figures at column width with real fonts, and a table; the same bytes again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from bench.errors import BenchError, Exit
from bench.extras.paper.table import VENUES, PaperLayout, fill_grid
from bench.extras.paper.write import write_caption, write_paper
from bench.extras.together.runs import NamedRun, load_members
from tests.bench.extras.paper.test_table import stored
from tests.command_line import bench

FIGURES = ("speedup", "tokens_per_step", "quality")
FILES = {
    *(f"{name}.{kind}" for name in FIGURES for kind in ("pdf", "csv")),
    *("main.tex", "references.bib"),
}
Write = Callable[..., Path]


def written(members: list[NamedRun], folder: Path, venue: str = "icml") -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in write_paper(members, folder, PaperLayout(venue=venue))}


@pytest.mark.slow
@pytest.mark.usefixtures("saved")
def test_a_paper_of_a_run_has_figures_with_their_data_and_a_table(
    reported_run: Path, tmp_path: Path
) -> None:
    members = load_members([str(reported_run)], tmp_path)
    files = written(members, tmp_path / "icml")
    assert files.keys() == FILES
    for name in FIGURES:
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", files[f"{name}.pdf"])
        assert box is not None
        assert float(box[1]) / 72 == pytest.approx(VENUES["icml"].width, abs=0.01)
        assert b"/Type3" not in files[f"{name}.pdf"]
        assert b"/FontFile2" in files[f"{name}.pdf"]  # TrueType
    assert list(pd.read_csv(tmp_path / "icml" / "speedup.csv")["decoder"]) == ["nar", "spec"]
    text = files["main.tex"].decode()
    for needed in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{", r"\label{tab:decoders}"):
        assert needed in text
    assert r"95\,\% t-interval" in text
    assert re.search(r"AR against a second AR in the same run: [\d.]+ \[[\d.]+, [\d.]+\]", text)


@pytest.mark.slow
@pytest.mark.parametrize("venue", VENUES)
@pytest.mark.usefixtures("saved")
def test_writing_again_gives_the_same_bytes(venue: str, tmp_path: Path) -> None:
    members = stored("cpu-zoo", "cpu-zoo-ptp")
    assert written(members, tmp_path / "a", venue) == written(
        stored("cpu-zoo", "cpu-zoo-ptp"), tmp_path / "b", venue
    )


@pytest.mark.slow
def test_a_paper_can_be_written_from_a_stored_reference(tmp_path: Path) -> None:
    text = written(stored(), tmp_path, "acl")["main.tex"].decode()
    machine = "AMD EPYC, 2 cores"
    setting = "28 prompts in 24 clusters, 3 repeats, tasks zoo, temperature 0, batch size 1, "
    setting += f"at most 256 new tokens, float32, {machine}"
    assert f"Decoders of zoo (2.2M parameters, compiled calls), {setting}: speed-up" in text


@pytest.mark.slow
def test_a_caption_of_several_runs_states_their_shared_facts_once(tmp_path: Path) -> None:
    members = stored("cpu-zoo", "cpu-zoo-t07")
    text = written(members, tmp_path, "neurips")["main.tex"].decode()
    assert text.count("EPYC") == 1
    assert "(cpu-zoo: temperature 0; cpu-zoo-t07: temperature 0.7)" in text
    data = pd.read_csv(tmp_path / "speedup.csv")
    assert list(dict.fromkeys(data["run"])) == ["cpu-zoo", "cpu-zoo-t07"]


def test_a_run_of_the_baseline_alone_is_refused(synthetic_run: Write, tmp_path: Path) -> None:
    run = synthetic_run({}, quality=0)
    with pytest.raises(BenchError, match="no speed-up over ar") as refused:
        load_members([str(run)], tmp_path)
    assert refused.value.exit_code == Exit.UNAVAILABLE


def test_quality_that_was_not_scored_has_no_figure(synthetic_run: Write, tmp_path: Path) -> None:
    members = load_members([str(synthetic_run(quality=0))], tmp_path)
    assert written(members, tmp_path / "p").keys() == FILES - {"quality.pdf", "quality.csv"}


def test_a_label_for_no_decoder_and_no_run_is_refused(tmp_path: Path) -> None:
    said = "--label ptpp: no decoder or run has this name; did you mean 'ptp'"
    with pytest.raises(BenchError, match=said):
        write_paper(stored(), tmp_path, PaperLayout(venue="icml", labels={"ptpp": "x"}))


def test_a_label_names_a_run_in_table_caption_figures_and_their_data(tmp_path: Path) -> None:
    members = stored("cpu-zoo", "cpu-zoo-t07")
    write_paper(members, tmp_path, PaperLayout(venue="icml", labels={"cpu-zoo-t07": "Warm & 0.7"}))
    text = (tmp_path / "main.tex").read_text()
    assert r"\emph{Warm \& 0.7}" in text
    assert r"Warm \& 0.7: temperature 0.7" in text
    assert "cpu-zoo-t07" not in text
    assert set(pd.read_csv(tmp_path / "speedup.csv")["run"]) == {"cpu-zoo", "Warm & 0.7"}


@pytest.mark.slow
@pytest.mark.usefixtures("saved")
def test_a_figure_has_the_labels_of_its_paper(reported_run: Path, tmp_path: Path) -> None:
    members = load_members([str(reported_run)], tmp_path)
    plain, csv, *_ = write_paper(members, tmp_path / "a", PaperLayout(venue="icml"))
    named = PaperLayout(venue="icml", labels={"spec": "Ours"})
    other, again, *_ = write_paper(members, tmp_path / "b", named)
    assert plain.read_bytes() != other.read_bytes()
    assert csv.read_bytes() == again.read_bytes()


def test_wrong_and_lossy_decoders_are_named_and_a_wrong_one_is_not_drawn(
    synthetic_run: Write, tmp_path: Path
) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {"status": "complete", "verdict": "VALID", "differences": [left]}
    run = synthetic_run({"spec": 3.0, "ptp": 4.0, "nar": 5.0}, status=status, lossy=["nar"])
    text = written(load_members([str(run)], tmp_path), tmp_path / "p")["main.tex"].decode()
    assert list(pd.read_csv(tmp_path / "p" / "speedup.csv")["decoder"]) == ["ptp", "nar"]
    assert "Lossy, without any guarantee: nar. WRONG, and left out of the figures: spec." in text
    (row,) = [line for line in text.splitlines() if line.startswith("spec (WRONG)")]
    assert "bfseries" not in row


def test_data_of_a_figure_are_named_like_their_file(synthetic_run: Write, tmp_path: Path) -> None:
    written(load_members([str(synthetic_run())], tmp_path), tmp_path / "p")
    for name in FIGURES:
        data = pd.read_csv(tmp_path / "p" / f"{name}.csv")
        columns = ["run", "decoder", name, f"{name}_low", f"{name}_high", "guarantee"]
        assert list(data.columns) == columns


def test_an_unfinished_run_is_marked_as_incomplete(synthetic_run: Write, tmp_path: Path) -> None:
    run = synthetic_run(status={"status": "interrupted", "verdict": None})
    text = written(load_members([str(run)], tmp_path), tmp_path / "p")["main.tex"].decode()
    assert "The run is INCOMPLETE." in text


def test_a_caption_mentions_the_interval_of_a_measure_only_once(
    synthetic_run: Write, tmp_path: Path
) -> None:
    members = load_members([str(synthetic_run())], tmp_path)
    layout, columns = PaperLayout(venue="icml"), ["speedup", "acceptance_length", "tokens_per_call"]
    text = write_caption(members, layout, fill_grid(members, layout, columns))
    interval = "with its 95\\,\\% interval"
    assert f"tokens per step after prefill {interval}; emitted tokens per target call." in text
    assert text.count(interval) == 1, "the speed-up's own words name its interval"


def test_a_caption_names_the_metrics_of_quality_and_none_of_our_files() -> None:
    def caption(name: str) -> str:
        members, layout = stored(name), PaperLayout(venue="icml")
        return write_caption(members, layout, fill_grid(members, layout, ["quality"]))

    interval = "quality in per cent with its 95\\,\\% interval"
    some = "ROUGE-L F in summarization; left out, as AR is at its floor: translation, "
    assert f"{interval} ({some}math\\_reasoning, rag)." in caption("cpu-smollm2")
    both = "answers with the gold answer in qa and rag, correct results in math\\_reasoning"
    every = "mean over families: constraints met in mt\\_bench, corpus BLEU in translation, "
    assert f"{interval} ({every}ROUGE-L F in summarization, {both})." in caption("cpu-zoo")
    assert ".csv" not in caption("cpu-smollm2")


def test_a_caption_of_scores_that_are_all_at_the_floor_names_these_families_alone() -> None:
    (member,) = stored("cpu-smollm2")
    families = member.summary["family"].isin(["all", "translation", "rag"])
    members = [replace(member, summary=member.summary[families])]
    layout = PaperLayout(venue="icml", labels={"ar": "Base"})
    text = write_caption(members, layout, fill_grid(members, layout, ["quality"]))
    assert "(left out, as Base is at its floor: translation, rag)" in text


def test_a_caption_names_the_primary_comparison(synthetic_run: Write, tmp_path: Path) -> None:
    run = synthetic_run(quality=0)
    layout = PaperLayout(venue="icml", labels={"ptp": "PTP"})

    def caption(config: str) -> str:
        (run / "config.toml").write_text(f'model = "zoo"\n{config}', encoding="utf-8")
        members = load_members([str(run)], tmp_path)
        return write_caption(members, layout, fill_grid(members, layout, ["speedup"]))

    text = caption('primary = "ptp"\n')
    assert "Primary comparison: PTP; all others are exploratory." in text
    assert "t-interval over prompts of one session" in text
    assert "rimary" not in caption('primary = "none"\n')


@pytest.mark.slow
def test_a_paper_of_an_invalid_run_ends_with_exit_code_4(synthetic_run: Write) -> None:
    run = synthetic_run()
    assert bench("paper", run).code == 0
    lines = (run / "samples.jsonl").read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if json.loads(line)["decoder"] == "spec")
    broken = json.loads(lines[place])
    broken["steps"]["accepted"][-1] = broken["steps"]["drafted"][-1] + 1
    lines[place] = json.dumps(broken)
    (run / "samples.jsonl").write_text("\n".join(lines) + "\n")
    ended = bench("paper", run)
    assert (ended.code, "is INVALID" in ended.err) == (4, True)

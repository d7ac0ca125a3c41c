"""`bench report RUN RUN …`: one page and one Markdown file over several runs, nothing pooled."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from bench.errors import BenchError, Exit
from bench.extras.together.page import alike, matrices, print_joint, unlike, write_joint
from bench.extras.together.runs import NamedRun, load_members
from bench.report.write import write_report

ROOT = Path(__file__).parents[4]
NAMES = ("cpu-zoo", "cpu-zoo-t07", "cpu-zoo-ptp")
FIGURE = ("figures/speedup.png", "figures/speedup.pdf", "figures/speedup.svg")
Write = Callable[..., Path]


@cache
def stored(*names: str) -> list[NamedRun]:
    return load_members([str(ROOT / "results" / "reference" / name) for name in names], ROOT)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_every_speed_up_equals_the_summary_of_its_run() -> None:
    members = stored(*NAMES)
    table = matrices(members)["speedup"]
    assert table.headings == ("decoder", *NAMES)
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    for place, member in enumerate(members):
        rows = member.summary[member.summary["family"] == "all"].set_index("decoder")
        for decoder, row in rows.iterrows():
            name = f"{decoder} (lossy)" if row["guarantee"] == "none" else str(decoder)
            assert cells[name][place].startswith(f"{row['speedup']:.2f}x")
    assert cells["ptp@pqd"][:2] == ["-", "-"]


@pytest.mark.slow
def test_the_table_is_headed_tokens_per_step_for_every_decoder() -> None:
    table = matrices(stored(*NAMES))["tokens_per_step"]
    cells = {row[0].text: row[1].text for row in table.rows}
    assert re.fullmatch(r"\(13\.45\) \[[\d.]+, [\d.]+\]", cells["nar (lossy)"])
    assert table.title == "Tokens per step [95 %]"


def test_a_measure_that_no_run_has_gets_no_table(synthetic_run: Write) -> None:
    runs = [synthetic_run(name=name, quality=0) for name in ("a", "b")]
    assert "quality" not in matrices(load_members([*map(str, runs)], runs[0]))


def test_a_wrong_decoder_is_red_in_its_own_run_alone(synthetic_run: Write) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {"status": "complete", "verdict": "VALID", "differences": [left]}
    runs = [synthetic_run(name="bad", status=status), synthetic_run(name="good")]
    table = matrices(load_members([*map(str, runs)], runs[0]))["speedup"]
    (row,) = [row for row in table.rows if row[0].text == "spec"]
    assert [cell.bad for cell in row] == [False, True, False]
    assert row[1].text.endswith(" WRONG")


def test_each_setting_either_differs_between_the_runs_or_is_shared() -> None:
    members = stored(*NAMES)
    table = unlike(members)
    assert table is not None
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert rows["temperature"] == ["0.0", "0.7", "0.7"]
    assert rows["limit"] == ["24", "24", "48"]
    assert dict(alike(members))["threads"] == "2"
    assert not rows.keys() & dict(alike(members)).keys()
    assert unlike([members[0], members[0]]) is None


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_page_and_the_markdown_hold_tables_sections_and_links(
    synthetic_run: Write, tmp_path: Path
) -> None:
    runs = [synthetic_run(name="one", env={"comparability_key": "a"})]
    runs.append(synthetic_run(name="tw o", seed=1, env={"comparability_key": "b"}))
    write_report(runs[0])
    write_report(runs[1])
    members = load_members([*map(str, runs)], tmp_path)
    folder = tmp_path / "out" / "together"
    write_joint(members, folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    text = (folder / "report.md").read_text(encoding="utf-8")
    for link in ("../../one/report.html", "../../tw%20o/report.html"):
        assert f'href="{link}"' in page
        assert f"]({link})" in text
    assert (folder / "../../one/report.html").is_file()
    for words in (
        "different or unknown machines or setups",
        "neither pooled nor",
        "comparability key",
    ):
        assert words in page
        assert words in text
    assert re.findall(r'<details class="section" id="([\w-]+)" open', page) == [
        *("numbers", "figures", "differences", "run-1", "run-2")
    ]
    assert page.count('href="#run-') == 2
    assert page.count("<svg") == 1
    assert "A/A noise floor" in page
    assert str(tmp_path) not in page + text
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"@import|url\((?!#)|<script src|<link (?!rel=\"icon\")", own)


@pytest.mark.slow
@pytest.mark.usefixtures("saved")
def test_writing_again_gives_the_same_bytes_and_leaves_the_runs_alone(
    synthetic_run: Write, tmp_path: Path
) -> None:
    runs = [synthetic_run(name=name, seed=i) for i, name in enumerate(("one", "two"))]
    before = [contents(run) for run in runs]
    made = []
    for _ in range(2):
        write_joint(load_members([*map(str, runs)], tmp_path), tmp_path / "out")
        made.append(contents(tmp_path / "out"))
    assert made[0] == made[1]
    assert {"report.html", "report.md", "summary.csv", *FIGURE} <= made[0].keys()
    assert [contents(run) for run in runs] == before
    summary = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert list(summary["run"]) == ["one"] * 3 + ["two"] * 3
    assert "unnamed" not in " ".join(summary.columns).lower()


def test_a_joint_report_does_not_overwrite_the_folder_of_a_run(synthetic_run: Write) -> None:
    run = synthetic_run(name="one")
    members = load_members([str(run), str(synthetic_run(name="two"))], run)
    with pytest.raises(BenchError, match="a run's own folder: give another --folder") as refused:
        write_joint(members, run)
    assert refused.value.exit_code == Exit.USAGE


def test_a_table_of_many_runs_has_all_its_columns_on_a_narrow_terminal(
    synthetic_run: Write,
) -> None:
    names = [f"{letter * 24}" for letter in "abcd"]
    runs = [synthetic_run(name=name) for name in names]
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        print_joint(load_members([*map(str, runs)], runs[0]), console)
    assert set(names) <= set(capture.get().split())


def test_the_terminal_shows_speedups_differences_and_the_worst_verdict(
    synthetic_run: Write,
) -> None:
    runs = [synthetic_run(name="good")]
    runs.append(synthetic_run(name="cut", status={"status": "interrupted"}))
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        code = print_joint(load_members([*map(str, runs)], runs[0]), console)
    shown = capture.get()
    assert code == Exit.INVALID
    assert re.search(r"decoder\s+good\s+cut", shown)
    assert "verdict: VALID, INCOMPLETE" in shown
    assert "! cut is INCOMPLETE" in shown

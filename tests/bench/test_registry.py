"""Extras of other packages: a verb, a report section, a conclusion; broken ones are one line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command

from bench import registry
from bench.errors import UsageError
from bench.plan.checks import check_first
from bench.registry import extra, extras
from bench.report.sections import sections
from bench.report.write import print_findings, write_report
from bench.settings.config import load_config
from tests import command_line
from tests.command_line import Output, bench
from tests.conftest import open_tables

MODULE = """
import typer

from bench.report.tables.table import Table

app = typer.Typer()


@app.command(rich_help_panel="From elsewhere")
def greet() -> None:
    "Greet."
    typer.echo("hello")


@app.command()
def nothing() -> None:
    "Do nothing."


def section(findings):
    columns = {"decoder": str, "letters": lambda name: str(len(name))}
    return [Table.of("Names", "Letters of a name.", columns, findings.decoders)]


def last(run_dir):
    return [f"{run_dir.name} is over"]
"""
TRAINER = """
from dataclasses import dataclass
from pathlib import Path

import typer

from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.registry import register

app = typer.Typer()


@app.command()
def frequent(output: Path = Path("frequent.txt")) -> None:
    "Count the most frequent token of a text."
    output.write_text("5")


class Counted(Drafter):
    def propose(self, text, most):
        return (5,)[:most]


@register("frequent")
@dataclass(frozen=True, kw_only=True)
class Frequent(DraftAndVerify):
    "Propose the most frequent token. Lossless."

    def drafter(self, request):
        return Counted()
"""
SECTION = """
import pandas as pd
from matplotlib.figure import Figure as Drawing

from bench.report.sections import Figure, Section
from bench.report.tables.table import Table


def lengths(findings):
    rows = [(name, len(name)) for name in findings.decoders]
    return pd.DataFrame(rows, columns=["decoder", "letters"])


def tables(findings):
    columns = {"decoder": lambda row: row[1], "letters": lambda row: str(row[2])}
    return [Table.of("Names", "Letters.", columns, findings.once(lengths).itertuples()), None]


def draw(findings, summary):
    return Drawing(layout="constrained"), findings.once(lengths)


def caveats(findings):
    yield f"{len(findings.once(lengths))} names have letters."


FIGURE = Figure("letters", "Letters by name.", "there is no name", draw, rank=2)
NONE = Figure("nothing", "Nothing.", "nobody drew it", lambda findings, summary: None, rank=1)
LATE = Section("late", tables, 99, title="Names at last", is_printed=True)
SECTION = Section("early", tables, 0, figures=(FIGURE, NONE), data={"letters": lengths})
"""
POINTS = """[bench.verbs]
greet = elsewhere:app
[bench.sections]
names = elsewhere:section
[bench.conclusions]
elsewhere = elsewhere:last
"""


def install(folder: Path, points: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution ``elsewhere`` whose entry points are found."""
    info = folder / "elsewhere-1.dist-info"
    info.mkdir()
    (folder / "elsewhere.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "elsewhere", raising=False)
    monkeypatch.setattr(command_line, "_get_command", get_command)


def test_a_package_from_outside_adds_a_section_to_the_report(
    synthetic_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = synthetic_run({"spec": 2.0})
    install(tmp_path, POINTS, monkeypatch)
    write_report(run)
    for name in ("report.md", "report.html"):
        text = (run / name).read_text(encoding="utf-8")
        assert "Letters of a name." in text, name
    assert "| spec | 4 |" in (run / "report.md").read_text(encoding="utf-8")


def test_a_section_of_another_package_brings_its_place_figures_data_and_caveats(
    synthetic_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = synthetic_run({"spec": 2.0})
    points = "[bench.sections]\na = elsewhere:LATE\nz = elsewhere:SECTION\n"
    install(tmp_path, f"{points}[bench.caveats]\nz = elsewhere:caveats\n", monkeypatch)
    (tmp_path / "elsewhere.py").write_text(SECTION)
    findings = write_report(run)
    text = (run / "report.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0] == "## Names"
    assert headings[headings.index("## Validity") - 1] == "## Names at last"
    assert "- 2 names have letters." in text
    assert "Figures left out: nothing (nobody drew it); " in text
    assert "![Letters by name. n = " in text
    drawn = text.index("(figures/letters.png)")
    assert text.index("(figures/speedup.png)") < drawn < text.index("(figures/latency.png)")
    for name in ("tables/letters.csv", "figures/data/letters.csv"):
        assert (run / name).read_text() == "decoder,letters\nar,2\nspec,4\n"
    printed = io.StringIO()
    print_findings(findings, Console(file=printed, width=200))
    assert printed.getvalue().count("\nNames\n") == 1  # of LATE alone


def test_a_report_is_written_without_extras_and_names_a_broken_extra_once(
    synthetic_run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = synthetic_run({"spec": 2.0})
    install(tmp_path, "[bench.sections]\nlost = elsewhere:missing\n", monkeypatch)
    alone = [point for point in entry_points(group="bench.sections") if point.name == "lost"]
    ours = {"bench.sections": alone}
    monkeypatch.setattr("bench.registry.entry_points", lambda group: ours.get(group, ()))
    write_report(run)
    assert capsys.readouterr().err.count("the extra 'lost' of elsewhere cannot be imported") == 1
    text = (run / "report.md").read_text(encoding="utf-8")
    assert "| spec | same tokens | **1.63x" in text
    drawn = {file.name for file in (run / "figures").glob("*.svg")}
    assert drawn == {"speedup.svg"}


def test_a_source_tree_that_is_not_installed_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.registry.entry_points", lambda group: ())
    registry._report.cache_clear()
    assert sections() == sections() == []
    told = "bench: no installed package registers bench.sections: reports and help lack extras; "
    assert capsys.readouterr().err == f"{told}install this one again: pip install -e .\n"


def test_verbs_and_conclusions_are_found_by_their_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench("greet").code == 2
    install(tmp_path, POINTS, monkeypatch)
    assert bench("greet") == Output(0, "hello\n", "")
    assert extra("bench.conclusions", "elsewhere")(Path("r/1")) == ["1 is over"]


def test_a_package_registers_a_drafter_with_its_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[bench.trainers]\nfrequent = elsewhere:app\n"
    points += "[bench.decoders]\nfrequent = elsewhere:Frequent\n"
    install(tmp_path, points, monkeypatch)
    (tmp_path / "elsewhere.py").write_text(TRAINER)
    file = tmp_path / "frequent.txt"
    assert bench("train", "frequent", "--output", str(file)) == Output(0, "", "")
    assert file.read_text() == "5"
    shown = bench("train", "--help").out
    assert "Count the most frequent token" in shown
    assert "Train a PTP adapter" in shown
    ended = bench("run", "--decoders", "frequent", "--dry-run", "--progress", "none")
    assert ended.code == 0, ended.err
    assert "frequent: no options" in ended.out
    listed = {each["decoder"]: each for each in json.loads(bench("ls", "decoders", "--json").out)}
    assert listed["frequent"]["package"] == "elsewhere 1"
    assert listed["ar"]["package"] is None
    assert "elsewhere 1" in bench("ls", "decoders").out
    config = load_config(None, {"decoders": "frequent,lookup"})
    arms = open_tables(check_first(config, lambda note: None, brings_models=True)).arms
    assert {name: arm.cell.package for name, arm in arms.items()} == {
        "ar": None, "frequent": "elsewhere 1", "lookup": None
    }  # fmt: skip


@pytest.mark.parametrize("module", [MODULE, "raise SystemExit('no')"])
def test_a_broken_extra_is_reported_in_one_line_and_the_remaining_extras_stay_available(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: str,
) -> None:
    install(tmp_path, "[bench.verbs]\nlost = elsewhere:nowhere\n", monkeypatch)
    (tmp_path / "elsewhere.py").write_text(module)
    found = extras("bench.verbs")
    assert {"ab", "cost", "paper"} <= set(found)
    told = capsys.readouterr().err
    assert told.startswith("bench: the extra 'lost' of elsewhere cannot be imported (")
    assert told.count("\n") == 1
    with pytest.raises(UsageError, match="update or uninstall it"):
        extra("bench.verbs", "lost")


def test_a_job_that_no_package_registers_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"registers 'nothing' in bench\.jobs; install this one"):
        extra("bench.jobs", "nothing")


def test_every_entry_point_of_this_package_can_be_loaded() -> None:
    own = distribution("decoding-bench").entry_points
    points = [point for point in own if point.group.startswith("bench.")]
    assert {point.group for point in points} == {
        *("bench.verbs", "bench.jobs", "bench.sections", "bench.caveats", "bench.conclusions"),
        *("bench.networks", "bench.trainers"),
    }
    for point in points:
        assert point.load() is not None
        assert point in tuple(entry_points(group=point.group, name=point.name))


def test_a_run_imports_no_verb_of_an_extra() -> None:
    code = """if True:
        import sys
        from typer.main import get_command
        import cli

        group = get_command(cli.app)
        assert group.get_command(None, "run") is not None
        assert not any(name.startswith(("bench.extras", "training")) for name in sys.modules)
        assert group.get_command(None, "doctor").rich_help_panel == "Guard against regressions"
        assert "bench.extras.ab.cli" in sys.modules
        assert "training" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_extras_of_the_checkout_that_the_installed_package_lacks_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "_ROOT", tmp_path)
    for cached in (registry._declared, registry._report):
        cached.cache_clear()
    text = '[project.entry-points."bench.sections"]\nnewest = "a:b"\nengines = "c:d"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    for _ in range(2):
        assert "engines" in extras("bench.sections")
    line = "bench: the installed package lacks newest (bench.sections), which the checkout has; "
    assert capsys.readouterr().err.splitlines() == [
        f"{line}install this one again: pip install -e ."
    ]
    registry._declared.cache_clear()

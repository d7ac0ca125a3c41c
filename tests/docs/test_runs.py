"""Tables of stored runs in pages say what the runs' files say, and the README's figure shows it."""

import csv
import io
import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bench.plan.select import build_decoder
from bench.records.plan import Cell, guarantee_rank
from bench.report.tables.table import estimated
from bench.settings.config import as_text
from bench.text import percent
from decoders.core.types import Sampling
from docs.generate import machines, parts, runs
from docs.generate.places import readable, text_of

ROOT = Path(__file__).parents[2]
README = text_of("README.md")
STORED = text_of("results/reference/README.md")
MACHINES = machines.names(README)
RIVALS = ("cpu-smollm2-zen4", "cpu-smollm2-xeon", "h100-smollm2-adapters")
ZEN4, XEON, GPU = map(MACHINES.index, RIVALS)
WITH_TABLES = [path for path, text in readable().items() if runs.TABLE.search(text)]


@pytest.mark.parametrize("path", WITH_TABLES)
def test_tables_of_pages_are_those_of_the_stored_runs(path: str) -> None:
    text = text_of(path)
    assert runs.with_tables(text, path) == text, f"`{parts.RENEW}` writes the tables of {path}"


def test_pages_with_tables_are_found() -> None:
    assert {"README.md", "results/reference/README.md"} <= set(WITH_TABLES)


def test_a_table_is_written_below_its_comment_and_replaced_and_ends_at_an_empty_line() -> None:
    page = "above\n<!-- table: run cpu-zoo -->\n\nbelow\n"
    once = runs.with_tables(page, "docs/a.md")
    assert once == page.replace("-->\n", f"-->\n{runs.run('cpu-zoo')}\n")
    assert runs.with_tables(once.replace("| spec |", "| old |"), "docs/a.md") == once
    with pytest.raises(ValueError, match=r"a\.md asks for table .runs.; there is: run, b"):
        runs.with_tables("<!-- table: runs cpu-zoo -->", "docs/a.md")


def reference(name: str) -> list[dict[str, str]]:
    path = ROOT / "results" / "reference" / name / "summary.csv"
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def guaranteed(name: str) -> dict[str, str]:
    """What the decoders of a reference run guarantee, by their code and its temperature."""
    config = tomllib.loads((ROOT / "results" / "reference" / name / "config.toml").read_text())
    found = {}
    for cell, options in config["decoders"].items():
        decoder = build_decoder(cell, {key: as_text(value) for key, value in options.items()})
        comparable = decoder.comparable_to_ar(Sampling(temperature=config["temperature"]))
        found[cell] = Cell(
            cell=cell, lossless=decoder.lossless, comparable_to_ar=comparable
        ).guarantee
    return found


HEADINGS = (
    "| decoder | guarantee | speed-up [95 %] | tokens per call | tokens per step "
    "| calls per step | entropy | quality | identical to AR |"
)


def main_table(name: str) -> str:
    """The table of a reference run, from its summary alone. In brackets: emitted."""
    promises = guaranteed(name)
    rows = [row for row in reference(name) if row["family"] == "all"]
    rows.sort(key=lambda row: (row["decoder"] != "ar", guarantee_rank(promises[row["decoder"]])))
    lines = [HEADINGS, "| --- | --- |" + " ---: |" * 7]
    for row in rows:
        stated = row.get("guarantee") or str(promises[row["decoder"]])
        assert stated in (promises[row["decoder"]], "not verified")
        interval = ""
        if row["speedup_low"] and row["decoder"] != "ar":
            interval = " [{:.2f}, {:.2f}]".format(
                *map(float, (row["speedup_low"], row["speedup_high"]))
            )
        same = row["identical_to_ar"]
        length = f"{float(row['acceptance_length']):.2f}"
        verified = row["decoder"] == "ar" or row["acceptance_rate"]
        cells = [
            row["decoder"],
            stated,
            f"{float(row['speedup']):.2f}x{interval}",
            f"{float(row['tokens_per_call']):.2f}",
            length if verified else f"({length})",
            f"{float(row['acceptance_length']) / float(row['tpf']):.2f}",
            f"{float(row['base_entropy']):.2f}" if row["base_entropy"] else "-",
            percent(float(row["quality"])) if row["quality"] else "-",
            percent(float(same)) if same else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


LOSSLESS = {"ar", "idlm@isd", "spec", "ptp", "lookup", "lookahead"}
REAL = LOSSLESS | {"eagle", "hybrid"}
ZOO = {"ar", "nar", "idlm", "idlm@isd", "spec", "ptp", "lookup"}


@pytest.mark.parametrize(
    ("name", "decoders"),
    [
        ("cpu-smollm2", REAL | {"nar", "idlm"}),
        ("cpu-smollm2-invariant", LOSSLESS | {"ar@fast"}),
        ("cpu-smollm2-t07", REAL | {"eagle@tree"}),
        ("cpu-zoo", ZOO),
        ("cpu-zoo-t07", ZOO),
    ],
)
def test_the_tables_agree_with_the_reference_runs(name: str, decoders: set[str]) -> None:
    assert {row["decoder"] for row in reference(name)} == decoders
    table = main_table(name)
    assert f"<!-- table: run {name} -->\n{table}" in STORED, f"the page should hold:\n{table}"


def _score(quality: str) -> str:
    return percent(float(quality), "") if quality else "-"  # a family without gold answers


def family_table(families: list[str], *names: str) -> str:
    """Quality by family of one reference run, or of two: greedy / sampled."""
    runs = [
        {(row["decoder"], row["family"]): row["quality"] for row in reference(name)}
        for name in names
    ]
    promises = guaranteed(names[0])
    decoders = dict.fromkeys(decoder for decoder, _ in runs[0])
    lines = []
    for decoder in sorted(decoders, key=lambda d: (d != "ar", guarantee_rank(promises[d]))):
        places = [(decoder, family) for family in families]
        cells = [" / ".join(_score(run[place]) for run in runs) for place in places]
        lines.append(f"| {decoder} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_quality_of_families_is_that_of_the_reference_runs() -> None:
    real, zoo = re.findall(
        r"^\| decoder \| ((?!guarantee)[a-z_]+ \| .*) \|$", STORED, flags=re.MULTILINE
    )
    for heading, names in ((zoo, ("cpu-zoo", "cpu-zoo-t07")), (real, ("cpu-smollm2",))):
        table = family_table(heading.split(" | "), *names)
        assert table in STORED, f"results/reference/README.md should hold:\n{table}"


def overall(name: str) -> dict[str, dict[str, str]]:
    return {row["decoder"]: row for row in reference(name) if row["family"] == "all"}


def shown(row: dict[str, str], names: tuple[str, str, str]) -> str:
    value, low, high = (float(row[name]) for name in names)
    return f"{value:.2f}x [{low:.2f}, {high:.2f}]"


def table_of_machines() -> tuple[list[str], dict[str, list[str]]]:
    """The headings of the README's table, and the cells of each decoder."""
    (table,) = runs.TABLE.finditer(README)
    lines = [line.strip("| ").split(" | ") for line in table[0].replace("\xa0", " ").splitlines()]
    return lines[1], {line[0]: line[1:] for line in lines[3:]}


def test_the_table_of_machines_agrees_with_each_run() -> None:
    _, rows = table_of_machines()
    ours, second = ("speedup", "speedup_low", "speedup_high"), ("aa_speedup", "aa_low", "aa_high")
    for place, name in enumerate(MACHINES):
        for decoder, cells in rows.items():
            row = overall(name).get(decoder)
            if row is None:
                assert cells[place] == "-"
                continue
            expected = shown(row, second if decoder == "ar" else ours)
            assert cells[place].strip("*").rstrip(runs.OTHER) == expected
            same = cells[-1].split(", ")[place]
            assert same == percent(float(row["identical_to_ar"]), "", 0)
    first = overall(MACHINES[0])
    for decoder, cells in rows.items():
        assert cells[-2] == f"{float(first[decoder]['acceptance_length']):.2f}"


def test_the_table_of_machines_lists_decoders_with_a_guarantee_the_fastest_first() -> None:
    _, rows = table_of_machines()
    first = overall(MACHINES[0])
    kept = [name for name, row in first.items() if row["guarantee"] != "none" and name != "ar"]
    assert list(rows) == ["ar", *sorted(kept, key=lambda name: -float(first[name]["speedup"]))]


def test_cells_that_cannot_be_compared_across_machines_are_marked() -> None:
    headings, rows = table_of_machines()
    for heading, name in zip(headings[1:], MACHINES, strict=False):
        ar = overall(name)["ar"]
        steady = float(ar["aa_low"]) <= 1 <= float(ar["aa_high"])
        machine, _, size = heading.rpartition(", ")
        assert machine.endswith(runs.UNSTEADY) != steady
        assert (
            size
            == f"{ar['prompts']}\N{MULTIPLICATION SIGN}{runs.stored(name).config['max_new_tokens']}"
        )
    marked = {
        name: [cell.strip("*")[-1] == runs.OTHER for cell in row] for name, row in rows.items()
    }
    assert not any(cells[0] for cells in marked.values())
    assert not any(marked["lookup"][: len(MACHINES)])  # neither weights nor options
    assert not any(cells[ZEN4] for cells in marked.values())
    assert marked["spec"][XEON]  # its draft model was trained further since
    assert marked["eagle"][GPU]  # the same layer, another tree
    epyc, gpu = runs.stored(MACHINES[0]), runs.stored(MACHINES[GPU])
    assert epyc.weights("eagle") == gpu.weights("eagle") == epyc.weights("hybrid")
    assert epyc.weights("lookup") == []


def test_a_cell_is_bold_if_it_is_faster_beyond_noise() -> None:
    _, rows = table_of_machines()
    places = range(len(MACHINES))
    bold = {(name, place) for name, row in rows.items() for place in places if "**" in row[place]}
    assert {("hybrid", 0), ("hybrid", ZEN4), ("lookup", GPU)} <= bold
    others = {("ptp", XEON), ("hybrid", GPU), ("lookahead", XEON), ("lookahead", ZEN4), ("ar", GPU)}
    assert not others & bold


def test_the_figure_in_the_readme_is_current() -> None:
    new, old = (
        np.asarray(Image.open(io.BytesIO(png)).convert("L"), int)
        for png in (machines.picture(README), machines.FIGURE.read_bytes())
    )
    assert new.shape == old.shape
    assert (abs(new - old) > 100).sum() < 20, f"`{parts.RENEW}` draws {machines.FIGURE.name}"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A folder of three stored runs, and what adds a copy of one with another environment."""
    source = ROOT / "results" / "reference"

    def add(name: str, of: str, edit: Callable[[Any], object] = bool, **config: str) -> None:
        folder = shutil.copytree(source / of, tmp_path / name)
        env = json.loads((folder / "env.json").read_text())
        edit(env)
        (folder / "env.json").write_text(json.dumps(env))
        text = (folder / "config.toml").read_text()
        for key, value in config.items():
            text = re.sub(rf"^{key} = .*\n", "", text, flags=re.MULTILINE)
            text = f"{key} = {value}\n{text}"
        (folder / "config.toml").write_text(text)
        runs.stored.cache_clear()

    monkeypatch.setattr(runs, "STORED", tmp_path)
    for name in ("cpu-smollm2", "cpu-smollm2-xeon", "h100-smollm2-drafters"):
        add(name, name)
    yield add
    runs.stored.cache_clear()


def on(cpu: str) -> Callable[[Any], object]:
    return lambda env: env["machine"].update(cpu=cpu)


def columns(*names: str) -> list[str]:
    line = runs.machines(*names).splitlines()[0]
    return [each.rpartition(", ")[0] for each in line.strip("| ").split(" | ")[1:-2]]


def test_a_run_of_a_new_machine_adds_a_column_to_the_table_of_machines(registry: Any) -> None:
    epyc, xeon, h100 = "AMD EPYC", "Intel Xeon", "NVIDIA H100"
    assert columns("cpu-smollm2") == [epyc, xeon, h100]
    assert columns("h100-smollm2-drafters", "cpu-smollm2") == [h100, epyc, xeon]
    registry("new", "cpu-smollm2-xeon", on("Ampere Altra (family 8)"))
    assert columns("cpu-smollm2") == [epyc, "Ampere Altra", xeon, h100]
    registry("newer", "cpu-smollm2-xeon", on("AMD EPYC (family 25, model 1)"))
    full = ["AMD EPYC (family 26, model 2)", "AMD EPYC (family 25, model 1)"]
    assert columns("cpu-smollm2") == [full[0], full[1], "Ampere Altra", xeon, h100]
    texts = [text.get_text() for text in machines.draw(["cpu-smollm2"]).legends[0].get_texts()]
    assert texts == columns("cpu-smollm2")


def test_runs_with_other_settings_are_not_in_the_table_of_machines(registry: Any) -> None:
    before = columns("cpu-smollm2")
    for number, config in enumerate(
        (
            {"temperature": "0.7"},
            {"model": '"smollm2-360m"'},
            {"tasks": '"zoo"'},
            {"split": '"tune"'},
            {"batch_size": "4"},
            {"numerics": '"invariant"'},
        )
    ):
        registry(f"other-{number}", "cpu-smollm2-xeon", on(f"Arm {number}"), **config)

    def eager(env: Any) -> None:
        env["machine"]["cpu"], env["models"]["target"]["compiled"] = "Arm", False

    registry("eager", "cpu-smollm2-xeon", eager)
    assert columns("cpu-smollm2") == before
    registry("same", "cpu-smollm2-xeon", on("Arm Neoverse"), tasks='"specbench"')
    assert columns("cpu-smollm2") != before


def test_the_run_of_a_machine_is_the_one_with_the_most_decoders(registry: Any) -> None:
    def h100() -> str:
        return next(r.name for r in runs.by_machine(["cpu-smollm2"]) if "H100" in r.machine)

    assert h100() == "h100-smollm2-drafters"
    registry("h100-smollm2-adapters", "h100-smollm2-adapters")
    assert h100() == "h100-smollm2-adapters"
    assert runs.by_machine(["h100-smollm2-drafters"])[0].name == "h100-smollm2-drafters"
    status = ROOT / "results/reference/h100-smollm2-adapters/run.json"
    registry("newer", "h100-smollm2-adapters")
    later = json.loads(status.read_text()) | {"started_utc": "2027-01-01T00:00:00+00:00"}
    (runs.STORED / "newer" / "run.json").write_text(json.dumps(later))
    runs.stored.cache_clear()
    assert h100() == "newer"


def test_the_page_of_results_lists_every_stored_run(registry: Any) -> None:
    registry("mine", "cpu-zoo", on("Ampere Altra (family 8)"))
    (runs.STORED / "mine" / "report.md").unlink()
    head, _, *rows = runs.stored_runs().splitlines()
    assert head.startswith("| run | model | machine | T | prompts | A/A | fastest with a guarantee")
    assert [row.split("](")[0] for row in rows] == [
        "| [mine",
        "| [cpu-smollm2",
        "| [cpu-smollm2-xeon",
        "| [h100-smollm2-drafters",
    ]
    floor = estimated(runs.stored("mine").floor)
    assert (
        f"(mine/summary.csv) | zoo | Ampere Altra (family 8) | 0 | 28 | {floor} | `ptp`" in rows[0]
    )
    assert "(cpu-smollm2/report.md)" in rows[1]
    page = re.search(r"<!-- table: stored -->\n((\|.*\n)+)", STORED)
    assert page is not None
    names = [row.split("](")[0].removeprefix("| [") for row in page[1].splitlines()[2:]]
    assert set(names) == {f.parent.name for f in (ROOT / "results/reference").glob("*/run.json")}


def test_the_fastest_decoder_listed_for_a_run_has_a_guarantee() -> None:
    """`nar` and `ar@fast` are faster in these runs, and guarantee nothing or are not verified."""
    rows = dict(line.split("](") for line in runs.stored_runs().splitlines()[2:])
    assert "`ptp` 1.22x" in rows["| [cpu-zoo"]
    assert "`ar@fast`" not in rows["| [cpu-smollm2-invariant"]
    assert " | - | " in rows["| [cpu-zoo-passes"]


def test_pools_are_listed_by_machine(registry: Any) -> None:
    assert runs.pools().count("\n") == 1
    folder = runs.STORED / "pool"
    folder.mkdir()
    shutil.copy(ROOT / "results/reference/cpu-zoo-pool/pool.csv", folder)
    text = (folder / "pool.csv").read_text()
    lone = "ptp,all,same tokens,3,1,1,2,28,24,1.5,1.4,1.6,,,0.1,0,0\n"
    (folder / "pool.csv").write_text(text + lone)
    rows = runs.pools().splitlines()[2:]
    assert len(rows) == text.count("\n")
    machine = "AMD EPYC, 2 cores, 2 threads, family not recorded"
    shown = f"| [pool](pool/pool.md) | {machine} | 16 | ptp | 1.14x [0.98, 1.34] | [0.92, 1.42] |"
    assert shown in rows
    assert rows[-1] == "| [pool](pool/pool.md) | all | 3 | ptp | 1.50x [1.40, 1.60] | - |"

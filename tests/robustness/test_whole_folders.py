"""Whole run folders with any values anywhere: every verb reads them, or says one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.errors import Exit
from bench.extras.external.table import ExternalAnswer, append_external
from bench.records.samples import PHASES, PhasedAnswer, write_phases
from bench.report.figures.gallery import Gallery
from tests.bench.conftest import write_run
from tests.command_line import bench

LINES = ("samples.jsonl", "external.jsonl")
FILES = ("manifest.json", "run.json", "env.json", "phases.json", "vocab.json", *LINES)
EXTREMES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30, -(10**30)),
    *(0.5, -0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf")),
    *("", "x", "=1+1", "../..", "a\nb", "\u202e", "9" * 400, "2026-01-01T00:00:00", "1e999"),
    *([], {}, [[]], [None], [1e308] * 3, [-1], {"a": {}}, {"": float("nan")}),
)
VERBS: Sequence[tuple[str, ...]] = (
    *(("show", "RUN"), ("explain", "RUN"), ("report", "RUN"), ("resume", "RUN")),
    *(("compare", "RUN", "OTHER"), ("compare", "OTHER", "RUN"), ("pool", "RUN", "OTHER")),
    *(("ls", "runs", "--json"), ("ls", "runs"), ("index", "OUT")),
    *(("export", "RUN", "--to", to) for to in ("csv", "acceptance")),
    *(("export", "RUN", "--to", to) for to in ("reference", "github-action-benchmark")),
    *(("paper", "RUN"), ("report", "RUN", "OTHER"), ("merge", "RUN", "OTHER")),
)
Change = tuple[str, int, int, int]
"""A file, and numbers that choose its line, a place in it, and what is done there."""
CHANGES = st.tuples(st.sampled_from(FILES), *(st.integers(0, 10**6),) * 3)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every file that others than its verdict's are read from, and another run."""
    parent = tmp_path_factory.mktemp("sound")
    for number, name in enumerate(("run", "other")):
        moment = f"2026-01-0{number + 1}T00:00:00+00:00"
        status: dict[str, Any] = {"status": "complete", "verdict": "VALID", "started_utc": moment}
        status |= {"attempts": 1, "num_errors": 0, "drift": 0.01}
        status["differences"] = [{"cell": "spec", "num_answers": 1, "num_compared": 2,
                                  "num_wrong": 0, "gaps": [0.01], "places": [3]}]  # fmt: skip
        target = {"parameters": 5_000_000, "compiled": True, "notes": ["note"], "layers": 2}
        env: dict[str, Any] = {"device": "cpu", "packages": {"torch": "2.11"}, "dtype": "float32"}
        env |= {"models": {"target": target}, "comparability_key": "k", "gpu": {"name": "G"}}
        env |= {"torch": {"threads": 2}, "machine": {"cpu": "C", "memory_bytes": 10}}
        run = write_run(parent / name, {"spec": 3.0}, conversations=2, repeats=1, quality=1,
                        env=env, status=status, seed=number)  # fmt: skip
        loads = [{"event": "load", "block": 0, "attempt": 0, "other_cores": 0.2}]
        loads += [{"event": "compiled", "cell": "spec", "graphs": 2, "seconds": 1.5}]
        status["num_records"] = len((run / "samples.jsonl").read_text().splitlines())
        (run / "run.json").write_text(json.dumps(status))
        with (run / "samples.jsonl").open("a") as file:
            file.writelines(json.dumps(load) + "\n" for load in loads)
        phased = PhasedAnswer(
            decoder="spec", prompts=("mt_bench-0#1",), seconds=dict.fromkeys(PHASES, 0.1),
            emitted=9, later_emitted=8, later_steps=4, repeat=0, rows=40, padded_rows=2,
        )  # fmt: skip
        write_phases(run, [phased])
        append_external(run, ExternalAnswer(
            session=0, engine="llamacpp", version="1", mode="ar", options={"k": 3}, model="m",
            prompt="mt_bench-0#1", prompt_hash="hmt_bench-0#1", tokens=(1, 2), total_s=0.1, calls=2,
        ))  # fmt: skip
    return parent


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys; of long lists the ends."""
    keys = list(tree) if isinstance(tree, dict) else []
    if isinstance(tree, list):
        keys = list(range(len(tree))) if len(tree) < 6 else [0, 1, len(tree) - 1]
    for key in keys:
        yield tree, key
        yield from places(tree[key])


def changed(data: bytes, is_lines: bool, change: Change) -> bytes:
    """One value of a file replaced by an extreme one, left out, renamed or repeated."""
    _, line, place, what = change
    texts = data.splitlines() if is_lines else [data]
    number = line % len(texts)
    tree = json.loads(texts[number])
    found = list(places(tree))
    if not found:
        return data
    holder, key = found[place % len(found)]
    if what % (len(EXTREMES) + 3) < len(EXTREMES):
        holder[key] = EXTREMES[what % (len(EXTREMES) + 3)]
    elif what % 3 == 0 or isinstance(holder, list):
        del holder[key]
    elif what % 3 == 1:
        holder[f"{key}x"] = holder.pop(key)
    else:
        holder[key] = [holder[key], holder[key]]
    texts[number] = json.dumps(tree).encode()
    return b"\n".join(texts) + b"\n"


def damage(sound: Path, folder: Path, changes: Sequence[Change]) -> Path:
    """A copy of both runs, the first with the changes; returns their parent."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    for change in changes:
        file = folder / "run" / change[0]
        file.write_bytes(changed(file.read_bytes(), change[0] in LINES, change))
    return folder


def read_with(verb: Sequence[str], parent: Path) -> int:
    """The exit code of a verb on the damaged run; anything but one line of ours is a failure."""
    named = {"RUN": parent / "run", "OTHER": parent / "other", "OUT": parent}
    ended = bench(*(named.get(word, word) for word in verb), *(
        () if verb[0] == "index" else ("--output", parent)
    ))  # fmt: skip
    assert ended.code in {*Exit}, verb
    assert "Traceback" not in ended.err
    if ended.code == Exit.USAGE or (ended.code and not ended.out):
        assert ended.err.splitlines()[-1].startswith("bench: ") or verb[0] == "resume", ended.err
    return ended.code


@pytest.fixture
def undrawn() -> Iterator[None]:
    """No figures: they take most of a report's time."""
    nothing = Gallery(plots={}, captions={}, left_out=())
    with mock.patch("bench.report.figures.gallery.draw_all", return_value=nothing):
        yield


SLOW_MACHINE = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=SLOW_MACHINE)
@given(changes=st.lists(CHANGES, min_size=1, max_size=2), verb=st.sampled_from(VERBS[:9]))
def test_a_folder_with_any_values_is_read_or_refused_in_one_line(
    sound: Path, tmp_path: Path, undrawn: None, changes: list[Change], verb: tuple[str, ...]
) -> None:
    read_with(verb, damage(sound, tmp_path / "copy", changes))


ISSUE: dict[str, tuple[str, dict[str, Any]]] = {
    "a huge batch": ("samples.jsonl", {"batch_size": 10**30}),
    "a negative step": ("samples.jsonl", {"steps.emitted.0": -(10**18)}),
    "a first token after the last": ("samples.jsonl", {"ttft_s": 9.0}),
    "an infinite time": ("samples.jsonl", {"total_s": float("inf")}),
    "no second": ("samples.jsonl", {"total_s": 0.0, "ttft_s": 0.0}),
    "no time at all": ("samples.jsonl", {"total_s": float("nan")}),
    "a drafter without a name": ("samples.jsonl", {"steps.source": "first"}),
    "an integer of 64 bits": ("samples.jsonl", {"num_prompt_tokens": 2**63}),
    "a huge number of the plan": ("manifest.json", {"blocks.0.block": 1e308}),
    "a huge option": ("manifest.json", {"cells.0.options": {"k": 1e308}}),
    "a huge load": ("run.json", {"drift": 1e308}),
}
"""Values that gave tracebacks, or were accepted."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ISSUE)
def test_no_extreme_value_gives_a_traceback_or_a_valid_run(
    name: str, sound: Path, tmp_path: Path, undrawn: None
) -> None:
    file, values = ISSUE[name]
    parent = damage(sound, tmp_path / "copy", [])
    path = parent / "run" / file
    first, *rest = path.read_bytes().splitlines() if file in LINES else [path.read_bytes()]
    tree = json.loads(first)
    for place, value in values.items():
        *way, last = (int(word) if word.isdecimal() else word for word in place.split("."))
        holder = tree
        for word in way:
            holder = holder[word]
        emitted = tree.get("steps", {}).get("emitted", ())
        holder[last] = [[0]] * len(emitted) if value == "first" else value
    path.write_bytes(b"\n".join([json.dumps(tree).encode(), *rest]) + b"\n")
    read_with(("explain", "RUN"), parent)
    code = read_with(("report", "RUN"), parent)
    assert code in (Exit.INVALID, Exit.UNAVAILABLE) or name in ("a huge option", "no second")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(changes=st.lists(CHANGES, min_size=1, max_size=3), verb=st.sampled_from(VERBS))
def test_every_verb_reads_a_damaged_folder_or_ends_with_one_line(
    sound: Path, tmp_path: Path, undrawn: None, changes: list[Change], verb: tuple[str, ...]
) -> None:
    read_with(verb, damage(sound, tmp_path / "copy", changes))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=15, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(changes=st.lists(CHANGES, min_size=1, max_size=2))
def test_figures_of_any_folder_are_drawn_or_refused(
    sound: Path, tmp_path: Path, changes: list[Change]
) -> None:
    read_with(("report", "RUN"), damage(sound, tmp_path / "copy", changes))

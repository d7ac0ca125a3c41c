"""Several runs side by side: who may stand together, what they are called, what they differ in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.extras.together.runs import (
    differences,
    disambiguate_names,
    identity,
    load_members,
    same_machine,
)
from bench.report.findings import ordered_decoders
from bench.report.tables.setting import describe_model
from bench.stats.metrics import summary_rows
from bench.stats.side import load_side
from bench.stats.summary import ALL
from tests.bench.conftest import over_spec

ROOT = Path(__file__).parents[4]
REFERENCES = ROOT / "results" / "reference"
Write = Callable[..., Path]


def configured(run: Path, **settings: object) -> Path:
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    (run / "config.toml").write_text("".join(lines), encoding="utf-8")
    return run


def with_options(run: Path, cell: str, **options: object) -> Path:
    plan = json.loads((run / "manifest.json").read_text())
    for each in plan["cells"]:
        if each["cell"] == cell:
            each["options"] = options
    (run / "manifest.json").write_text(json.dumps(plan))
    return run


def refused(*runs: Path) -> BenchError:
    with pytest.raises(BenchError) as told:
        load_members([str(run) for run in runs], Path("nowhere"))
    assert "\n" not in told.value.message
    return told.value


@pytest.mark.slow
def test_runs_are_labelled_by_model_or_by_name_if_they_share_a_model(
    synthetic_run: Write,
) -> None:
    one = configured(synthetic_run(name="one"), model="org/small")
    two = configured(synthetic_run(name="two"), model="org/large")
    assert [m.label for m in load_members([str(one), str(two)], one)] == ["org/small", "org/large"]
    configured(two, model="org/small")
    assert [m.label for m in load_members([str(one), str(two)], one)] == ["one", "two"]


def test_a_model_with_packed_weights_has_another_label_than_the_unpacked_model(
    synthetic_run: Write,
) -> None:
    facts = {"parameters": 2_200_000}
    env = [{"models": {"target": facts | more}} for more in ({}, {"quantized": "int4"})]
    runs = [
        configured(synthetic_run(name=name, env=each), model="zoo")
        for name, each in zip(("plain", "packed"), env, strict=True)
    ]
    labels = [member.label for member in load_members([*map(str, runs)], runs[0])]
    assert labels == ["zoo (2.2M parameters)", "zoo (2.2M parameters, int4 weights)"]


@pytest.mark.parametrize(
    ("size", "said"),
    [(1_000_000_000, "1.0B"), (999_400_000, "999.4M"), (7_240_000_000, "7.2B"), (260_000, "0.3M")],
)
def test_model_sizes_are_in_billions_or_below_one_billion_in_millions(
    size: int, said: str, synthetic_run: Write
) -> None:
    run = configured(synthetic_run(env={"models": {"target": {"parameters": size}}}), model="zoo")
    assert describe_model(load_side(str(run), run)) == f"zoo ({said} parameters)"


def test_runs_of_one_name_are_numbered(synthetic_run: Write, tmp_path: Path) -> None:
    one = synthetic_run(name="a/run")
    two = synthetic_run(name="b/run", seed=1)
    assert [m.name for m in load_members([str(one), str(two)], tmp_path)] == ["run", "run (2)"]


@pytest.mark.slow
def test_naming_the_same_run_twice_is_refused(synthetic_run: Write, tmp_path: Path) -> None:
    run = synthetic_run()
    (tmp_path / "link").symlink_to(run)
    assert refused(run, tmp_path / "link").exit_code == Exit.USAGE
    # nor is what was stored of it
    copy = tmp_path / "copy"
    shutil.copytree(REFERENCES / "cpu-zoo", copy)
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace('model = "zoo"', 'model = "/home/me/zoo"'))
    told = refused(REFERENCES / "cpu-zoo", copy)
    assert told.message.endswith("are one run: name it once")


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (
            {"tasks": "zoo"},
            {"tasks": "specbench"},
            "tasks is zoo in one and specbench in the other",
        ),
        ({}, {"protocol": "specbench"}, "protocol is None in one"),
        ({}, {"split": "test"}, "split is None in one and test in the other: their prompts differ"),
        ({"fixed_length": False}, {"fixed_length": True}, "their answers end by different rules"),
        ({"reuse_prefix": False}, {"reuse_prefix": True}, "turns start with different caches"),
        ({"batch_size": 1}, {"batch_size": 8}, "and per group above it"),
    ],
)
def test_runs_with_incompatible_settings_are_refused_in_one_line(
    one: dict[str, Any], other: dict[str, Any], said: str, synthetic_run: Write
) -> None:
    runs = [
        configured(synthetic_run(name=name), model="m", **settings)
        for name, settings in (("one", one), ("other", other))
    ]
    told = refused(*runs)
    assert told.exit_code == Exit.UNAVAILABLE
    assert "one and other cannot be in one table" in told.message
    assert said in told.message


def test_runs_of_different_batch_sizes_above_one_may_share_a_table(synthetic_run: Write) -> None:
    runs = [
        configured(synthetic_run(name=f"b{size}", batch_size=size), batch_size=size)
        for size in (2, 4)
    ]
    assert ("batch size", ["2", "4"]) in differences(load_members([*map(str, runs)], runs[0]))


def test_a_damaged_run_and_a_run_without_speedups_are_refused(synthetic_run: Write) -> None:
    good, alone = synthetic_run(name="good"), synthetic_run({}, name="alone")
    assert "alone measured no speed-up over ar" in refused(good, alone).message
    damaged = synthetic_run(name="damaged")
    status = json.loads((damaged / "run.json").read_text())
    (damaged / "run.json").write_text(json.dumps(status | {"num_records": 10_000}))
    told = refused(good, damaged)
    assert told.exit_code == Exit.INVALID
    assert "damaged is DAMAGED and cannot be combined with other runs" in told.message


def test_decoders_of_one_name_with_different_options_are_separate_rows(
    synthetic_run: Write,
) -> None:
    one = with_options(synthetic_run(name="one"), "spec", k=4, verify="rejection")
    two = with_options(synthetic_run(name="two"), "spec", k=8, verify="rejection")
    members = load_members([str(one), str(two)], one)
    assert set(ordered_decoders(members)) == {"ar", "spec (k 4)", "spec (k 8)", "ptp"}
    assert "spec (k 8)" in set(members[1].summary["decoder"])
    assert "spec" not in set(members[1].summary["decoder"])


@pytest.mark.slow
def test_decoders_are_ordered_by_their_weakest_guarantee(synthetic_run: Write) -> None:
    cells = {"ptp": 4.0, "spec": 3.0}
    sure = synthetic_run(cells, name="sure")
    lossy = synthetic_run(cells, name="lossy", lossy=["ptp"])
    for runs in ([sure, lossy], [lossy, sure]):
        members = load_members([*map(str, runs)], sure)
        assert ordered_decoders(members) == ["ar", "spec", "ptp"]
    assert ordered_decoders(load_members([str(sure)], sure)) == ["ar", "ptp", "spec"]


def test_the_floor_beside_a_row_is_that_of_the_run(synthetic_run: Write) -> None:
    run = synthetic_run(name="run")
    ((member,)) = load_members([str(run)], run)
    floor = summary_rows(member.summary, ALL)[0].floor
    assert floor.value == pytest.approx(member.floor.value)
    assert (floor.low, floor.high) == pytest.approx((member.floor.low, member.floor.high))
    assert floor.low is not None
    assert floor.low < (floor.value or 0) < (floor.high or 0)


def test_unstated_options_do_not_distinguish_decoders(synthetic_run: Write) -> None:
    one = with_options(synthetic_run(name="one"), "spec", k=4)
    two = with_options(synthetic_run(name="two"), "spec", k=4, verify="rejection")
    sides = [load_side(str(run), one) for run in (one, two)]
    assert disambiguate_names(sides) == [{}, {}]


@pytest.mark.slow
def test_only_settings_that_differ_between_runs_are_listed_as_differences(tmp_path: Path) -> None:
    names = [str(REFERENCES / name) for name in ("cpu-zoo", "cpu-zoo-t07", "cpu-zoo-ptp")]
    members = load_members(names, tmp_path)
    told = dict(differences(members))
    assert told["temperature"] == ["0.0", "0.7", "0.7"]
    assert told["limit"] == ["24", "24", "48"]
    assert not {"target weights", "torch", "compile"} & set(told)
    assert same_machine(members)


def test_machines_of_unknown_kind_are_not_taken_for_the_same(synthetic_run: Write) -> None:
    keys: list[dict[str, Any]] = [{}, {}, {"comparability_key": "a"}, {"comparability_key": "b"}]
    runs = [synthetic_run(name=f"r{i}", env=env) for i, env in enumerate(keys)]
    members = load_members([*map(str, runs)], runs[0])
    assert not same_machine(members[:2])
    assert not same_machine(members[2:])
    assert same_machine([members[2], members[2]])


def test_an_identity_holds_no_absolute_path(synthetic_run: Write) -> None:
    run = configured(
        synthetic_run(), model="/home/somebody/models/tiny", tasks="jsonl=/srv/x.jsonl"
    )
    facts = identity(load_side(str(run), run))
    assert describe_model(load_side(str(run), run)) == "tiny"
    assert "/home" not in str(facts)
    assert facts["tasks"] == "jsonl=x.jsonl"


def test_runs_with_different_baselines_or_baseline_options_cannot_share_a_table(
    synthetic_run: Write,
) -> None:
    plain = configured(synthetic_run(name="plain"), model="org/a")
    four, six, twin = (
        with_options(over_spec(synthetic_run(name=name)), "spec", k=k)
        for name, k in (("four", 4), ("six", 6), ("twin", 4))
    )
    line = "baseline is spec (k 4) in one and spec (k 6) in the other: their speed-ups refer to"
    assert line in refused(four, six).message
    assert "baseline is ar in one and spec in the other" in refused(plain, twin).message
    assert len(load_members([str(four), str(twin)], four)) == 2

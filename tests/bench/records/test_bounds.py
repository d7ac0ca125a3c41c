"""Every number that is stored has bounds, at its declaration; what lies outside is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import TypeAdapter

from bench.errors import BenchError, InvalidRunError
from bench.extras.cost.records import CostFacts
from bench.extras.external.table import ExternalAnswer
from bench.records import run_folder
from bench.records.environment import Environment
from bench.records.files import parse
from bench.records.invariants import broken_invariants
from bench.records.plan import Plan, RunStatus
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.records.run_folder import load_run, read_config
from bench.records.samples import PhasedAnswer
from bench.settings.config import RunConfig, load_config
from tests.bench.conftest import make_record, write_run

STORED = (
    *(SampleRecord, Plan, RunStatus, Environment, PhasedAnswer, ExternalAnswer, Prompt),
    *(CostFacts, *run_folder._EVENTS.values()),
)


def numbers(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every number of a validator's schema, with the way to it."""
    if isinstance(schema, dict):
        if schema.get("type") in ("int", "float"):
            yield path, schema
        for key, value in schema.items():
            if key not in ("metadata", "serialization"):
                yield from numbers(value, f"{path}.{schema.get('name', key)}")
    elif isinstance(schema, list | tuple):
        for each in schema:
            yield from numbers(each, path)


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_every_stored_number_has_bounds(kind: type) -> None:
    found = list(numbers(TypeAdapter(kind).core_schema))
    assert found
    for path, schema in found:
        if ".reference." in path:  # gold answers are of the tasks, which count with any number
            continue
        assert {"ge", "le"} <= schema.keys(), path
        is_gap = ".gaps." in path or "places_off" in path or "moved" in path  # of a barred token
        assert is_gap or schema["type"] == "int" or schema.get("allow_inf_nan") is False, path


LINE = json.loads(make_record("spec", (1, 3), drafted=(0, 3), accepted=(0, 2)).to_json())
TIMES = ("ttft_s", "total_s", "group_s", "energy_j", "nll", "agreement", "entropy")


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e308, -1e308])
def test_a_measurement_that_is_nan_infinite_or_huge_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"a record's {name} cannot be"):
        SampleRecord.from_dict({**LINE, name: value})


@pytest.mark.parametrize("name", ["batch_size", "seed", "turn", "num_prompt_tokens", "attempt"])
@pytest.mark.parametrize("value", [10**30, 2**63, -(2**63), -2])
def test_a_huge_or_negative_number_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"a record's {name} cannot be"):
        SampleRecord.from_dict({**LINE, name: value})


def test_every_repeat_of_the_largest_seed_can_be_recorded() -> None:
    config = load_config(None, {"seed": 10**18, "repeats": 10_000})
    last = config.seed + config.repeats - 1
    assert SampleRecord.from_dict({**LINE, "seed": last}).seed == last


@pytest.mark.parametrize("name", ["emitted", "drafted", "accepted", "target_rows", "rejected"])
@pytest.mark.parametrize("value", [10**30, 2**63, -(10**18), -1])
def test_a_huge_or_negative_count_of_a_step_is_refused(name: str, value: int) -> None:
    column = [[value], []] if name == "rejected" else [1, value]
    steps = {**LINE["steps"], name: column}
    with pytest.raises(ValueError, match=f"a record's steps.{name}"):
        SampleRecord.from_dict({**LINE, "steps": steps})


def test_an_answer_that_ends_before_its_first_token_breaks_an_invariant() -> None:
    good = make_record("spec", (1, 3), ttft_s=0.5, total_s=0.5)
    assert not broken_invariants(good, 256)
    (line,) = broken_invariants(dataclasses.replace(good, ttft_s=0.6), 256)
    assert line == "its first token came after 0.6 s, its last after 0.5 s"


@pytest.mark.parametrize(
    ("event", "field"),
    [("load", "block"), ("load", "other_cores"), ("supersede", "before_attempt"),
     ("compiled", "graphs"), ("compiled", "seconds")],
)  # fmt: skip
@pytest.mark.parametrize("value", [float("inf"), 10**30, "x", -1e300, [1]])
def test_an_event_with_a_value_out_of_bounds_is_refused(
    event: str, field: str, value: Any, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", {"spec": 3.0}, conversations=1, quality=0)
    whole: dict[str, Any] = {"event": event, "block": 0, "attempt": 0, "other_cores": 0.1}
    whole |= {"before_attempt": 1, "cell": "spec", "graphs": 1, "seconds": 0.1}
    for line, fits in ((whole, True), (whole | {field: value}, False)):
        with (run / "samples.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if fits:
            load_run(run)
    with pytest.raises(InvalidRunError, match=f"its {field} cannot be read"):
        load_run(run)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", "many"), ("temperature", [0]), ("batch_size", 10**18), ("top_p", 7.5),
     ("seed", -1), ("tasks", 3), ("model", True), ("repeats", 0), ("threads", 0),
     ("decoders", {"spec": 3}), ("adapters", {"ptp": 1})],
)  # fmt: skip
def test_a_stored_configuration_with_an_invalid_value_is_refused(
    name: str, value: Any, tmp_path: Path
) -> None:
    config = RunConfig(decoders="spec").model_dump(exclude_none=True)  # type: ignore[arg-type]
    for good in (config, {"temperature": 0.5, "threads": 10_000, "reference": "of old", "k": []}):
        (tmp_path / "config.toml").write_text(tomli_w.dumps(good))
        assert read_config(tmp_path) == good
    (tmp_path / "config.toml").write_text(tomli_w.dumps({name: value}))
    with pytest.raises(InvalidRunError, match=rf"\.toml is damaged: its {name} cannot be read"):
        read_config(tmp_path)


@pytest.mark.parametrize("moment", ["yesterday", "2026-01-01T00:00:00", "", "9" * 400])
def test_start_and_end_times_without_a_time_zone_are_refused(moment: str) -> None:
    for fields in ({"started_utc": moment}, {"finished_utc": moment}):
        with pytest.raises(BenchError, match="is no time with its zone"):
            parse(RunStatus, fields, "run.json")
    assert parse(RunStatus, {"started_utc": "2026-01-02T03:04:05Z"}, "run.json").started_utc


@pytest.mark.parametrize(
    ("facts", "field"),
    [({"parameters": "many"}, "parameters"), ({"notes": "one"}, "notes"),
     ({"quantized": 8}, "quantized"), ({"parameters": 10**30}, "parameters")],
)  # fmt: skip
def test_facts_of_a_wrong_type_are_refused_if_readers_compute_with_them(
    facts: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRunError, match=f"its {field}: "):
        parse(Environment, {"models": {"target": facts}}, "env.json")

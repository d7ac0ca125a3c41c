"""Defaults, files and the command line make one configuration, which a file rebuilds."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.settings.config import RunConfig, load_config
from bench.settings.setting import parse_pairs


def refusal(file: Path | None = None, **overrides: Any) -> str:
    with pytest.raises(BenchError) as caught:
        load_config(file, overrides)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_defaults_are_those_of_the_contract() -> None:
    config = load_config(None, {})
    assert (config.model, config.tasks, config.limit, config.quality_limit) == (
        "zoo", "zoo", 24, 20,
    )  # fmt: skip
    assert (config.repeats, config.batch_size, config.max_new_tokens, config.seed) == (3, 1, 256, 0)
    assert (config.temperature, config.top_p, config.top_k) == (0, 1, 0)
    assert config.decoders is None
    assert not config.fixed_length


@pytest.mark.parametrize(
    ("tasks", "limit"),
    [("qa,rag", 24), ("specbench", None), ("jsonl=x.jsonl", None), ("x.csv", None)],
)
def test_only_the_zoo_has_a_default_limit(tasks: str, limit: int | None) -> None:
    assert load_config(None, {"tasks": tasks}).limit == limit


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('repeats = 5\nseed = 7\ndecoders = ["spec:k=4"]\n')
    config = load_config(file, {"seed": 1, "repeats": None})
    assert (config.repeats, config.seed) == (5, 1)
    assert config.decoders == {"spec": {"k": "4"}}


def test_decoders_may_be_a_table_of_typed_options(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[decoders."spec@k4"]\nk = 4\nfast = true\npath = "a:b,c"\n[decoders.ar]\n')
    config = load_config(file, {})
    assert config.decoders == {"spec@k4": {"k": "4", "fast": "true", "path": "a:b,c"}, "ar": {}}
    assert [spec.cell for spec in config.specs] == ["spec@k4", "ar"]
    assert config.specs[0].label == "k4"


def test_an_unknown_key_names_the_nearest_valid_one(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("repeat = 5\n")
    assert "'repeat'; did you mean 'repeats'?" in refusal(file)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"limit": 0}, "limit: it must be 1 or more (got 0)"),
        ({"top_p": 0.0}, "top_p"),
        ({"dtype": "fp8"}, "dtype"),
        ({"run_name": "a/b"}, "run_name: 'a/b' may hold only letters, digits and . _ + @ -"),
        ({"run_name": "a" * 101}, "run_name: it has 101 characters; at most 100 are allowed"),
        ({"decoders": "lookup:n=3:n=4"}, "decoders: 'lookup:n=3:n=4' gives option 'n' twice"),
        ({"temperature": float("nan")}, "temperature: it must be a finite number (got nan)"),
        ({"temperature": 2000.0}, "temperature: it must be 1,000 or less (got 2000.0)"),
        ({"repeats": "many"}, "repeats: it must be a whole number (got 'many')"),
        ({"decoders": "ar,ar"}, "two cells are called 'ar'; give one a label of its own: ar@LABEL"),
        ({"decoders": "spec@a,spec@a"}, "called 'spec@a'; give one a label of its own: spec@LABEL"),
        ({"decoders": "spec:4"}, "write option=value"),
        ({"decoders": 3}, "write decoders as"),
        ({"decoders": {"ar": 3}}, "needs a table of options"),
        ({"tasks": {"jsonl": {"path": "q.jsonl"}}}, "tasks: it must be text"),
    ],
)
def test_an_invalid_value_is_refused_in_one_line(overrides: dict[str, Any], said: str) -> None:
    assert said in refusal(**overrides)


def test_a_missing_or_invalid_file_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = [")
    assert "is not TOML" in refusal(broken)


def test_a_configuration_is_read_back_unchanged_from_its_toml(tmp_path: Path) -> None:
    config = load_config(
        None,
        {
            "decoders": "spec@a:k=2,spec@b:verify=coupled,x y.py:Mine@c",
            "tasks": 'jsonl=C:\\odd "path".jsonl',
            "temperature": 1e-5,
            "fixed_length": True,
            "columns": {"prompt": "q\x7f"},
        },
    )
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml())
    again = load_config(file, {})
    assert again == config
    assert again.hash == config.hash
    assert list(again.decoders or {}) == list(config.decoders or {})


def test_the_hash_changes_with_the_seed() -> None:
    assert load_config(None, {}).hash != load_config(None, {"seed": 1}).hash


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().seed = 3  # type: ignore[misc]


def test_adapters_are_name_and_path() -> None:
    assert parse_pairs(["ptp=a/b", "nar=c=d"]) == {"ptp": "a/b", "nar": "c=d"}
    assert parse_pairs(None) is None
    with pytest.raises(BenchError, match="NAME=PATH"):
        parse_pairs(["ptp"])
    with pytest.raises(BenchError, match="--adapter names 'ptp' twice"):
        parse_pairs(["ptp=a", "ptp=b"])


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12
).filter(str.strip)  # fmt: skip
CONFIGS = st.builds(
    RunConfig,
    model=TEXTS,
    draft=st.none() | TEXTS,
    adapters=st.dictionaries(TEXTS, TEXTS, max_size=2),
    tasks=st.sampled_from(["zoo", "qa,rag", "specbench", "jsonl=a b.jsonl"]),
    columns=st.dictionaries(TEXTS, TEXTS, max_size=2),
    limit=st.integers(1, 10**9),
    repeats=st.integers(1, 99),
    temperature=st.just(0) | st.floats(1e-6, 1000),
    top_p=st.floats(1e-9, 1),
    seed=st.integers(0, 10**18),
    dtype=st.none() | st.sampled_from(["float32", "bfloat16"]),
    fixed_length=st.booleans(),
    timeout=st.none() | st.floats(0.001, 1e7),
    run_name=st.none() | st.from_regex(r"[A-Za-z0-9._+@-]{1,8}", fullmatch=True),
    decoders=st.none()
    | st.dictionaries(
        st.sampled_from(["ar", "spec@k2", "spec@größe", "a/b.py:Mine@x"]),
        st.dictionaries(st.sampled_from(["k", "mode"]), TEXTS, max_size=2),
        min_size=1,
    ),
)
SLOW_MACHINE = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
WITH_A_FOLDER = settings(max_examples=100, deadline=None, suppress_health_check=SLOW_MACHINE)


@WITH_A_FOLDER
@given(config=CONFIGS)
def test_any_configuration_is_read_back_unchanged_from_its_file(
    config: RunConfig, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    again = load_config(file, {})
    assert again == config
    assert again.hash == config.hash


@WITH_A_FOLDER
@given(content=st.binary(max_size=60))
def test_a_file_with_arbitrary_bytes_is_loaded_or_refused_in_one_line(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    try:
        load_config(file, {})
    except BenchError as error:
        line = (error.exit_code, "\n" in error.message)
    else:
        line = (2, False)
    assert line == (2, False)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(
    name=st.sampled_from([*RunConfig.model_fields]),
    value=VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.text(max_size=5), VALUES),
)
def test_an_arbitrary_value_is_accepted_or_refused_in_one_line(name: str, value: Any) -> None:
    try:
        config = load_config(None, {name: value})
    except BenchError as error:
        line = (error.exit_code, "\n" in error.message)
    else:
        line = (2, config.model_dump() is None)
    assert line == (2, False)


FAR = 99999999999999999999999
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("name", [n for n in RunConfig.model_fields if n != "fixed_length"])
@pytest.mark.parametrize("value", [FAR, -FAR, -1, NAN, INF, -INF, "", " "])
def test_values_that_no_run_can_use_are_refused_before_anything_is_opened(
    name: str, value: Any
) -> None:
    assert refusal(**{name: value}).startswith(name)


def test_bounds_hold_for_files_and_for_callers_too(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("temperature = inf\n")
    assert refusal(file).startswith("temperature: it must be a finite number (got inf)")
    file.write_text('[adapters]\nptp = ""\n')
    assert refusal(file) == "adapters.ptp: it is empty; give a value, or leave it out"
    with pytest.raises(ValueError, match="less than or equal"):
        RunConfig(seed=FAR)
    with pytest.raises(BenchError, match="must be a finite number"):
        RunConfig().with_values(temperature=INF)


def test_threads_are_at_most_the_cores_of_the_machine() -> None:
    cores = os.cpu_count() or 1
    assert load_config(None, {"threads": cores}).threads == cores
    assert refusal(threads=cores + 1) == (
        f"threads: {cores + 1} is more than the {cores} cores of this machine"
    )


@pytest.mark.parametrize("decoders", ["", ",", [], {}])
def test_an_empty_list_of_decoders_is_refused(decoders: object) -> None:
    assert "no decoder is named" in refusal(decoders=decoders)


def test_a_temperature_between_0_and_1e_06_is_refused() -> None:
    assert load_config(None, {"temperature": 1e-6}).temperature == 1e-6
    assert "neither 0 (greedy) nor 1e-06 or above" in refusal(temperature=1e-30)


@pytest.mark.parametrize(
    ("tasks", "given", "expected"),
    [
        ("zoo", {}, 20),
        ("qa,rag", {}, 20),
        ("qa", {"quality_limit": 40}, 40),
        ("qa", {"limit": 3}, 20),
        ("jsonl=a.jsonl", {}, 40),
        ("specbench=question.jsonl", {}, 40),
    ],
)
def test_the_zoos_own_tasks_are_scored_on_fewer_prompts(
    tasks: str, given: dict[str, int], expected: int
) -> None:
    assert load_config(None, {"tasks": tasks, **given}).quality_limit == expected


def test_a_file_decides_how_many_prompts_are_scored(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("quality_limit = 40\n", encoding="utf-8")
    assert load_config(file, {}).quality_limit == 40
    assert load_config(file, {"quality_limit": 3}).quality_limit == 3

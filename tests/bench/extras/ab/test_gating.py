"""`bench gate`: its defaults, its margin, what it refuses, and what it asks a stored run's way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.compare.compare import compare
from bench.compare.gate import Gate, load_gate
from bench.extras.ab.gating import gate_settings, measure_against, with_defaults
from bench.runs import RunResult
from tests.command_line import bench

CHEAP = {"limit": 12, "repeats": 2}


def test_options_and_a_config_file_override_the_defaults_of_the_gate(tmp_path: Path) -> None:
    given: dict[str, Path | int | None] = {"config": None, "limit": None, "repeats": 4}
    assert with_defaults(given, CHEAP) == {"config": None, "limit": 12, "repeats": 4}
    file = tmp_path / "gate.toml"
    file.write_text("limit = 3\n")
    given = {"config": file, "limit": None, "repeats": None}
    assert with_defaults(given, CHEAP) == {"config": file, "limit": None, "repeats": 2}


def test_a_gate_file_overrides_the_margin_and_time_against_a_stored_run_never_fails(
    tmp_path: Path,
) -> None:
    own = gate_settings(Gate(), None, 0.05, timed=True).time
    assert (own.margin, own.fail) == (0.05, True)
    assert not gate_settings(Gate(), None, 0.05, timed=False).time.fail
    file = tmp_path / "gate.toml"
    file.write_text("[time]\nmargin = 0.01\nfail = false\n")
    stated = gate_settings(load_gate(file), file, 0.05, timed=True).time
    assert (stated.margin, stated.fail) == (0.01, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --base (a commit, to measure both) or --against (a stored run), not both"),
        (("--base", "HEAD", "--against", "x"), "--against (a stored run), not both"),
        (("--base", "HEAD", "--margin", "-1"), "--margin"),
        (
            ("--against", "no-such-run"),
            "`bench export RUN --to reference` stored (docs/ci.md): no ",
        ),
        (("--base", "no-such-commit", "-d", "ar"), "'no-such-commit' is neither"),
    ],
)
def test_invalid_arguments_of_bench_gate_end_with_one_line_and_exit_code_2(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    ended = bench("gate", *arguments, "-o", tmp_path, "--progress", "none")
    assert ended.code == 2
    assert ended.err.startswith("bench: ")
    assert ended.err.count("\n") == 1
    assert said in ended.err


def test_a_stored_run_is_measured_again_with_one_repeat_and_without_compilation(
    synthetic_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored, again = synthetic_run(name="stored"), synthetic_run(name="again")
    (stored / "config.toml").write_text(
        'model = "zoo"\ntasks = "qa"\nlimit = 5\nmax_new_tokens = 9\nthreads = 64\nrepeats = 3\n'
        'overlong = "truncate"\nprompt_tokens = 40\nreuse_prefix = true\n'
        'date = "2026-03-01"\nprotocol = "specbench"\nbatch_size = 4\n'
        '[columns]\nid = "key"\n[template_args]\nthinking = false\n'
    )
    asked: list[Any] = []

    def run(config: Any, *_: Any) -> RunResult:
        asked.append(config)
        return RunResult(run_dir=again, exit_code=0)

    monkeypatch.setattr("bench.runs.run", run)
    given = {"config": None, "decoders": "spec", "limit": None, "max_new_tokens": 7}
    base, head = measure_against(str(stored), given, tmp_path, "none")
    (config,) = asked
    values = {"tasks": "qa", "limit": 5, "max_new_tokens": 7, "repeats": 1, "quality_limit": 0}
    values |= {"overlong": "truncate", "prompt_tokens": 40, "reuse_prefix": True}
    values |= {"columns": {"id": "key"}, "template_args": {"thinking": False}}
    values |= {"date": "2026-03-01", "protocol": "specbench", "batch_size": 4}
    assert {key: getattr(config, key) for key in values} == values
    assert config.compile is False
    assert config.threads is None, "another machine has other cores"
    assert (base.path, head.path) == (stored, again)
    assert compare(base, head, Gate()).how.startswith("measured separately")


def test_a_run_under_a_law_is_not_compared_with_one_under_none_or_another(
    synthetic_run: Callable[..., Path], tmp_path: Path
) -> None:
    stored = synthetic_run(name="stored")
    (stored / "config.toml").write_text('model = "zoo"\nlaw = "grammar.py:Grammar"\n')
    ended = bench("gate", "--against", stored, "-d", "ar", "-o", tmp_path)
    assert ended.code == 2
    assert "under --law grammar.py:Grammar, not none: set law in a --config file" in ended.err
    (stored / "config.toml").write_text('model = "zoo"\nlaw = "/elsewhere/grammar.py:Grammar"\n')
    config = tmp_path / "config.toml"
    config.write_text('law = "grammar.py:Other"\n')
    named = ("--config", config, "--allow", "grammar.py")
    ended = bench("gate", "--against", stored, "-d", "ar", "-o", tmp_path, *named)
    assert "under --law grammar.py:Grammar, not grammar.py:Other" in ended.err

"""Runs whose later turns begin with the cache of the turn before."""

from __future__ import annotations

from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.plan.select import choose_decoders
from bench.records.prompts import read_prompts
from bench.records.run_folder import Run, load_run
from bench.records.samples import read_phases
from bench.stats.counters import timed_again
from tests.conftest import open_tables
from tests.tiny_checkpoint import save_checkpoint

pytestmark = pytest.mark.usefixtures("quick")


def measured(config: Any, folder: Any, progress: Any) -> Run:
    def opener(chosen: Any) -> Any:
        return open_tables(chosen, 1024)

    return load_run(bench_run.run(config, folder, progress(), opener, report=None).run_dir)


def test_prefix_reuse_reduces_only_the_target_rows_of_later_turns(
    small: Any, progress: Any, tmp_path: Any
) -> None:
    values = {"decoders": "spec,lookup", "tasks": "mt_bench", "limit": 3, "repeats": 1}
    plain = measured(small(**values), tmp_path / "plain", progress)
    reused = measured(small(**values, reuse_prefix=True), tmp_path / "reused", progress)
    prompts = read_prompts(reused.path)
    assert all((prompt.num_kept > 0) == (prompt.turn > 1) for prompt in prompts.values())
    before = {(r.kind, r.decoder, r.prompt, r.order): r for r in plain.records}
    asked, again = (read_phases(run.path) for run in (plain, reused))
    assert 0 < sum(a.total_s for a in again) <= 2 * sum(a.total_s for a in asked)
    for run in (plain, reused):
        pairs = [*timed_again(read_phases(run.path), run.records)]
        assert {prompts[answer.prompts[0]].num_kept > 0 for answer, _ in pairs} == {False, True}
        for answer, (steps,) in pairs:
            assert answer.rows == sum(steps.target_rows) + sum(steps.draft_rows)
    num_later = 0
    for record in reused.records:
        assert record.steps is not None
        same = before[record.kind, record.decoder, record.prompt, record.order]
        assert record.tokens == same.tokens
        kept = prompts[record.prompt].num_kept if record.kind == "timing" else 0
        assert record.steps.target_rows[0] == record.num_prompt_tokens - kept
        assert record.steps.target_calls == same.steps.target_calls  # type: ignore[union-attr]
        num_later += kept > 0
    assert num_later > 0


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"batch_size": 2}, "--reuse-prefix answers one prompt at a time"),
        ({"prompt_tokens": 20}, "or --batch-size and --prompt-tokens"),
        ({"decoders": "hf"}, "decoder 'hf' runs its own loop and cache"),
    ],
)
def test_settings_that_conflict_with_reuse_prefix_are_refused(
    small: Any, opener: Any, values: dict[str, Any], told: str
) -> None:
    with pytest.raises(BenchError, match=told) as raised:
        opener(choose_decoders(small(reuse_prefix=True, **values), lambda _: None))
    assert raised.value.exit_code == Exit.USAGE


@pytest.mark.usefixtures("undrawn")
def test_the_run_command_accepts_and_records_reuse_prefix(tmp_path: Any) -> None:
    from tests.command_line import bench

    model = save_checkpoint(tmp_path / "model")
    run: tuple[Any, ...] = ("run", "-d", "lookup", "-m", model, "--tasks", "mt_bench", "--limit", 1)
    run += ("--repeats", 1, "--quality-limit", 0, "--max-new-tokens", 8, "--reuse-prefix")
    ended = bench(*run, "--progress", "none", "--output", tmp_path / "out")
    assert ended.code == 0, ended.err
    (config,) = (tmp_path / "out").glob("2*/config.toml")
    assert "reuse_prefix = true" in config.read_text()

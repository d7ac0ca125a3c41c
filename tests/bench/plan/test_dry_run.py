"""What `bench run --dry-run` tells of a plan: its duration, and the first prompt."""

from __future__ import annotations

from typing import Any

import pytest

from bench.plan.dry_run import dry_run, estimate
from bench.plan.make import make_plan
from bench.plan.select import choose_decoders

pytestmark = pytest.mark.usefixtures("quick")


def test_the_time_of_all_answers_is_estimated_from_the_speed_of_a_few(
    small: Any, opener: Any, progress: Any
) -> None:
    setup = opener(choose_decoders(small(limit=8, repeats=3, quality_limit=2), print))
    plan, prompts = make_plan(setup, "plan", progress())
    timed = [prompts[planned.prompt] for planned in plan.in_pass("timing")]
    seconds, basis = estimate(setup, plan, timed)
    each_s = 0.5 / 4  # the clock moves by half a second while four prompts are answered
    num_timed, num_scored = 8 * 3 * 3, 2 * 2 * 2  # prompts, repeats, arms; families, prompts, cells
    assert seconds == pytest.approx(each_s * (num_timed + num_scored / 4))
    assert basis.endswith("on 4 prompts")


def test_a_long_first_prompt_is_shown_by_its_beginning_and_its_end(
    small: Any, opener: Any, progress: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.text.shortened.__defaults__", (10,))
    (file := tmp_path / "long.jsonl").write_text('{"prompt": "abcdefghijklmnopqrstuvwxyz"}\n')
    lines = dry_run(small(tasks=str(file), limit=1, quality_limit=0), progress(), opener)
    at = lines.index("  [… 17 characters …]")
    assert lines[at - 1].endswith("abcdef")  # before them, the sign of the BOS
    assert lines[at + 1] == "  xyz"

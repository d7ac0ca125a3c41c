"""What must not pass: another target, a run that did not end, too few of the same prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.compare.compare import compare
from bench.compare.gate import Gate
from bench.compare.judge import Comparison
from bench.errors import Exit
from bench.stats.side import load_side

Pair = Callable[..., tuple[Path, Path]]
UNJUDGED_TIME = Gate(time={"fail": False})  # type: ignore[arg-type]


def judged(runs: tuple[Path, Path], gate: Gate | None = None) -> Comparison:
    base, head = (load_side(str(run), run.parent) for run in runs)
    return compare(base, head, gate or Gate())


def update(file: Path, **facts: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def with_targets(runs: tuple[Path, Path], *targets: dict[str, Any]) -> tuple[Path, Path]:
    for run, target in zip(runs, targets, strict=True):
        update(run / "env.json", models={"target": target})
    return runs


# ---------------------------------------------------------------- the target


def test_large_models_are_distinguished_by_their_sampled_hashes(pair: Pair) -> None:
    hashes = ["sampled:" + "a" * 63 + last for last in "bc"]
    runs = with_targets(pair(), *({"weights_sha256": digest} for digest in hashes))
    assert judged(runs).unlike == ("the target models differ",)
    assert judged(runs).exit_code == Exit.UNAVAILABLE
    assert not judged((runs[0], runs[0])).unlike


def test_targets_without_a_hash_are_compared_by_name(pair: Pair) -> None:
    runs = pair()
    for run, name in zip(runs, ("owner/one", "owner/other"), strict=True):
        (run / "config.toml").write_text(f'model = "{name}"\n')
    line = "the target models differ: name is owner/one in base and owner/other in head"
    assert judged(runs).unlike == (line,)
    same = {"weights_sha256": "a" * 64}
    assert judged(with_targets(runs, same, same)).unlike == ()  # one model in two folders


@pytest.mark.parametrize("reference", [False, True])
def test_packed_weights_of_a_checkpoint_count_as_a_different_model(
    pair: Pair, stored: Callable[[Path], Path], reference: bool
) -> None:
    same = {"weights_sha256": "a" * 64}
    runs = with_targets(pair(), same, same | {"quantized": "int8"})
    if reference:
        stored(runs[0])
    line = "the target models differ: weights are not packed in base and int8 in head"
    assert judged(runs).unlike == (line,)
    assert judged(runs).exit_code == Exit.UNAVAILABLE
    with_targets(runs, *({**same, "quantized": "int8"},) * 2)
    assert judged(runs).unlike == ()


# ---------------------------------------------------------------- how runs ended


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["interrupted", "error", "started"])
def test_a_run_that_did_not_end_never_passes(pair: Pair, which: int, how: str) -> None:
    runs = pair()
    update(runs[which] / "run.json", status=how, verdict=None)
    comparison = judged(runs)
    line = f"{('base', 'head')[which]} is INCOMPLETE: its status is {how}"
    assert comparison.invalid == (line,)
    assert comparison.exit_code == Exit.INVALID


def test_a_run_without_a_status_never_passes(pair: Pair) -> None:
    runs = pair()
    (runs[1] / "run.json").unlink()
    assert judged(runs).invalid == ("head is INCOMPLETE: its status is unknown",)
    assert judged(runs).exit_code == Exit.INVALID


def test_unverified_answers_are_not_counted_as_right(pair: Pair) -> None:
    runs = pair()
    assert "wrong_answers" not in {m.name for m in judged(runs).cells[1].measures}
    for run in runs:
        update(run / "run.json", differences=[], num_records=1)
    assert "wrong_answers" in {m.name for m in judged(runs).cells[1].measures}


def test_answers_under_a_law_are_not_compared_with_answers_without_one(pair: Pair) -> None:
    base, head = pair()
    config = (head / "config.toml").read_text()
    (head / "config.toml").write_text(f'law = "json.py:Grammar"\n{config}')
    line = "law is none in base and json.py:Grammar in head"
    assert judged((base, head)).unlike == (line,)
    assert judged((base, head)).exit_code == Exit.UNAVAILABLE
    assert judged((head, head)).unlike == ()


# ---------------------------------------------------------------- the prompts


def test_runs_with_fewer_repeats_and_no_quality_pass_remain_comparable(
    synthetic_run: Callable[..., Path],
) -> None:
    base = synthetic_run(name="base", repeats=3, quality=8)
    head = synthetic_run(name="head", repeats=1, quality=0)
    comparison = judged((base, head), UNJUDGED_TIME)
    assert comparison.exit_code == Exit.DONE
    assert [cell.num_pairs for cell in comparison.cells] == [14, 14, 14]
    assert [cell.num_base for cell in comparison.cells] == [42, 42, 42], "no quality"
    assert "the quality pass is not judged: head did not plan it" in comparison.unjudged
    assert all(c.notes == ("only answers that both sides have count",) for c in comparison.cells)


def test_a_pass_with_too_few_shared_prompts_is_not_comparable_and_their_number_is_shown(
    pair: Pair,
) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["kind"] == "timing" and record["family"] != "qa":
            record["prompt_hash"] += "-new"

    runs = pair(change, quality=40)  # most answers have a partner: those of the other pass
    comparison = judged(runs)
    assert comparison.exit_code == Exit.UNAVAILABLE
    assert comparison.cells[0].notes == (
        "head answered too few of base's prompts (by hash): quality 240 of 240, timing 2 of 14",
    )

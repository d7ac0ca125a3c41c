"""Decoders that remember in a run: scopes of memory, one order, resuming, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import Exit, UsageError
from bench.extras.sections.parallel import memory
from bench.measure.timing import Runner
from bench.plan.dry_run import dry_run
from bench.plan.make import order_blocks
from bench.plan.past import Memories, later_turns
from bench.records.plan import Block
from bench.records.prompts import Prompt
from bench.records.run_folder import Run, load_run
from bench.records.samples import read_phases
from bench.settings.setting import WorkerConfig
from bench.verify import subject
from bench.verify import verify as verify_module
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation

pytestmark = pytest.mark.usefixtures("quick")
SUFFIX = {"decoders": "suffix", "phase_limit": 3, "max_new_tokens": 24}


@pytest.fixture
def measured(tmp_path: Path, small: Any, opener: Any, progress: Any) -> Callable[..., Run]:
    """Measures a small configuration; returns the run as read from its folder."""

    def run(shown: Any = None, **values: Any) -> Run:
        config = small(**(SUFFIX | values))
        ended = bench_run.run(
            config, tmp_path / "results", shown or progress(), opener, report=None
        )
        return load_run(ended.run_dir)

    return run


def courses(run: Run) -> dict[Any, Any]:
    """The steps of every answer."""
    return {
        (r.kind, r.decoder, r.prompt, r.repeat): (r.tokens, r.steps and r.steps.emitted)
        for r in run.records
    }


def test_with_a_memory_every_repeat_has_the_same_order_and_steps_and_the_run_is_valid(
    measured: Any,
) -> None:
    run = measured()
    assert run.status.verdict == "VALID"
    assert {c.cell: c.remembers for c in run.plan.cells} == {"ar": None, "suffix": "answers"}
    first, second = ([b.prompts for b in run.plan.blocks if b.repeat == n] for n in (0, 1))
    assert first == second
    steps = courses(run)
    for prompt in {r.prompt for r in run.records if r.kind == "timing"}:
        assert steps["timing", "suffix", prompt, 0] == steps["timing", "suffix", prompt, 1]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_remembered_answers_reduce_the_number_of_steps(measured: Any, batch_size: int) -> None:
    values = {"batch_size": batch_size, "limit": 12, "quality_limit": 12}
    run = measured(decoders="suffix,suffix@text:answers=false", **values)
    assert run.status.verdict == "VALID"
    for kind in ("timing", "quality"):
        num, without = (
            sum(len(r.steps.emitted) for r in run.records if (r.decoder, r.kind) == (cell, kind))
            for cell in ("suffix", "suffix@text")
        )
        assert num < without


def test_the_first_answer_of_a_scope_remembers_nothing_of_the_warm_up(measured: Any) -> None:
    run = measured(decoders="suffix,suffix@text:answers=false")
    first = run.plan.blocks[0]
    steps = courses(run)
    for repeat in (0, 1):
        mine, without = (
            steps["timing", cell, first.prompts[0], repeat] for cell in ("suffix", "suffix@text")
        )
        assert mine == without


def test_an_answer_timed_again_begins_with_the_memory_of_the_first_try(
    measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer compiles a graph at first."""
    steps = courses(measured())
    compiled, once = set[object](), Runner._time_once

    def compiling(runner: Runner, arm: Any, prompts: Any, sampling: Any, past: Any) -> Any:
        timed = once(runner, arm, prompts, sampling, past)
        compiled.add((arm.cell.cell, prompts[0].ids, sampling.seed))
        return timed

    monkeypatch.setattr(Runner, "_time_once", compiling)
    monkeypatch.setattr(TableModel, "num_graphs", property(lambda _: len(compiled)), raising=False)
    assert courses(measured()) == steps
    assert len(compiled) > len(steps) / 2


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize(
    "stop_at", [20, *(pytest.param(n, marks=pytest.mark.slow) for n in (9, 31))]
)
def test_a_resumed_run_with_a_memory_takes_the_steps_of_an_uninterrupted_run(
    measured: Any, progress: Any, opener: Any, stop_at: int, batch_size: int
) -> None:
    values = {"batch_size": batch_size, "limit": 10}
    whole = courses(measured(**values))
    stopped = measured(progress(stop_at=stop_at), **values)
    assert stopped.status.status == "interrupted"
    bench_run.resume(stopped.path, progress(), opener, report=None)
    resumed = load_run(stopped.path)
    assert resumed.status.verdict == "VALID"
    assert {k: v for k, v in courses(resumed).items() if k[0] == "timing"} == {
        k: v for k, v in whole.items() if k[0] == "timing"
    }
    assert {k: v[0] for k, v in courses(resumed).items()} == {k: v[0] for k, v in whole.items()}


QUOTES = """
from decoders.core.decoder import Decoder
from decoders.core.types import Emit
class Peeks(Decoder):
    remembers = "answers"
    drafts = False
    def steps(self, request):
        mine, target = request.prompt_ids, request.target
        result = yield target.call(mine)
        length = len(mine)
        while True:
            if any(prompt[:len(mine)] == mine for prompt, _ in request.memory):
                raise RuntimeError("an answer that is not asked for yet")
            yield Emit(tokens=(token := result.picks))
            for _ in range(3 if len(mine) == 2 else 1):  # later turns end first
                target.truncate(length)
                result = yield target.call(token)
            length += 1
"""


def test_after_a_batch_the_memory_has_all_its_answers_in_the_plans_order() -> None:
    """While it runs, those to first turns enter as they end, and those to later turns do not."""

    class Answers(list[Any]):
        def add(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
            self.append((tuple(prompt), tuple(tokens)))

    decoder: Any = SimpleNamespace(memory=Answers)
    prompts = [
        Prompt(conversation=name, turn=turn, family="qa", ids=(turn, n), hash="", reference=None)
        for n, name in enumerate("ab")
        for turn in (1, 2)
    ]
    assert later_turns(prompts) == {1, 3}
    assert later_turns(prompts[1:2]) == set()
    names = tuple(prompt.name for prompt in prompts)
    blocks = [Block(block=n, repeat=0, prompts=names, order=("x",)) for n in range(2)]
    answers = [Generation(tokens=(n,), steps=(), stop="length") for n in range(4)]
    pairs = list(zip(prompts, answers, strict=True))
    memories = Memories()
    during: Any = memories.memory("x", decoder, blocks[0])
    for place in (2, 0):  # as they ended
        during.add(prompts[place].ids, answers[place].tokens)
    memories.add("x", blocks[0], pairs, during)
    after = memories.memory("x", decoder, blocks[1])
    assert after == [(prompt.ids, answer.tokens) for prompt, answer in pairs]


@pytest.mark.parametrize("batch_size", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_decoders_memory_has_no_answer_to_the_current_or_a_later_turn(
    measured: Any, tmp_path: Path, batch_size: int
) -> None:
    file, questions = tmp_path / "quotes.py", tmp_path / "questions.jsonl"
    file.write_text(QUOTES)
    lines = (  # the first turns of odd conversations have no reference, so they are not scored
        {"id": f"c{n}", "category": "qa", "turns": [chr(97 + n), "Z"], "reference": [[], ["z"]]}
        if n % 2
        else {"id": f"c{n}", "category": "qa", "turns": [chr(97 + n), "Z"], "reference": ["y", "z"]}
        for n in range(12)
    )
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = {"tasks": f"jsonl={questions}", "limit": None, "quality_limit": None}
    decoders = f"{file}:Peeks@peeks"
    run = measured(decoders=decoders, batch_size=batch_size, **values)
    answers = [record for record in run.records if record.decoder.endswith("@peeks")]
    assert {(r.kind, r.turn) for r in answers} == set(product(("timing", "quality"), (1, 2)))
    assert {record.error for record in answers} == {None}
    assert any(answer.decoder.endswith("@peeks") for answer in read_phases(run.path))


SECRET = """
from decoders.suffix import SuffixDecoding
class Secret(SuffixDecoding):
    kept = []
    def drafter(self, request):
        self.kept.append(0)
        drafter = super().drafter(request)
        return SuffixDecoding(factor=0.5).drafter(request) if len(self.kept) % 3 else drafter
"""


def test_undeclared_state_beside_a_memory_makes_the_run_invalid(
    measured: Any, tmp_path: Path
) -> None:
    file = tmp_path / "secret.py"
    file.write_text(SECRET)
    run = measured(decoders=f"{file}:Secret@secret", limit=8)
    assert run.status.verdict == "INVALID"
    assert "secret: state survives an answer" in run.status.reasons[0]


@pytest.mark.parametrize(
    ("option", "values"),
    [("--part", {"part": "1/2"}), ("--workers", {"spread": WorkerConfig(workers=2)})],
)
def test_part_and_workers_are_refused_for_a_decoder_that_remembers_answers(
    tmp_path: Path, small: Any, opener: Any, progress: Any, option: str, values: dict[str, Any]
) -> None:
    line = f"decoder 'suffix' remembers answers; {option} gives a process only some; leave out"
    with pytest.raises(UsageError, match=line) as caught:
        bench_run.run(small(**SUFFIX), tmp_path, progress(), opener, report=None, **values)
    assert caught.value.exit_code == Exit.USAGE
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match=line):
        dry_run(small(**SUFFIX), progress(), opener, **values)


def test_repeats_have_the_same_order_of_blocks_only_with_the_option_same_order() -> None:
    def order(same_order: bool) -> list[list[tuple[str, ...]]]:
        blocks = order_blocks(
            [f"{name}#1" for name in "abcdefgh"],
            ["ar"],
            repeats=3,
            batch_size=1,
            seed=0,
            same_order=same_order,
        )
        return [[b.prompts for b in blocks if b.repeat == n] for n in range(3)]

    one, two, three = order(True)
    assert one == two == three == order(False)[0]
    assert order(False)[0] != order(False)[1]


def test_the_report_shows_tokens_per_step_by_the_number_of_earlier_answers(measured: Any) -> None:
    run = measured(decoders="suffix,suffix@text:answers=false,spec", limit=6)
    table = memory(run.plan.cells, run.records)
    assert table is not None
    assert table.headings == ("decoder", "remembers", "0", "1-3", "4-15")
    assert [(row[0].text, row[1].text) for row in table.rows] == [
        ("suffix", "answers"),
        ("suffix@text", "-"),
        ("spec", "-"),
    ]
    assert table.rows[0][2].text == table.rows[1][2].text  # nothing is remembered yet
    cells = [cell for cell in run.plan.cells if not cell.remembers]
    assert not memory(cells, run.records).rows


def test_verify_keeps_the_memory_of_a_decoder_between_its_answers(
    small: Any, opener: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain: Any = subject.answer

    def noted(arm: Any, sampling: Any, prompt: Any, memory: Any = None) -> Any:
        if arm.cell.cell == "suffix":
            sizes.append(len(memory.tokens))
        return plain(arm, sampling, prompt, memory)

    monkeypatch.setattr(verify_module, "answer", noted)
    report = verify_module.verify(small(**SUFFIX), progress(), num_draws=1000, opener=opener)
    assert sizes[0] == 0
    assert sizes[1] > 0
    assert sizes.count(0) == 2  # one scope for greedy answers, one for sampled ones
    assert all(f.outcome == "passed" for e in report.examined for f in e.findings)

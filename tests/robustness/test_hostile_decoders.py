"""Decoders that do what none should: a clear record each, and every other cell as ever."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.records.run_folder import load_run

pytestmark = pytest.mark.usefixtures("quick")

START = "result = yield request.target.call(request.prompt_ids)\n"
AR = (
    "while True:\n    yield Emit(tokens=result.picks)\n"
    "    result = yield request.target.call(result.picks)"
)
ODD = "if sum(request.prompt_ids) % 2:\n    {}\n" + START + AR

HOSTILE = {
    "raises on some prompts": (ODD.format("raise KeyError('x')"), "KeyError: 'x'"),
    "never stops calling": (
        ODD.format("while True: yield request.target.call((1,)); request.target.truncate(0)"),
        "TimeoutError: not finished after",
    ),
    "loops without a yield": (ODD.format("while True: pass"), "TimeoutError: not finished after"),
    "exits": (ODD.format("raise SystemExit(0)"), "RuntimeError: decoder raised SystemExit(0)"),
    "recurses": (ODD.format("(f := lambda: f())()"), "RecursionError: maximum recursion depth"),
    "yields a number": (ODD.format("yield 5"), "TypeError: decoder yielded 5; yield a Call"),
    "is no generator": (
        "return [1, 2]",
        "TypeError: Mine.steps (mine.py:10) returned [1, 2]; it must `yield` its Calls and Emits",
    ),
    "forgets every yield": (
        "request.target.call(request.prompt_ids)",
        "TypeError: Mine.steps (mine.py:10) returned None; it must `yield`",
    ),
    "forgets to yield a call": (
        START.replace("yield ", "") + AR,
        "AttributeError: a Call has no 'picks'; `result = yield request.target.call",
    ),
    "ends too early": (START + "return", "RuntimeError: decoder returned before EOS"),
    "emits text": (START + "while True: yield Emit(tokens=('a',))", "emitted 'a'; ids are"),
    "emits no ids of the model": (
        START + "while True: yield Emit(tokens=(10**9,))",
        "emitted 1000000000; ids are integers below 128",
    ),
    "feeds no ids of the model": (
        START + "yield request.target.call((10**9,))",
        "ValueError: decoder fed 1000000000; ids are integers below 128",
    ),
    "feeds text": (
        START + "yield request.target.call(('a',))",
        "ValueError: decoder fed 'a'; ids are integers below 128",
    ),
    "feeds negative ids": (
        START + "yield request.target.call((65, -1))",
        "ValueError: decoder fed -1; ids are integers below 128",
    ),
    "verifies no ids of the model": (
        START + "yield request.target.call((65, 66), output='acceptance', read=(0, 1), "
        "drafts=(128,))",
        "ValueError: decoder fed 128; ids are integers below 128",
    ),
    "emits negative ids": (START + "while True: yield Emit(tokens=(-1,))", "emitted -1; ids are"),
    "counts in text": (
        START + "while True: yield Emit(tokens=(65,), drafted='many')",
        "ValueError: decoder counted 'many'",
    ),
    "rejects text": (
        START + "while True: yield Emit(tokens=(65,), drafted=1, rejected=('a',))",
        "rejected 'a'; ids are",
    ),
    "emits nothing, ever": (START + "while True: yield Emit()", "emitted nothing for 1013 steps"),
    "fails as it ends": (
        "try:\n    result = yield request.target.call(request.prompt_ids)\n"
        "    while True:\n        yield Emit(tokens=result.picks)\n"
        "finally:\n    raise OSError('at its end')",
        "OSError: at its end",
    ),
    "goes on when it is closed": (
        "closed = False\nwhile True:\n    try:\n        yield Emit(tokens=(65,))\n"
        "    except GeneratorExit:\n        if closed:\n            raise\n        closed = True",
        "RuntimeError: generator ignored GeneratorExit",
    ),
    "reads past the cache": (
        "yield request.target.call((1,) * 100_000)",
        "ValueError: a call of 100000 rows after 0 tokens exceeds the cache",
    ),
    "takes back what it did not feed": (
        START + "request.target.truncate(10**6)\n" + AR,
        "ValueError: truncate(1000000) of a session that holds",
    ),
    "reads rows that it did not feed": (
        "yield request.target.call((1,), read=(1,))",
        "ValueError: a call of 1 tokens has no rows (1,) to read",
    ),
    "keeps rows that it did not feed": (
        START + "request.target.select_rows((10**6,))\n" + AR,
        "ValueError: select_rows([1000000]) after a call that left",
    ),
    "asks for what cannot be read": (
        START + "result = yield request.target.call((1,), output='dreams')\n" + AR,
        "output is 'dreams'; it must be one or several of picks",
    ),
}  # fmt: skip
NO_PLACE = ("is no generator", "forgets every yield", "ends too early")
"""Nothing of a decoder's file runs, or waits, when these are found."""


@pytest.mark.parametrize("how", HOSTILE)
@pytest.mark.parametrize("batch_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_hostile_decoder_fails_alone_and_every_other_cell_completes(
    how: str, batch_size: int, small: Any, opener: Any, progress: Any, tmp_path: Path,
    decoder_file: Any,
) -> None:  # fmt: skip
    body, said = HOSTILE[how]
    timeout = {"timeout": 1.0} if "TimeoutError" in said else {}
    config = small(
        decoders=f"spec,{decoder_file(body)}", repeats=1, batch_size=batch_size, limit=6,
        quality_limit=0, **timeout,
    )  # fmt: skip
    shown = progress()
    ended = bench_run.run(config, tmp_path / "results", shown, opener, report=None)
    run = load_run(ended.run_dir)
    keys = Counter((r.decoder, r.prompt, r.repeat) for r in run.records)
    assert set(keys.values()) == {1}
    assert len(keys) == 4 * 6
    mine = [r for r in run.records if r.decoder.endswith("@mine")]
    failed = [r for r in mine if r.error]
    assert failed
    assert any(said in str(r.error) for r in failed), {r.error for r in failed}
    assert not [r for r in run.records if r.error and r not in mine]
    places = {r.error_at for r in failed if "not started" not in str(r.error)}
    if how in NO_PLACE:
        assert places == {None}
    else:
        assert {str(place).partition(":")[0] for place in places} == {"mine.py"}, places
    log = (ended.run_dir / "errors.log").read_text()
    assert all(f"{r.decoder}, {r.prompt}, repeat 0, attempt 0\n" in log for r in failed)
    assert ended.exit_code == Exit.FAILED
    expected = "INCOMPLETE" if len(failed) == len(mine) else "VALID"
    assert (run.status.status, run.status.verdict) == ("complete", expected)
    warned = any(f"failed on {len(failed)} answer" in line for line in run.status.warnings)
    assert warned == (expected == "VALID")  # else a reason says it
    if body.startswith("if sum") and batch_size == 1:
        assert len(failed) < len(mine), "prompts it can answer are answered"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def", "SyntaxError"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1\n\n1 / 0", r"ZeroDivisionError: division by zero \(mine.py:3\)"),
        ("x = 1", "has no decoder class 'Mine'"),
        (
            "from decoders.core.drafting.loop import DraftAndVerify as Mine\nclass Own(Mine): pass",
            "has no decoder class 'Mine'; it has: Own$",
        ),
    ],
)
def test_a_decoder_file_that_cannot_be_imported_is_refused_in_one_line(
    code: str, said: str, small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(BenchError, match=said) as caught:
        bench_run.run(
            small(decoders=f"{file}:Mine"), tmp_path / "results", progress(), opener, report=None
        )
    assert caught.value.exit_code == Exit.USAGE
    assert "\n" not in caught.value.message

"""Progress: a bar on terminals, lines elsewhere, and nothing that runs by itself."""

from __future__ import annotations

import sys
import threading

import pytest

from bench.progress import Live, Plain, Progress, choose, duration


def test_terminals_get_a_bar_and_everything_else_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    shown = choose("auto")
    shown.close()
    assert isinstance(shown, Live)
    monkeypatch.setenv("CI", "true")
    assert type(choose("auto")) is Plain
    monkeypatch.delenv("CI")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert type(choose("auto")) is Plain
    assert type(choose("none")) is Progress


def test_plain_progress_is_about_ten_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Plain()
    shown.start("timing", 200)
    for _ in range(200):
        shown.step("ar 100 tok/s")
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 10
    assert lines[0].startswith("timing 20/200  ")
    assert lines[-1] == "timing 200/200  0 s left  ar 100 tok/s"


def test_uneven_steps_show_the_time_that_passed_and_no_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 270.0, 271.0])
    monkeypatch.setattr("bench.progress.time.monotonic", lambda: next(now))
    shown = Plain()
    shown.start("compiling", 8, even=False)
    shown.step("ar: 2 graphs")
    shown.step("spec: 4 graphs")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "compiling 1/8  after 4 min 30 s  ar: 2 graphs",
        "compiling 2/8  after 4 min 31 s  spec: 4 graphs",
    ]


@pytest.mark.parametrize("even", [True, False])
def test_the_bar_shows_a_time_left_only_of_even_steps(even: bool) -> None:
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=200)
    shown = Live()
    shown.start("compiling", 8, even=even)
    shown.step("ar: 2 graphs")
    console.print(shown._bar.get_renderable())
    shown.close()
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert ("left" in written) is even
    assert "compiling" in written


def test_the_bar_stays_on_one_line_with_a_long_detail() -> None:
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=80)
    shown = Live()
    shown.start("timing", 24)
    shown.step("tok/s: ar 1390, spec 517, lookup 1835")
    console.print(shown._bar.get_renderable())
    shown.close()
    assert isinstance(console.file, io.StringIO)
    assert len(console.file.getvalue().splitlines()) == 1


def test_a_resumed_phase_counts_on_from_the_steps_already_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = Plain()
    shown.start("timing", 10, 8)
    shown.step(num=2)
    assert "timing 10/10" in capsys.readouterr().err


def test_notes_are_printed_even_if_progress_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Progress()
    shown.start("timing", 2)
    shown.step()
    shown.note("spec is skipped")
    shown.close()
    assert capsys.readouterr().err == "spec is skipped\n"


def test_the_progress_bar_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    shown = Live()
    shown.start("timing", 4, 1)
    shown.step("ar [bold]100[/] tok/s", 3)
    shown.note("a [note]")
    assert threading.active_count() == before
    shown.close()


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4 s"), (62, "1 min 2 s"), (7260, "2 h 1 min"), (59.7, "1 min 0 s")]
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text

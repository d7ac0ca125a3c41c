"""The stopwatch reads the clock at start, first token and end, and keeps the collector out."""

import gc

import pytest

from bench.machine.clock import Clock, Stopwatch
from tests.fake_clock import FakeClock


def test_time_to_first_token_and_total_time_count_from_the_start() -> None:
    clock = FakeClock()
    clock.advance(7.0)
    with Stopwatch(clock) as watch:
        clock.advance(0.25)
        watch.emitted(0)
        clock.advance(1.0)
    assert (watch.ended_s[0], watch.total_s) == (0.25, 1.25)


def test_a_repeated_stamp_of_the_first_step_is_ignored() -> None:
    clock = FakeClock()
    with Stopwatch(clock) as watch:
        clock.advance(1.0)
        watch.emitted(0)
        clock.advance(1.0)
        watch.emitted(0)
    assert watch.ended_s == (1.0,)


def test_later_steps_are_stamped_without_waiting_for_the_device() -> None:
    clock = FakeClock(step_s=0.5)  # every reading that waits costs half a second
    with Stopwatch(clock) as watch:
        clock.advance(1.0)
        watch.emitted(0, 0)
        clock.advance(0.25)
        watch.emitted(0, 1)
        clock.advance(0.125)
        watch.emitted(0, 2)
    assert watch.ended_s == (1.5, 1.75, 1.875)
    assert (watch.ended_s[0], watch.total_s) == (1.5, 2.375)


def test_an_answer_ends_with_its_last_token_and_not_with_work_still_queued() -> None:
    class Queued(FakeClock):
        """Every reading that waits costs half a second."""

        def now(self) -> float:
            self.advance(0.5)
            return self.time_s

        def glance(self) -> float:
            return self.time_s

    clock = Queued()
    with Stopwatch(clock) as watch:
        clock.advance(1.0)
        watch.answered()
    assert watch.total_s == 1.0
    assert clock.time_s == 2.0, "the next region begins behind what was queued"


def test_without_a_first_token_there_is_no_stamp() -> None:
    with Stopwatch(FakeClock()) as watch:
        pass
    assert watch.ended_s == ()


def test_the_garbage_collector_is_off_inside_the_stopwatch_and_on_again_after_it() -> None:
    assert gc.isenabled()
    with Stopwatch(FakeClock()):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_garbage_collector_is_on_again_after_an_exception_or_ctrl_c() -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), Stopwatch(FakeClock()):
            raise error
        assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with Stopwatch(FakeClock()):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_wall_clock_waits_for_the_device_at_every_reading() -> None:
    syncs: list[int] = []
    clock = Clock(lambda: syncs.append(1))
    with Stopwatch(clock) as watch:
        watch.emitted(0, 0)
        watch.emitted(0, 1)
    assert len(syncs) == 3
    assert 0 <= watch.ended_s[0] <= watch.total_s


def test_the_clock_of_a_cpu_waits_for_nothing() -> None:
    clock = Clock.for_device("cpu")
    assert clock.now() <= clock.now()

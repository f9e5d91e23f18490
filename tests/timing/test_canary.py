"""A machine that grows slower is told from one that is shared."""

import pytest

from bench.settings import read_settings
from bench.timing import canary
from tests.fakes import Clock, Device


class Contention:
    """A watch that says what it is told to."""

    def __init__(self, said):
        self.said, self.starts = said, 0

    def start(self):
        self.starts += 1

    def flags(self):
        return self.said


def compared(slower, others=()):
    """What a canary says on a machine that takes `slower` times as long from its first comparison on."""
    clock, pace = Clock(), [1.0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.001 * pace[0]), clock, Contention(others))
    pace[0] = slower
    return bird.compare()


@pytest.mark.parametrize(
    ("slower", "flags"), [(0.9, []), (1.0, []), (1.02, []), (1.05, ["throttled"]), (3, ["throttled"])]
)
def test_three_percent_is_the_limit(slower, flags):
    ratio, said = compared(slower)
    assert ratio == pytest.approx(slower, rel=0.005)
    assert said == flags


def test_other_programs_are_no_heat():
    assert compared(3, others=["contended"])[1] == []


def test_what_was_slow_from_the_start_on_is_compared_with_the_start():
    clock, pace = Clock(), [1.0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.001 * pace[0]), clock, Contention([]))
    pace[0] = 1.2
    assert [bird.compare()[1] for _ in range(2)] == [["throttled"]] * 2


def test_a_machine_that_moves_by_itself_is_not_called_hot(monkeypatch):
    readings = iter([1.00, 1.06, 1.00, 1.08, 1.20, 1.20, 1.05, 1.12, 1.12, 1.12])
    monkeypatch.setattr(canary.Canary, "_read", lambda bird: next(readings))
    clock = Clock()
    bird = canary.Canary(Device(clock), clock, Contention([]))
    assert bird.compare() == (1.08, [])  # within 3 % of the slowest at first
    assert bird.compare() == (1.20, [])  # once only
    assert bird.compare() == (1.12, ["throttled"])


def test_single_slow_windows_do_not_count():
    clock, burst = Clock(), [0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.030 + burst[0] * (i % 3 == 0)), clock)
    burst[0] = 0.060
    assert bird.compare() == (pytest.approx(1, rel=0.01), [])


def test_a_window_is_twenty_milliseconds_after_a_warm_up():
    clock = Clock()
    session = Device(clock, work=lambda i: 0.010 if clock.now > 0.7 else 0.020)  # a clock that rises first
    assert canary.choose_steps(session, clock) == 2
    assert 1 <= clock.now < 1.1


def test_a_framework_without_a_product_has_no_canary():
    class Framework:
        @staticmethod
        def open_session(*arguments):
            raise RuntimeError("no product here")

    assert canary.open_canary(Framework, "cpu", read_settings("image", {})) is None


def test_a_real_product_is_a_canary():
    from bench.frameworks import on_torch

    bird = canary.open_canary(on_torch, "cpu", read_settings("image", {"USE_GPU": "0"}))
    assert bird.compare()[0] > 0  # how near to one it is depends on the machine

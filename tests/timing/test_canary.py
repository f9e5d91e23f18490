"""The canary tells a machine that has become slower from a shared one."""

import pytest

from bench.settings import read_settings
from bench.timing import canary
from tests.fakes import Clock, Device


class Contention:
    """A watch that raises these flags once it was started."""

    def __init__(self, said):
        self.said, self.started = said, False

    def start(self):
        self.started = True

    def flags(self):
        return self.said if self.started else []


def compare(slowdown, contention=(), times=1):
    """What the canary says, this many times, on a machine that becomes slower by this factor after the start."""
    clock, pace = Clock(), [1.0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.001 * pace[0]), clock, Contention(contention))
    pace[0] = slowdown
    return [bird.compare() for _ in range(times)]


@pytest.mark.parametrize(
    ("slowdown", "flags"), [(0.9, []), (1.0, []), (1.045, []), (1.06, ["slowed"]), (3, ["slowed"])]
)
def test_five_percent_is_the_limit(slowdown, flags):
    ((ratio, said),) = compare(slowdown)
    assert ratio == pytest.approx(slowdown, rel=0.005)
    assert said == flags


def test_contention_is_not_heat():
    ((_, flags),) = compare(3, contention=["contended"])
    assert flags == []


def test_every_comparison_is_with_the_start():
    assert [flags for _, flags in compare(1.2, times=2)] == [["slowed"]] * 2


def test_all_readings_must_agree(monkeypatch):
    readings = iter([1.00, 1.06, 1.00, 1.11, 1.20, 1.20, 1.05, 1.12, 1.12, 1.12])
    monkeypatch.setattr(canary.Canary, "_read", lambda bird: next(readings))
    clock = Clock()
    bird = canary.Canary(Device(clock), clock)
    assert bird.compare() == (1.11, [])  # within 5 % of the slowest reading at the start
    assert bird.compare() == (1.20, [])  # only one slow reading
    assert bird.compare() == (1.12, ["slowed"])


def test_single_slow_windows_do_not_count():
    clock, burst = Clock(), [0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.030 + burst[0] * (i % 3 == 0)), clock)
    burst[0] = 0.060
    assert bird.compare() == (pytest.approx(1, rel=0.01), [])


def test_a_window_is_twenty_milliseconds_after_a_warm_up():
    clock = Clock()
    session = Device(clock, work=lambda i: 0.010 if clock.now > 0.7 else 0.020)  # the device's clock rises
    assert canary.choose_steps(session, clock) == 2
    assert 1 <= clock.now < 1.1


def test_a_framework_without_matmul_has_no_canary():
    class Framework:
        @staticmethod
        def open_session(*arguments):
            raise RuntimeError("no matmul here")

    assert canary.open_canary(Framework, "cpu", read_settings("image", {})) is None


def test_a_canary_with_a_real_matmul():
    from bench.frameworks import on_torch

    bird = canary.open_canary(on_torch, "cpu", read_settings("image", {"USE_GPU": "0"}))
    assert bird.compare()[0] > 0  # its value depends on the machine

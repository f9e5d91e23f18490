"""The canary tells a machine that has become slower from a shared one."""

import math

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


def compare(slowdown, contention=(), times=1, slower=canary.SLOWER):
    """What the canary says, this many times, on a machine that becomes slower by this factor after the start."""
    clock, pace = Clock(), [1.0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.001 * pace[0]), Contention(contention), slower, clock)
    pace[0] = slowdown
    return [bird.compare() for _ in range(times)]


@pytest.mark.parametrize(("slowdown", "flags"), [(0.9, []), (1.0, []), (1.09, []), (1.11, ["slowed"]), (3, ["slowed"])])
def test_ten_percent_is_the_limit(slowdown, flags):
    ((ratio, said),) = compare(slowdown)
    assert ratio == pytest.approx(slowdown, rel=0.005)
    assert said == flags


def test_contention_is_not_heat():
    ((_, flags),) = compare(3, contention=["contended"])
    assert flags == []


def test_a_virtual_machine_is_never_flagged():
    ((ratio, flags),) = compare(3, slower=math.inf)
    assert (ratio, flags) == (pytest.approx(3, rel=0.005), [])


def test_every_comparison_is_with_the_start():
    assert [flags for _, flags in compare(1.2, times=2)] == [["slowed"]] * 2


def test_all_readings_must_agree(monkeypatch):
    slow = [1.18] * canary.MOST_READINGS
    readings = iter([1.00, 1.06, 1.00, 1.16, 1.20, 1.20, 1.05, *slow])
    monkeypatch.setattr(canary.Canary, "_read", lambda bird: next(readings))
    clock = Clock()
    bird = canary.Canary(Device(clock), clock=clock)
    assert bird.compare() == (1.16, [])  # within 10 % of the slowest reading at the start
    assert bird.compare() == (1.20, [])  # only one slow reading
    assert bird.compare() == (1.18, ["slowed"])
    assert bird.seconds == 1.0


def test_single_slow_windows_do_not_count():
    clock, burst = Clock(), [0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.030 + burst[0] * (i % 3 == 0)), clock=clock)
    burst[0] = 0.060
    assert bird.compare() == (pytest.approx(1, rel=0.01), [])


def test_a_window_is_twenty_milliseconds_after_a_warm_up():
    clock = Clock()
    session = Device(clock, work=lambda i: 0.010 if clock.now > 0.3 else 0.020)  # the device's clock rises
    assert canary.choose_steps(session, clock) == 2
    assert 0.5 <= clock.now < 0.6


def test_a_framework_without_matmul_has_no_canary():
    class Framework:
        @staticmethod
        def open_session(*arguments):
            raise RuntimeError("no matmul here")

    assert canary.open_canary(Framework, "cuda", read_settings("image", {})) is None


def test_a_cpus_canary_is_a_matmul_in_numpy():
    session = canary.NumPyMatmul(64)
    session.step()
    assert session.read() == pytest.approx(float(session.a[-1].astype(float) @ session.b[:, -1]), rel=1e-5)
    bird = canary.open_canary(None, "cpu", None)
    assert bird.compare()[0] > 0  # its values depend on the machine
    assert 0 < bird.seconds < 1

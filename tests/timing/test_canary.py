"""The canary tells a machine that has become slower."""

import pytest

from bench.timing import canary
from tests.fakes import Clock, Device


@pytest.mark.parametrize("slowdown", [0.9, 1.09, 1.11])
@pytest.mark.parametrize("may_flag", [True, False])
def test_it_is_compared_with_the_start_and_more_than_ten_percent_is_flagged(slowdown, may_flag):
    clock, pace = Clock(), [1.0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.001 * pace[0]), may_flag, clock)
    assert bird.seconds == pytest.approx(0.001, rel=0.01)
    pace[0] = slowdown
    for _ in range(2):
        ratio, flags = bird.compare()
        assert ratio == pytest.approx(slowdown, rel=0.005)
        assert flags == ["slowed"] * (may_flag and slowdown > 1.1)


def test_single_slow_windows_do_not_count():
    clock, burst = Clock(), [0]
    bird = canary.Canary(Device(clock, work=lambda i: 0.030 + burst[0] * (i % 3 == 0)), clock=clock)
    burst[0] = 0.060
    assert bird.compare() == (pytest.approx(1, rel=0.01), [])


def test_a_cpus_canary_never_flags():
    bird = canary.open_canary(None, "cpu", None)
    bird.seconds /= 100  # as if the machine had become much slower
    ratio, flags = bird.compare()
    assert ratio > 1.1
    assert flags == []

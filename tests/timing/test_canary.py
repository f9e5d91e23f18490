"""The canary tells a machine that has become slower."""

import pytest

from bench.timing import canary
from tests.fakes import Clock, Device


def test_it_is_compared_with_the_start_and_single_slow_windows_do_not_count():
    clock, pace, burst = Clock(), [0.030], [0]
    bird = canary.Canary(Device(clock, work=lambda i: pace[0] + burst[0] * (i % 3 == 0)), clock)
    assert bird.seconds == pytest.approx(0.030, rel=0.01)
    burst[0] = 0.060
    assert bird.compare() == pytest.approx(1, rel=0.01)
    pace[0] = 0.036
    assert bird.compare() == pytest.approx(1.2, rel=0.01)


def test_a_cpus_canary_is_numpys():
    bird = canary.open_canary(None, "cpu", None)
    bird.seconds /= 100  # as if the machine had become much slower
    assert bird.compare() > 1.1

"""The canary tells a machine that has become slower."""

import pytest

from bench.timing import canary
from tests.fakes import Clock, Device


@pytest.mark.parametrize("pace", [0.030, 0.036])
@pytest.mark.parametrize("burst", [0, 0.060])
def test_single_slow_windows_do_not_count(pace, burst):
    clock = Clock()
    device = Device(clock, work=lambda i: pace + burst * (i % 3 == 0))
    assert canary.time_steps(device, clock) == pytest.approx(pace, rel=0.01)


def test_a_cpus_canary_is_numpys():
    assert 0 < canary.measure_canary(None, "cpu", None) < 1

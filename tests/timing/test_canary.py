"""The canary tells a machine that has become slower."""

import numpy as np
import pytest

from bench.timing import canary
from tests.fakes import Clock, Device


def test_single_slow_windows_do_not_count():
    for pace, burst in ((0.030, 0.0), (0.030, 0.060), (0.036, 0.060)):
        clock = Clock()
        device = Device(clock, work=lambda i, pace=pace, burst=burst: pace + burst * (i % 3 == 0))
        assert canary.time_steps(device, clock) == pytest.approx(pace, rel=0.01)
    cells = canary.measure_canary()
    assert 0 < cells["canary_seconds"] < 1
    assert cells["numpy"] == np.__version__

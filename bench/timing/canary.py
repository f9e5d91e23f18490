"""A canary: a small matmul of NumPy, timed before the first measurement on a CPU.

Its seconds are stored, so that a slow machine can be told from slow software: it is the same for all frameworks, their
versions and all settings.
"""

import functools
import statistics
import time
from types import SimpleNamespace

import numpy as np

from bench.timing.measure import timed
from bench.workloads import data

SIDE = 512  # rows and columns of the matrices
WINDOW_SECONDS = 0.020
WINDOWS = 30
WARMUP_SECONDS = 0.5


def measure_canary():
    """Return the seconds of NumPy's matmul of two matrices in float32."""
    ((a, b),) = data.operand_sets([(SIDE, SIDE), (SIDE, SIDE)], sets=1, seed=0)
    step = functools.partial(np.matmul, a, b, out=np.empty_like(a))  # complete when it returns
    return time_steps(SimpleNamespace(prepare=None, step=step, synchronize=lambda: None, read=lambda: None))


def time_steps(session, clock=time.perf_counter):
    """Return the seconds per step: the lower quartile of short windows, of which other programs slow some."""
    start = clock()
    done = 0
    while (elapsed := clock() - start) < WARMUP_SECONDS:
        timed(session, clock, 1)
        done += 1
    steps = max(1, round(done * WINDOW_SECONDS / elapsed))
    return statistics.quantiles((timed(session, clock, steps) / steps for _ in range(WINDOWS)), n=4)[0]

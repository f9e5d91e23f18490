"""A canary: a small matmul of NumPy, timed before the first measurement on a CPU.

Its seconds are stored with NumPy's version, so that a slow machine can be told from slow software: with the same NumPy
it is the same for all frameworks and settings.
"""

import functools
import statistics
import time
from types import SimpleNamespace

import numpy as np

from bench.timing.measure import MIN_WARMUP_SECONDS, timed, warm_up
from bench.workloads import data

SIDE = 512  # rows and columns of the matrices
WINDOW_SECONDS = 0.020
WINDOWS = 30


def measure_canary():
    """Return the cells of the canary: the seconds of NumPy's matmul of two matrices in float32, and its version."""
    ((a, b),) = data.operand_sets([(SIDE, SIDE), (SIDE, SIDE)], sets=1, seed=0)
    step = functools.partial(np.matmul, a, b, out=np.empty_like(a))  # complete when it returns
    session = SimpleNamespace(prepare=None, step=step, synchronize=lambda: None, read=lambda: None)
    return {"canary_seconds": time_steps(session), "numpy": np.__version__}


def time_steps(session, clock=time.perf_counter):
    """Return the seconds per step: the lower quartile of short windows, of which other programs slow some."""
    steps = max(1, round(WINDOW_SECONDS / warm_up(session, clock, MIN_WARMUP_SECONDS)))
    return statistics.quantiles((timed(session, clock, steps) / steps for _ in range(WINDOWS)), n=4)[0]

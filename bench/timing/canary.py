"""A canary: a small matmul, timed before a run's first measurement.

Its seconds are stored, so that a slow machine can be told from slow software.
"""

import functools
import logging
import statistics
import time
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from bench.timing.measure import timed
from bench.workloads import data, operators

log = logging.getLogger("bench")

CPU_SIDE = 512  # rows and columns of the matrices on a CPU
GPU_SIDE = 2048
WINDOW_SECONDS = 0.020
WINDOWS = 30
WARMUP_SECONDS = 0.5  # an idle GPU needs time to raise its clock


def measure_canary(framework, device, settings):
    """Return the seconds of a matmul on this device: NumPy's on a CPU, else the framework's; None if it fails."""
    side = CPU_SIDE if device == "cpu" else GPU_SIDE
    ((a, b),) = operands = data.operand_sets(((side, side),) * 2, 1, 0)
    if device == "cpu":  # NumPy is the same for all frameworks and their versions
        step = functools.partial(np.matmul, a, b, out=np.empty_like(a))  # complete when it returns
        return time_steps(SimpleNamespace(prepare=None, step=step, synchronize=lambda: None, read=lambda: None))
    # The precision is the measured one, because the TF32 switch applies to the whole process.
    workload = replace(operators.matmul((side,) * 3), make_batches=lambda *_: operands)
    try:
        with closing(framework.open_session(workload, settings, None, "device")) as session:
            return time_steps(session)
    except Exception as error:  # a missing canary is not a reason to stop
        log.info("no canary: %s", error)
        return None


def time_steps(session, clock=time.perf_counter):
    """Return the seconds per step: the lower quartile of short windows, of which other programs slow some."""
    start = clock()
    done = 0
    while (elapsed := clock() - start) < WARMUP_SECONDS:
        timed(session, clock, 1)
        done += 1
    steps = max(1, round(done * WINDOW_SECONDS / elapsed))
    return statistics.quantiles((timed(session, clock, steps) / steps for _ in range(WINDOWS)), n=4)[0]

"""A canary: a small matmul, timed before a run's first measurement and after each measurement of a rate.

Its seconds are stored, so that a slow machine can be told from slow software.
"""

import functools
import logging
import statistics
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from bench.timing.measure import timed
from bench.workloads import data, operators

log = logging.getLogger("bench")

CPU_SIDE, GPU_SIDE = 512, 2048  # of the matrices
WINDOW_SECONDS, WINDOWS = 0.020, 30
WARMUP_SECONDS = 0.5  # an idle GPU needs time to raise its clock


def open_canary(framework, device, settings):
    """Return a Canary on this device: in NumPy on a CPU, else in the framework; None if the matmul fails."""
    side = CPU_SIDE if device == "cpu" else GPU_SIDE
    ((a, b),) = operands = data.operand_sets(((side, side),) * 2, 1, 0)
    if device == "cpu":  # NumPy is the same for all frameworks and their versions
        step = functools.partial(np.matmul, a, b, out=np.empty_like(a))  # complete when it returns
        return Canary(SimpleNamespace(prepare=None, step=step, synchronize=lambda: None, read=lambda: None))
    # The precision is the measured one, because the TF32 switch applies to the whole process.
    workload = replace(operators.matmul((side,) * 3), make_batches=lambda *_: operands)
    try:
        return Canary(framework.open_session(workload, settings, None, "device"))
    except Exception as error:  # a missing canary is no reason to stop
        log.info("no canary: %s", error)
        return None


class Canary:
    """Compares the machine's speed with `seconds`, those of one matmul at the start."""

    def __init__(self, session, clock=time.perf_counter):
        self._session, self._clock = session, clock
        start, done = clock(), 0
        while (elapsed := clock() - start) < WARMUP_SECONDS:
            timed(session, clock, 1)
            done += 1
        self._steps = max(1, round(done * WINDOW_SECONDS / elapsed))
        self.seconds = self._read()

    def compare(self):
        """Return the seconds of a matmul now over those at the start."""
        return self._read() / self.seconds

    def _read(self):
        """Return the seconds per matmul: the lower quartile of short windows, of which other programs slow some."""
        windows = [timed(self._session, self._clock, self._steps) / self._steps for _ in range(WINDOWS)]
        return statistics.quantiles(windows, n=4)[0]

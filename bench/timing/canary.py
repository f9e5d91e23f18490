"""A canary: a small matmul, timed before a run's first measurement and after each measurement of a rate.

It needs no permissions and works on every machine. If the same matmul becomes slower during a run, and no other program
explains it, heat or a power limit has slowed the machine down. Its seconds are stored, so that a slow machine can be
told from slow software.
"""

import logging
import math
import statistics
import time
from dataclasses import replace

import numpy as np

from bench.host import environment, meters, sensors
from bench.timing.measure import timed
from bench.workloads import data, operators

log = logging.getLogger("bench")

CPU_SIDE, GPU_SIDE = 512, 2048  # of the matrices
WINDOW_SECONDS = 0.020
WINDOWS = 10
WARMUP_SECONDS = 0.5
SLOWER = 1.1  # a boosting card loses 2 to 5 % when it is warm, a shared machine varies by more
READINGS = 3  # at the start
# A shared machine can be slow for a second or two: only if it stays slow for that many readings, that is a warning.
MOST_READINGS = 8


class NumPyMatmul:
    """A session of one matmul in NumPy, which is the same for all frameworks and their versions."""

    prepare = None

    def __init__(self, side):
        ((self.a, self.b),) = data.operand_sets(((side, side),) * 2, 1, 0)
        self.output = np.empty_like(self.a)

    def step(self):
        np.matmul(self.a, self.b, out=self.output)

    def synchronize(self):
        pass

    def read(self):
        return float(self.output[-1, -1])


def open_canary(framework, device, settings):
    """Return a Canary on this device: in NumPy on a CPU, else in the framework; None if the matmul fails."""
    if device == "cpu":
        # The cores of a virtual machine slow each other down whenever its host puts them on the same real core.
        slower = math.inf if environment.is_virtual() else SLOWER
        return Canary(NumPyMatmul(CPU_SIDE), meters.watch_contention() if sensors.psutil else None, slower)
    # The precision is the measured one, because the TF32 switch applies to the whole process.
    matmul, shapes = operators.matmul((GPU_SIDE,) * 3), ((GPU_SIDE, GPU_SIDE),) * 2
    workload = replace(matmul, make_batches=lambda _, seed: data.operand_sets(shapes, 1, seed))
    try:
        return Canary(framework.open_session(workload, settings, None, "device"))
    except Exception as error:  # a missing canary is no reason to stop
        log.info("no canary for heat: %s", error)
        return None


class Canary:
    """Compares the machine's speed with what it was at the start.

    Args:
        session: of one small piece of work.
        contention: a watch for other programs' load; None if other programs do not matter or cannot be seen.
        slower: the ratio of seconds above which the machine counts as slowed.
        clock: () -> seconds of wall time.
    """

    def __init__(self, session, contention=None, slower=SLOWER, clock=time.perf_counter):
        self._session, self._clock, self._contention, self._slower = session, clock, contention, slower
        self._steps = choose_steps(session, clock)
        self._first = [self._read() for _ in range(READINGS)]
        self.seconds = statistics.median(self._first)  # of one matmul, before the run

    def compare(self):
        """Return (ratio, flags) after a measurement: seconds now over seconds at the start, and `slowed` or nothing.

        `slowed` means that all readings are slower than the slowest one at the start, by 10 % and without contention.
        """
        if self._contention:
            self._contention.start()
        limit, now = self._slower * max(self._first), [self._read()]
        while now[-1] > limit and len(now) < MOST_READINGS:
            now.append(self._read())
        disturbed = self._contention and self._contention.flags()
        slowed = min(now) > limit and not disturbed
        return statistics.median(now) / self.seconds, ["slowed"] if slowed else []

    def _read(self):
        """Return the seconds per step: the lower quartile of short windows.

        Other programs slow down some of the windows; heat and power limits slow down all of them.
        """
        windows = [timed(self._session, self._clock, self._steps) / self._steps for _ in range(WINDOWS)]
        return statistics.quantiles(windows, n=4)[0]


def choose_steps(session, clock):
    """Return the steps per window. Runs for WARMUP_SECONDS, because an idle GPU needs time to raise its clock."""
    start, steps = clock(), 1
    while True:
        seconds = timed(session, clock, steps)
        if seconds < WINDOW_SECONDS:
            steps *= 2
        elif clock() - start >= WARMUP_SECONDS:
            return steps

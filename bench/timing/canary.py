"""A canary for heat: a small matrix product, timed before a run's first measurement and after each of them.

It works on any machine and needs no rights: where the same little work takes longer afterwards, and no other program
is seen that could be the reason, heat or a power limit has slowed the machine down.
"""

import logging
import statistics
import time
from dataclasses import replace

from bench.machine import meters
from bench.timing.measure import timed
from bench.work import data, operators

log = logging.getLogger("bench")

WINDOW_SECONDS = 0.020
WINDOWS = 15
WARMUP_SECONDS = 1.0
SLOWER = 1.03
READINGS = 3  # a shared machine moves by more than that by itself: all of these must agree


def open_canary(framework, device, settings):
    """A Canary on this device, None where the framework has no matrix product."""
    side = 512 if device == "cpu" else 2048
    one_pair = lambda _, seed: data.operand_sets(((side, side),) * 2, 1, seed)  # noqa: E731
    try:
        # In the precision of what is measured: the switch for TF32 is one for all of a process.
        workload = replace(operators.matmul((side,) * 3), batches=one_pair)
        contention = meters.Guard(meters.ContentionWatch()) if device == "cpu" and meters.psutil else None
        return Canary(framework.open_session(workload, settings, None, "device"), contention=contention)
    except Exception as error:  # a doubt that cannot be raised is no reason to stop
        log.info("no canary for heat: %s", error)
        return None


class Canary:
    """Compares the machine with itself.

    Args:
        session: of a small piece of work, always the same.
        clock: seconds on the wall.
        contention: a watch that tells when other programs are the reason; None where they cannot be, or nothing tells.
    """

    def __init__(self, session, clock=time.perf_counter, contention=None):
        self._session, self._clock, self._contention = session, clock, contention
        self._steps = choose_steps(session, clock)
        self._first = [self._read() for _ in range(READINGS)]

    def compare(self):
        """(ratio, flags) after a measurement: seconds now over those at first, and whether that is `throttled`.

        It is where each reading now is over 3 % slower than the slowest at first, and other programs are no reason.
        """
        if self._contention:
            self._contention.start()
        limit, now = SLOWER * max(self._first), [self._read()]
        while now[-1] > limit and len(now) < READINGS:
            now.append(self._read())
        disturbed = self._contention and self._contention.flags()
        slowed = min(now) > limit and not disturbed
        return statistics.median(now) / statistics.median(self._first), ["throttled"] if slowed else []

    def _read(self):
        """Seconds of one step: the lower quartile of short windows.

        Other programs make some windows longer; heat and power limits make all of them longer.
        """
        windows = [timed(self._session, self._clock, self._steps) / self._steps for _ in range(WINDOWS)]
        return statistics.quantiles(windows, n=4)[0]


def choose_steps(session, clock):
    """Steps in a window, after a warm-up: an idle GPU needs some time to reach its clock."""
    start, steps = clock(), 1
    while True:
        seconds = timed(session, clock, steps)
        if seconds < WINDOW_SECONDS:
            steps *= 2
        elif clock() - start >= WARMUP_SECONDS:
            return steps

"""What is measured, and how the time of some steps is taken. Independent of the framework: the session is an argument.

A window is: read the clock, submit k steps, synchronise, read a number that depends on the last step, read the clock.
Nothing else happens inside.
"""

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """What is measured, with what, and until when."""

    session: Any  # a BaseSession of bench/frameworks/session.py
    items_per_step: float
    max_seconds: float
    target_ci: float = 1.0  # half the width of the interval, in percent of the median
    num_items: int | None = None  # at least this many, in whole windows, instead of the two limits above
    sustained_seconds: float | None = None  # of all windows together, instead of the three limits above
    least_seconds: float = 0.0  # of all windows together, before their interval can end the measurement
    clock: Callable[[], float] = time.perf_counter  # wall seconds
    # Called between windows with the list of their seconds and the steps in each; never inside a stream.
    on_window: Callable[[list[float], int], None] | None = None
    watch: Any = None  # a meters.Watch: start() before the first window, look() after each, stop() after the last
    end_turn: Callable[[], None] | None = None  # pauses this process until its next turn

    @property
    def is_stream(self):
        """Return whether the batches come from a pipeline, as in the scopes input and end_to_end."""
        return self.session.queue_steps is not None


def timed(session, clock, steps):
    """Return the seconds from submitting the first step to reading a value of the last one, without prepare()."""
    if session.prepare:
        session.prepare()
        session.synchronize()
    start = clock()
    for _ in range(steps):
        session.step()
    session.synchronize()
    session.read()
    return clock() - start


def idle_barrier_seconds(job: Job):
    """Return the seconds that synchronising and reading take on an idle device: the median of ten times."""
    times = []
    for _ in range(10):
        start = job.clock()
        job.session.synchronize()
        job.session.read()
        times.append(job.clock() - start)
    return statistics.median(times)


@contextmanager
def collection_disabled():
    """Disable Python's garbage collection inside, and restore its state afterwards."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

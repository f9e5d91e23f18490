"""How long steps take, and how sure that is.

A window is: read the clock, submit k steps, synchronise, read a number that depends on the last step, read the clock.
Nothing else happens inside.
"""

import statistics

# Raised when a change of the method moves the numbers. 2: windows end with a read; 3: processes on a CPU keep their
# memory; 4: images have a brightness and a colour, and the output that was timed is compared.
METHOD_VERSION = 4
MAX_UNEVEN = 0.05  # by which the mean rate may be below that of the median window


class MeasurementError(Exception):
    """A measurement that has no valid result; becomes the row's status and its reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


def timed(session, clock, steps, step=None):
    """Return the seconds of some steps until a value is read, without those of prepare()."""
    step = step or session.step
    if steps and session.prepare:
        session.prepare()
        session.synchronize()
    start = clock()
    for _ in range(steps):
        step()
    session.synchronize()
    session.read()
    return clock() - start


def idle_barrier_seconds(session, clock):
    """Return the seconds that synchronising and reading take on an idle device: the median of ten times."""
    return statistics.median(timed(session, clock, 0) for _ in range(10))

"""How long a step takes, and how sure that is. Knows no framework: session and clock are arguments.

The order of a measurement:

    first step -> barrier works? -> warm-up until steady -> barrier works, output varies? -> windows

A window is: read the clock, submit k steps, synchronise, read the clock. Nothing else happens inside,
no window is ever dropped, and every doubt becomes a flag beside the number (FLAGS has the words).
"""

import gc
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

METHOD_VERSION = 1  # raised when a change here moves the numbers

MIN_BLOCK_SECONDS = 0.020
MIN_WARMUP_SECONDS = 0.5
MIN_WARMUP_STEPS = 3
LONG_STEP_SECONDS = 0.3
MIN_WINDOW_SECONDS = 0.025
MAX_SYNCHRONIZE_SHARE = 0.01
MIN_WINDOWS = 6  # the fewest samples whose extremes enclose the median with 95 %: 1 - 2 / 2**6 = 0.969
ENOUGH_WINDOWS = 20
MIN_MEASURED_SECONDS = 0.5
BARRIER_TRIES = 3
TAIL = Fraction(1, 40)  # on either side of a 95 % interval
NORMAL_QUANTILE = statistics.NormalDist().inv_cdf(float(TAIL))  # -1.96

FLAGS = {
    "not_steady": "the warm-up was still getting faster or slower when MAX_SECONDS ended it",
    "ci_not_met": "the interval is wider than TARGET_CI; a longer MAX_SECONDS narrows it",
    "few_windows": "fewer than 20 windows: the interval is their whole range; a longer MAX_SECONDS gives more",
    "drift": "the speed changed during the measurement (heat, a clock, another program)",
    "outliers": "some windows took over 1.5 times the median",
    "mean_differs": "the mean is more than 5 % away from the median: look at both",
    "recompiled": "the framework compiled again inside the measurement",
    "contended": "other programs took over 10 % of a core during the measurement: close them and repeat",
    "swapping": "the system swapped during the measurement: the work does not fit in memory",
    "not_finite": "the work ended in infinities or NaN",
}


class MeasurementError(Exception):
    """A measurement that cannot give a number; becomes the row's status and its reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Limits:
    max_seconds: float = 10.0
    target_ci: float = 1.0  # percent


@dataclass(frozen=True)
class Measurement:
    """What was measured. Seconds are wall seconds; throughput is items per second.

    A median without an interval (one window) has None for both of its ends.
    """

    throughput: float
    throughput_low: float | None
    throughput_high: float | None
    step_seconds_median: float
    step_seconds_p95: float | None
    step_seconds_min: float
    windows: int
    steps_per_window: int
    items: int
    seconds: float
    first_step_seconds: float
    warmup_seconds: float
    stop_reason: str  # "target_ci", "max_seconds" or "interrupted"
    flags: tuple[str, ...]


def measure(session, items_per_step, limits, *, clock=time.perf_counter, on_window=None, watches=()):
    """Measure a session's steps; the garbage collector rests meanwhile.

    Args:
        session: has step(), synchronize() and probe(); frameworks/__init__.py holds the contract.
        items_per_step: items that one step works through.
        limits: when to stop.
        clock: seconds, as a float, of a clock on the wall.
        on_window: called between windows with the list of their seconds and the steps in each.
        watches: meters with start() and flags(), started before the first window and read after the last.

    Returns:
        A Measurement. After Ctrl-C: of the complete windows, with stop_reason "interrupted".

    Raises:
        MeasurementError: `sync_incomplete` or `constant_output`: there is no believable number.
        KeyboardInterrupt: Ctrl-C before the first window was complete.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        return _measure(session, items_per_step, limits, clock, on_window, watches)
    finally:
        if was_enabled:
            gc.enable()


def _measure(session, items_per_step, limits, clock, on_window, watches):
    first_step_seconds = timed(session, clock, 1)
    # A barrier that does not wait lets the warm-up queue minutes of work: look once before it, coarsely.
    prove_barrier(session, clock, steps=1, tolerance=1e-3)
    warmup = warm_up(session, clock, limits.max_seconds)
    steps = choose_steps(warmup.step_seconds, idle_synchronize_seconds(session, clock))
    prove_barrier(session, clock, steps)
    prove_output_varies(session)
    traces = count_traces(session)
    for watch in watches:
        watch.start()
    windows, stop_reason = run_windows(session, clock, steps, limits, on_window)
    flags = [flag for watch in watches for flag in watch.flags()]
    flags += [] if warmup.steady else ["not_steady"]
    flags += [] if count_traces(session) == traces else ["recompiled"]
    flags += [] if math.isfinite(session.probe()) else ["not_finite"]
    return summarize(windows, steps, items_per_step, limits, first_step_seconds, warmup.seconds, stop_reason, flags)


def count_traces(session):
    """How often the framework has compiled the step so far; 0 where a session does not count."""
    return session.trace_count() if hasattr(session, "trace_count") else 0


def timed(session, clock, steps):
    """Seconds from submitting the first of some steps until all of them are complete."""
    start = clock()
    for _ in range(steps):
        session.step()
    session.synchronize()
    return clock() - start


def prove_barrier(session, clock, steps, tolerance=1e-4):
    """Raise MeasurementError when synchronize() returns before the work is done.

    A probe reads a scalar that depends on the last step, so it has to wait for that step. After a true
    barrier nothing is left to wait for, and a first probe takes as long as a second one.

    Args:
        steps: how many to submit before the barrier.
        tolerance: seconds that the first probe may take more than the second one;
            one percent of the submitted work where that is more.
    """
    for _ in range(BARRIER_TRIES):
        work = timed(session, clock, steps)
        start = clock()
        session.probe()
        middle = clock()
        session.probe()
        waited = (middle - start) - (clock() - middle)
        if waited <= max(tolerance, work / 100):
            return
    raise MeasurementError(
        "sync_incomplete",
        f"synchronize() returned {waited * 1e3:.1f} ms before the work was done, {BARRIER_TRIES} times in a row",
    )


def prove_output_varies(session):
    """Raise MeasurementError when steps on different batches all give the same value.

    Then a cache answers in place of the work, or the step does not look at its input.
    """
    values = set()
    for _ in range(4):
        session.step()
        values.add(session.probe())
    # NaN is unequal to itself; that fault is told as not_finite.
    if len(values) == 1:
        raise MeasurementError("constant_output", "four steps on different data gave the same output")


@dataclass(frozen=True)
class WarmUp:
    step_seconds: float
    seconds: float
    steady: bool


def warm_up(session, clock, max_seconds):
    """Run blocks of steps until their pace is steady, or until max_seconds (three steps at least)."""
    start = clock()
    steps, block, paces = 0, 1, []
    while True:
        seconds = timed(session, clock, block)
        steps += block
        pace = seconds / block
        elapsed = clock() - start
        if seconds < MIN_BLOCK_SECONDS:
            block *= 2  # too short to say anything
        else:
            paces.append(pace)
        if steps >= MIN_WARMUP_STEPS and elapsed >= MIN_WARMUP_SECONDS and is_steady(paces):
            return WarmUp(pace, elapsed, steady=True)
        if steps >= MIN_WARMUP_STEPS and elapsed >= max_seconds:
            return WarmUp(pace, elapsed, steady=False)


def is_steady(paces):
    """Whether seconds per step no longer change: 2 % between blocks of five, 5 % between two long steps."""
    if paces and paces[-1] > LONG_STEP_SECONDS:
        return len(paces) >= 2 and abs(paces[-1] / paces[-2] - 1) < 0.05
    if len(paces) < 10:
        return False
    return abs(statistics.median(paces[-5:]) / statistics.median(paces[-10:-5]) - 1) < 0.02


def idle_synchronize_seconds(session, clock):
    """What the barrier itself costs when there is nothing to wait for."""
    return statistics.median(timed(session, clock, 0) for _ in range(10))


def choose_steps(step_seconds, synchronize_seconds):
    """Steps per window, so that neither the clock nor the barrier shows in the result."""
    window = max(MIN_WINDOW_SECONDS, synchronize_seconds / MAX_SYNCHRONIZE_SHARE)
    return max(1, math.ceil(window / step_seconds))


def run_windows(session, clock, steps, limits, on_window=None):
    """Measure windows until the limits say stop; returns (list of seconds, stop reason)."""
    windows = []
    try:
        return windows, _collect(windows, session, clock, steps, limits, on_window)
    except KeyboardInterrupt:
        if not windows:
            raise
        return windows, "interrupted"


def _collect(windows, session, clock, steps, limits, on_window):
    next_look, start = ENOUGH_WINDOWS, clock()
    while True:
        windows.append(timed(session, clock, steps))
        # Looking after every window would cost time between them and invite a lucky stop: look every 10 %.
        if len(windows) >= next_look:
            next_look = math.ceil(next_look * 1.1)
            if sum(windows) >= MIN_MEASURED_SECONDS and half_width_percent(windows) <= limits.target_ci:
                return "target_ci"
        elapsed = clock() - start
        if (elapsed >= limits.max_seconds and len(windows) >= MIN_WINDOWS) or elapsed >= 3 * limits.max_seconds:
            return "max_seconds"
        if on_window:
            on_window(windows, steps)


def summarize(windows, steps, items_per_step, limits, first_step_seconds, warmup_seconds, stop_reason, flags):
    """The Measurement that follows from the windows' seconds and what was seen on the way."""
    middle = statistics.median(windows)
    low, high = interval(windows)
    items = items_per_step * steps
    return Measurement(
        throughput=items / middle,
        throughput_low=items / high if high else None,
        throughput_high=items / low if low else None,
        step_seconds_median=middle / steps,
        step_seconds_p95=p95(windows) if steps == 1 else None,
        step_seconds_min=min(windows) / steps,
        windows=len(windows),
        steps_per_window=steps,
        items=items * len(windows),
        seconds=sum(windows),
        first_step_seconds=first_step_seconds,
        warmup_seconds=warmup_seconds,
        stop_reason=stop_reason,
        flags=(*flags, *doubts(windows, limits)),
    )


def doubts(windows: Sequence[float], limits: Limits) -> list[str]:
    """The flags that the windows themselves raise."""
    middle = statistics.median(windows)
    found = {
        "few_windows": len(windows) < ENOUGH_WINDOWS,
        "ci_not_met": half_width_percent(windows) > limits.target_ci,
        "drift": has_drift(windows),
        "outliers": max(windows) > 1.5 * middle,
        "mean_differs": abs(statistics.fmean(windows) / middle - 1) > 0.05,
    }
    return [flag for flag, raised in found.items() if raised]


def has_drift(windows):
    """Whether the first and last thirds differ by over 2 %, beyond what their intervals explain."""
    third = len(windows) // 3
    if third < MIN_WINDOWS:
        return False
    first, last = windows[:third], windows[-third:]
    (a_low, a_high), (b_low, b_high) = median_interval(first), median_interval(last)
    differ = abs(statistics.median(last) / statistics.median(first) - 1) > 0.02
    return differ and (a_high < b_low or b_high < a_low)


def interval(windows):
    """(low, high) to print beside the median: 95 % from 20 windows on, below that their whole range."""
    if len(windows) >= ENOUGH_WINDOWS:
        return median_interval(windows)
    return (min(windows), max(windows)) if len(windows) > 1 else (None, None)


def half_width_percent(windows):
    low, high = interval(windows)
    return math.inf if low is None else 50 * (high - low) / statistics.median(windows)


def median_interval(samples):
    """The 95 % interval of the median as (low, high), from the order statistics.

    For independent samples it is exact and needs no shape of distribution: the number of samples below
    the median is Binomial(n, 1/2) (David and Nagaraja, Order Statistics, section 7.1). Windows in a row
    are not independent, so the ranks are widened about n/2 by sqrt((1 + rho) / (1 - rho)), the growth of
    a mean's standard error under a first-order autoregression; rho comes from the signs about the median
    (for Gaussian series their correlation r gives rho = sin(pi r / 2)), so that outliers do not move it.

    Args:
        samples: at least 6 of them, in the order in which they were taken.
    """
    n = len(samples)
    ordered = sorted(samples)
    rank = _exact_rank(n)
    rho = sign_autocorrelation(samples)
    reach = (n / 2 - (rank - 1)) * math.sqrt((1 + rho) / (1 - rho))
    low = max(0, math.floor(n / 2 - reach))
    return ordered[low], ordered[n - 1 - low]


def _exact_rank(n):
    """The largest 1-based rank l with P(l-th smallest > median) <= 2.5 %, by the binomial sum."""
    if n > 1000:  # the normal approximation is within one rank from here on, and the sum grows slow
        return math.floor((n + NORMAL_QUANTILE * math.sqrt(n)) / 2)
    allowed = int(2**n * TAIL)
    below, rank = 1, 1  # ways in which fewer than `rank` of n samples lie below the median
    while below + math.comb(n, rank) <= allowed:
        below += math.comb(n, rank)
        rank += 1
    return rank


def sign_autocorrelation(samples):
    """The lag-one autocorrelation, estimated from signs about the median, within [0, 0.8]."""
    middle = statistics.median(samples)
    signs = [(x > middle) - (x < middle) for x in samples]
    energy = sum(s * s for s in signs)
    if not energy:
        return 0.0
    r = sum(a * b for a, b in pairwise(signs)) / energy
    return min(0.8, max(0.0, math.sin(math.pi * r / 2)))


def p95(step_seconds):
    """The 95th percentile of single steps; None below 59 of them, where the largest may lie under it."""
    if len(step_seconds) < 59:
        return None
    return sorted(step_seconds)[math.ceil(0.95 * len(step_seconds)) - 1]

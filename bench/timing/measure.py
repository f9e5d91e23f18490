"""How long a step takes, and how sure that is. Knows no framework: session and clock are arguments.

The order of a measurement:

    first step -> barrier works? -> warm-up until steady -> barrier works, output varies? -> windows

A window is: read the clock, submit k steps, synchronise, read the clock. Nothing else happens inside,
no window is ever dropped, and every doubt becomes a flag beside the number (FLAGS has the words).

An input pipeline prepares batches ahead, so its windows leave nothing out: each begins where the last one
ended, and the batches that were waiting at the start are thrown away first.
"""

import gc
import math
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass

from bench.timing.intervals import MIN_SAMPLES, has_drift, median_interval, p95

METHOD_VERSION = 1  # raised when a change here moves the numbers

MIN_BLOCK_SECONDS = 0.020
MIN_WARMUP_SECONDS = 0.5
MIN_WARMUP_STEPS = 3
PART_WARMUP_STEPS = 5
LONG_STEP_SECONDS = 0.3
MIN_WINDOW_SECONDS = 0.025
MAX_SYNCHRONIZE_SHARE = 0.01
ENOUGH_WINDOWS = 20
STREAM_WINDOWS = 40  # of a pipeline, in MAX_SECONDS
ENOUGH_QUEUES = 20
MIN_MEASURED_SECONDS = 0.5
BARRIER_TRIES = 4
ENERGY_SECONDS = 5.0  # counters of energy move ten times a second on some cards: 2 % of this
SUSTAINED_SECONDS = 10.0  # in a row of a sustained run

FLAGS = {
    "not_steady": "the warm-up was still getting faster or slower when MAX_SECONDS ended it",
    "ci_not_met": "the interval is wider than TARGET_CI; a longer MAX_SECONDS narrows it",
    "few_windows": "fewer than 20 windows: the interval is their whole range, or missing; longer runs have more",
    "drift": "the speed changed during the measurement (heat, a clock, another program)",
    "outliers": "some windows took over 1.5 times the median",
    "mean_differs": "the mean is more than 5 % away from the median: look at both",
    "recompiled": "the framework compiled again inside the measurement",
    "contended": "other programs took over 10 % of a core during the measurement: close them and repeat",
    "barrier_shows": "waiting for the device takes over 1 % of this part's time, which is included",
    "short": "under twenty queues of batches: a queue that was full at the start still shows",
    "swapping": "the system swapped during the measurement: the work does not fit in memory",
    "throttled": "the machine itself grew slower: heat, a power limit, or a virtual machine's neighbours",
    "not_finite": "the work ended in infinities or NaN",
    "implausible": "over 1.3 times what the vendor says that the chip can do",
}


class MeasurementError(Exception):
    """A measurement that cannot give a number; becomes the row's status and its reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """When a measurement ends."""

    max_seconds: float = 10.0
    target_ci: float = 1.0  # percent
    num_items: int | None = None  # exactly so many, whatever the other two say


@dataclass(frozen=True)
class Measurement:
    """What was measured. Seconds are wall seconds; throughput is items per second.

    The throughput of resident batches is that of the median window; that of a pipeline, or of a given
    number of items, is all items over all seconds. Without an interval both of its ends are None.
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
    stop_reason: str  # "target_ci", "max_seconds", "num_images", "interval" or "interrupted"
    flags: tuple[str, ...]


@dataclass
class Series:
    """Windows of equally many steps, in seconds, and what was left for a last, smaller piece."""

    steps: int
    windows: list[float]
    stop_reason: str = ""
    tail_items: int = 0
    tail_seconds: float = 0.0


def measure(session, items_per_step, limits, *, clock=time.perf_counter, on_window=None, watches=()):
    """Measure a session's steps; the garbage collector rests meanwhile.

    Args:
        session: what frameworks/__init__.py calls a Session.
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
    with collector_at_rest():
        return _measure(session, items_per_step, limits, clock, on_window, watches)


@contextmanager
def collector_at_rest():
    """No garbage collection inside; afterwards it is as it was."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def measure_epoch(session, order, *, clock=time.perf_counter, watches=()):
    """(seconds, flags) of one pass over the training data; the session has run both of its shapes before.

    Args:
        order: the items in the order in which they are trained on.
        clock, watches: as measure() takes them.
    """
    traces = count_traces(session)
    with collector_at_rest():
        for watch in watches:
            watch.start()
        start = clock()
        session.train_epoch(order)
        session.synchronize()
        seconds = clock() - start
    flags = [flag for watch in watches for flag in watch.flags()]
    return seconds, flags + ([] if count_traces(session) == traces else ["recompiled"])


def sustain(
    session, items_per_step, limits, seconds, *, clock=time.perf_counter, on_window=None, watches=(), joules=None
):
    """Measure the same work for so many seconds, without a pause; the other arguments are measure()'s.

    Args:
        joules: a counter of energy, read between windows.

    Yields:
        (seconds since the first window began, Measurement of the last ten of them, mean watts in them or None).
    """
    ready = get_ready(session, items_per_step, limits, clock)
    watched = (session, ready, items_per_step, limits, clock, watches)

    def ten_seconds(steps):
        enough = lambda windows, elapsed: "interval" * (elapsed >= SUSTAINED_SECONDS)  # noqa: E731
        return collect(session, clock, Series(steps, []), enough, on_window, watches)

    with collector_at_rest():  # over all of it: a pause to collect would be a pause to cool down
        began, measured = clock(), None
        while clock() - began < seconds and (measured is None or measured.stop_reason != "interrupted"):
            start, before = clock(), joules() if joules else None
            measured = take(*watched, ten_seconds)
            # After Ctrl-C the energy of a window that was not complete would be in it.
            known = joules and measured.stop_reason != "interrupted"
            watts = (joules() - before) / (clock() - start) if known else None
            yield clock() - began, measured, watts


def measure_energy(session, items_per_step, steps, joules, *, clock=time.perf_counter):
    """(watts, joules an item) of ENERGY_SECONDS or more of the steps that have just been measured.

    Both readings of the counter come after a barrier: all the work between them is in, and none before or after.

    Args:
        steps: between two looks at the clock.
        joules: a counter of energy.
    """
    with collector_at_rest():
        session.synchronize()
        start, before, done = clock(), joules(), 0
        while clock() - start < ENERGY_SECONDS:
            timed(session, clock, steps)
            done += steps
        spent, seconds = joules() - before, clock() - start
    return spent / seconds, spent / (done * items_per_step)


@dataclass(frozen=True)
class WarmUp:
    step_seconds: float
    seconds: float
    steady: bool


@dataclass(frozen=True)
class Ready:
    """A session that is warm, with its barrier proved, and the steps that a window of it takes."""

    first_step_seconds: float
    warmup: WarmUp
    steps: int


def _measure(session, items_per_step, limits, clock, on_window, watches):
    ready = get_ready(session, items_per_step, limits, clock)

    def windows(steps):
        if limits.num_items is None:
            return run_until_sure(session, clock, steps, limits, on_window, watches)
        return run_exactly(session, clock, steps, items_per_step, limits.num_items, on_window, watches)

    return take(session, ready, items_per_step, limits, clock, watches, windows)


def get_ready(session, items_per_step, limits, clock):
    """Run the first step, prove the barrier and warm up; returns a Ready, raises MeasurementError."""
    first_step_seconds = timed(session, clock, 1)
    session.settle()
    # A barrier that does not wait lets the warm-up queue minutes of work: look once before it, coarsely.
    prove_barrier(session, clock, steps=1, tolerance=1e-3)
    if session.prepare:
        # The whole that it is a part of was warmed up and its barrier proved before it. A short part leaves the
        # caches cold, so that a first probe takes longer than a second: seen to be 0.1 ms on a CPU.
        warmup = repeat(session, clock, PART_WARMUP_STEPS)
        prove_barrier(session, clock, steps=1, tolerance=1e-3)
        steps = 1
        prove_output_varies(session)
    elif session.queue_steps is None:
        warmup = warm_up(session, clock, limits.max_seconds)
        steps = choose_steps(warmup.step_seconds, idle_synchronize_seconds(session, clock))
        steps = prove_barrier(session, clock, steps)
        prove_output_varies(session)
    else:
        warmup = drain_queue(session, clock, limits.max_seconds)
        steps = choose_stream_steps(warmup.step_seconds, session.num_workers, limits.max_seconds)
    warm_up_rest(session, items_per_step, limits)
    return Ready(first_step_seconds, warmup, steps)


def take(session, ready, items_per_step, limits, clock, watches, windows):
    """The Measurement of what windows(steps) gives, a Series, and of all that was seen meanwhile."""
    traces, warmup = count_traces(session), ready.warmup
    series = windows(ready.steps)
    flags = [flag for watch in watches for flag in watch.flags()]
    flags += [] if warmup.steady else ["not_steady"]
    flags += [] if count_traces(session) == traces else ["recompiled"]
    flags += [] if math.isfinite(session.probe()) else ["not_finite"]
    if session.prepare and idle_synchronize_seconds(session, clock) > MAX_SYNCHRONIZE_SHARE * warmup.step_seconds:
        flags.append("barrier_shows")
    flags += ["short"] if is_short(session, series) else []
    by_totals = session.queue_steps is not None or limits.num_items is not None
    return summarize(series, items_per_step, limits, ready.first_step_seconds, warmup.seconds, flags, by_totals)


def count_traces(session):
    """How often the framework has compiled the step so far; 0 where a session does not count."""
    return session.trace_count() if hasattr(session, "trace_count") else 0


def timed(session, clock, steps):
    """Seconds from submitting the first of some steps until all of them are complete.

    Where a step needs something done before it (the backward pass a forward one), each is timed on its own.
    """
    if session.prepare:
        return sum(timed_apart(session, clock) for _ in range(steps))
    start = clock()
    for _ in range(steps):
        session.step()
    session.synchronize()
    return clock() - start


def timed_apart(session, clock):
    """Seconds of one step alone, after what has to come before it."""
    session.prepare()
    session.synchronize()
    start = clock()
    session.step()
    session.synchronize()
    return clock() - start


def prove_barrier(session, clock, steps, tolerance=1e-4):
    """Steps in a window of which the barrier leaves no work that shows; MeasurementError when there are none.

    A probe reads a scalar that depends on the last step, so it has to wait for that step. After a true
    barrier nothing is left to wait for, and a first probe takes as long as a second one, but for what the
    work has pushed out of the caches. That does not grow with the work, as what a broken barrier leaves does:
    hence each further try is twice as long.

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
            return steps
        steps *= 2
    raise MeasurementError(
        "sync_incomplete",
        f"synchronize() returned {waited * 1e3:.1f} ms before the work was done, {BARRIER_TRIES} times in a row",
    )


def prove_output_varies(session):
    """Raise MeasurementError when steps on different batches all give the same value.

    Then a cache answers in place of the work, or the step does not look at its input.
    """
    values = []
    for _ in range(4):
        if session.prepare:
            session.prepare()
        session.step()
        values.append(session.probe())
        # NaN is unequal to itself; that fault is told as not_finite.
        if values[-1] != values[0]:
            return
    raise MeasurementError("constant_output", "four steps on different data gave the same output")


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


def repeat(session, clock, steps):
    """A warm-up of so many steps, without a look at its pace."""
    start = clock()
    seconds = timed(session, clock, steps)
    return WarmUp(seconds / steps, clock() - start, steady=True)


def warm_up_rest(session, items_per_step, limits):
    """The last, smaller batch of a given number of items has a shape of its own to be tuned and compiled for."""
    rest = (limits.num_items or 0) % items_per_step
    for _ in range(MIN_WARMUP_STEPS if rest else 0):
        session.step(rest)
    session.synchronize()


def is_steady(paces):
    """Whether seconds per step no longer change: 2 % between blocks of five, 5 % between two long steps."""
    if paces and paces[-1] > LONG_STEP_SECONDS:
        return len(paces) >= 2 and abs(paces[-1] / paces[-2] - 1) < 0.05
    if len(paces) < 10:
        return False
    return abs(statistics.median(paces[-5:]) / statistics.median(paces[-10:-5]) - 1) < 0.02


def idle_synchronize_seconds(session, clock):
    """What the barrier itself costs when there is nothing to wait for."""
    costs = []
    for _ in range(10):
        start = clock()
        session.synchronize()
        costs.append(clock() - start)
    return statistics.median(costs)


def choose_steps(step_seconds, synchronize_seconds):
    """Steps per window, so that neither the clock nor the barrier shows in the result."""
    window = max(MIN_WINDOW_SECONDS, synchronize_seconds / MAX_SYNCHRONIZE_SHARE)
    return max(1, math.ceil(window / step_seconds))


def drain_queue(session, clock, max_seconds):
    """Throw away twice the batches that may have been waiting; the last ones' pace is the pipeline's own.

    It ends at max_seconds all the same: where so few steps take so long the device is the limit, and the queue
    is full for good; else the measurement will be flagged as short.
    """
    start, steps = clock(), 0
    while True:
        block = max(1, session.num_workers)
        seconds = timed(session, clock, block)
        steps += block
        elapsed = clock() - start
        if steps >= max(2 * session.queue_steps, MIN_WARMUP_STEPS) or elapsed >= max_seconds:
            return WarmUp(seconds / block, elapsed, steady=True)


def choose_stream_steps(step_seconds, num_workers, max_seconds):
    """Steps per window of a pipeline: a multiple of its workers, because they deliver in turns, if time allows."""
    workers = max(1, num_workers)
    if workers * step_seconds > max_seconds / MIN_SAMPLES:
        return 1
    window = max(MIN_WINDOW_SECONDS, max_seconds / STREAM_WINDOWS)
    return workers * max(1, round(window / (step_seconds * workers)))


def run_until_sure(session, clock, steps, limits, on_window=None, watches=()):
    """Measure windows until the interval is narrow enough or the time is over; returns a Series.

    Of a pipeline until the time is over: statistics between its windows would be time that it works ahead.
    """
    next_look = ENOUGH_WINDOWS

    def stop(windows, elapsed):
        nonlocal next_look
        # Looking after every window would cost time between them and invite a lucky stop: look every 10 %.
        if session.queue_steps is None and len(windows) >= next_look:
            next_look = math.ceil(next_look * 1.1)
            if sum(windows) >= MIN_MEASURED_SECONDS and half_width_percent(windows) <= limits.target_ci:
                return "target_ci"
        late = elapsed >= limits.max_seconds
        return "max_seconds" if (late and len(windows) >= MIN_SAMPLES) or elapsed >= 3 * limits.max_seconds else ""

    return collect(session, clock, Series(steps, []), stop, on_window, watches)


def run_exactly(session, clock, steps, items_per_step, num_items, on_window=None, watches=()):
    """Measure exactly so many items, at least one full step of them; returns a Series, the rest in its tail.

    A pipeline prepares the last batch whole, which makes it look slower by the part that is not counted.
    """
    full_steps, rest = divmod(num_items, items_per_step)
    steps = max(1, min(steps, full_steps // MIN_SAMPLES))
    count, left = divmod(full_steps, steps)
    series = Series(steps, [])
    collect(session, clock, series, lambda windows, _: "num_images" * (len(windows) == count), on_window, watches)
    if series.stop_reason == "num_images" and (left or rest):
        try:
            start = clock()
            for _ in range(left):
                session.step()
            if rest:
                session.step(rest)
            session.synchronize()
            series.tail_items, series.tail_seconds = left * items_per_step + rest, clock() - start
        except KeyboardInterrupt:
            series.stop_reason = "interrupted"
    return series


def collect(session, clock, series, stop, on_window=None, watches=()):
    """Add windows to the series until stop(windows, elapsed seconds) gives a reason, or until Ctrl-C; returns it."""
    streams = session.queue_steps is not None
    for watch in watches:
        watch.start()
    began = last = clock()
    try:
        while not series.stop_reason:
            seconds = timed(session, clock, series.steps)
            now = clock()
            series.windows.append(now - last if streams else seconds)
            last = now
            series.stop_reason = stop(series.windows, now - began)
            if on_window and not streams:
                on_window(series.windows, series.steps)
    except KeyboardInterrupt:
        if not series.windows:
            raise
        series.stop_reason = "interrupted"
    return series


def summarize(series, items_per_step, limits, first_step_seconds, warmup_seconds, flags, by_totals):
    """The Measurement that follows from the windows' seconds and what was seen on the way."""
    windows, steps = series.windows, series.steps
    middle = statistics.median(windows)
    in_window = items_per_step * steps
    items = in_window * len(windows) + series.tail_items
    seconds = sum(windows) + series.tail_seconds
    throughput = items / seconds if by_totals else in_window / middle
    low, high = interval(windows)
    if limits.num_items and len(windows) < MIN_SAMPLES:
        low = high = None
    return Measurement(
        throughput=throughput,
        # A mean over all seconds may lie outside of the median's interval; its own is not narrower.
        throughput_low=min(throughput, in_window / high) if high else None,
        throughput_high=max(throughput, in_window / low) if low else None,
        step_seconds_median=middle / steps,
        step_seconds_p95=p95(windows) if steps == 1 else None,
        step_seconds_min=min(windows) / steps,
        windows=len(windows),
        steps_per_window=steps,
        items=items,
        seconds=seconds,
        first_step_seconds=first_step_seconds,
        warmup_seconds=warmup_seconds,
        stop_reason=series.stop_reason,
        flags=(*flags, *doubts(windows, limits)),
    )


def doubts(windows, limits):
    """The flags that the windows themselves raise."""
    middle = statistics.median(windows)
    found = {
        "few_windows": len(windows) < ENOUGH_WINDOWS,
        "ci_not_met": limits.num_items is None and half_width_percent(windows) > limits.target_ci,
        "drift": has_drift(windows),
        "outliers": max(windows) > 1.5 * middle,
        "mean_differs": abs(statistics.fmean(windows) / middle - 1) > 0.05,
    }
    return [flag for flag, raised in found.items() if raised]


def is_short(session, series):
    """Whether a pipeline's queue, full or empty at the start, may still show in the total."""
    return bool(session.queue_steps) and len(series.windows) * series.steps < ENOUGH_QUEUES * session.queue_steps


def interval(windows):
    """(low, high) to print beside the median: 95 % from 20 windows on, below that their whole range."""
    if len(windows) >= ENOUGH_WINDOWS:
        return median_interval(windows)
    return (min(windows), max(windows)) if len(windows) > 1 else (None, None)


def half_width_percent(windows):
    low, high = interval(windows)
    return math.inf if low is None else 50 * (high - low) / statistics.median(windows)

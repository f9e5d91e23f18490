"""Measure the time of a step and its uncertainty. Independent of the framework: session and clock are arguments.

The order of a measurement:

    first step -> warm-up -> check that every step runs and the output varies -> windows -> check the number of steps

A window is: read the clock, submit k steps, synchronise, read a number that depends on the last step, read the clock.
Nothing else happens inside, and no window is dropped. Anything that makes a result unreliable raises a flag (FLAGS).
Statistics, such as the width of the interval, are columns and not flags.

There are three modes (MODES): whole steps on resident batches, one part of a training step, and a stream of batches
from an input pipeline. A pipeline prepares batches ahead, so its windows have no gaps: each begins when the last one
ended. Batches that were waiting at the start are thrown away first.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.timing import MeasurementError
from bench.timing.intervals import MIN_SAMPLES, has_drift, median_interval, p95

METHOD_VERSION = 2  # raised when a change here moves the numbers; 2: windows end with a read, every step is proved

MIN_BLOCK_SECONDS = 0.020
MIN_WARMUP_SECONDS = 0.5
MIN_WARMUP_STEPS = 2
MAX_WARMUPS = 2  # times MAX_SECONDS, in a warm-up that does not get steady
PART_WARMUP_STEPS = 5
LONG_STEP_SECONDS = 0.3
MIN_WINDOW_SECONDS = 0.025
MAX_BARRIER_SHARE = 0.01  # of a window: an idle synchronise and read
MAX_PART_BARRIER_SHARE = 0.05  # of a part of training, whose windows have one step
ENOUGH_WINDOWS = 20
LEAST_WINDOWS = 2  # of long steps, when the time is over: the interval comes from repeated processes
STREAM_WINDOWS = 40  # of a pipeline, in MAX_SECONDS
ENOUGH_QUEUES = 10
MIN_MEASURED_SECONDS = 0.5
ENERGY_SECONDS = 5.0  # some cards update their energy counter ten times a second: an error of 2 %
SUSTAINED_SECONDS = 10.0  # in a row of a sustained run

# The proof that every step runs, see prove_every_step_runs().
SINGLE_STEPS = 12
COMPARED_STEPS = 16  # of the compared window, at least: skipping all but one gives a ratio of 16, far above 4
MAX_SINGLE_RATIO = 4.0
MAX_READ_RATIO = 1.5  # of steps whose outputs are all read; if every second step were skipped, it would be 2
KEPT_OUTPUTS = 8
SINGLE_TOLERANCE = 2e-5  # seconds a step
SKIP_TRIES = 5

# A flag marks a row to check before it is used. Each text is a reason, a colon and the fix.
FLAGS = {
    "drift": "the speed changed by more than 10 % during the measurement: repeat it when the machine is cool and idle",
    "recompiled": "the framework recompiled during the measurement: a larger MAX_SECONDS reduces the effect",
    "contended": "other programs used more than 10 % of the CPU time (20 % if they used 10 % before the run): close "
    "them",
    "barrier_shows": "synchronisation takes more than 5 % of this part's time: a larger BATCH_SIZE reduces its share",
    "short": "fewer than 10 queue lengths were measured, so batches prepared in advance may inflate the rate: set a "
    "larger MAX_SECONDS",
    "swapping": "the system swapped during the measurement: choose a smaller BATCH_SIZE or MODEL",
    "slowed": "a small matmul took more than 10 % longer after the measurement than at the start (heat, a power limit, "
    "a busy host): let the machine cool down and repeat the measurement",
    "throttled": "the system reports that heat or power slows the device: cool it, or plug it in",
    "unlike_ranks": "the ranks have different devices or versions, and the slowest sets the pace: use identical ones",
    "not_finite": "the output contains inf or NaN: choose another PRECISION",
    "implausible": "more than 1.3 times the chip's peak or bandwidth in bench/records/peaks.csv: report it as an issue",
}


@dataclass(frozen=True)
class Job:
    """What is measured, with what, and until when."""

    session: Any  # a BaseSession of bench/frameworks/session.py
    items_per_step: int
    max_seconds: float
    target_ci: float = 1.0  # percent
    num_items: int | None = None  # at least this many, in whole steps; overrides the other two
    clock: Callable[[], float] = time.perf_counter  # wall seconds
    # Called between windows with the list of their seconds and the steps in each; never inside a stream.
    on_window: Callable[[list[float], int], None] | None = None
    watches: Sequence[Any] = ()  # meters: start() before the first window, flags() after the last

    @property
    def mode(self):
        """Return a key of MODES."""
        if self.session.queue_steps is not None:
            return "stream"
        return "part" if self.session.prepare else "step"


@dataclass(frozen=True)
class Measurement:
    """What was measured. Seconds are wall seconds; throughput is items per second.

    The throughput of resident batches is that of the median window. For a pipeline, or a given number of items, it
    is total items / total seconds. If there is no interval, both of its ends are None.
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
    """Windows of equally many steps, in seconds, and the steps left over for a shorter piece at the end."""

    steps: int
    windows: list[float]
    stop_reason: str = ""
    tail_steps: int = 0
    tail_seconds: float = 0.0


@dataclass(frozen=True)
class WarmUp:
    step_seconds: float
    seconds: float
    varies: bool = False  # the last two blocks ended with different outputs


@dataclass(frozen=True)
class Ready:
    """Hold what is known of a session after warm-up and after the check that every step runs."""

    first_step_seconds: float
    first_value: float  # what was read after the first step
    warmup: WarmUp
    steps: int  # in a window


def measure(job: Job):
    """Measure a job's steps with garbage collection disabled.

    Returns:
        A Measurement. After Ctrl-C: of the complete windows, with stop_reason "interrupted".

    Raises:
        MeasurementError: `work_skipped`, `constant_output`, `wrong_output` or `unsupported`: there is no valid result.
        KeyboardInterrupt: Ctrl-C before the first window was complete.
    """
    with collector_at_rest():
        ready = get_ready(job)
        return measure_ready(job, ready, run_until_sure if job.num_items is None else run_exactly)


@contextmanager
def collector_at_rest():
    """Disable garbage collection inside, and restore its state afterwards."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def measure_epoch(job: Job, order):
    """Return (seconds, flags) of one pass over the training data.

    The session has run both sizes of its batches before. The pass ends like a window, with a barrier and a read.

    Args:
        order: the items in the order in which they are trained on.
    """
    session = job.session
    traces, updates = session.trace_count(), session.updates()
    with collector_at_rest():
        for watch in job.watches:
            watch.start()
        start = job.clock()
        steps = session.train_epoch(order)
        session.synchronize()
        session.read()
        seconds = job.clock() - start
    require_updates(session, updates, steps)
    flags = [flag for watch in job.watches for flag in watch.flags()]
    return seconds, flags + ([] if session.trace_count() == traces else ["recompiled"])


def sustain(job: Job, seconds, joules=None):
    """Measure the same work for a number of seconds, without a pause.

    Args:
        joules: reads a counter of energy; called between windows.

    Yields:
        (seconds since the first window began, Measurement of the last ten of them, mean watts in them or None).
    """
    enough = lambda windows, elapsed: "interval" * (elapsed >= SUSTAINED_SECONDS)  # noqa: E731
    with collector_at_rest():  # over all of it: a pause to collect would be a pause to cool down
        ready = get_ready(job)
        began, measured = job.clock(), None
        while job.clock() - began < seconds and (measured is None or measured.stop_reason != "interrupted"):
            start, before = job.clock(), joules() if joules else None
            measured = measure_ready(job, ready, lambda job, steps: collect(job, Series(steps, []), enough))
            # After Ctrl-C the counter would include the energy of an incomplete window.
            known = joules and measured.stop_reason != "interrupted"
            watts = (joules() - before) / (job.clock() - start) if known else None
            yield job.clock() - began, measured, watts


def measure_energy(job: Job, steps, joules):
    """Return (watts, joules per item) of at least ENERGY_SECONDS of the steps that have just been measured.

    The counter is read on an idle device both times, so it covers exactly the work between the two readings.

    Args:
        steps: between two readings of the clock.
        joules: reads a counter of energy.
    """
    with collector_at_rest():
        job.session.synchronize()
        job.session.read()
        start, before, done = job.clock(), joules(), 0
        while job.clock() - start < ENERGY_SECONDS:
            timed(job.session, job.clock, steps)
            done += steps
        spent, seconds = joules() - before, job.clock() - start
    return spent / seconds, spent / (done * job.items_per_step)


def get_ready(job: Job):
    """Run the first step and warm up; returns a Ready, raises MeasurementError."""
    first_step_seconds = timed(job.session, job.clock, 1)
    first_value = job.session.read()
    job.session.after_first_step()
    warmup, steps = MODES[job.mode](job)
    return Ready(first_step_seconds, first_value, warmup, steps)


def get_step_ready(job: Job):
    """Return (WarmUp, steps in a window) of whole steps on resident batches."""
    warmup = warm_up(job.session, job.clock, MAX_WARMUPS * job.max_seconds)
    steps = choose_steps(warmup.step_seconds, idle_barrier_seconds(job))
    prove_every_step_runs(job, steps)
    if not warmup.varies:
        prove_output_varies(job.session)
    return warmup, steps


def get_part_ready(job: Job):
    """Return (WarmUp, 1) of a part of a training step: every timed step has a window of its own.

    The full step ran before it in this process, so a few steps warm it up.
    """
    start = job.clock()
    step_seconds = timed(job.session, job.clock, PART_WARMUP_STEPS) / PART_WARMUP_STEPS
    prove_output_varies(job.session)
    return WarmUp(step_seconds, job.clock() - start), 1


def get_stream_ready(job: Job):
    """Return (WarmUp, steps in a window) of batches from an input pipeline, its queue drained."""
    warmup = drain_queue(job)
    steps = choose_stream_steps(warmup.step_seconds, job.session.num_workers, job.max_seconds)
    if steps > 1:
        prove_every_step_runs(job, steps)
        warmup = drain_queue(job)  # single steps are slower, so the queue filled up meanwhile
    return warmup, steps


MODES = {"step": get_step_ready, "part": get_part_ready, "stream": get_stream_ready}


def measure_ready(job: Job, ready, run):
    """Measure the windows of run(job, steps); returns a Measurement with its flags.

    Raises:
        MeasurementError: `work_skipped` if the optimizer's step count differs from ours, or no weight changed.
    """
    session, warmup = job.session, ready.warmup
    traces, updates = session.trace_count(), session.updates()
    series = run(job, ready.steps)
    flags = [flag for watch in job.watches for flag in watch.flags()]
    flags += [] if session.trace_count() == traces else ["recompiled"]
    if series.stop_reason != "interrupted":  # by Ctrl-C, in the middle of a step that has no result to read
        value = session.read()
        require_updates(session, updates, ready.steps * len(series.windows) + series.tail_steps)
        if updates is not None and value == ready.first_value:
            raise MeasurementError("work_skipped", "the weights have not changed since the first step")
        flags += [] if math.isfinite(value) else ["not_finite"]
        if job.mode == "part" and idle_barrier_seconds(job) > MAX_PART_BARRIER_SHARE * warmup.step_seconds:
            flags += ["barrier_shows"]
    # A pipeline's queue, full or empty at the start, may still show in the total.
    if session.queue_steps and len(series.windows) * series.steps < ENOUGH_QUEUES * session.queue_steps:
        flags += ["short"]
    flags += ["drift"] if has_drift(series.windows) else []
    return summarize(job, ready, series, flags)


def require_updates(session, before, steps):
    """Raise MeasurementError unless the optimizer's own count went up by the steps that were counted."""
    if before is not None and (done := session.updates() - before) != steps:
        raise MeasurementError("work_skipped", f"{steps} training steps were timed, but the optimizer counted {done}")


def timed(session, clock, steps):
    """Return the seconds from submitting the first step to reading a value of the last one.

    Because of the read, the result does not rely on the barrier. If a step needs another part before it (backward
    needs forward), each step is timed separately.
    """
    if session.prepare:
        return sum(timed_apart(session, clock) for _ in range(steps))
    start = clock()
    for _ in range(steps):
        session.step()
    session.synchronize()
    session.read()
    return clock() - start


def timed_with_all_outputs(session, clock):
    """Return the seconds per step of KEPT_OUTPUTS steps whose outputs are all read at the end."""
    start, outputs = clock(), []
    for _ in range(KEPT_OUTPUTS):
        session.step()
        outputs.append(session.context.keep(session.last_result))
    session.synchronize()
    for output in outputs:
        session.context.read(output)
    return (clock() - start) / KEPT_OUTPUTS


def timed_apart(session, clock):
    """Return the seconds of one step by itself, after what has to come before it."""
    session.prepare()
    session.synchronize()
    start = clock()
    session.step()
    session.synchronize()
    session.read()
    return clock() - start


def prove_every_step_runs(job: Job, steps):
    """Raise MeasurementError (`work_skipped`) if steps in a window take less time than steps that are all read.

    A lazy framework that evaluates only what is read would run one step of each window. Let W be the seconds per step
    of a window, A those of KEPT_OUTPUTS steps whose outputs are all read at the end, F the shortest of some single
    steps, each with barrier and read, and P an idle barrier and read.

    - An honest device has A - P = W. If one step in n waits until its output is read, A - P is W n / (n - 1). In
      training, where a step changes what the last one left, A is not measured: the optimizer counts the steps.
    - A device that works through a queue in order has F - P <= 2 W: submitting plus running, of which a window shows
      the longer. If only the last step of a window of n runs, F - P is about n W.

    Other programs can only lengthen a step. So in several tries the longest W, and the shortest A and F, are compared.

    SINGLE_TOLERANCE is for steps of microseconds, whose single runs meet cold caches, and P once more for devices that
    wait longer for a step than for nothing. Skipped steps could hide there only if each takes less than that.

    Args:
        steps: in a window. With one step to a window nothing can be skipped, and nothing is compared.
    """
    if steps == 1:
        return
    session, clock, compared = job.session, job.clock, max(steps, COMPARED_STEPS)
    in_window, single, all_read = 0.0, math.inf, math.inf if session.has_outputs() else 0.0
    for _ in range(SKIP_TRIES):
        in_window = max(in_window, timed(session, clock, compared) / compared)
        if all_read:  # before the single steps, between which a GPU may lower its clock
            parts = compared // KEPT_OUTPUTS
            all_read = min(all_read, *(timed_with_all_outputs(session, clock) for _ in range(parts)))
        idle = idle_barrier_seconds(job)
        single = min(single, *(timed(session, clock, 1) for _ in range(SINGLE_STEPS)))
        allowed = SINGLE_TOLERANCE + 2 * idle
        if single <= MAX_SINGLE_RATIO * in_window + allowed and all_read <= MAX_READ_RATIO * in_window + allowed:
            return
    said = f"a step in a window of {compared} takes {in_window * 1e3:.3g} ms, but {single * 1e3:.3g} ms by itself"
    said += f" and {all_read * 1e3:.3g} ms if all outputs are read" if all_read else ""
    raise MeasurementError("work_skipped", f"{said}: steps of a window do not run")


def prove_output_varies(session):
    """Raise MeasurementError (`constant_output`) if steps on different batches all give the same value.

    Equal values mean that the result comes from a cache, or that the step ignores its input.
    """
    values = []
    for _ in range(4):
        if session.prepare:
            session.prepare()
        session.step()
        values.append(session.read())
        # NaN is unequal to itself; that fault is reported as not_finite.
        if values[-1] != values[0]:
            return
    raise MeasurementError("constant_output", "four steps on different data gave the same output")


def warm_up(session, clock, max_seconds):
    """Run blocks of steps until their pace is steady, or until max_seconds (two steps at least)."""
    start = clock()
    steps, block, paces, value = 0, 1, [], None
    while True:
        seconds = timed(session, clock, block)
        before, value = value, session.read()
        steps += block
        pace = seconds / block
        elapsed = clock() - start
        if seconds < MIN_BLOCK_SECONDS:
            block *= 2  # too short to say anything
        else:
            paces.append(pace)
        is_ready = elapsed >= MIN_WARMUP_SECONDS and is_steady(paces)
        if steps >= MIN_WARMUP_STEPS and (is_ready or elapsed >= max_seconds):
            return WarmUp(pace, elapsed, varies=before is not None and value != before)


def is_steady(paces):
    """Whether seconds per step no longer change: 2 % between blocks of five, 5 % between two long steps."""
    if paces and paces[-1] > LONG_STEP_SECONDS:
        return len(paces) >= 2 and abs(paces[-1] / paces[-2] - 1) < 0.05
    if len(paces) < 10:
        return False
    return abs(statistics.median(paces[-5:]) / statistics.median(paces[-10:-5]) - 1) < 0.02


def idle_barrier_seconds(job: Job):
    """Return the seconds that synchronising and reading take on an idle device."""
    costs = []
    for _ in range(10):
        start = job.clock()
        job.session.synchronize()
        job.session.read()
        costs.append(job.clock() - start)
    return statistics.median(costs)


def choose_steps(step_seconds, barrier_seconds):
    """Return the steps per window that make the cost of the clock, the barrier and the read negligible."""
    window = max(MIN_WINDOW_SECONDS, barrier_seconds / MAX_BARRIER_SHARE)
    return max(1, math.ceil(window / step_seconds))


def drain_queue(job: Job):
    """Discard twice as many batches as the queue may hold; returns the time per step of the last ones.

    It ends at MAX_SECONDS in any case. If that few steps take that long, either the device is the limit and the queue
    stays full, or the measurement is flagged as short.
    """
    session, start, steps = job.session, job.clock(), 0
    block = max(1, session.num_workers)
    while True:
        seconds = timed(session, job.clock, block)
        steps += block
        elapsed = job.clock() - start
        if steps >= max(2 * session.queue_steps, MIN_WARMUP_STEPS) or elapsed >= job.max_seconds:
            return WarmUp(seconds / block, elapsed)


def choose_stream_steps(step_seconds, num_workers, max_seconds):
    """Return the steps per window of a pipeline: a multiple of its workers, which deliver in turns, if time allows."""
    workers = max(1, num_workers)
    if workers * step_seconds > max_seconds / MIN_SAMPLES:
        return 1
    window = max(MIN_WINDOW_SECONDS, max_seconds / STREAM_WINDOWS)
    return workers * max(1, round(window / (step_seconds * workers)))


def run_until_sure(job: Job, steps):
    """Measure windows until the interval is narrow enough or the time is over; returns a Series.

    A pipeline always runs for the whole time, because it would work ahead while statistics are computed.
    """
    next_look = ENOUGH_WINDOWS

    def stop(windows, elapsed):
        nonlocal next_look
        # Looking after every window would cost time between them and invite a lucky stop: look every 10 %.
        if job.mode != "stream" and len(windows) >= next_look:
            next_look = math.ceil(next_look * 1.1)
            if sum(windows) >= MIN_MEASURED_SECONDS and half_width_percent(windows) <= job.target_ci:
                return "target_ci"
        late = elapsed >= job.max_seconds
        return "max_seconds" if (late and len(windows) >= LEAST_WINDOWS) or elapsed >= 3 * job.max_seconds else ""

    return collect(job, Series(steps, []), stop)


def run_exactly(job: Job, steps):
    """Measure a given number of items, rounded up to whole steps; returns a Series."""
    total = math.ceil(job.num_items / job.items_per_step)
    steps = max(1, min(steps, total // MIN_SAMPLES))
    count, left = divmod(total, steps)
    series = collect(job, Series(steps, []), lambda windows, _: "num_images" * (len(windows) == count))
    if left and series.stop_reason == "num_images":
        try:
            series.tail_seconds = timed(job.session, job.clock, left)
            series.tail_steps = left
        except KeyboardInterrupt:
            series.stop_reason = "interrupted"
    return series


def collect(job: Job, series, stop):
    """Add windows to the series until stop(windows, elapsed seconds) gives a reason, or until Ctrl-C; returns it."""
    clock, streams = job.clock, job.mode == "stream"
    for watch in job.watches:
        watch.start()
    began = last = clock()
    try:
        while not series.stop_reason:
            seconds = timed(job.session, clock, series.steps)
            now = clock()
            series.windows.append(now - last if streams else seconds)
            last = now
            series.stop_reason = stop(series.windows, now - began)
            if job.on_window and not streams:
                job.on_window(series.windows, series.steps)
    except KeyboardInterrupt:
        if not series.windows:
            raise
        series.stop_reason = "interrupted"
    return series


def summarize(job: Job, ready, series, flags):
    """Build the Measurement from the seconds of the windows and the flags."""
    windows, steps = series.windows, series.steps
    middle = statistics.median(windows)
    in_window = job.items_per_step * steps
    items = in_window * len(windows) + job.items_per_step * series.tail_steps
    seconds = sum(windows) + series.tail_seconds
    by_totals = job.mode == "stream" or job.num_items is not None
    throughput = items / seconds if by_totals else in_window / middle
    low, high = interval(windows)
    return Measurement(
        throughput=throughput,
        # A mean over all seconds may lie outside the median's interval; its own is not narrower.
        throughput_low=min(throughput, in_window / high) if high else None,
        throughput_high=max(throughput, in_window / low) if low else None,
        step_seconds_median=middle / steps,
        step_seconds_p95=p95(windows) if steps == 1 else None,
        step_seconds_min=min(windows) / steps,
        windows=len(windows),
        steps_per_window=steps,
        items=items,
        seconds=seconds,
        first_step_seconds=ready.first_step_seconds,
        warmup_seconds=ready.warmup.seconds,
        stop_reason=series.stop_reason,
        flags=tuple(flags),
    )


def interval(windows):
    """Return (low, high): the 95 % interval of the median for 20 windows or more, the whole range for fewer."""
    if len(windows) >= ENOUGH_WINDOWS:
        return median_interval(windows)
    return (min(windows), max(windows)) if len(windows) > 1 else (None, None)


def half_width_percent(windows):
    low, high = interval(windows)
    return math.inf if low is None else 50 * (high - low) / statistics.median(windows)

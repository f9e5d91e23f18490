"""Measure the time of a step and its uncertainty. Independent of the framework: session and clock are arguments.

The order of a measurement:

    first step -> warm-up -> check that every step runs -> windows -> check of what they did

No window is dropped. Anything that makes a result unreliable raises a flag.
Statistics, such as the width of the interval, are columns and not flags.

measure_stream() times a pipeline; all else is for resident batches. bench/check.py has the checks.
"""

import math
import statistics
import time
from dataclasses import dataclass

from bench.check import SINGLE_STEPS, check_counters, check_steps_run, start_counters
from bench.timing import MAX_UNEVEN, MeasurementError
from bench.timing.intervals import MIN_SAMPLES, has_drift, median_interval, p95
from bench.timing.job import Job, collection_disabled, idle_barrier_seconds, timed

MIN_BLOCK_SECONDS = 0.020
MIN_WARMUP_SECONDS = 0.5
MIN_WARMUP_STEPS = 2
MAX_WARMUPS = 2  # times MAX_SECONDS, in a warm-up that does not get steady
LONG_STEP_SECONDS = 0.3
MIN_WINDOW_SECONDS = 0.025
MAX_END_SHARE = 0.01  # the part of a window that its end may cost
MAX_PART_BARRIER_SHARE = 0.05  # the same if a step needs prepare(), and windows have one step
ENOUGH_WINDOWS = 20  # for an interval from the order statistics, and a first look at it
LEAST_WINDOWS = 2  # enough for long steps when the time is over: the interval comes from repeated processes
STREAM_WINDOWS = 40  # for a pipeline, in MAX_SECONDS
ENOUGH_QUEUES = 10
MIN_MEASURED_SECONDS = 0.5
SUSTAINED_SECONDS = 10.0  # of windows, for each of the rates of a sustained run
TURN_SECONDS = 0.25  # of windows, before another process that is compared with this one gets its turn

LEAST_UNEVEN = 10  # windows; with fewer, usual noise would be enough
LAUNCHES = 10  # steps whose submission is timed: fewer if they take over a second, but LEAST_LAUNCHES
LEAST_LAUNCHES = 3
# Share of a step's time. A driver queues about 1,000 launches and then lets the host wait, so submitting 5,000 kernels
# takes 0.8 of the time that a device needs for them.
LAUNCH_BOUND = 0.95


@dataclass(frozen=True)
class Measurement:
    """What was measured. Seconds are wall seconds; throughput is items per second.

    The throughput of resident batches is that of the median window. For a pipeline, a sustained run or a given number
    of items, it is total items / total seconds. If there is no interval, both of its ends are None.
    """

    throughput: float
    throughput_low: float | None
    throughput_high: float | None
    step_seconds_median: float
    step_seconds_p95: float | None
    windows: int
    steps_per_window: int
    items: float
    seconds: float
    first_step_seconds: float
    warmup_seconds: float
    stop_reason: str  # "target_ci", "max_seconds", "num_images", "sustain" or "interrupted"
    flags: tuple[str, ...]
    readings: dict  # {column: reading} of the sensors
    rates: list[float]  # items per second in each turn, or in each ten seconds of a sustained run; else []


def measure(job: Job):
    """Measure a job's steps with garbage collection disabled, from the first step to the result.

    Returns:
        A Measurement; after Ctrl-C that of the complete windows, with stop_reason "interrupted".

    Raises:
        MeasurementError: `work_skipped`, `wrong_output` or `unsupported`: there is no valid result.
        KeyboardInterrupt: Ctrl-C before the first window was complete.
    """
    with collection_disabled():
        return measure_stream(job) if job.is_stream else measure_windows(job, *start_up(job))


def start_up(job: Job):
    """Run a session's first step and its warm-up, and check that its steps run.

    Returns:
        (steps in a window, seconds of the first step, seconds of the warm-up).

    Raises:
        MeasurementError: `work_skipped` or `unsupported`.
    """
    session = job.session
    clock = job.clock
    # The first step: it compiles, or tries several algorithms.
    first_step_seconds = timed(session, clock, 1)
    session.after_first_step()

    # The warm-up, until the pace is steady.
    began = clock()
    step_seconds = warm_up(session, clock, MAX_WARMUPS * job.max_seconds)
    warmup_seconds = clock() - began

    # The check that every step of a window runs.
    steps = choose_steps(job, step_seconds)
    if time.get_clock_info("perf_counter").resolution > MAX_END_SHARE * steps * step_seconds:
        raise MeasurementError("unsupported", "the system's clock is too coarse for these steps")
    check_steps_run(job, steps)
    return steps, first_step_seconds, warmup_seconds


def measure_windows(job: Job, steps, first_step_seconds, warmup_seconds):
    """Measure windows of steps until a stop rule is met; return the Measurement with its flags.

    Raises:
        MeasurementError: `work_skipped`.
        KeyboardInterrupt: Ctrl-C before the first window was complete.
    """
    counters = start_counters(job)
    windows, steps, stop_reason, parts = collect_windows(job, steps)

    # Each turn begins with a step that is not timed.
    untimed = len(parts) if job.end_turn else 0
    flags, readings = check_counters(job, counters, steps * len(windows) + untimed, stop_reason)
    is_part = job.session.prepare and stop_reason != "interrupted"  # Ctrl-C leaves no result to read
    if is_part and idle_barrier_seconds(job) > MAX_PART_BARRIER_SHARE * statistics.median(windows):
        flags.append("barrier_shows")
    about = {"first_step_seconds": first_step_seconds, "warmup_seconds": warmup_seconds, "readings": readings}
    middle = statistics.median if job.end_turn else statistics.fmean
    complete = [part for part in parts if part and (job.end_turn or sum(part) >= SUSTAINED_SECONDS)]
    about["rates"] = [job.items_per_step * steps / middle(part) for part in complete]
    return summarise(job, windows, steps, stop_reason, flags, about)


def measure_stream(job: Job):
    """Measure a pipeline's batches, all of them, for MAX_SECONDS; return the Measurement.

    Windows have no gaps: each begins when the last one ended, because the workers work ahead. Nothing is computed
    between them, for the same reason.
    """
    session, clock = job.session, job.clock
    first_step_seconds = timed(session, clock, 1)
    session.after_first_step()
    began = clock()
    steps = choose_stream_steps(job, drain_queue(job))  # the batches that were prepared before are used up
    about = {"first_step_seconds": first_step_seconds, "warmup_seconds": clock() - began, "rates": []}
    if steps > 1 and not session.steps_run:  # the model was not timed with resident batches
        check_steps_run(job, steps)
        drain_queue(job)  # single steps are slower, so the queue filled up meanwhile
    counters = start_counters(job)
    windows, stop_reason = [], ""
    began = last = clock()
    try:
        while not stop_reason:
            timed(session, clock, steps)
            now = clock()
            windows.append(now - last)
            last = now
            if job.watch:
                job.watch.look(job.items_per_step * steps * len(windows))
            stop_reason = find_stop_reason(job, windows, steps, now - began, is_look=False)
    except KeyboardInterrupt:
        if not windows:
            raise
        stop_reason = "interrupted"
    flags, about["readings"] = check_counters(job, counters, steps * len(windows), stop_reason)
    if steps * len(windows) < ENOUGH_QUEUES * session.queue_steps:
        flags.append("short")  # a queue that was full or empty at the start may still show in the total
    return summarise(job, windows, steps, stop_reason, flags, about)


def summarise(job: Job, windows, steps, stop_reason, flags, about):
    """Return the Measurement of some windows.

    The throughput of pipelines, of NUM_IMAGES and of SUSTAIN is that of all seconds, instead of the median window's.

    Args:
        steps: in a window.
        about: its other fields.
    """
    done = steps * len(windows)
    seconds = sum(windows)
    if has_drift(windows):
        flags.append("drift")
    items_in_window = job.items_per_step * steps
    throughput = items_in_window / statistics.median(windows)
    if job.is_stream or job.num_items is not None or job.sustained_seconds:
        throughput = job.items_per_step * done / seconds
    if len(windows) >= LEAST_UNEVEN and job.items_per_step * done / seconds < (1 - MAX_UNEVEN) * throughput:
        flags.append("uneven")
    low, high = interval(windows)
    return Measurement(
        throughput=throughput,
        # A mean over all seconds may lie outside the median's interval, which is widened to contain it.
        throughput_low=min(throughput, items_in_window / high) if high else None,
        throughput_high=max(throughput, items_in_window / low) if low else None,
        step_seconds_median=statistics.median(windows) / steps,
        step_seconds_p95=p95(windows) if steps == 1 else None,
        windows=len(windows),
        steps_per_window=steps,
        items=job.items_per_step * done,
        seconds=seconds,
        stop_reason=stop_reason,
        flags=tuple(flags),
        **about,
    )


def measure_epoch(job: Job, order):
    """Return (seconds, flags) of one pass over the training data in this order of items."""
    session = job.session
    clock = job.clock
    with collection_disabled():
        counters = start_counters(job)
        start = clock()
        steps = session.train_epoch(order)
        session.synchronize()
        session.read()
        seconds = clock() - start
        flags, _ = check_counters(job, counters, steps, "epoch")
    return seconds, flags


def is_launch_bound(job: Job, step_seconds):
    """Return whether the host submits a step as slowly as the device computes it: in the median, on an idle device.

    False if steps are not queued, or if each needs prepare().

    Args:
        step_seconds: of a step in a window.
    """
    session = job.session
    if not session.queues_steps or session.prepare or job.is_stream:
        return False
    submitting = []
    for _ in range(max(LEAST_LAUNCHES, min(LAUNCHES, int(1 / step_seconds)))):
        session.synchronize()
        start = job.clock()
        session.step()
        submitting.append(job.clock() - start)
    session.synchronize()
    return statistics.median(submitting) > LAUNCH_BOUND * step_seconds


def choose_steps(job: Job, step_seconds):
    """Return the number of steps in a window: enough for its end to cost less than 1 % of it; one with prepare()."""
    if job.session.prepare:
        return 1
    window = max(MIN_WINDOW_SECONDS, idle_barrier_seconds(job) / MAX_END_SHARE)
    longest = job.max_seconds / ENOUGH_WINDOWS
    if 2 * step_seconds < longest:
        window = max(window, min(end_seconds(job) / MAX_END_SHARE, longest))
    return max(1, math.ceil(window / step_seconds))


def choose_stream_steps(job: Job, step_seconds):
    """Return the number of batches in a window: a multiple of the workers, which deliver one after the other."""
    workers = max(1, job.session.num_workers)
    if workers * step_seconds > job.max_seconds / MIN_SAMPLES:  # no time for MIN_SAMPLES windows
        return 1
    window = max(MIN_WINDOW_SECONDS, job.max_seconds / STREAM_WINDOWS)
    return workers * max(1, round(window / (step_seconds * workers)))


def warm_up(session, clock, max_seconds):
    """Run blocks of steps until their pace is steady, or until max_seconds (two steps at least).

    A block has one step if each step needs prepare(). Returns the seconds per step of the last block.
    """
    start = clock()
    steps = 0
    block = 1
    paces = []
    while True:
        seconds = timed(session, clock, block)
        steps += block
        pace = seconds / block
        elapsed = clock() - start
        if seconds < MIN_BLOCK_SECONDS and not session.prepare:
            block *= 2  # too short to say anything
        else:
            paces.append(pace)
        is_ready = elapsed >= MIN_WARMUP_SECONDS and is_steady(paces)
        if steps >= MIN_WARMUP_STEPS and (is_ready or elapsed >= max_seconds):
            return pace


def is_steady(paces):
    """Return whether five blocks differ from five before by under 2 %, or two long steps by 5 %."""
    if paces and paces[-1] > LONG_STEP_SECONDS:
        return len(paces) >= 2 and abs(paces[-1] / paces[-2] - 1) < 0.05
    if len(paces) < 10:
        return False
    return abs(statistics.median(paces[-5:]) / statistics.median(paces[-10:-5]) - 1) < 0.02


def end_seconds(job: Job):
    """Return the seconds that the end of a window costs: those that two windows of a step take longer than one of two.

    Besides synchronising and reading, the device idles until the host has submitted more. Other programs can only
    lengthen a window, so the shortest ones are compared, which were measured alternately.
    """
    windows = [[timed(job.session, job.clock, steps) for steps in (1, 2)] for _ in range(SINGLE_STEPS)]
    one, two = map(min, zip(*windows, strict=True))
    return 2 * one - two


def drain_queue(job: Job):
    """Discard twice as many batches as the queue holds, or those of MAX_SECONDS; returns the last seconds per step."""
    session = job.session
    start = job.clock()
    steps = 0
    block = max(1, session.num_workers)
    while True:
        seconds = timed(session, job.clock, block)
        steps += block
        elapsed = job.clock() - start
        if steps >= max(2 * session.queue_steps, MIN_WARMUP_STEPS) or elapsed >= job.max_seconds:
            return seconds / block


def collect_windows(job: Job, steps):
    """Measure windows until a stop rule gives a reason, or until Ctrl-C.

    Returns:
        (seconds of each window, steps in each, the reason, the windows of each turn or of each ten seconds of a
        sustained run). A given number of items may need windows of fewer steps.
    """
    clock = job.clock
    next_look = ENOUGH_WINDOWS
    if job.num_items is not None:
        steps = max(1, min(steps, math.ceil(job.num_items / job.items_per_step) // MIN_SAMPLES))
    part_seconds = TURN_SECONDS if job.end_turn else SUSTAINED_SECONDS if job.sustained_seconds else None
    windows = []
    parts = []
    stop_reason = ""
    began = clock()
    try:
        while not stop_reason:
            if part_seconds and (not parts or sum(parts[-1]) >= part_seconds):
                parts.append([])
                if job.end_turn:
                    paused = clock()
                    job.end_turn()
                    timed(job.session, clock, 1)
                    began += clock() - paused
            windows.append(timed(job.session, clock, steps))
            if parts:
                parts[-1].append(windows[-1])
            if job.watch:
                job.watch.look(job.items_per_step * steps * len(windows))
            # Looking at the interval after every window would cost time between them and invite a lucky stop: look
            # every 10 %.
            is_look = len(windows) >= next_look
            next_look = math.ceil(next_look * 1.1) if is_look else next_look
            stop_reason = find_stop_reason(job, windows, steps, clock() - began, is_look)
            if job.on_window:
                job.on_window(windows, steps)
    except KeyboardInterrupt:
        if not windows:
            raise
        stop_reason = "interrupted"
    return windows, steps, stop_reason, parts


def find_stop_reason(job: Job, windows, steps, elapsed, is_look):
    """Return why no other window follows, or "".

    It is `sustain` at the end of a sustained run, `num_images` after the given number of items, otherwise `target_ci`
    if the interval is narrow enough, `max_seconds` if the time is over.

    Args:
        steps: in a window.
        is_look: whether the interval is computed.
    """
    if job.sustained_seconds:
        return "sustain" if elapsed >= job.sustained_seconds else ""
    if job.num_items is not None:
        return "num_images" if len(windows) * steps * job.items_per_step >= job.num_items else ""
    if is_look and sum(windows) >= max(MIN_MEASURED_SECONDS, job.least_seconds):
        low, high = interval(windows)
        if 50 * (high - low) / statistics.median(windows) <= job.target_ci:  # half of it, in percent
            return "target_ci"
    is_late = elapsed >= job.max_seconds and len(windows) >= LEAST_WINDOWS
    is_too_late = elapsed >= 3 * job.max_seconds  # even with a single window
    return "max_seconds" if is_late or is_too_late else ""


def interval(windows):
    """Return (low, high): the 95 % interval of the median for 20 windows or more, the whole range for fewer."""
    if len(windows) >= ENOUGH_WINDOWS:
        return median_interval(windows)
    return (min(windows), max(windows)) if len(windows) > 1 else (None, None)

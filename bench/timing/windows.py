"""Time the steps of a session: windows of resident batches, or the batches of a pipeline. Imports no framework.

    first step -> warm-up -> check that every step runs -> windows -> check of what they did

No window is dropped. Anything that makes a result unreliable raises a flag; statistics, such as the width of the
interval, are columns. bench/check.py has the checks.
"""

import gc
import math
import statistics
import time
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from typing import Any

from bench.check import SINGLE_STEPS, check_counters, check_steps_run, start_counters
from bench.timing import MAX_UNEVEN, idle_barrier_seconds, timed
from bench.timing.intervals import ENOUGH_SAMPLES, MIN_SAMPLES, median_interval, p95

MIN_BLOCK_SECONDS = 0.020
MIN_WARMUP_SECONDS = 0.5
MIN_WARMUP_STEPS = 2
MAX_WARMUPS = 2  # times MAX_SECONDS, in a warm-up that does not get steady
LONG_STEP_SECONDS = 0.3
MIN_WINDOW_SECONDS = 0.025
MAX_END_SHARE = 0.01  # the part of a window that its end may cost
MAX_BARRIER_SHARE = 0.05  # the same after which it is flagged: windows of a step that needs prepare() have one
LEAST_WINDOWS = 2  # enough for long steps when the time is over: the interval comes from repeated processes
TARGET_CI = 1.0  # half the width of the interval that is narrow enough, in percent of the median
MIN_MEASURED_SECONDS = 0.5
STREAM_SHARE = 2 / 3  # a pipeline's part of MAX_SECONDS
ENOUGH_QUEUES = 10
IS_ENOUGH = "is enough for this pipeline"  # the end of a note
SUSTAINED_SECONDS = 10.0  # for each of the rates of a sustained run
MOST_RATES = 100
LEAST_UNEVEN = 10  # windows; with fewer, usual noise would be enough


@contextmanager
def collection_disabled():
    """Disable Python's garbage collection inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass
class Timer:
    """Times one session, from its first step to the result."""

    session: Any  # a Session of bench/frameworks/session.py
    items_per_step: float
    max_seconds: float
    _: KW_ONLY
    num_items: int | None = None  # at least this many, in whole windows, instead of MAX_SECONDS and the interval
    sustain: float | None = None  # seconds of windows, instead of the three limits above
    least_seconds: float = 0.0  # for windows, before their interval can end the measurement
    clock: Any = time.perf_counter  # () -> wall seconds
    on_window: Any = None  # called with the median rate after 1, 2, 4, 8 ... windows; never inside a stream
    watch: Any = None  # a meters.Watch: start() before the first window, look() after each, stop() after the last
    windows: list[float] = field(default_factory=list)  # their seconds, in order
    slices: list[float] = field(default_factory=list)  # the rate of each
    steps: int = 1  # in each window

    def __post_init__(self):
        self.is_stream = self.session.queue_steps is not None  # batches come from a pipeline: input and end_to_end

    def measure(self, requests=({},)):
        """Measure with garbage collection disabled; return the cells of the result, flags as words of a text.

        Args:
            requests: what to measure when it is warmed up, one after the other: windows for some seconds
                ({"slice": 0.25}), or until the timer's own limits ({}).

        Returns:
            After Ctrl-C the cells of the complete windows, with the status "interrupted".

        Raises:
            MeasurementError: `work_skipped`, `wrong_output` or `unsupported`: there is no valid result.
            KeyboardInterrupt: Ctrl-C before the first window was complete.
        """
        with collection_disabled():
            self.first_step_seconds = timed(self.session, self.clock, 1)  # it compiles, or tries several algorithms
            self.start()
            counters = start_counters(self)
            reason = ""
            try:
                for request in requests:
                    reason = self.measure_slice(request["slice"]) if "slice" in request else self.measure_windows()
            except KeyboardInterrupt:
                if not self.windows:
                    raise
                reason = "interrupted"
            return self.finish(counters, reason)

    def start(self):
        """Warm up after the first step, choose the steps of a window, and check that all of them run."""
        self.session.after_first_step()
        began = self.clock()
        step_seconds = self.drain_queue() if self.is_stream else self.warm_up()
        self.warmup_seconds = self.clock() - began
        self.steps = self.choose_steps(step_seconds)
        if not self.session.steps_run:
            check_steps_run(self, self.steps)
            if self.is_stream:
                self.drain_queue()  # single steps are slower, so the queue filled up meanwhile
        if self.num_items is not None:
            self.steps = max(1, min(self.steps, math.ceil(self.num_items / self.items_per_step) // MIN_SAMPLES))

    def warm_up(self):
        """Run blocks of steps until their pace is steady, or the time is over (two steps at least).

        A block has one step if each step needs prepare(). Returns the seconds per step of the last block.
        """
        least = max(MIN_BLOCK_SECONDS, 10 * idle_barrier_seconds(self.session, self.clock))  # else it is mostly its end
        start = self.clock()
        steps, block, paces = 0, 1, []
        while True:
            seconds = timed(self.session, self.clock, block)
            steps += block
            pace = seconds / block
            elapsed = self.clock() - start
            if seconds < least and not self.session.prepare:
                block *= 2  # too short to say anything
            else:
                paces.append(pace)
            is_ready = elapsed >= MIN_WARMUP_SECONDS and is_steady(paces)
            if steps >= MIN_WARMUP_STEPS and (is_ready or elapsed >= MAX_WARMUPS * self.max_seconds):
                return pace

    def drain_queue(self):
        """Discard as many batches as the queue holds, or those of a third of MAX_SECONDS; return the seconds per step.

        If the model is slower than the pipeline, the queue is as full at the end, so there is nothing to discard.
        """
        pace, steps, block = self.first_step_seconds, 1, max(1, self.session.num_workers)
        start = self.clock() - pace
        while steps < max(self.session.queue_steps, MIN_WARMUP_STEPS) and self.clock() - start < self.max_seconds / 3:
            pace = timed(self.session, self.clock, block) / block
            steps += block
        return pace

    def choose_steps(self, step_seconds):
        """Return the steps in a window: enough for its end to cost less than 1 % of it; one with prepare().

        The end costs what two windows of a step exceed one of two steps: besides synchronising and reading, the device
        idles until the host has submitted more. Other programs can only lengthen a window, so the shortest ones are
        compared, which were measured alternately. In a pipeline it is a multiple of the workers, which deliver one
        after the other.
        """
        if self.session.prepare:
            return 1
        if self.is_stream:
            workers = max(1, self.session.num_workers)
            is_slow = workers * step_seconds > STREAM_SHARE * self.max_seconds / MIN_SAMPLES  # for MIN_SAMPLES windows
            return 1 if is_slow else workers * max(1, round(MIN_WINDOW_SECONDS / (workers * step_seconds)))
        window = max(MIN_WINDOW_SECONDS, idle_barrier_seconds(self.session, self.clock) / MAX_END_SHARE)
        longest = self.max_seconds / ENOUGH_SAMPLES
        if 2 * step_seconds < longest:
            pairs = [[timed(self.session, self.clock, steps) for steps in (1, 2)] for _ in range(SINGLE_STEPS)]
            one, two = map(min, zip(*pairs, strict=True))
            window = max(window, min((2 * one - two) / MAX_END_SHARE, longest))
        return max(1, math.ceil(window / step_seconds))

    def measure_windows(self):
        """Time windows until find_stop_reason() has one; return it.

        Windows of a pipeline have no gaps: each begins when the last one ended, because the workers work ahead.
        """
        reason = ""
        self.next_look = ENOUGH_SAMPLES
        began = last = self.clock()
        while not reason:
            seconds = timed(self.session, self.clock, self.steps)
            now = self.clock()
            self.windows.append(now - last if self.is_stream else seconds)
            last = now
            if self.watch:
                self.watch.look(self.items_per_step * self.steps * len(self.windows))
            if self.on_window and not self.is_stream and len(self.windows).bit_count() == 1:
                self.on_window(self.items_per_step * self.steps / statistics.median(self.windows))
            reason = self.find_stop_reason(self.clock() - began)
        return reason

    def measure_slice(self, seconds):
        """Time windows for `seconds`, after a step that is not timed: another process has worked before.

        The watch does not look, because the energy counter has the work of the other processes, too.
        """
        timed(self.session, self.clock, 1)
        begun = len(self.windows)
        while sum(self.windows[begun:]) < seconds:
            self.windows.append(timed(self.session, self.clock, self.steps))
        self.slices.append(self.items_per_step * self.steps / statistics.median(self.windows[begun:]))
        return "slices"

    @property
    def is_short(self):
        """Whether a pipeline's queue, which was full or empty at the start, may still show in the total."""
        return self.is_stream and self.steps * len(self.windows) < ENOUGH_QUEUES * self.session.queue_steps

    def find_stop_reason(self, elapsed):
        """Return why no other window follows, or "".

        It is `sustain` at the end of a sustained run, `num_images` after the given number of items, otherwise
        `target_ci` if the interval is narrow enough, `max_seconds` if the time is over.
        """
        count = len(self.windows)
        if self.sustain:
            return "sustain" if elapsed >= self.sustain else ""
        if self.num_items is not None:
            return "num_images" if count * self.steps * self.items_per_step >= self.num_items else ""
        usual = max(STREAM_SHARE * self.max_seconds, self.least_seconds) if self.is_stream else self.max_seconds
        # Looking at the interval after every window would cost time between them and invite a lucky stop: look every
        # 10 %.
        if count >= self.next_look and not self.is_stream:
            self.next_look = math.ceil(self.next_look * 1.1)
            low, high = median_interval(self.windows)
            is_narrow = 50 * (high - low) / statistics.median(self.windows) <= TARGET_CI  # half of it, in percent
            if is_narrow and sum(self.windows) >= max(MIN_MEASURED_SECONDS, self.least_seconds):
                return "target_ci"
        is_late = elapsed >= usual and count >= LEAST_WINDOWS and not self.is_short
        is_too_late = elapsed >= 3 * self.max_seconds  # even with a single window
        return "max_seconds" if is_late or is_too_late else ""

    def finish(self, counters, reason):
        """Return the cells of the windows, after check_counters().

        The throughput of pipelines, NUM_IMAGES and SUSTAIN is that of all seconds, else the median window's.
        """
        windows, steps = self.windows, self.steps
        flags, readings = check_counters(self, counters, steps * len(windows) + len(self.slices), reason)
        items_in_window, seconds = self.items_per_step * steps, sum(windows)
        items = items_in_window * len(windows)
        step_seconds = statistics.median(windows) / steps
        throughput = self.items_per_step / step_seconds
        if self.is_stream or self.num_items is not None or self.sustain:
            throughput = items / seconds
        low, high = median_interval(windows)
        # Ctrl-C leaves no result to read.
        barrier = 0 if reason == "interrupted" else idle_barrier_seconds(self.session, self.clock)
        noticed = {
            "barrier_shows": barrier > MAX_BARRIER_SHARE * statistics.median(windows),
            "short": self.is_short,
            "uneven": len(windows) >= LEAST_UNEVEN and items / seconds < (1 - MAX_UNEVEN) * throughput,
        }
        flags += [flag for flag, is_noticed in noticed.items() if is_noticed]
        note = ""
        if self.is_short and reason != "interrupted":
            enough = ENOUGH_QUEUES * self.session.queue_steps
            fix = f"NUM_IMAGES={enough * self.items_per_step}"
            if reason == "max_seconds":
                fix = f"MAX_SECONDS={math.ceil(1.1 / 3 * enough * seconds / (steps * len(windows)))}"
            note = f"{fix} {IS_ENOUGH}"
        return readings | {
            "note": note,
            "status": "interrupted" if reason == "interrupted" else "ok",
            "throughput": throughput,
            # A mean over all seconds may lie outside the median's interval, which is widened to contain it.
            "throughput_low": min(throughput, items_in_window / high) if high else None,
            "throughput_high": max(throughput, items_in_window / low) if low else None,
            "step_seconds_median": step_seconds,
            "step_seconds_p95": p95(windows) if steps == 1 else None,
            "windows": len(windows),
            "steps_per_window": steps,
            "items": items,
            "seconds": seconds,
            "first_step_seconds": self.first_step_seconds,
            "warmup_seconds": self.warmup_seconds,
            "stop_reason": reason,
            "flags": " ".join(flags),
            "rates": " ".join(f"{rate:.6g}" for rate in self.slices or self.list_rates()),
        }

    def list_rates(self):
        """Return at most 100 rates: of each window, or of neighbours in equal times; if sustained of 10 s each."""
        total = sum(self.windows)
        periods = min(MOST_RATES, max(1, round(total / SUSTAINED_SECONDS))) if self.sustain else MOST_RATES
        groups = {}
        for window, began in zip(self.windows, accumulate(self.windows, initial=0.0), strict=False):
            groups.setdefault(int(periods * began / total), []).append(window)
        return [self.items_per_step * self.steps * len(group) / sum(group) for group in groups.values()]

    def measure_epoch(self, order):
        """Return (seconds, flags) of one pass over the training data in this order of items."""
        with collection_disabled():
            counters = start_counters(self)
            seconds = timed(self.session, self.clock, 1, lambda: self.session.train_epoch(order))
            flags, _ = check_counters(self, counters, len(self.session.losses), "epoch")
        return seconds, flags


def is_steady(paces):
    """Return whether five blocks differ from five before by under 2 %, or two long steps by 5 %."""
    if paces and paces[-1] > LONG_STEP_SECONDS:
        return len(paces) >= 2 and abs(paces[-1] / paces[-2] - 1) < 0.05
    if len(paces) < 10:
        return False
    return abs(statistics.median(paces[-5:]) / statistics.median(paces[-10:-5]) - 1) < 0.02

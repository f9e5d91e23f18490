"""Each pitfall of benchmarking, with the fake that falls into it; how often intervals cover the truth."""

import gc
import itertools
import math
import random
import re
import statistics
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from bench import check
from bench.records.verdict import Rate, verdict_of
from bench.timing import MeasurementError
from bench.timing.intervals import median_interval, p95
from bench.timing.windows import Timer
from tests.fakes import Clock, Device


def timer_of(fake, items=1, max_seconds=3.0, **limits):
    """Return the Timer of a fake device."""
    return Timer(fake, items, max_seconds, clock=fake.clock, **limits)


def run(fake, items=1, requests=({"seconds": 3},), **limits):
    """Measure a fake device; return the cells as attributes."""
    return SimpleNamespace(**timer_of(fake, items, **limits).measure(requests))


def steps_of(seconds):
    """Return a device whose every step takes so long."""
    return Device(Clock(), work=lambda i: seconds)


class Lazy(Device):
    """A framework that computes only the output that is read, and every n-th one."""

    def __init__(self, seconds, every=None, **attributes):
        super().__init__(Clock(), work=lambda i: seconds)
        self.every, self.waiting = every, set()
        vars(self).update(attributes)

    def step(self):
        self.clock.now += self.SUBMIT_SECONDS
        self.steps += 1
        self.waiting.add(self.steps)

    def read(self):
        computed = {step for step in self.waiting if self.every and step % self.every == 0}
        computed |= self.waiting & {self.steps}
        self.waiting.clear()
        self.clock.now += len(computed) * self.work(self.steps)
        return super().read()


@pytest.mark.parametrize("seconds", [0.0003, 0.020])
@pytest.mark.parametrize("attributes", [{}, {"every": 10}, {"num_workers": 2, "queue_steps": 6}])
def test_a_framework_that_computes_only_some_steps_of_a_window_is_refused(seconds, attributes):
    fake = Lazy(seconds, **attributes)
    with pytest.raises(MeasurementError) as error:
        run(fake)
    assert error.value.status == "work_skipped"
    assert fake.clock.now < 30


def test_an_honest_queue_skips_nothing():
    seconds = 1e-6, 1e-4, 1e-3, 1e-2
    for submit, work, barrier in itertools.product(seconds, seconds, seconds):
        fake = steps_of(work)
        fake.SUBMIT_SECONDS, fake.READ_SECONDS = submit, barrier
        check.check_steps_run(timer_of(fake), 2)
        assert fake.steps == check.LEAST_TRIES * (16 + check.SINGLE_STEPS)


def test_a_busy_machine_skips_nothing():
    """Test with a program that makes steps take three times as long, half of the time, in bursts of 50 ms."""
    for seed in range(100):
        rng, fake = random.Random(seed), Device(Clock())
        bursts = [rng.choice((0.003, 0.009)) for _ in range(1000)]
        fake.work = lambda i, fake=fake, bursts=bursts: bursts[int(20 * fake.clock.now)]
        check.check_steps_run(timer_of(fake), 9)
        assert fake.steps_run


@pytest.mark.parametrize(
    ("loss", "traces", "flags"),
    [(math.nan, 0, "not_finite"), (50.0, 0, "not_finite"), (30.0, 0, ""), (30.0, 1, "recompiled")],
)
def test_a_loss_that_grows_and_a_step_that_was_compiled_again_are_flagged(loss, traces, flags):
    fake = Device(Clock())
    fake.is_trained, fake.first_loss, fake.trace_count = True, 4.0, lambda: traces * fake.steps // 40
    fake.model, fake.context = SimpleNamespace(loss=loss), SimpleNamespace(read=float)
    assert run(fake).flags == flags


def test_windows_begin_when_the_pace_is_steady():
    result = run(Device(Clock(), work=lambda i: 0.300 if i == 0 else 0.010 * (1 + 4 * max(0.0, 1 - i / 200))))
    assert result.first_step_seconds == pytest.approx(0.300, rel=0.05)
    assert result.seconds == pytest.approx(0.010 * result.items, rel=0.01)
    assert (result.flags, result.warmup_seconds > 4) == ("", True)
    result = run(Device(Clock(), work=lambda i: 0.010 * 1.01**i), max_seconds=3)
    assert result.warmup_seconds == pytest.approx(6, rel=0.2)  # its time is over


@pytest.mark.parametrize(("num_items", "given"), [(None, 0), (1200, 21), (640, 10), (10, 1)])
def test_steps_counted_are_steps_executed(num_items, given):
    fake = steps_of(0.004)
    counts = []
    watch = SimpleNamespace(start=lambda: counts.append(fake.steps), look=lambda items: None)
    watch.stop = lambda **_: counts.append(fake.steps) or (["contended"], {"temperature_c": 61})
    result = run(fake, items=64, watch=watch, max_seconds=0.1, num_items=num_items)
    steps = counts[1] - counts[0]
    assert steps == result.windows * result.steps_per_window
    assert steps == given or not given
    assert (result.items, result.stop_reason) == (64 * steps, "num_images" if num_items else "max_seconds")
    assert result.seconds == pytest.approx(0.004 * steps, rel=0.02)
    assert result.throughput == pytest.approx(64 * steps / result.seconds)
    assert (result.throughput_low is None) == (steps == 1)
    assert (result.flags, result.temperature_c) == ("contended", 61)


def test_the_collector_rests_while_measuring():
    states = []
    fake = Device(Clock(), work=lambda i: states.append(gc.isenabled()) or (0.010 if i < 100 else 1 / 0))
    with pytest.raises(ZeroDivisionError):
        run(fake)
    assert gc.isenabled()
    assert not any(states)


@pytest.mark.parametrize(("step", "limits"), [(46, {"least_seconds": 9}), (76, {"num_items": 10_000}), (1, {})])
def test_ctrl_c_keeps_the_complete_windows(step, limits):
    def press(i):
        if began and i == began[0] + step:
            fake.read = None  # that step has no result, and reading it would fail
            raise KeyboardInterrupt
        return 0.010

    fake, began = Device(Clock(), work=press), []
    watch = SimpleNamespace(start=lambda: began.append(fake.steps), look=lambda items: None)
    watch.stop = lambda **_: ([], {})
    with nullcontext() if limits else pytest.raises(KeyboardInterrupt):  # there is no complete window yet
        result = run(fake, watch=watch, **limits)
        assert result.stop_reason == "interrupted"
        assert result.items == result.windows * result.steps_per_window > 0


def ask_for_slices(fake, count):
    """Ask for slices; another process works for 100 seconds before each, and nothing of ours runs."""
    for _ in range(count):
        fake.synchronize()
        fake.clock.now += 100
        fake.began.append(fake.steps)
        yield {"slice": 0.25}


@pytest.mark.parametrize(("seconds", "windows"), [(0.010, 9), (0.4, 1)])
def test_a_slice_is_a_quarter_second_of_windows_after_a_step_that_is_not_timed(seconds, windows):
    fake = Device(Clock(), work=lambda i: 10 * seconds if i in fake.began else seconds)
    fake.began = []
    found = run(fake, 2, ask_for_slices(fake, 12))
    assert found.throughput == pytest.approx(2 / seconds, rel=0.02)
    rates = [float(rate) for rate in found.rates.split()]
    assert rates == pytest.approx([2 / seconds] * 12, rel=0.02)  # the step after a pause is slow
    assert fake.began[1] - fake.began[0] == 1 + windows * found.steps_per_window
    assert (found.stop_reason, found.flags, found.windows) == ("slices", "", 12 * windows)


@pytest.mark.parametrize(("seconds", "windows"), [(8.0, 2), (3.0, 4), (40.0, 1)])
def test_two_windows_at_least_unless_they_take_three_times_the_limit(seconds, windows):
    result = run(steps_of(seconds), max_seconds=10)
    assert result.windows == windows
    assert (result.throughput_low is None) == (windows == 1)  # no interval


def test_windows_outlast_the_clock_and_the_barrier():
    result = run(steps_of(0.001))
    assert (result.stop_reason, result.steps_per_window >= 25) == ("target_ci", True)
    assert run(Lazy(0.4)).steps_per_window == 1  # so that nothing can be skipped
    fake = steps_of(0.010)
    fake.BARRIER_SECONDS = 0.002
    result = run(fake)
    assert result.steps_per_window >= 17  # 200 ms at 12 ms a step, as the warm-up sees it
    assert result.step_seconds_median == pytest.approx(0.010, rel=0.02)
    assert result.step_seconds_p95 is None  # several steps share a window


@pytest.mark.parametrize("read", [0.1, 0.2])
def test_a_slow_read_is_neither_the_pace_of_a_step_nor_in_the_rate_unless_that_is_flagged(read):
    fake = steps_of(0.0001)
    fake.READ_SECONDS = read
    assert 0.97 < 0.0001 * run(fake).throughput < 1.03
    assert run(fake, num_items=10).flags == "barrier_shows"


def test_windows_outlast_the_time_that_a_device_needs_to_get_going_again():
    class Idling(Device):
        def step(self):
            if self.free_at <= self.clock.now:
                self.free_at = self.clock.now + 0.0015
            super().step()

    fake = Idling(Clock(), work=lambda i: 0.050)
    assert run(fake).step_seconds_median == pytest.approx(0.050, rel=0.011)


def test_stalls_that_the_median_hides_are_flagged():
    result = run(Device(Clock(), work=lambda i: 0.3 if i % 12 == 0 else 0.03))
    assert (result.flags, result.throughput) == ("uneven", pytest.approx(1 / 0.03, rel=0.01))
    assert result.items / result.seconds < 0.9 / 0.03
    rng = random.Random(0)
    result = run(Device(Clock(), work=lambda i: 0.03 * rng.uniform(0.8, 1.2)))
    assert (result.flags, result.stop_reason) == ("", "max_seconds")  # its interval is not narrow enough


@pytest.mark.parametrize(
    ("faults", "system", "queue", "flags"),
    [(9000, 1, None, "page_faults"), (9000, 0.01, None, ""), (9, 1, None, ""), (9000, 1, 2, "")],
)
def test_memory_that_is_handed_out_in_each_step_is_flagged_if_it_takes_time(monkeypatch, faults, system, queue, flags):
    fake, used = steps_of(0.1), {"ru_minflt": faults, "ru_utime": 1, "ru_stime": system}  # of each step
    fake.queue_steps = queue
    usage = lambda who: SimpleNamespace(**{name: number * fake.steps for name, number in used.items()})  # noqa: E731
    monkeypatch.setattr(check.resource, "getrusage", usage)
    assert run(fake).flags == flags


@pytest.mark.parametrize(("barrier", "shows"), [(0.002, True), (0.0001, False)])
def test_a_part_of_a_step_is_timed_without_what_comes_before_it(barrier, shows):
    # At first its steps take five times as long, so it also has to warm up.
    fake = Device(Clock(), work=lambda i: 0.020 * (1 + 4 * max(0.0, 1 - i / 15)))
    fake.BARRIER_SECONDS = barrier
    prepared = []

    def forward():
        prepared.append(fake.steps)
        fake.free_at = max(fake.free_at, fake.clock.now) + 0.300

    fake.prepare = forward
    result = run(fake, max_seconds=5)
    assert result.step_seconds_median == pytest.approx(0.020 + barrier, rel=0.01)
    assert result.steps_per_window == 1
    assert prepared == list(range(fake.steps))
    assert result.flags == "barrier_shows" * shows


class Pipeline(Device):
    """Workers that take `prepare` seconds a batch and work ahead, and a device that then works on the batches.

    A batch is begun when its worker has finished the one before and its place in the queue is free.
    """

    def __init__(self, clock, prepare, step=0.0, workers=2, prefetch=2):
        super().__init__(clock, work=lambda i: step)
        self.num_workers, self.queue_steps = workers, workers * (prefetch + 1)
        self.prepare_seconds = prepare
        self.ready, self.taken = [], []

    def step(self):
        i = len(self.taken)
        worker_free = self.ready[i - self.num_workers] if i >= self.num_workers else 0.0
        place_free = self.taken[i - self.queue_steps] if i >= self.queue_steps else 0.0
        self.ready.append(max(worker_free, place_free) + self.prepare_seconds)
        self.clock.now = max(self.clock.now, self.ready[-1])
        self.taken.append(self.clock.now)
        super().step()


def run_pipeline(max_seconds=3.0, **pipeline):
    """Measure a pipeline whose queue has long been full."""
    fake = Pipeline(Clock(), **pipeline)
    fake.clock.now = 1000.0
    return run(fake, max_seconds=max_seconds)


def test_a_full_queue_is_not_given_away():
    result = run_pipeline(prepare=0.1)
    assert result.throughput == pytest.approx(20, rel=0.02)  # two workers at ten a second
    assert result.steps_per_window % 2 == 0


def test_a_pipeline_measured_for_a_few_queues_is_flagged():
    result = run_pipeline(prepare=0.5)
    assert result.flags == "short"
    enough = float(re.search(r"MAX_SECONDS=(\d+)", result.note)[1])
    for max_seconds, prepare in ((enough, 0.5), (3, 0.2), (3, 0.02)):  # up to three times MAX_SECONDS
        result = run_pipeline(max_seconds, prepare=prepare)
        assert (result.flags, result.note) == ("", "")
    few = run(Pipeline(Clock(), prepare=0.1), num_items=50)
    assert (few.flags, few.note.split()[0]) == ("short", "NUM_IMAGES=60")
    assert run(Pipeline(Clock(), prepare=0.1), num_items=60).note == ""
    slow = run_pipeline(max_seconds=10, prepare=0.1, step=2.0, workers=16)
    assert slow.warmup_seconds < 45  # draining it ends in time
    assert slow.steps_per_window == 1
    assert "short" in slow.flags


def test_windows_of_a_pipeline_leave_nothing_out():
    class Ticking(Clock):
        def __call__(self):
            self.now += 0.001  # reading the clock takes time, as whatever happens between two windows does
            return self.now

    clock = Ticking()
    fake = Pipeline(clock, prepare=0.1)
    began = []
    watch = SimpleNamespace(start=lambda: began.append(clock.now), stop=lambda **_: ([], {}), look=lambda items: None)
    found = run(fake, watch=watch)
    assert found.seconds == pytest.approx(fake.taken[-1] - began[0], abs=0.01)
    assert found.windows > 6


@pytest.mark.parametrize(
    ("limits", "count"), [({"sustain": 61}, 6), ({"sustain": 2000}, 100), ({"num_items": 20_000}, 100), ({}, None)]
)
def test_a_run_has_a_rate_for_each_window_or_ten_seconds_and_at_most_a_hundred(limits, count):
    found = run(steps_of(0.1), items=2, **limits)
    rates = [float(rate) for rate in found.rates.split()]
    assert len(rates) == (count or found.windows)
    assert rates == pytest.approx([found.throughput] * len(rates), rel=0.01)
    assert found.seconds == pytest.approx(limits.get("sustain", found.seconds), abs=0.5)


def test_the_rates_of_a_run_that_gets_slower_are_of_ten_seconds_each():
    timer = timer_of(steps_of(1), sustain=60, windows=[0.01] * 1000 + [1 / 30] * 1500)
    assert timer.list_rates() == pytest.approx([100] + 5 * [30], rel=0.01)  # kept / burst of 30 s: 56 %


# Many results


def test_results_of_five_processes_cover_the_truth_as_often_as_the_documents_say():
    rng, shares = random.Random(0), {}

    def measure(speed):
        """Return the result of five processes whose speeds differ by 2 %: the middle one, and the ends."""
        low, _, middle, _, high = sorted(speed * math.exp(rng.gauss(0, 0.02)) for _ in range(5))
        return Rate(middle, low, high)

    usual = [measure(1) for _ in range(2000)]
    assert 0.925 <= statistics.fmean(rate.low <= 1 <= rate.high for rate in usual) <= 0.95
    for percent in (0, 5, 10, 30):
        verdicts = Counter(verdict_of(measure(1 + percent / 100).ratio(rate)) for rate in usual[:1000])
        shares[percent] = {verdict: count / 1000 for verdict, count in verdicts.items()}
    assert shares[0].get("faster", 0) + shares[0].get("slower", 0) < 0.02
    assert not any("slower" in shares[percent] for percent in (5, 10, 30))
    assert shares[10]["faster"] > 0.95
    assert shares[30] == {"faster": 1}


# Intervals


def test_p95_needs_59_single_steps():
    assert p95([1.0] * 58) is None
    assert p95([1.0] * 57 + [9.0] * 2) == 1.0
    assert p95(list(range(1, 101))) == 95


@pytest.mark.parametrize(("rho", "n", "least"), [(0, 6, 0.94), (0, 60, 0.94), (0.6, 60, 0.92)])
def test_the_interval_covers_the_median_as_often_as_it_says(rho, n, least):
    rng, covered = random.Random(1), 0
    for _ in range(2000):
        # A Gaussian first-order autoregression
        noise = [rng.gauss(0, 1), *((1 - rho**2) ** 0.5 * rng.gauss(0, 1) for _ in range(n))]
        low, high = median_interval([*itertools.accumulate(noise, lambda x, new: rho * x + new)][1:])
        covered += low <= 0 <= high
    assert covered / 2000 >= least


@pytest.mark.parametrize(("count", "ends"), [(2, (1, 2)), (19, (1, 19)), (20, (6, 15)), (1000, (469, 532))])
def test_the_extreme_ones_of_twenty_or_more_samples_are_left_out(count, ends):
    samples = range(1, count + 1)
    zigzag = [each for pair in zip(samples, reversed(samples), strict=True) for each in pair][:count]  # uncorrelated
    assert median_interval(zigzag) == ends

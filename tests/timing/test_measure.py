"""Each pitfall of benchmarking, with the fake that falls into it."""

import gc
import itertools
import math
import random
import time
from types import SimpleNamespace

import pytest

from bench.records.verdict import Rate, burst_and_sustained, name_bottleneck
from bench.timing import measure as measure_module
from bench.timing.intervals import has_drift
from bench.timing.measure import (
    COMPARED_STEPS,
    SINGLE_STEPS,
    Job,
    Limits,
    MeasurementError,
    choose_steps,
    is_steady,
    measure,
    measure_energy,
    prove_every_step_runs,
    run_until_sure,
    sustain,
)
from tests.fakes import Clock, Device


def measured(limits=None, items=1, watches=(), on_window=None, **device):
    clock = Clock()
    fake = Device(clock, **device)
    result = measure(Job(fake, items, limits or Limits(), clock=clock, watches=watches, on_window=on_window))
    return result, fake


def test_asynchronous_work_is_waited_for():
    result, _ = measured(items=64)
    assert result.step_seconds_median == pytest.approx(0.010, rel=0.01)
    assert result.throughput == pytest.approx(6400, rel=0.01)
    assert result.stop_reason == "target_ci"
    assert result.flags == ()


def test_a_barrier_that_does_not_wait_does_no_harm():
    result, _ = measured(items=64, barrier=False)
    assert result.throughput == pytest.approx(6400, rel=0.01)


class Lazy(Device):
    """A framework that computes only what is read: of the steps since the last read the last one, or every n-th."""

    every = None

    def __init__(self, clock, **device):
        super().__init__(clock, **device)
        self.waiting = 0

    def step(self):
        self.calls.append("step")
        self.clock.now += self.SUBMIT_SECONDS
        self.steps += 1
        self.waiting += 1

    def read(self):
        computed = self.waiting // self.every if self.every else min(self.waiting, 1)
        self.clock.now += computed * self.work(self.steps)
        self.waiting = 0
        return super().read()


@pytest.mark.parametrize("seconds", [0.0003, 0.003, 0.010, 0.020])
def test_a_framework_that_computes_only_the_last_step_of_a_window_is_refused(seconds):
    clock = Clock()
    with pytest.raises(MeasurementError) as error:
        measure(Job(Lazy(clock, work=lambda i: seconds), 1, Limits(), clock=clock))
    assert error.value.status == "work_skipped"
    assert clock.now < 2


def test_a_framework_that_computes_every_tenth_step_of_a_window_is_refused():
    clock = Clock()
    lazy = Lazy(clock, work=lambda i: 0.010)
    lazy.every, lazy.read_alone = 10, lazy.read
    lazy.read = lambda: (setattr(lazy, "every", 10 if lazy.waiting > 1 else None), lazy.read_alone())[1]
    with pytest.raises(MeasurementError) as error:
        measure(Job(lazy, 1, Limits(), clock=clock))
    assert error.value.status == "work_skipped"


def test_a_lazy_framework_with_one_step_to_a_window_runs_it():
    clock = Clock()
    result = measure(Job(Lazy(clock, work=lambda i: 0.030), 1, Limits(), clock=clock))
    assert result.step_seconds_median == pytest.approx(0.030, rel=0.01)


def test_a_lazy_pipeline_is_refused():
    clock = Clock()
    fake = Lazy(clock, work=lambda i: 0.010)
    fake.num_workers, fake.queue_steps = 2, 6
    with pytest.raises(MeasurementError) as error:
        measure(Job(fake, 1, Limits(), clock=clock))
    assert error.value.status == "work_skipped"


class Gpu(Device):
    """A device whose clock rises from half speed while it is busy, and falls while it is idle."""

    def __init__(self, clock, seconds, ramp_seconds):
        super().__init__(clock, work=self.at_this_clock)
        self.seconds, self.ramp_seconds, self.speed, self.seen = seconds, ramp_seconds, 0.5, 0.0

    def at_this_clock(self, i):
        idle = max(0.0, self.clock.now - max(self.free_at, self.seen))
        self.speed = max(0.5, self.speed - idle / self.ramp_seconds)
        taken = self.seconds / self.speed
        self.speed = min(1.0, self.speed + taken / self.ramp_seconds)
        self.seen = self.clock.now
        return taken


@pytest.mark.parametrize("ramp_seconds", [1e-4, 1e-3, 0.1])
@pytest.mark.parametrize("seconds", [5e-6, 1e-4, 2e-3, 0.020])
def test_a_clock_that_rises_under_load_skips_nothing(seconds, ramp_seconds):
    clock = Clock()
    assert measure(Job(Gpu(clock, seconds, ramp_seconds), 1, Limits(max_seconds=2), clock=clock)).windows


def test_an_honest_queue_skips_nothing():
    seconds = 1e-6, 1e-5, 1e-4, 1e-3, 1e-2
    for submit, work, barrier in itertools.product(seconds, seconds, seconds):
        clock = Clock()
        fake = Device(clock, work=lambda i, work=work: work)
        fake.SUBMIT_SECONDS, fake.READ_SECONDS = submit, barrier
        prove_every_step_runs(Job(fake, 1, clock=clock), 2)
        assert fake.calls.count("step") == COMPARED_STEPS + SINGLE_STEPS  # at the first try


def test_what_the_first_step_took_of_memory_is_forgotten_once_it_is_done():
    clock = Clock()
    fake = Device(clock)
    measure(Job(fake, 1, Limits(), clock=clock))
    forgotten = fake.calls.index("after_first_step")
    assert (fake.calls[:forgotten].count("step"), fake.calls[forgotten - 1]) == (1, "read")
    assert fake.calls.count("after_first_step") == 1


@pytest.mark.parametrize(("counts", "refused"), [(1.0, False), (0.5, True), (0.0, True), (2.0, True)])
def test_the_optimizer_counts_the_steps_that_were_timed(counts, refused):
    clock = Clock()
    fake = Device(clock)
    fake.updates = lambda: counts * fake.steps
    if refused:
        with pytest.raises(MeasurementError, match="optimizer") as error:
            measure(Job(fake, 1, Limits(), clock=clock))
        assert error.value.status == "work_skipped"
    else:
        assert measure(Job(fake, 1, Limits(), clock=clock)).windows


def test_weights_that_end_as_they_began_are_refused():
    clock = Clock()
    fake = Device(clock, values=lambda steps: steps % 2 if steps < 100 else 1)
    fake.updates = lambda: fake.steps
    with pytest.raises(MeasurementError, match="weights") as error:
        measure(Job(fake, 1, Limits(), clock=clock))
    assert error.value.status == "work_skipped"


def test_a_step_that_caches_its_input_is_refused():
    with pytest.raises(MeasurementError) as error:
        measured(values=lambda steps: 1.25)
    assert error.value.status == "constant_output"


def test_an_output_that_is_no_number_is_flagged():
    result, _ = measured(values=lambda steps: float("nan"))
    assert result.flags == ("not_finite",)


def test_compilation_stays_in_the_first_step():
    result, _ = measured(work=lambda i: 0.300 if i == 0 else 0.010)
    assert result.first_step_seconds == pytest.approx(0.310, rel=0.05)
    assert result.step_seconds_median == pytest.approx(0.010, rel=0.01)


def test_the_warm_up_lasts_until_the_pace_is_steady():
    result, _ = measured(work=lambda i: 0.010 * (1 + 4 * max(0.0, 1 - i / 200)))
    assert result.step_seconds_median == pytest.approx(0.010, rel=0.01)
    assert "drift" not in result.flags
    assert result.warmup_seconds > 4


def test_a_warm_up_that_never_settles_ends():
    result, _ = measured(Limits(max_seconds=3), work=lambda i: 0.010 * 1.01**i)
    assert result.warmup_seconds == pytest.approx(3, rel=0.2)


def test_long_steps_need_only_two_alike():
    assert is_steady([9.0, 0.50, 0.51])
    assert not is_steady([0.50, 0.60])
    assert not is_steady([0.02] * 9)
    assert is_steady([0.02] * 10)
    assert not is_steady([0.0205] * 5 + [0.02] * 5)


def test_wall_time_is_reported_not_cpu_time():
    sleeping = SimpleNamespace(
        prepare=None, queue_steps=None, step=lambda: time.sleep(0.030), synchronize=lambda: None, read=random.random
    )
    job = Job(sleeping, 1, Limits(max_seconds=0.2, target_ci=1e-9))
    assert job.clock is time.perf_counter
    assert min(run_until_sure(job, 1).windows) >= 0.030


def test_a_window_is_k_steps_and_one_synchronise_and_nothing_else():
    clock, seen = Clock(), [[]]
    fake = Device(clock, work=lambda i: 0.004)
    run_until_sure(Job(fake, 1, Limits(), clock, on_window=lambda windows, steps: seen.append(list(fake.calls))), 7)
    assert len(seen) == 21
    for before, after in itertools.pairwise(seen):
        assert after[len(before) :] == ["step"] * 7 + ["synchronize", "read"]


def test_the_interval_is_looked_at_every_tenth_window_so_that_luck_does_not_stop_a_run(monkeypatch):
    clock, counts = Clock(), []
    monkeypatch.setattr(measure_module, "half_width_percent", lambda windows: counts.append(len(windows)) or 100)
    run_until_sure(Job(Device(clock, work=lambda i: 0.030), 1, Limits(max_seconds=5), clock), 1)
    assert counts[0] == 20
    assert all(after >= 1.1 * before for before, after in itertools.pairwise(counts))


class StepWatch:
    """Reads the device's step count when measure() says that the windows begin and end."""

    def __init__(self, fake):
        self.fake, self.counts = fake, []

    def start(self):
        self.counts.append(self.fake.steps)

    def flags(self):
        self.counts.append(self.fake.steps)
        return ["contended"]


def test_steps_counted_are_steps_executed_and_watches_enclose_them():
    clock = Clock()
    fake = Device(clock, work=lambda i: 0.004)
    watch = StepWatch(fake)
    result = measure(Job(fake, 3, Limits(), clock=clock, watches=[watch]))
    executed = watch.counts[1] - watch.counts[0]
    assert executed == result.windows * result.steps_per_window
    assert result.items == 3 * executed
    assert result.seconds == pytest.approx(executed * 0.004, rel=0.01)
    assert result.flags == ("contended",)


def test_compiling_inside_the_windows_is_flagged():
    clock = Clock()
    fake = Device(clock)
    fake.trace_count = lambda: fake.steps // 100
    assert "recompiled" in measure(Job(fake, 1, Limits(), clock=clock)).flags
    fake.trace_count = lambda: 1
    assert measure(Job(fake, 1, Limits(), clock=clock)).flags == ()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_while_measuring_and_is_restored(enabled):
    states = []

    def fail_at_step_100(i):
        states.append(gc.isenabled())
        if i == 100:
            raise RuntimeError("the device is gone")
        return 0.010

    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError):
            measured(work=fail_at_step_100)
        assert gc.isenabled() == enabled
        assert not any(states)
    finally:
        gc.enable()


def test_ctrl_c_keeps_the_complete_windows():
    def press(i):
        if i == 100:
            raise KeyboardInterrupt
        return 0.010

    result, _ = measured(Limits(target_ci=1e-9), work=press)
    assert result.stop_reason == "interrupted"
    assert result.items == result.windows * result.steps_per_window > 0


def test_after_ctrl_c_in_a_step_nothing_is_read():
    clock = Clock()
    fake = Device(clock)

    def press(i):
        if i == 200:
            fake.read = None  # a step that is cut short has no result
            raise KeyboardInterrupt
        return 0.010

    fake.work = press
    result = measure(Job(fake, 1, Limits(num_items=10_000), clock=clock))
    assert result.stop_reason == "interrupted"


def test_ctrl_c_before_the_first_window_is_passed_on():
    def press(i):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(work=press)


def noisy(seconds, spread, seed=0):
    rng = random.Random(seed)
    return lambda i: seconds * rng.uniform(1 - spread, 1 + spread)


def test_noise_that_never_narrows_stops_at_the_time_limit():
    result, _ = measured(Limits(max_seconds=10, target_ci=0.01), work=noisy(0.1, 0.4))
    assert result.stop_reason == "max_seconds"
    assert result.seconds == pytest.approx(10, rel=0.02)
    assert result.flags == ()  # a wide interval says it itself


def test_three_windows_at_least_unless_they_take_three_times_the_limit():
    assert measured(Limits(max_seconds=10), work=lambda i: 8.0)[0].windows == 3
    assert measured(Limits(max_seconds=10), work=lambda i: 20.0)[0].windows == 2


def test_a_single_window_has_no_interval():
    result, _ = measured(Limits(max_seconds=1), work=lambda i: 8.0)
    assert result.windows == 1
    assert (result.throughput_low, result.throughput_high) == (None, None)


def test_the_interval_of_throughput_is_the_reciprocal_of_that_of_time():
    result, _ = measured(Limits(max_seconds=5, target_ci=0.01), items=10, work=noisy(0.1, 0.1))
    assert result.throughput_low < result.throughput < result.throughput_high
    assert result.throughput_low > 10 / 0.11
    assert result.throughput_high < 10 / 0.09
    assert result.throughput == pytest.approx(10 / result.step_seconds_median)


def test_windows_outlast_the_clock_and_the_barrier():
    assert choose_steps(step_seconds=0.001, barrier_seconds=0) == 25
    assert choose_steps(step_seconds=0.001, barrier_seconds=0.001) == 100
    assert choose_steps(step_seconds=0.4, barrier_seconds=0.001) == 1


def test_a_slow_barrier_lengthens_the_windows():
    clock = Clock()
    fake = Device(clock, work=lambda i: 0.010)
    synchronize = fake.synchronize

    def slow():
        synchronize()
        clock.now += 0.002

    fake.synchronize = slow
    result = measure(Job(fake, 1, Limits(), clock=clock))
    assert result.steps_per_window >= 17  # 200 ms at 12 ms a step, as the warm-up sees it
    assert result.step_seconds_median == pytest.approx(0.010, rel=0.02)


def test_rare_slow_steps_show_in_p95_and_not_in_the_median():
    usual = noisy(0.03, 0.005)
    result, _ = measured(Limits(max_seconds=20, target_ci=0.001), work=lambda i: 0.3 if i % 12 == 0 else usual(i))
    assert result.step_seconds_median == pytest.approx(0.03, rel=0.01)
    assert result.step_seconds_p95 == pytest.approx(0.3, rel=0.01)
    assert result.items / result.seconds < 0.9 * result.throughput


def test_p95_is_blank_when_a_window_holds_several_steps():
    result, _ = measured(Limits(max_seconds=5, target_ci=0.001), work=noisy(0.005, 0.1))
    assert result.windows > 59
    assert result.step_seconds_p95 is None


def test_a_change_of_speed_is_flagged():
    assert has_drift([1.00, 1.01] * 15 + [1.15, 1.16] * 15)
    assert not has_drift([1.00, 1.16] * 30)
    assert not has_drift([1.0] * 30 + [1.05] * 30)
    assert "drift" in measured(Limits(max_seconds=10), work=lambda i: 0.1 * (1 + i / 100))[0].flags


class Pipeline(Device):
    """Workers that take `prepare` seconds a batch and work ahead, and a device that then works on the batches.

    A batch is begun when its worker has finished the one before and its place in the queue is free. Without
    overlap the batch is begun when it is asked for, and the device is idle.
    """

    def __init__(self, clock, prepare, step=0.0, workers=2, prefetch=2, overlap=True):
        super().__init__(clock, work=lambda i: step)
        self.num_workers, self.queue_steps = workers, workers * (prefetch + 1)
        self.prepare_seconds, self.overlap = prepare, overlap
        self.ready, self.taken = [], []

    def step(self):
        i = len(self.taken)
        worker_free = self.ready[i - self.num_workers] if i >= self.num_workers else 0.0
        place_free = self.taken[i - self.queue_steps] if i >= self.queue_steps else 0.0
        asked_for = 0.0 if self.overlap else max(self.clock.now, self.free_at)
        self.ready.append(max(worker_free, place_free, asked_for) + self.prepare_seconds)
        self.clock.now = max(self.clock.now, self.ready[-1])
        self.taken.append(self.clock.now)
        super().step()


def stream_rate(max_seconds=10, **pipeline):
    clock = Clock()
    fake = Pipeline(clock, **pipeline)
    clock.now = 1000.0  # the queue has long been full
    result = measure(Job(fake, 1, Limits(max_seconds=max_seconds), clock=clock))
    return result, Rate(result.throughput, result.throughput_low, result.throughput_high)


def test_a_full_queue_is_not_given_away():
    result, _ = stream_rate(prepare=0.1)
    assert result.throughput == pytest.approx(20, rel=0.02)  # two workers at ten a second
    assert result.steps_per_window % 2 == 0


def test_windows_of_a_pipeline_leave_nothing_out():
    class Ticking(Clock):
        def __call__(self):
            self.now += 0.001  # reading the clock takes time, as whatever happens between two windows does
            return self.now

    clock = Ticking()
    fake = Pipeline(clock, prepare=0.1)
    begin = SimpleNamespace(start=lambda: begin.at.append(clock.now), at=[], flags=list)
    shown = []
    series = run_until_sure(Job(fake, 1, Limits(max_seconds=3), clock, on_window=shown.append, watches=[begin]), 2)
    assert sum(series.windows) == pytest.approx(clock.now - begin.at[0], abs=0.0015)
    assert len(series.windows) > 6
    assert not shown


@pytest.mark.parametrize(
    ("prepare", "overlap", "name"),
    [(0.2, True, "input"), (0.01, True, "device"), (0.1, False, "overlap"), (0.05, False, "overlap")],
)
def test_the_limiting_part_is_named(prepare, overlap, name):
    device, _ = measured(work=lambda i: 0.09)
    _, pipeline = stream_rate(prepare=prepare, workers=1, overlap=overlap)
    _, both = stream_rate(prepare=prepare, step=0.09, workers=1, overlap=overlap)
    model = Rate(device.throughput, device.throughput_low, device.throughput_high)
    assert name_bottleneck(model, pipeline, both, shares_cores=False)[0] == name


def test_no_limit_is_named_where_intervals_overlap():
    name, words = name_bottleneck(Rate(100, 95, 105), Rate(104, 102, 106), Rate(99, 98, 100), shares_cores=False)
    assert name == "undecided"
    assert "their intervals overlap" in words


def test_on_a_cpu_the_expectation_is_told():
    name, words = name_bottleneck(Rate(100, 99, 101), Rate(300, 290, 310), Rate(76, 75, 77), shares_cores=True)
    assert name == "device"
    assert "75 are expected" in words


def test_a_pipeline_measured_for_a_few_queues_is_flagged():
    assert "short" in stream_rate(prepare=0.5)[0].flags
    assert "short" not in stream_rate(prepare=0.02)[0].flags


@pytest.mark.parametrize("num_items", [1000, 640, 64, 10])
def test_a_given_number_of_items_is_rounded_up_to_whole_steps(num_items):
    clock = Clock()
    fake = Device(clock, work=lambda i: 0.1)
    begin = SimpleNamespace(start=lambda: begin.at.append(fake.steps), at=[], flags=list)
    result = measure(Job(fake, 64, Limits(max_seconds=0.1, num_items=num_items), clock, watches=[begin]))
    steps = math.ceil(num_items / 64)
    assert fake.steps - begin.at[0] == steps
    assert (result.items, result.stop_reason) == (64 * steps, "num_images")
    assert result.seconds == pytest.approx(0.1 * steps, rel=0.01)
    assert result.throughput == pytest.approx(64 * steps / result.seconds)
    assert (result.throughput_low is None) == (steps < 6)


def test_a_part_of_a_step_is_timed_without_what_comes_before_it():
    clock = Clock()
    fake = Device(clock, work=lambda i: 0.020)

    def forward():
        fake.calls.append("prepare")
        fake.free_at = max(fake.free_at, clock.now) + 0.300

    fake.prepare = forward
    result = measure(Job(fake, 1, Limits(max_seconds=5), clock=clock))
    assert result.step_seconds_median == pytest.approx(0.020, rel=0.01)
    assert result.steps_per_window == 1
    assert fake.calls.count("prepare") >= result.windows


def test_ctrl_c_in_the_last_steps_keeps_the_windows():
    clock = Clock()
    fake = Device(clock, work=lambda i: 0.004)
    windows = []

    def press(i):
        if len(windows) == 6:  # 45 steps: six windows of seven, then three more
            raise KeyboardInterrupt
        return 0.004

    fake.work = press
    job = Job(fake, 1, Limits(num_items=45), clock, on_window=lambda seconds, steps: windows.append(steps))
    result = measure(job)
    assert (result.stop_reason, result.items, windows) == ("interrupted", 42, [7] * 6)


def test_draining_a_slow_pipeline_ends_in_time():
    clock = Clock()
    result = measure(Job(Pipeline(clock, prepare=0.1, step=2.0, workers=16), 1, Limits(max_seconds=10), clock=clock))
    assert result.warmup_seconds < 45
    assert result.steps_per_window == 1
    assert "short" in result.flags


@pytest.mark.parametrize(("seconds", "shows"), [(0.002, True), (0.0001, False)])
def test_a_barrier_that_shows_in_a_part_is_flagged(seconds, shows):
    clock = Clock()
    fake = Device(clock, work=lambda i: 0.020)
    synchronize = fake.synchronize

    def slow():
        synchronize()
        clock.now += seconds

    fake.synchronize, fake.prepare = slow, lambda: None
    assert ("barrier_shows" in measure(Job(fake, 1, Limits(), clock=clock)).flags) == shows


# Energy


class EnergyCounter:
    """Counts the device's work at 100 W and all time at 10 W; remembers whether it was read at rest."""

    def __init__(self, fake):
        self.fake, self.idle_when_read = fake, []

    def __call__(self):
        fake = self.fake
        self.idle_when_read.append(fake.clock.now >= fake.free_at)
        done = fake.steps * 0.010 - max(0, fake.free_at - fake.clock.now)
        return 10 * fake.clock.now + 100 * done


def test_the_energy_window_has_synchronised_work_alone():
    clock = Clock()
    fake = Device(clock, barrier=False)
    counter = EnergyCounter(fake)
    fake.step()  # still under way when the window is asked for
    watts, joules = measure_energy(Job(fake, 4, clock=clock), 3, counter)
    assert counter.idle_when_read == [True, True]
    assert watts == pytest.approx(110, rel=0.01)
    assert joules == pytest.approx(110 * 0.010 / 4, rel=0.01)
    assert clock.now >= 5


# A sustained run


def sustained(seconds, **device):
    clock = Clock()
    fake = Device(clock, **device)
    return list(sustain(Job(fake, 2, Limits(), clock), seconds, EnergyCounter(fake))), fake


def test_a_sustained_run_is_cut_into_tens_of_seconds():
    parts, fake = sustained(60)
    assert [elapsed for elapsed, *_ in parts] == pytest.approx([10, 20, 30, 40, 50, 60], abs=0.3)
    assert all(part.seconds == pytest.approx(10, abs=0.1) for _, part, _ in parts)
    assert {part.stop_reason for _, part, _ in parts} == {"interval"}
    assert sum(part.items for _, part, _ in parts) <= 2 * fake.steps
    assert [watts for *_, watts in parts] == pytest.approx([110] * 6, rel=0.01)


def test_what_lies_between_the_parts_is_not_counted_as_work():
    clock = Clock()
    fake = Device(clock)

    class Slow:
        def start(self):
            clock.now += 1

        def flags(self):
            clock.now += 1
            return []

    parts = list(sustain(Job(fake, 1, Limits(), clock, watches=[Slow()]), 30, EnergyCounter(fake)))
    # Ten seconds at 110 W and two at the 10 W of a device that waits.
    assert [watts for *_, watts in parts] == pytest.approx([(1100 + 20) / 12] * len(parts), rel=0.01)


def test_a_machine_that_grows_hot_is_slower_in_the_last_third():
    hot = lambda i: 0.010 if i < 4000 else 0.020  # noqa: E731
    parts, _ = sustained(120, work=hot)
    rows = [(elapsed, part.seconds, part.items) for elapsed, part, _ in parts]
    burst, last = burst_and_sustained(rows)
    assert burst == pytest.approx(200, rel=0.01)
    assert last == pytest.approx(100, rel=0.01)


def test_ctrl_c_ends_a_sustained_run_with_what_was_complete():
    seen = []

    def work(i):
        if i == 2500:
            raise KeyboardInterrupt
        return 0.010

    clock = Clock()
    fake = Device(clock, work=work)
    for _, part, watts in sustain(Job(fake, 1, Limits(), clock), 600, EnergyCounter(fake)):
        seen.append((part.stop_reason, watts is not None))
    assert seen[:-1] == [("interval", True)] * len(seen[:-1])
    assert seen[-1] == ("interrupted", False)


def test_too_short_a_run_has_no_last_third():
    assert burst_and_sustained([(10, 10, 50)]) == (5, None)
    assert burst_and_sustained([(10, 10, 50), (20, 10, 50), (30, 10, 40), (40, 10, 30)])[1] is None  # within the first


def test_without_intervals_no_limit_is_named():
    assert name_bottleneck(Rate(100), Rate(300), Rate(99), shares_cores=False)[0] == "undecided"

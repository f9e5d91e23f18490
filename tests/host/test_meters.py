"""Other programs are noticed, and our own work is not taken for theirs."""

import math
import os
import subprocess
import sys
from collections import namedtuple

import pytest

from bench.host import meters, ranks, sensors
from tests.fakes import Clock


@pytest.mark.parametrize(
    ("others", "quota", "flags"),
    [(0.7, None, []), (0.9, None, ["contended"]), (0.9, 8.0, ["contended"]), (0.9, 2.0, [])],
)
def test_contention_is_over_a_tenth_of_all_cores_unless_a_quota_hides_the_others(monkeypatch, others, quota, flags):
    clock, spent = Clock(), Clock()
    monkeypatch.setattr(meters, "usable_cores", lambda: 8)
    monkeypatch.setattr(meters, "usable_cpus", lambda: set(range(8)))
    monkeypatch.setattr(meters, "cpu_quota", lambda: quota)
    monkeypatch.setattr(meters, "others_cpu_seconds", spent)
    monkeypatch.setattr(meters.CounterWatch.__init__, "__defaults__", (0.0, clock))
    watch = meters.watch_contention()
    clock.now, spent.now = 100.0, 5000.0
    watch.start()
    clock.now += 10
    spent.now += 10 * others
    assert watch.flags() == flags


def test_any_growth_of_swap_is_flagged():
    swapped = Clock()
    watch = meters.CounterWatch("swapping", swapped)
    swapped.now = 7
    watch.start()
    assert watch.flags() == []
    swapped.now = 8
    assert watch.flags() == ["swapping"]


KINDS = "user system idle iowait steal"  # of psutil's cpu_times() on Linux
Times = namedtuple("Times", KINDS, defaults=[0] * len(KINDS.split()))


def test_others_time_is_that_of_our_cpus_without_idle_and_own_time(monkeypatch):
    """In a container, other containers' load is on CPUs that this one may not use."""
    times = [Times(user=10, system=2, idle=99, iowait=50, steal=1), Times(1000)]
    monkeypatch.setattr(sensors.psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(meters, "usable_cpus", lambda: {0})
    monkeypatch.setattr(meters, "own_cpu_seconds", lambda: 4.0)
    assert meters.others_cpu_seconds() == 10 + 2 + 1 - 4


def test_own_time_is_what_the_system_counts_and_covers_the_other_ranks(monkeypatch):
    before = sum(os.times()[:4])
    assert before - 0.1 <= meters.own_cpu_seconds() <= sum(os.times()[:4]) + 0.1
    root = sensors.psutil.Process()
    monkeypatch.setattr(sensors.psutil.Process, "parent", lambda self: roots.append(self) or root)
    roots = []
    monkeypatch.setattr(meters, "read_ranks", lambda: ranks.Ranks(0, 2, 0, 2))
    assert meters.own_cpu_seconds() >= before - 0.1
    assert roots == [root]


def test_the_peak_of_a_process_is_not_its_parents():
    child = "from bench.host import meters; print(meters.process_peak_bytes())"
    parent = f"import subprocess, sys; kept = bytearray(10**9); subprocess.run([sys.executable, '-c', {child!r}])"
    found = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    assert 10e6 < int(found.stdout) < 5e8


@pytest.mark.parametrize(
    ("reasons", "pressure", "flags"),
    [
        ("", None, []),
        ("sw_power_cap", "nominal", []),
        ("", "moderate", ["throttled"]),
        ("sw_power_cap hw_thermal_slowdown", None, ["throttled"]),
    ],
)
def test_throttling_is_what_the_system_reports(monkeypatch, reasons, pressure, flags):
    monkeypatch.setattr(sensors, "read_thermal_pressure", lambda: pressure)
    columns = {"temperature_c": 88, "throttle_reasons": reasons}
    watch = meters.HeatWatch(lambda: columns)
    watch.start()
    assert watch.columns == {}
    assert watch.flags() == flags
    assert watch.columns == columns | {"thermal_pressure": pressure}


def fail():
    raise OSError("a bus error")


def test_a_failing_sensor_is_logged_and_stops_nothing(caplog):
    caplog.set_level("INFO", "bench")
    for watch in (meters.HeatWatch(fail), meters.CounterWatch("swapping", fail)):
        watch.start()
        assert watch.flags() == []
    assert "OSError: a bus error" in caplog.text


class Counter:
    """The energy counter of a machine that draws 12 W."""

    power_scope = "cpu package"

    def __init__(self, clock):
        self.joules = lambda: 1000 + 12 * clock.now


def test_idle_power_is_measured_where_there_is_a_counter():
    clock = Clock()

    def sleep(seconds):
        clock.now += seconds

    counter = Counter(clock)
    instruments = meters.Instruments(counter).with_idle_watts(clock, sleep)
    assert instruments.idle_watts == pytest.approx(12)
    assert clock.now == meters.IDLE_SECONDS
    assert instruments.joules() == pytest.approx(1060)
    counter.joules = fail
    assert instruments.with_idle_watts(clock, sleep).idle_watts is None
    assert meters.Instruments().with_idle_watts(sleep=fail) == meters.Instruments()
    assert math.isnan(meters.Instruments().joules())


@pytest.mark.parametrize(("percent", "flags"), [(5, []), (40, ["contended"])])
def test_a_card_that_is_used_before_the_run_is_contended(monkeypatch, percent, flags):
    counter = Counter(Clock())
    counter.busy_percent = lambda: percent
    monkeypatch.setattr(meters, "others_cpu_seconds", float)
    instruments = meters.Instruments(counter).with_idle_watts(sleep=lambda seconds: None)
    _, contention, _ = instruments.watches()
    contention.start()
    assert contention.flags() == flags


def test_missing_energy_comes_with_its_reason(monkeypatch):
    def missing():
        raise OSError("`sudo chmod` is needed")

    monkeypatch.setattr(sensors, "Rapl", missing)
    monkeypatch.setattr(sys, "platform", "linux")
    found = [meters.open_instruments(device, "x") for device in ("cpu", "cuda", "xpu")]
    assert found[0] == meters.Instruments(None, dict, "`sudo chmod` is needed")
    assert "pynvml" in found[1].why_no_energy
    assert found[2].why_no_energy == "no energy counter is known for x"

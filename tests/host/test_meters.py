"""Other programs are noticed, and our own work is not taken for theirs."""

import ctypes
import math
import os
import sys
from collections import namedtuple

import pytest

from bench.host import meters, sensors
from tests.fakes import Clock


@pytest.mark.parametrize(
    ("at_rest", "others", "flags"),
    [
        (0.0, 0.7, []),  # of eight cores; a tenth of one core is usual on a Mac
        (0.0, 0.9, ["contended"]),
        (0.5, 1.2, []),
        (0.5, 1.4, ["contended"]),
        (4.0, 4.0, ["contended"]),  # a program that ran before, too
    ],
)
def test_contention_is_over_a_tenth_of_all_cores_more_than_at_rest(monkeypatch, at_rest, others, flags):
    clock, spent = Clock(), Clock()
    monkeypatch.setattr(meters, "usable_cores", lambda: 8)
    monkeypatch.setattr(meters, "cpu_quota", lambda: None)
    monkeypatch.setattr(meters, "others_cpu_seconds", spent)
    monkeypatch.setattr(meters.CounterWatch.__init__, "__defaults__", (0.0, clock))
    watch = meters.watch_contention(at_rest)
    clock.now, spent.now = 100.0, 5000.0
    watch.start()
    clock.now += 10
    spent.now += 10 * others
    assert watch.rate() == pytest.approx(others)
    assert watch.flags() == flags


def test_an_unknown_load_is_no_load(monkeypatch):
    monkeypatch.setattr(meters, "others_cpu_seconds", fail)
    for psutil in (sensors.psutil, None):
        monkeypatch.setattr(sensors, "psutil", psutil)
        watch = meters.watch_contention()
        watch.start()
        assert watch.rate() == 0
    assert watch.flags() == []


def test_any_growth_of_swap_is_flagged():
    swapped = Clock()
    watch = meters.CounterWatch("swapping", swapped)
    swapped.now = 7
    watch.start()
    assert watch.flags() == []
    swapped.now = 8
    assert watch.flags() == ["swapping"]


KINDS = "user system idle iowait guest guest_nice steal"  # of psutil's cpu_times() on Linux
Times = namedtuple("Times", KINDS, defaults=[0] * len(KINDS.split()))


def test_others_time_is_that_of_our_cpus_without_idle_guest_and_own_time(monkeypatch):
    """In a container, other containers' load is on CPUs that this one may not use."""
    times = [Times(user=10, system=2, idle=99, iowait=50, guest=4, steal=1), Times(1000), Times(100), Times(1000)]
    monkeypatch.setattr(sensors.psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(meters, "usable_cpus", lambda pid: {0: {0}, 7: {2}}[pid])
    monkeypatch.setattr(meters, "own_cpu_seconds", lambda *peers: [3.0, 1.0])
    assert meters.others_cpu_seconds() == 10 + 2 + 1 - 4
    assert meters.others_cpu_seconds(7) == 10 + 2 + 1 - 4 + 100


def test_own_time_and_the_peak_of_the_process_are_what_the_system_counts():
    before = sum(os.times()[:4])
    assert before - 0.1 <= sum(meters.own_cpu_seconds()) <= sum(os.times()[:4]) + 0.1
    assert 10e6 < meters.process_peak_bytes() < 1e12


def test_without_psutil_only_heat_is_watched(monkeypatch):
    flags = lambda: [watch.flag for watch in meters.Instruments().watches()]  # noqa: E731
    assert flags() == ["throttled", "contended", "swapping"]
    monkeypatch.setattr(sensors, "psutil", None)
    assert flags() == ["throttled"]


@pytest.mark.parametrize(
    ("reasons", "pressure", "flags"),
    [
        ("", None, []),
        ("sw_power_cap gpu_idle", "nominal", []),
        ("gpu_idle sync_boost display_clock_setting", None, []),
        ("", "moderate", ["throttled"]),
        ("", "heavy", ["throttled"]),
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


def test_a_failing_sensor_is_logged_once_and_stops_nothing(caplog):
    caplog.set_level("INFO", "bench")
    meters.log_once.cache_clear()
    for watch in (meters.HeatWatch(fail), meters.CounterWatch("swapping", fail)):
        watch.start()
        assert (watch.flags(), watch.flags(), watch.columns) == ([], [], {})
    assert len(caplog.messages) == 2
    for message, flag in zip(caplog.messages, ("throttled", "swapping"), strict=True):
        assert flag in message
        assert "OSError: a bus error" in message


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


def test_missing_energy_comes_with_its_reason(monkeypatch):
    def missing(*arguments):
        raise sensors.Unavailable("`sudo chmod` is needed")

    def broken(*arguments):
        raise ctypes.ArgumentError("an old library")

    monkeypatch.setattr(sensors, "Rapl", missing)
    monkeypatch.setattr(sensors, "NvidiaCard", broken)
    monkeypatch.setattr(sys, "platform", "linux")
    found = [meters.open_instruments(device, None, None) for device in ("cpu", "cuda")]
    assert found[0] == meters.Instruments(None, sensors.read_cpu, "`sudo chmod` is needed")
    assert found[1] == meters.Instruments(
        None, dict, "the energy counter cannot be read: ArgumentError: an old library"
    )


@pytest.mark.parametrize(("quota", "flags"), [(None, ["contended"]), (8.0, ["contended"]), (2.0, [])])
def test_nothing_is_said_about_others_if_a_quota_is_less_than_the_cpus(monkeypatch, quota, flags):
    spent = Clock()
    monkeypatch.setattr(meters, "cpu_quota", lambda: quota)
    monkeypatch.setattr(meters, "usable_cpus", lambda: set(range(8)))
    monkeypatch.setattr(meters, "others_cpu_seconds", spent)
    watch = meters.watch_contention()
    watch.start()
    spent.now = 1e6
    assert watch.flags() == flags

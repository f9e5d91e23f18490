"""What other programs do is seen; what we do ourselves is not taken for theirs."""

import resource

import pytest

from bench.machine import meters
from tests.fakes import Clock


@pytest.mark.parametrize(("others", "flags"), [(0.09, []), (0.11, ["contended"]), (2.0, ["contended"])])
def test_contention_is_a_tenth_of_a_core(others, flags):
    clock, spent = Clock(), Clock()
    watch = meters.ContentionWatch(clock, spent)
    clock.now, spent.now = 100.0, 5000.0
    watch.start()
    clock.now += 10
    spent.now += 10 * others
    assert watch.flags() == flags


def test_swapping_is_any_growth():
    swapped = Clock()
    watch = meters.SwapWatch(swapped)
    swapped.now = 7
    watch.start()
    assert watch.flags() == []
    swapped.now = 8
    assert watch.flags() == ["swapping"]


class Busy:
    """psutil's cpu_times() on Linux, after so many seconds of each kind."""

    def __init__(self, **seconds):
        self.seconds = dict.fromkeys(("user", "system", "idle", "iowait", "guest", "guest_nice", "steal"), 0) | seconds

    def __getattr__(self, name):
        return self.seconds[name]

    def __iter__(self):
        return iter(self.seconds.values())


def test_others_time_is_all_but_idle_and_our_own(monkeypatch):
    monkeypatch.setattr(meters, "own_cpu_seconds", lambda: [3.0, 1.0])
    times = Busy(user=10, system=2, idle=99, iowait=50, guest=4, steal=1)
    monkeypatch.setattr(meters.psutil, "cpu_times", lambda: times)
    assert meters.others_cpu_seconds() == pytest.approx(10 + 2 + 1 - 4)


def test_our_own_time_is_what_the_system_says():
    own = sum(meters.own_cpu_seconds())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert own >= usage.ru_utime * 0.5
    assert own > 0


def test_the_peak_of_the_process_is_plausible():
    assert 10e6 < meters.process_peak_bytes() < 1e12


def test_without_psutil_heat_alone_is_watched(monkeypatch):
    names = lambda: [type(guard._watch).__name__ for guard in meters.Instruments().watches()]  # noqa: E731
    assert names() == ["HeatWatch", "ContentionWatch", "SwapWatch"]
    monkeypatch.setattr(meters, "psutil", None)
    assert names() == ["HeatWatch"]


@pytest.mark.parametrize(
    ("reasons", "pressure", "flags"),
    [
        ("", None, []),
        ("sw_power_cap gpu_idle", "nominal", []),
        ("", "moderate", []),
        ("", "heavy", ["throttled"]),
        ("sw_power_cap hw_thermal_slowdown", None, ["throttled"]),
    ],
)
def test_heat_is_what_the_system_says(reasons, pressure, flags):
    read = {"temperature_c": 88, "throttle_reasons": reasons}
    watch = meters.HeatWatch(lambda: read, lambda: pressure)
    watch.start()
    assert watch.columns == {}
    assert watch.flags() == flags
    assert watch.columns == read | {"thermal_pressure": pressure}


def test_a_sensor_that_fails_stops_nothing(caplog):
    def fails():
        raise OSError("a bus error")

    for watch in (meters.HeatWatch(fails), meters.ContentionWatch(cpu_seconds=fails), meters.SwapWatch(fails)):
        guard = meters.Guard(watch)
        guard.start()
        assert (guard.flags(), guard.columns) == ([], {})


class Counter:
    power_scope = "cpu package"

    def __init__(self, clock, watts):
        self.joules = lambda: 1000 + watts * clock.now


def test_idle_power_is_measured_where_there_is_a_counter(monkeypatch):
    clock = Clock()

    def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr(meters.sensors, "open_energy_counter", lambda device, name: Counter(clock, 12))
    instruments = meters.open_instruments("cpu", None, clock, sleep)
    assert instruments.idle_watts == pytest.approx(12)
    assert clock.now >= 5
    assert instruments.joules() == pytest.approx(1060)


def test_what_is_missing_is_said_once_and_left_blank(monkeypatch, caplog):
    def missing(device, name):
        raise meters.sensors.Unavailable("`sudo chmod` lets everybody read them")

    monkeypatch.setattr(meters.sensors, "open_energy_counter", missing)
    caplog.set_level("INFO", "bench")
    instruments = meters.open_instruments("cpu", None)
    assert (instruments.counter, instruments.idle_watts) == (None, None)
    assert caplog.messages == ["power and energy stay blank: `sudo chmod` lets everybody read them"]

"""Other programs are noticed, our own work is not taken for theirs, and sensors that are not here are read by fakes."""

import math
import subprocess
import sys
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest

from bench.host import environment, meters
from bench.host.environment import Card
from bench.host.meters import describe_load
from tests.fakes import Clock


@pytest.fixture
def watch(monkeypatch):
    """Lets ten seconds pass on eight cores with meters that read these values; returns (flags, readings)."""

    def call(others=lambda now: 0.0, swapped=lambda now: 7, read=dict, card_is_shared=False):
        clock = Clock()
        monkeypatch.setattr(meters, "usable_cores", lambda: 8)
        monkeypatch.setattr(meters, "others_cpu_seconds", lambda: others(clock.now))
        monkeypatch.setattr(meters, "swapped_bytes", lambda: swapped(clock.now))
        found = meters.Watch(meters.Instruments(read=read, card_is_shared=card_is_shared), clock)
        clock.now = 100.0
        found.start()
        clock.now = 110.0
        return found.stop()

    return call


@pytest.mark.parametrize(
    ("read", "flags"),
    [
        ({"others": lambda now: 5000 + 0.7 * now}, []),  # under a tenth of all cores
        ({"others": lambda now: 5000 + 0.9 * now}, ["contended"]),
        ({"others": lambda now: math.nan}, []),
        ({"others": lambda now: math.nan, "card_is_shared": True}, ["contended"]),
        ({"swapped": lambda now: now}, ["swapping"]),
    ],
)
def test_other_programs_and_growing_swap_are_flagged(watch, read, flags):
    assert watch(**read)[0] == flags


@pytest.mark.parametrize(("share", "words"), [(0.09, ""), (0.25, "25 %"), (math.nan, "")])
def test_a_busy_machine_is_told_before_the_run(monkeypatch, share, words):
    readings = iter((5000, 5000 + share * 8))
    monkeypatch.setattr(meters, "usable_cores", lambda: 8)
    monkeypatch.setattr(meters, "others_cpu_seconds", lambda: next(readings))
    monkeypatch.setattr(meters.time, "sleep", lambda seconds: None)
    said = describe_load()
    assert (bool(said), words in said) == (bool(words), True)


KINDS = "user system idle iowait steal"  # of psutil's cpu_times() on Linux
Times = namedtuple("Times", KINDS, defaults=[0] * len(KINDS.split()))


def test_others_time_is_that_of_our_cpus_without_idle_and_own_time(monkeypatch):
    """In a container, other containers' load is on CPUs that this one may not use."""
    times = [Times(user=10, system=2, idle=99, iowait=50, steal=1), Times(1000)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(meters, "USABLE_CPUS", {0})
    own = SimpleNamespace(cpu_times=lambda: (2, 1, 0, 0), children=lambda recursive: [])
    parent = SimpleNamespace(cpu_times=lambda: (1, 0, 0, 0), children=lambda recursive: [own])
    own.parent = lambda: parent
    monkeypatch.setattr(psutil, "Process", lambda: own)
    for quota in (None, 1.0):
        monkeypatch.setattr(meters, "cpu_quota", lambda quota=quota: quota)
        assert meters.others_cpu_seconds() == 10 + 2 + 1 - 4
    monkeypatch.setattr(meters, "cpu_quota", lambda: 0.5)  # other containers may use the rest of this CPU
    assert math.isnan(meters.others_cpu_seconds())


def test_the_peak_of_a_process_is_not_its_parents():
    child = "from bench.host import meters; print(meters.process_peak_bytes())"
    parent = f"import subprocess, sys; kept = bytearray(10**9); subprocess.run([sys.executable, '-c', {child!r}])"
    found = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    assert 10e6 < int(found.stdout) < 5e8


@pytest.mark.parametrize(
    ("columns", "flags"),
    [
        ({}, []),
        ({"thermal_pressure": "nominal"}, []),
        ({"thermal_pressure": "moderate"}, ["throttled"]),
        ({"throttle_reasons": "sw_power_cap"}, []),
        ({"throttle_reasons": "sw_power_cap hw_thermal_slowdown"}, ["throttled"]),
    ],
)
def test_throttling_is_what_the_system_reports(watch, columns, flags):
    assert watch(read=lambda: columns) == (flags, columns)


def fail(*now):
    raise OSError("a bus error")


def test_a_failing_sensor_stops_nothing(watch):
    assert watch(fail, fail, read=fail) == ([], {})


def test_idle_power_and_other_programs_on_a_card_are_measured_where_there_is_a_counter():
    clock = Clock()

    def sleep(seconds):
        clock.now += seconds

    counter = SimpleNamespace(joules=lambda: 1000 + 12 * clock.now)  # 12 W
    instruments = meters.Instruments(counter).with_idle_watts(clock, sleep)
    assert instruments.idle_watts == pytest.approx(12)
    assert clock.now == meters.IDLE_SECONDS
    assert instruments.joules() == pytest.approx(1060)
    for percent, is_shared in ((15, False), (40, True)):
        counter.busy_percent = lambda percent=percent: percent  # before the run
        assert instruments.with_idle_watts(clock, sleep).card_is_shared == is_shared
    counter.joules = fail
    assert instruments.with_idle_watts(clock, sleep).idle_watts is None
    assert meters.Instruments().with_idle_watts(sleep=fail) == meters.Instruments()
    assert math.isnan(meters.Instruments().joules())


# Sensors of hardware that is not here, with fakes of the real libraries and recorded values.

SLOW, FAST = "NVIDIA GeForce GT 1030", "NVIDIA GeForce RTX 4090"


@pytest.fixture
def nvml(monkeypatch):
    """The real pynvml with two cards, which are their slots; temperatures, clocks and joules tell them apart."""
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(environment, "list_cards", lambda: [Card(SLOW, "0", "GPU-1"), Card(FAST, "1", "GPU-2")])
    pynvml = pytest.importorskip("pynvml")
    answers = {
        "Init": lambda: None,
        "DeviceGetHandleByIndex": int,
        "DeviceGetTotalEnergyConsumption": lambda slot: 5_000_123 + slot * 10**12,
        "DeviceGetUtilizationRates": lambda slot: SimpleNamespace(gpu=30 * slot),
        "DeviceGetTemperature": lambda slot, kind: 61 + slot,
        "DeviceGetClockInfo": lambda slot, kind: 1980,
        "DeviceGetCurrentClocksEventReasons": lambda slot: 0x1 | 0x4 | 0x40,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", answer)
    return pynvml


@pytest.mark.parametrize(("visible", "slot"), [(None, 0), ("1,0", 1), ("GPU-2", 1), ("", None)])
def test_the_first_visible_card_is_read(nvml, monkeypatch, visible, slot):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    instruments = meters.open_instruments("cuda", [SLOW, FAST][slot or 0])
    if slot is None:
        assert instruments.counter is None
        return
    assert instruments.joules() == 5000.123 + slot * 1e9
    assert (instruments.counter.busy_percent(), instruments.counter.power_scope) == (30 * slot, "gpu board")
    why = "sw_power_cap hw_thermal_slowdown"
    assert instruments.read() == {"temperature_c": 61 + slot, "clock_mhz": 1980, "throttle_reasons": why}


def test_a_card_without_an_energy_counter_has_a_temperature_and_a_card_that_does_not_run_is_not_read(nvml, monkeypatch):
    def refuse(*arguments):
        raise nvml.NVMLError(3)  # NVML_ERROR_NOT_SUPPORTED

    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", refuse)
    instruments = meters.open_instruments("cuda", SLOW)
    assert instruments.counter is None
    assert instruments.read()["temperature_c"] == 61
    assert meters.open_instruments("cuda", FAST).read() == {}


def test_an_apple_chip_adds_up_its_parts(monkeypatch):
    millijoules = {"cpu_total_mj": 1500, "gpu_mj": 250, "gpu_sram_mj": None, "dram_mj": 50, "ane_mj": 0}
    monitor = SimpleNamespace(get_cumulative_energy=lambda: SimpleNamespace(**millijoules))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", SimpleNamespace(AppleEnergyMonitor=lambda: monitor))
    counter = meters.open_instruments("mps", "Apple M1 Max").counter
    assert (counter.joules(), counter.power_scope) == (1.8, "cpu+gpu+dram+ane")
    assert meters.open_instruments("cpu", "Apple M1 Ultra").counter.power_scope == "gpu+dram+ane"

"""Other programs are noticed, our own work is not taken for theirs, and sensors that are not here are read by fakes."""

import math
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from bench.host import environment, meters
from bench.host.environment import Card
from bench.host.meters import describe_load
from bench.records.rows import energy_cells
from tests.fakes import Clock


def fail(*now):
    raise OSError("a bus error")


def in_use(cores):
    return lambda now: 5000 + cores * now


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"others": in_use(0.7)}, []),  # under a tenth of all cores
        ({"others": in_use(0.9)}, ["contended"]),
        ({"others": in_use(math.nan)}, []),
        ({"others": in_use(math.nan), "card_is_shared": True}, ["contended"]),
        ({"swapped": lambda now: now}, ["swapping"]),
        ({"read": lambda: {"thermal_pressure": "nominal"}}, []),
        ({"read": lambda: {"thermal_pressure": "moderate"}}, ["throttled"]),
        ({"read": lambda: {"throttle_reasons": "sw_power_cap"}}, []),
        ({"read": lambda: {"throttle_reasons": "sw_power_cap hw_thermal_slowdown"}}, ["throttled"]),
        ({"others": fail, "swapped": fail, "read": fail}, []),  # a sensor that fails stops nothing
    ],
)
def test_what_disturbs_a_measurement_is_flagged(monkeypatch, given, flags):
    """Let ten seconds pass on eight cores."""
    clock = Clock()
    readings = {"others": in_use(0), "swapped": lambda now: 7, "read": dict, "card_is_shared": False} | given
    monkeypatch.setattr(meters, "usable_cores", lambda: 8)
    monkeypatch.setattr(meters, "others_cpu_seconds", lambda: readings["others"](clock.now))
    monkeypatch.setattr(meters, "swapped_bytes", lambda: readings["swapped"](clock.now))
    instruments = meters.Instruments(read=readings["read"], card_is_shared=readings["card_is_shared"])
    watch = meters.Watch(instruments, clock)
    clock.now = 100.0
    watch.start()
    clock.now = 110.0
    assert watch.stop()[0] == flags


@pytest.mark.parametrize(("share", "words"), [(0.09, ""), (0.25, "25 %"), (0.6, "60 %"), (math.nan, "")])
def test_a_busy_machine_is_told_before_the_run(monkeypatch, share, words):
    readings = iter((5000, 5000 + share * 8))
    monkeypatch.setattr(meters, "usable_cores", lambda: 8)
    monkeypatch.setattr(meters, "others_cpu_seconds", lambda: next(readings))
    monkeypatch.setattr(meters.time, "sleep", lambda seconds: None)
    said, is_half = describe_load()
    assert (bool(said), words in said, is_half) == (bool(words), True, share > 0.5)


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


class SteppingCounter:
    """The energy counter of a machine that draws 12 W, published every `period` seconds."""

    def __init__(self, period):
        self.clock, self.period = Clock(), period

    def reading(self):
        published = self.clock.now // self.period
        return 1000 + 12 * published * self.period, published


@pytest.mark.parametrize(
    ("period", "step", "is_known"),
    [(0.001, 0.07, True), (0.1, 4, True), (2.2, 0.07, True), (2.2, 1.5, False), (1e9, 0.07, False)],
)
def test_energy_is_read_when_the_counter_changes(period, step, is_known):
    """Of a long step nobody knows when the counter has changed, unless it changes often; the last one is frozen."""
    counter = SteppingCounter(period)
    counter.clock.sleep(0.3)
    instruments = meters.Instruments(counter)
    instruments = replace(instruments, **instruments.measure_rest(counter.clock, counter.clock.sleep))
    assert instruments.idle_watts == (None if period == 1e9 else pytest.approx(12, rel=0.02))
    assert math.isnan(instruments.joules()) == (period > 0.5)  # too rarely for rows of ten seconds
    watts, joules = instruments.spend(lambda: counter.clock.sleep(step), counter.clock)
    assert (watts, joules / step) == pytest.approx([12 if is_known else math.nan] * 2, rel=0.02, nan_ok=True)


@pytest.mark.parametrize(
    ("limit", "watts", "is_known"),
    [
        ("450.00 W", 580.0, True),
        ("450.00 W", 590.0, False),
        ("450.00 W", 450e3, False),  # a counter in other units
        ("450.00 W", 0.0, False),
        ("[N/A]", 590.0, True),
        ("[N/A]", math.nan, False),
    ],
)
def test_more_power_than_a_card_can_draw_is_left_out(nvml, monkeypatch, limit, watts, is_known):
    monkeypatch.setattr(environment, "list_cards", lambda: [Card(FAST, "0", "GPU-1", power_limit=limit)])
    instruments = meters.open_instruments("cuda", FAST)
    cells = energy_cells(instruments, watts, 0.5)
    assert cells == ({"power_watts": watts, "joules_per_item": 0.5, "power_scope": "gpu board"} if is_known else {})
    monkeypatch.setattr(meters.Instruments, "spend", lambda *given: (watts, watts))
    assert instruments.measure_rest()["idle_watts"] == (watts if is_known else None)


def test_others_on_a_card_are_noticed_without_an_energy_counter():
    for percent, is_shared in ((15, False), (40, True)):
        instruments = meters.Instruments(busy_percent=lambda percent=percent: percent)
        assert instruments.measure_rest(sleep=fail)["card_is_shared"] == is_shared
    assert meters.Instruments().measure_rest(sleep=fail)["idle_watts"] is None


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
        "DeviceGetClockInfo": lambda slot, kind: 1500,
        "DeviceGetMaxClockInfo": lambda slot, kind: 1980,
        "DeviceGetCurrentClocksEventReasons": lambda slot: 0x1 | 0x4 | 0x40,
        "DeviceGetCurrentClocksThrottleReasons": lambda slot: 0x1 | 0x4 | 0x40,
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
    assert instruments.counter.reading()[0] == 5000.123 + slot * 1e9
    assert (instruments.busy_percent(), instruments.counter.power_scope) == (30 * slot, "gpu board")
    why = "sw_power_cap hw_thermal_slowdown"
    assert instruments.read() == {"temperature_c": 61 + slot, "throttle_reasons": why} | {
        "clock_mhz": 1500,
        "highest_clock_mhz": 1980,
    }


@pytest.mark.parametrize(
    ("refused", "missing"),
    [("TotalEnergy", None), ("Temperature", "temperature_c"), ("ClockInfo", "clock_mhz"), ("CurrentClocksEvent", None)],
)
def test_a_reading_that_a_card_refuses_does_not_take_the_others_away(nvml, monkeypatch, refused, missing):
    def refuse(*arguments):
        raise nvml.NVMLError(3)  # NVML_ERROR_NOT_SUPPORTED

    for name in (name for name in vars(nvml) if name.startswith(f"nvmlDeviceGet{refused}")):
        monkeypatch.setattr(nvml, name, refuse)
    instruments = meters.open_instruments("cuda", SLOW)
    assert {"clock_mhz", "temperature_c", "throttle_reasons"} - instruments.read().keys() == {missing} - {None}
    assert (instruments.counter is None) == (refused == "TotalEnergy")
    assert instruments.busy_percent() == 0
    assert meters.open_instruments("cuda", FAST).read() == {}  # which does not run


def test_an_apple_chip_adds_up_its_parts(monkeypatch):
    millijoules = {"cpu_total_mj": 1500, "gpu_mj": 250, "gpu_sram_mj": None, "dram_mj": 50, "ane_mj": 0}
    monitor = SimpleNamespace(get_cumulative_energy=lambda: SimpleNamespace(**millijoules))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", SimpleNamespace(AppleEnergyMonitor=lambda: monitor))
    counter = meters.open_instruments("mps", "Apple M1 Max").counter
    joules, stamp = counter.reading()
    assert (joules, counter.power_scope) == (1.8, "cpu+gpu+dram+ane")
    millijoules["gpu_mj"] += 1  # the GPU's moves at any time
    assert counter.reading()[1] == stamp
    assert meters.open_instruments("cpu", "Apple M1 Ultra").counter.power_scope == "gpu+dram+ane"

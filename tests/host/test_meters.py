"""Other programs are noticed, our own work is not taken for theirs, and sensors that are not here are read by fakes."""

import math
import sys
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest

from bench.host import environment, meters
from bench.host.environment import NvidiaGpu
from bench.host.meters import others_cpu_seconds
from tests.fakes import Clock


def fail(*now):
    raise OSError("a bus error")


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"others": lambda now: 5000 + 0.7 * now}, []),  # under a tenth of all cores
        ({"others": lambda now: 5000 + 0.9 * now}, ["contended"]),
        ({"swapped": lambda now: now}, ["swapping"]),
        ({"is_shared": True}, ["contended"]),
        ({"read": lambda: {"thermal_pressure": "moderate"}}, ["throttled"]),
        ({"read": lambda: {"throttle_reasons": "sw_power_cap"}}, []),
        ({"read": lambda: {"throttle_reasons": "sw_power_cap hw_thermal_slowdown"}}, ["throttled"]),
        (dict.fromkeys(("others", "swapped", "read", "joules"), fail), []),  # a sensor that fails stops nothing
    ],
)
def test_what_disturbs_a_measurement_is_flagged(monkeypatch, given, flags):
    """Let ten seconds pass on eight cores."""
    clock = Clock()
    readings = {"others": lambda now: 5000, "swapped": lambda now: 7, "read": dict, "joules": float} | given
    monkeypatch.setattr(meters, "usable_cores", lambda: 8)
    monkeypatch.setattr(meters, "others_cpu_seconds", lambda: readings["others"](clock.now))
    monkeypatch.setattr(meters, "count_swapped", lambda: readings["swapped"](clock.now))
    sensors = {name: readings[name] for name in ("joules", "read")}
    watch = meters.Watch(meters.Instruments(**sensors, is_shared=readings.get("is_shared", False)), clock)
    watch.start()
    clock.sleep(10)
    assert watch.stop()[0] == flags


NAMES = "user nice system idle iowait irq softirq steal guest guest_nice"
Times = namedtuple("Times", NAMES, defaults=[0] * 10)  # of psutil on Linux


def test_others_time_is_that_of_our_cpus_without_idle_and_own_time(monkeypatch):
    """In a container, other containers' load is on CPUs that this one may not use."""
    times = [Times(1000), Times(user=10, system=2, idle=99, iowait=50, steal=1, guest=7)]  # user has the guests' time
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(meters, "USABLE_CPUS", {3})
    own = SimpleNamespace(cpu_times=lambda: (2, 1, 0, 0), children=lambda recursive: [])
    parent = SimpleNamespace(cpu_times=lambda: (1, 0, 0, 0), children=lambda recursive: [own])
    own.parent = lambda: parent
    monkeypatch.setattr(psutil, "Process", lambda: own)
    monkeypatch.setattr(meters, "read_text", lambda path: "cpu  1\ncpu0 1\ncpu3 1\nintr 1\n")  # 1 and 2 are offline
    for quota, seconds in ((1, 10 + 2 + 1 - 4), (0.5, math.nan)):  # other containers may use the rest of this CPU
        monkeypatch.setattr(meters, "read_quota", lambda quota=quota: quota)
        assert others_cpu_seconds() == pytest.approx(seconds, nan_ok=True)


@pytest.mark.parametrize(("window", "seconds", "is_known"), [(0.03, 2.5, True), (0.03, 1.9, False), (1.3, 4, True)])
def test_energy_is_that_between_the_first_and_the_last_change_of_the_counter(window, seconds, is_known):
    """Let a machine draw 12 W, its counter change every `period` seconds, and windows have four items."""
    period = 0.1
    clock = Clock()
    joules = lambda: 1000 + 12 * (clock.now // period) * period  # noqa: E731
    watch = meters.Watch(meters.Instruments(joules, "gpu board", period), clock)
    clock.sleep(0.33 * period)
    watch.start()
    for number in range(1, round(seconds / window) + 1):
        clock.sleep(window)
        watch.look(4 * number)
    cells = watch.stop()[1]
    expected = {"power_watts": pytest.approx(12, rel=0.05), "joules_per_item": pytest.approx(3 * window, rel=0.05)}
    assert cells == (expected | {"power_scope": "gpu board"} if is_known else {})


# Sensors of hardware that is not here, with fakes of the real libraries and recorded values.

SLOW, FAST = "NVIDIA GeForce GT 1030", "NVIDIA GeForce RTX 4090"


@pytest.mark.parametrize(
    ("visible", "slot", "has_counter"),
    [("1,0", 1, True), ("GPU-2", 1, False), ("MIG-GPU-1a/7/0", None, False), ("1", None, False)],  # at last another one
)
def test_the_first_visible_card_is_read(monkeypatch, visible, slot, has_counter):
    """Let the real pynvml have two cards, which are their slots; an old one has a temperature, but no joules."""
    monkeypatch.delitem(sys.modules, "pynvml")
    cards = [NvidiaGpu(SLOW, "0", "GPU-1a"), NvidiaGpu(FAST, "1", "GPU-2b")]
    monkeypatch.setattr(environment, "list_cards", lambda: cards)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    pynvml = pytest.importorskip("pynvml")
    answers = {
        "Init": lambda: None,
        "DeviceGetHandleByIndex": int,
        "DeviceGetTotalEnergyConsumption": (lambda slot: 5_000_123 + slot * 10**12) if has_counter else fail,
        "DeviceGetTemperature": lambda slot, kind: 61 + slot,
        "DeviceGetClockInfo": lambda slot, kind: 1500,
        "DeviceGetMaxClockInfo": lambda slot, kind: 1980,
        "DeviceGetCurrentClocksEventReasons": fail,  # not found before driver 535
        "DeviceGetCurrentClocksThrottleReasons": lambda slot: 0x1 | 0x4 | 0x40,
        "DeviceGetUtilizationRates": lambda slot: SimpleNamespace(gpu=30 if has_counter else 5),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", answer)
    instruments = meters.open_instruments("cuda", [SLOW, FAST][slot or 0])
    assert (bool(instruments.joules), instruments.is_shared) == (has_counter, has_counter)
    assert not has_counter or instruments.joules() == 5000.123 + slot * 1e9
    cells = {"throttle_reasons": "sw_power_cap hw_thermal_slowdown", "clock_mhz": 1500, "highest_clock_mhz": 1980}
    assert instruments.read() == ({} if slot is None else cells | {"temperature_c": 61 + slot})


def test_an_apple_chip_adds_up_its_parts(monkeypatch):
    millijoules = {"cpu_total_mj": 1500, "gpu_mj": 250, "gpu_sram_mj": None, "dram_mj": 50, "ane_mj": 0}
    monitor = SimpleNamespace(get_cumulative_energy=lambda: SimpleNamespace(**millijoules))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", SimpleNamespace(AppleEnergyMonitor=lambda: monitor))
    for chip, joules, parts in (("M1 Max", 1.8, "cpu+gpu+dram+ane"), ("M1 Ultra", 0.3, "gpu+dram+ane")):
        monkeypatch.setattr(environment, "output_of", lambda *command, chip=chip: f"Apple {chip}\n")
        chip = meters.open_instruments("mps", None)  # PyTorch, TensorFlow and JAX do not know the name
        assert (chip.joules(), chip.power_scope) == (joules, parts)

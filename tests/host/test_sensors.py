"""Sensors of hardware that is not here, with fakes of the real libraries and recorded values."""

import sys
from types import SimpleNamespace

import pytest

from bench.host import environment, meters, sensors
from bench.host.environment import Card
from bench.host.sensors import read_thermal_pressure

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


@pytest.mark.parametrize(("visible", "slot"), [(None, 0), ("1,0", 1), ("GPU-2", 1)])
def test_the_first_visible_card_is_read(nvml, monkeypatch, visible, slot):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    instruments = meters.open_instruments("cuda", [SLOW, FAST][slot])
    assert instruments.joules() == 5000.123 + slot * 1e9
    assert (instruments.counter.busy_percent(), instruments.counter.power_scope) == (30 * slot, "gpu board")
    why = "sw_power_cap hw_thermal_slowdown"
    assert instruments.read() == {"temperature_c": 61 + slot, "clock_mhz": 1980, "throttle_reasons": why}


@pytest.mark.parametrize("other", [f"{SLOW} MIG 1g.5gb", FAST, "AMD Instinct MI300X"])
def test_a_card_that_does_not_run_is_not_read(nvml, other):
    instruments = meters.open_instruments("cuda", other)
    assert (instruments.counter, instruments.read()) == (None, {})
    assert other in instruments.why_no_energy


def test_what_a_card_does_not_report_is_blank(nvml, monkeypatch):
    def refuse(*arguments):
        raise nvml.NVMLError(3)  # NVML_ERROR_NOT_SUPPORTED

    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", refuse)
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", refuse)
    instruments = meters.open_instruments("cuda", SLOW)
    assert instruments.counter is None
    assert "Not Supported" in instruments.why_no_energy
    assert instruments.read() == {"temperature_c": 61, "clock_mhz": 1980, "throttle_reasons": ""}


@pytest.fixture
def apple(monkeypatch):
    """Opens the instruments of a chip with these counters; AppleEnergyMetrics has None if a chip lacks one."""
    monkeypatch.setattr(sys, "platform", "darwin")

    def call(chip, device="mps", **millijoules):
        counted = SimpleNamespace(**dict.fromkeys(sensors.APPLE_PARTS.values()) | millijoules)
        monitor = SimpleNamespace(get_cumulative_energy=lambda: counted)
        library = SimpleNamespace(AppleEnergyMonitor=lambda: monitor)
        monkeypatch.setitem(sys.modules, "zeus_apple_silicon", library)
        return meters.open_instruments(device, chip)

    return call


def test_an_apple_chip_adds_up_its_parts(apple):
    millijoules = {"cpu_total_mj": 1500, "gpu_mj": 250, "dram_mj": 50, "ane_mj": 0}
    counter = apple("Apple M1 Max", **millijoules).counter
    assert (counter.joules(), counter.power_scope) == (1.8, "cpu+gpu+dram+ane")
    assert apple("Apple M1 Ultra", "cpu", **millijoules).counter.power_scope == "gpu+dram+ane"
    assert "no energy counters" in apple("Apple M9").why_no_energy


@pytest.mark.parametrize(("level", "said"), [("0", "nominal"), ("2", "heavy"), ("9", None), (None, None)])
def test_thermal_pressure_is_named(monkeypatch, level, said):
    name = "com.apple.system.thermalpressurelevel"
    monkeypatch.setattr(sensors, "output_of", lambda *command: level and f"{name} {level}")
    assert read_thermal_pressure() == said

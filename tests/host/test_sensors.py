"""Sensors of hardware that is not here, with fakes of the real libraries and recorded values."""

import sys
from types import SimpleNamespace

import pytest

from bench.host import environment, meters
from bench.host.environment import Card

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

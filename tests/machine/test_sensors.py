"""Sensors of hardware that is not here, with fakes of the real libraries and recorded values."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from bench.machine import sensors
from bench.machine.sensors import read_cpu, read_thermal_pressure


class NVMLError(Exception):
    pass


class Nvml:
    """pynvml with these cards; its opaque handles are numbers here."""

    NVMLError, NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = NVMLError, 0, 1
    names = ("NVIDIA H200",)
    millijoules = 5_000_123

    def nvmlInit(self):
        return None

    def nvmlDeviceGetCount(self):
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return {"GPU-1234": 1}[uuid]

    def nvmlDeviceGetName(self, card):
        return self.names[card]

    def nvmlDeviceGetTotalEnergyConsumption(self, card):
        if self.millijoules is None:
            raise NVMLError("Not Supported")
        return self.millijoules + card

    def nvmlDeviceGetTemperature(self, card, sensor):
        return {0: 61}[sensor]

    def nvmlDeviceGetClockInfo(self, card, kind):
        return {1: 1980}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, card):
        raise NVMLError("Function Not Found")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card):
        return 0x4 | 0x40


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_an_nvidia_card_counts_millijoules(nvml):
    card = sensors.open_energy_counter("cuda", "NVIDIA H200")
    assert (card.joules(), card.power_scope) == (5000.123, "gpu board")
    assert card.read() == {
        "temperature_c": 61,
        "clock_mhz": 1980,
        "throttle_reasons": "sw_power_cap hw_thermal_slowdown",
    }


@pytest.mark.parametrize(
    ("names", "visible", "card"),
    [
        (("B", "A"), "", 1),  # CUDA's first card is not NVML's: the name decides
        (("B", "A"), "0", 1),
        (("A", "A", "A"), "2", 2),
        (("A", "A", "A"), None, 0),
        (("A", "A"), "GPU-1234", 1),
        (("A with its full name",), "", 0),
    ],
)
def test_the_measured_card_is_found(nvml, monkeypatch, names, visible, card):
    nvml.names = names
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sensors.NvidiaCard("A").joules() == 5000.123 + card / 1000


@pytest.mark.parametrize(
    ("names", "visible", "why"),
    [
        (("A", "A"), "", "set CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (("A", "A", "B"), "1", "set CUDA_DEVICE_ORDER=PCI_BUS_ID"),  # CUDA's second card may be NVML's first
        (("A",), "MIG-1234", "a MIG slice"),
    ],
)
def test_an_ambiguous_card_is_not_read(nvml, monkeypatch, names, visible, why):
    nvml.names = names
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(sensors.Unavailable, match=why):
        sensors.NvidiaCard("A")


def test_different_cards_are_found_by_number_in_bus_order(nvml, monkeypatch):
    nvml.names = ("A", "A", "B")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert sensors.NvidiaCard("A").joules() == 5000.124


def test_a_card_without_a_counter_still_has_a_temperature(nvml):
    nvml.millijoules = None
    with pytest.raises(sensors.Unavailable, match="Not Supported"):
        sensors.open_energy_counter("cuda", "NVIDIA H200")
    assert sensors.NvidiaCard("NVIDIA H200").read()["temperature_c"] == 61


@pytest.mark.parametrize(
    ("device", "package", "cure"),
    [("cuda", "pynvml", "pip install nvidia-ml-py"), ("mps", "zeus_apple_silicon", "pip install zeus-apple-silicon")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, device, package, cure):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(sensors.Unavailable, match=cure):
        sensors.open_energy_counter(device, "x")


def apple_monitor(**millijoules):
    """zeus_apple_silicon on a chip with these counters; AppleEnergyMetrics has None where a chip has no counter."""
    counted = SimpleNamespace(**dict.fromkeys(sensors.APPLE_PARTS.values()) | millijoules)
    return SimpleNamespace(AppleEnergyMonitor=lambda: SimpleNamespace(get_cumulative_energy=lambda: counted))


def test_an_apple_chip_adds_up_its_parts(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    library = apple_monitor(cpu_total_mj=1500, gpu_mj=250, dram_mj=50, ane_mj=0)
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", library)
    chip = sensors.open_energy_counter("mps", "Apple M1 Max")
    assert (chip.joules(), chip.power_scope) == (1.8, "cpu+gpu+dram+ane")
    assert sensors.open_energy_counter("cpu", "Apple M1 Ultra").power_scope == "gpu+dram+ane"
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", apple_monitor())
    with pytest.raises(sensors.Unavailable, match="no energy counters"):
        sensors.open_energy_counter("mps", "Apple M9")


def test_an_unexpected_failure_makes_energy_unavailable(monkeypatch):
    def fails():
        raise ValueError("Unsupported or invalid energy unit provided: pJ")

    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", SimpleNamespace(AppleEnergyMonitor=fails))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(sensors.Unavailable, match="ValueError: Unsupported or invalid energy unit"):
        sensors.open_energy_counter("mps", "Apple M9")


@pytest.fixture
def zone(tmp_path, monkeypatch):
    """Writes one RAPL zone as sysfs shows it."""
    monkeypatch.setattr(sensors, "POWERCAP", tmp_path)

    def write(name, kind, microjoules, most=262_143_328_850):
        (tmp_path / name).mkdir(exist_ok=True)
        for file, value in (("name", kind), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
            (tmp_path / name / file).write_text(f"{value}\n")

    return write


def test_rapl_adds_packages_and_wraps_around_at_its_range(zone):
    zone("intel-rapl:0", "package-0", 900)
    zone("intel-rapl:1", "package-1", 5_000_000)
    zone("intel-rapl:0:0", "core", 77)
    zone("intel-rapl-mmio:0", "package-0", 77)
    counter = sensors.Rapl()
    assert counter.joules() == 0
    zone("intel-rapl:0", "package-0", 2_000_900)
    zone("intel-rapl:1", "package-1", 5_500_000)
    assert counter.joules() == pytest.approx(2.5)
    zone("intel-rapl:0", "package-0", 400, most=2_001_000)
    assert counter.joules() == pytest.approx(2.5 + 500e-6)


def test_rapl_without_permission_names_the_cure(zone, monkeypatch):
    with pytest.raises(sensors.Unavailable, match="virtual machines have none"):
        sensors.Rapl()
    zone("intel-rapl:0", "package-0", 1)

    def forbidden(package):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sensors.Rapl, "_count", staticmethod(forbidden))
    with pytest.raises(sensors.Unavailable, match=r"sudo chmod a\+r"):
        sensors.Rapl()


def test_a_cpu_reports_its_hottest_sensor(monkeypatch):
    cores = [SimpleNamespace(label="", current=degrees, high=None, critical=None) for degrees in (51.0, 55.5)]
    answers = {"sensors_temperatures": lambda: {"k10temp": cores, "nvme": [SimpleNamespace(current=99.0)]}}
    answers["cpu_freq"] = lambda: SimpleNamespace(current=3411.6, min=0.0, max=0.0)
    monkeypatch.setattr(sensors, "psutil", SimpleNamespace(**answers))
    monkeypatch.setattr(sys, "platform", "linux")
    assert read_cpu() == {"temperature_c": 55.5, "clock_mhz": 3412}
    monkeypatch.setattr(sensors, "psutil", None)
    assert read_cpu() == {}


class SystemLibrary:
    """notify(3) of libSystem: functions that write to their pointers and return 0."""

    def __init__(self, level, status=0):
        self.level, self.status, self.cancelled = level, status, []

    def notify_register_check(self, name, token):
        assert name == b"com.apple.system.thermalpressurelevel"
        ctypes.cast(token, ctypes.POINTER(ctypes.c_int))[0] = 42
        return self.status

    def notify_get_state(self, token, state):
        assert token.value == 42
        ctypes.cast(state, ctypes.POINTER(ctypes.c_uint64))[0] = self.level
        return 0

    def notify_cancel(self, token):
        self.cancelled.append(token.value)


@pytest.mark.parametrize(
    ("level", "status", "said"), [(0, 0, "nominal"), (2, 0, "heavy"), (9, 0, None), (1, 1_000_000, None)]
)
def test_thermal_pressure_is_named(level, status, said):
    library = SystemLibrary(level, status)
    assert read_thermal_pressure(library) == said
    assert library.cancelled == ([] if status else [42])

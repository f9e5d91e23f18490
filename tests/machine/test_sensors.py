"""Readers of hardware that is not here, on recorded replies of the true libraries' types."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from bench.machine import sensors


class NVMLError(Exception):
    pass


class Nvml:
    """pynvml, as it answers for some cards: handles are numbers here, opaque structures there."""

    NVMLError, NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = NVMLError, 0, 1
    names = ("NVIDIA H200",)
    millijoules = 5_000_123  # of type int, as all that it returns

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
        (("B", "A"), "", 1),  # CUDA's first is not NVML's: the name tells
        (("B", "A"), "0", 1),
        (("A", "A", "A"), "2", 2),
        (("A", "A", "A"), None, 0),
        (("A", "A"), "GPU-1234", 1),
        (("A as the driver calls it",), "", 0),
    ],
)
def test_the_card_that_runs_is_found(nvml, monkeypatch, names, visible, card):
    nvml.names = names
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sensors.open_nvidia("A").joules() == 5000.123 + card / 1000


@pytest.mark.parametrize(
    ("names", "visible", "why"),
    [
        (("A", "A"), "", "set CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (("A", "A", "B"), "1", "set CUDA_DEVICE_ORDER=PCI_BUS_ID"),  # CUDA's second may be NVML's first
        (("A",), "MIG-1234", "a MIG slice"),
    ],
)
def test_a_card_that_may_be_another_is_not_read(nvml, monkeypatch, names, visible, why):
    nvml.names = names
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(sensors.Unavailable, match=why):
        sensors.open_nvidia("A")


def test_unlike_cards_are_known_by_number_where_cuda_counts_by_place(nvml, monkeypatch):
    nvml.names = ("A", "A", "B")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert sensors.open_nvidia("A").joules() == 5000.124


def test_a_card_without_a_counter_says_so_and_is_read_otherwise(nvml):
    nvml.millijoules = None
    with pytest.raises(sensors.Unavailable, match="Not Supported"):
        sensors.open_energy_counter("cuda", "NVIDIA H200")
    assert sensors.open_nvidia("NVIDIA H200").read()["temperature_c"] == 61


@pytest.mark.parametrize(
    ("device", "package", "cure"),
    [("cuda", "pynvml", "pip install nvidia-ml-py"), ("mps", "zeus_apple_silicon", "pip install zeus-apple-silicon")],
)
def test_a_missing_package_is_named_with_its_cure(monkeypatch, device, package, cure):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(sensors.Unavailable, match=cure):
        sensors.open_energy_counter(device, "x")


def apple_metrics(**millijoules):
    """AppleEnergyMetrics: integers, or None where a chip has no such counter."""
    return SimpleNamespace(**dict.fromkeys(sensors.APPLE_PARTS.values()) | millijoules)


def test_an_apple_chip_adds_the_parts_that_it_has(monkeypatch):
    counted = apple_metrics(cpu_total_mj=1500, gpu_mj=250, dram_mj=50, ane_mj=0)
    monitor = SimpleNamespace(get_cumulative_energy=lambda: counted)
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", SimpleNamespace(AppleEnergyMonitor=lambda: monitor))
    monkeypatch.setattr(sys, "platform", "darwin")
    chip = sensors.open_energy_counter("mps", "Apple M1 Max")
    assert (chip.joules(), chip.power_scope) == (1.8, "cpu+gpu+dram+ane")
    with pytest.raises(sensors.Unavailable, match="no energy counters"):
        sensors.AppleChip(SimpleNamespace(get_cumulative_energy=apple_metrics))
    assert sensors.open_energy_counter("cpu", "Apple M1 Ultra").power_scope == "gpu+dram+ane"


def test_a_library_that_fails_otherwise_is_no_error(monkeypatch):
    def fails():
        raise ValueError("Unsupported or invalid energy unit provided: pJ")

    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", SimpleNamespace(AppleEnergyMonitor=fails))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(sensors.Unavailable, match="ValueError: Unsupported or invalid energy unit"):
        sensors.open_energy_counter("mps", "Apple M9")


@pytest.fixture
def zone(tmp_path):
    """Writes one RAPL zone as sysfs shows it."""

    def write(name, kind, microjoules, most=262_143_328_850):
        (tmp_path / name).mkdir(exist_ok=True)
        for file, value in (("name", kind), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
            (tmp_path / name / file).write_text(f"{value}\n")

    return write


def test_rapl_adds_packages_and_starts_again_at_its_range(tmp_path, zone):
    zone("intel-rapl:0", "package-0", 900)
    zone("intel-rapl:1", "package-1", 5_000_000)
    zone("intel-rapl:0:0", "core", 77)
    zone("intel-rapl-mmio:0", "package-0", 77)
    counter = sensors.Rapl(tmp_path)
    assert counter.joules() == 0
    zone("intel-rapl:0", "package-0", 2_000_900)
    zone("intel-rapl:1", "package-1", 5_500_000)
    assert counter.joules() == pytest.approx(2.5)
    zone("intel-rapl:0", "package-0", 400, most=2_001_000)
    assert counter.joules() == pytest.approx(2.5 + 500e-6)


def test_rapl_that_may_not_be_read_names_the_cure(tmp_path, zone, monkeypatch):
    with pytest.raises(sensors.Unavailable, match="virtual machines have none"):
        sensors.Rapl(tmp_path)
    zone("intel-rapl:0", "package-0", 1)

    def forbidden(package):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sensors.Rapl, "_count", staticmethod(forbidden))
    with pytest.raises(sensors.Unavailable, match=r"sudo chmod a\+r"):
        sensors.Rapl(tmp_path)


def test_a_cpu_shows_its_hottest_sensor(monkeypatch):
    cores = [SimpleNamespace(label="", current=degrees, high=None, critical=None) for degrees in (51.0, 55.5)]
    answers = {"sensors_temperatures": lambda: {"k10temp": cores, "nvme": [SimpleNamespace(current=99.0)]}}
    answers["cpu_freq"] = lambda: SimpleNamespace(current=3411.6, min=0.0, max=0.0)
    monkeypatch.setattr(sensors, "psutil", SimpleNamespace(**answers))
    monkeypatch.setattr(sys, "platform", "linux")
    assert sensors.Processor().read() == {"temperature_c": 55.5, "clock_mhz": 3412}
    monkeypatch.setattr(sensors, "psutil", None)
    assert sensors.Processor().read() == {}


class SystemLibrary:
    """notify(3) of libSystem: functions that fill what their pointers show and return 0."""

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
def test_thermal_pressure_is_told_in_words(level, status, said):
    library = SystemLibrary(level, status)
    assert sensors.read_thermal_pressure(library) == said
    assert library.cancelled == ([] if status else [42])

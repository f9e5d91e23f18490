"""Sensors of hardware that is not here, with fakes of the real libraries and recorded values."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from bench.host import meters, sensors
from bench.host.environment import find_card, find_cuda_version, hides_cards
from bench.host.sensors import read_cpu, read_thermal_pressure
from tests.host import driver


@pytest.fixture
def nvidia(monkeypatch, tmp_path):
    """Builds a driver and gives its path; the real pynvml loads it."""
    monkeypatch.delitem(sys.modules, "pynvml")
    pynvml = pytest.importorskip("pynvml")

    def call(**statuses):
        path = driver.build(tmp_path, **statuses)
        monkeypatch.setattr(pynvml, "CDLL", lambda name: ctypes.CDLL(path))
        return path

    return call


@pytest.mark.parametrize("reasons", ["EventReasons", "ThrottleReasons"])  # newer and older drivers
def test_an_nvidia_card_counts_millijoules(nvidia, reasons):
    nvidia(throttle=f"nvmlDeviceGetCurrentClocks{reasons}")
    card = sensors.NvidiaCard(*driver.SLOW)
    assert (card.joules(), card.power_scope) == (5000.123, "gpu board")
    why = "sw_power_cap hw_thermal_slowdown"
    assert card.read() == {"temperature_c": 61, "clock_mhz": 1980, "throttle_reasons": why}


@pytest.mark.parametrize(
    ("order", "visible", "card"),
    [
        (None, None, driver.FAST),  # CUDA's first card is in the second slot
        ("PCI_BUS_ID", None, driver.SLOW),
        (None, "1", driver.SLOW),
        ("PCI_BUS_ID", "1,0", driver.FAST),
        (None, "GPU-1111", driver.SLOW),
    ],
)
def test_the_card_that_runs_is_named_and_read(nvidia, monkeypatch, order, visible, card):
    for name, value in (("CUDA_DEVICE_ORDER", order), ("CUDA_VISIBLE_DEVICES", visible)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    library = nvidia()
    found = find_card(library)
    assert (found.name, found.uuid) == card
    assert (found.multiprocessors, found.capability) == ((128, 8.9) if card == driver.FAST else (3, 6.1))
    assert find_cuda_version(library) == 12
    assert not hides_cards(library)
    instruments = meters.open_instruments("cuda", found.name, found.uuid)
    assert instruments.joules() == 5000.123 + (1e9 if card == driver.FAST else 0)
    assert instruments.read()["temperature_c"] == 61 + (card == driver.FAST)


@pytest.mark.parametrize(
    ("visible", "statuses", "hides"),
    [
        *((visible, {}, True) for visible in ("", "-1", "2", "NoDevFiles")),
        ("0", {"cuda": 803}, False),  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: a driver that does not start hides nothing
    ],
)
def test_hidden_cards_are_told_from_missing_ones(nvidia, monkeypatch, visible, statuses, hides):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    library = nvidia(**statuses)
    assert find_card(library) is None
    assert hides_cards(library) == hides
    assert find_cuda_version("libno-such-driver.so") is None
    assert not hides_cards("libno-such-driver.so")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert not hides_cards(library)


def test_a_mig_slice_has_no_meters(nvidia, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-3333")
    found = find_card(nvidia())
    assert (found.name, found.uuid) == driver.SLICE
    why = meters.open_instruments("cuda", found.name, found.uuid).why_no_energy
    assert why.startswith("a MIG slice has no counter of its own")


def test_a_card_without_a_counter_still_has_a_temperature(nvidia):
    nvidia(energy=3)  # NVML_ERROR_NOT_SUPPORTED
    instruments = meters.open_instruments("cuda", *driver.FAST)
    assert instruments.counter is None
    assert "Not Supported" in instruments.why_no_energy
    assert instruments.read()["temperature_c"] == 62


@pytest.mark.parametrize(
    ("statuses", "uuid", "why"),
    [
        ({"energy": 4}, driver.SLOW[1], "Insufficient Permissions"),
        ({"nvml": 9}, driver.SLOW[1], "Driver Not Loaded"),
        ({}, driver.SLICE[1].replace("MIG", "GPU"), "Not Found"),
    ],
)
def test_what_the_driver_refuses_is_one_line(nvidia, statuses, uuid, why):
    nvidia(**statuses)
    found = meters.open_instruments("cuda", "x", uuid)
    assert found.why_no_energy.startswith(f"NVIDIA's management library reports: {why}")


@pytest.mark.parametrize(("device", "name"), [("cuda", "AMD Instinct MI300X"), ("xpu", "Intel Arc B580")])
def test_a_card_of_another_vendor_has_no_meters_and_not_the_cpus(monkeypatch, device, name):
    monkeypatch.setattr(sensors, "read_cpu", lambda: {"temperature_c": 99})
    instruments = meters.open_instruments(device, name, None)
    assert instruments.read() == {}
    assert instruments.why_no_energy.startswith(f"no energy counter is known for {name}")
    assert "pip install" not in instruments.why_no_energy


@pytest.mark.parametrize(
    ("device", "package", "fix"),
    [("cuda", "pynvml", "pip install nvidia-ml-py"), ("mps", "zeus_apple_silicon", "pip install zeus-apple-silicon")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, device, package, fix):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fix in meters.open_instruments(device, *driver.SLOW).why_no_energy


@pytest.fixture
def apple(monkeypatch):
    """Opens the instruments of a chip with these counters; AppleEnergyMetrics has None if a chip lacks one."""
    monkeypatch.setattr(sys, "platform", "darwin")

    def call(chip, device="mps", fails=None, **millijoules):
        def open_monitor():
            if fails:
                raise fails
            counted = SimpleNamespace(**dict.fromkeys(sensors.APPLE_PARTS.values()) | millijoules)
            return SimpleNamespace(get_cumulative_energy=lambda: counted)

        library = SimpleNamespace(AppleEnergyMonitor=open_monitor)
        monkeypatch.setitem(sys.modules, "zeus_apple_silicon", library)
        return meters.open_instruments(device, chip, None)

    return call


def test_an_apple_chip_adds_up_its_parts(apple):
    millijoules = {"cpu_total_mj": 1500, "gpu_mj": 250, "dram_mj": 50, "ane_mj": 0}
    counter = apple("Apple M1 Max", **millijoules).counter
    assert (counter.joules(), counter.power_scope) == (1.8, "cpu+gpu+dram+ane")
    assert apple("Apple M1 Ultra", "cpu", **millijoules).counter.power_scope == "gpu+dram+ane"


@pytest.mark.parametrize(
    ("fails", "why"), [(None, "no energy counters"), (ValueError("invalid energy unit: pJ"), "ValueError: invalid")]
)
def test_an_apple_chip_without_counters_is_told(apple, fails, why):
    assert why in apple("Apple M9", fails=fails).why_no_energy


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


def test_rapl_without_permission_names_the_fix(zone, monkeypatch):
    with pytest.raises(sensors.Unavailable, match="virtual machines have none"):
        sensors.Rapl()
    zone("intel-rapl:0", "package-0", 1)

    def forbidden(package):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sensors.Rapl, "_count", staticmethod(forbidden))
    with pytest.raises(sensors.Unavailable, match=r"sudo chmod a\+r"):
        sensors.Rapl()


def test_a_cpu_reports_its_hottest_sensor(monkeypatch):
    cores = [SimpleNamespace(current=degrees) for degrees in (51.0, 55.5)]
    answers = {"sensors_temperatures": lambda: {"k10temp": cores, "nvme": [SimpleNamespace(current=99.0)]}}
    answers["cpu_freq"] = lambda: SimpleNamespace(current=3411.6)
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

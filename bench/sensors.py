"""Readers of what the hardware says about itself: energy, heat, clocks. Each needs its package or permission.

A reader that cannot work raises Unavailable: why, and how to get it, in one line. Energy is a counter in joules
that only grows, from an unknown start: two readings and the time between them give watts.
"""

import ctypes
import os
import sys
from pathlib import Path

try:
    import psutil
except ImportError:
    psutil = None

POWERCAP = Path("/sys/class/powercap")  # https://docs.kernel.org/power/powercap/powercap.html
APPLE_PARTS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "gpu sram": "gpu_sram_mj", "dram": "dram_mj", "ane": "ane_mj"}
PRESSURE_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # libkern/OSThermalNotification.h


class Unavailable(Exception):
    """Why something cannot be read, and how to get it."""


def open_energy_counter(device, device_name):
    """What counts the energy of a device ("cpu", "cuda", "mps"); raises Unavailable.

    It has `joules()` and `power_scope`, what those joules were spent by.
    """
    if device == "cuda":
        counter = open_nvidia(device_name)
    elif sys.platform == "darwin":
        counter = open_apple()
    elif device == "cpu":
        counter = Rapl()
    else:
        raise Unavailable(f"nothing here reads the energy of {device}")
    counter.joules()
    return counter


def open_nvidia(device_name):
    try:
        import pynvml
    except ImportError:
        raise Unavailable("the package nvidia-ml-py is not installed: `pip install nvidia-ml-py`") from None
    return NvidiaCard(pynvml, device_name)


class NvidiaCard:
    """One card, through nvidia-ml-py. https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html"""

    power_scope = "gpu board"

    def __init__(self, nvml, device_name):
        self._nvml = nvml
        self._ask(nvml.nvmlInit)
        self._card = self._find(device_name)

    def _ask(self, function, *arguments):
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise Unavailable(f"NVIDIA's management library says: {error}") from None

    def _find(self, device_name):
        """The card that CUDA calls the first."""
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        if chosen.startswith("GPU-"):
            return self._ask(self._nvml.nvmlDeviceGetHandleByUUID, chosen)
        count = self._ask(self._nvml.nvmlDeviceGetCount)
        numbers = [int(chosen)] if chosen.isdigit() else range(count)
        cards = [self._ask(self._nvml.nvmlDeviceGetHandleByIndex, number) for number in numbers]
        # CUDA may count its cards in another order than NVML does: then the name tells.
        named = [card for card in cards if count == 1 or self._ask(self._nvml.nvmlDeviceGetName, card) == device_name]
        if len(named) != 1:
            raise Unavailable(f"which of {count} cards runs is not clear: set CUDA_VISIBLE_DEVICES to one number")
        return named[0]

    def joules(self):
        return self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._card) / 1000  # it counts millijoules

    def read(self):
        """Columns: degrees, MHz of the multiprocessors, and why the clock is not at its best."""
        nvml, card = self._nvml, self._card
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, card)
        return {
            "temperature_c": self._ask(nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
            "clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_SM),
            "throttle_reasons": " ".join(name for name, bit in REASONS.items() if reasons & bit),
        }


# nvmlClocksEventReason...: bits of nvmlDeviceGetCurrentClocksEventReasons(), in nvml.h
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}


def open_apple():
    try:
        from zeus_apple_silicon import AppleEnergyMonitor
    except ImportError:
        raise Unavailable(
            "the package zeus-apple-silicon is not installed: `pip install zeus-apple-silicon` (Python below 3.14)"
        ) from None
    try:
        return AppleChip(AppleEnergyMonitor())
    except RuntimeError as error:
        raise Unavailable(f"macOS does not show its energy counters: {error}") from None


class AppleChip:
    """The whole chip, by IOReport's estimates. https://github.com/ml-energy/zeus-apple-silicon"""

    def __init__(self, monitor):
        self._monitor = monitor
        counted = monitor.get_cumulative_energy()
        self._names = [name for part, name in APPLE_PARTS.items() if getattr(counted, name) is not None]
        self.power_scope = "+".join(part for part, name in APPLE_PARTS.items() if name in self._names)
        if not self._names:
            raise Unavailable("this Mac's chip shows no energy counters")

    def joules(self):
        counted = self._monitor.get_cumulative_energy()
        return sum(getattr(counted, name) for name in self._names) / 1000


class Rapl:
    """The CPU packages' counters in Linux, of Intel and AMD alike; each starts again at its range's end."""

    power_scope = "cpu package"

    def __init__(self, root=POWERCAP):
        zones = sorted(zone for zone in root.glob("intel-rapl:*") if zone.name.count(":") == 1)
        self._packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        if not self._packages:
            raise Unavailable(f"the system shows no energy counters in {root} (virtual machines have none)")
        try:
            self._last = [self._count(package) for package in self._packages]
        except PermissionError:
            raise Unavailable(f"`sudo chmod a+r {root}/intel-rapl:*/energy_uj` lets everybody read them") from None
        self._joules = 0.0

    def joules(self):
        for i, package in enumerate(self._packages):
            count = self._count(package)
            if count < self._last[i]:
                self._last[i] -= int((package / "max_energy_range_uj").read_text())
            self._joules += (count - self._last[i]) / 1e6
            self._last[i] = count
        return self._joules

    @staticmethod
    def _count(package):
        return int((package / "energy_uj").read_text())


class Processor:
    """A CPU's heat and clock where psutil can read them; a Mac shows neither without administrator's rights."""

    SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")

    def read(self):
        if psutil is None or sys.platform == "darwin":
            return {}
        sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        degrees = [sensor.current for name in self.SENSORS for sensor in sensors.get(name, ())]
        clock = psutil.cpu_freq()
        return {"temperature_c": max(degrees, default=None), "clock_mhz": round(clock.current) if clock else None}


def read_thermal_pressure(library=None):
    """A Mac's level, one of PRESSURE_LEVELS, from "heavy" on it is being slowed; None elsewhere. See notify(3)."""
    if library is None:
        if sys.platform != "darwin":
            return None
        library = ctypes.CDLL("/usr/lib/libSystem.dylib")
    token, level = ctypes.c_int(), ctypes.c_uint64()
    if library.notify_register_check(b"com.apple.system.thermalpressurelevel", ctypes.byref(token)):
        return None
    failed = library.notify_get_state(token, ctypes.byref(level))
    library.notify_cancel(token)
    return None if failed or level.value >= len(PRESSURE_LEVELS) else PRESSURE_LEVELS[level.value]

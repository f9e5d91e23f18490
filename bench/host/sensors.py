"""Read the hardware's sensors: energy counters, temperature, clock, thermal pressure.

Each sensor needs its own package or permission. If one is missing, Unavailable says why and how to get it. An energy
counter has `power_scope`, what it measures ("gpu board"), and joules(), a reading that only grows, from an unknown
start: two readings divided by the seconds between them are watts.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

try:
    import psutil
except ImportError:
    psutil = None

POWERCAP = Path("/sys/class/powercap")  # https://docs.kernel.org/power/powercap/powercap.html
APPLE_PARTS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "gpu sram": "gpu_sram_mj", "dram": "dram_mj", "ane": "ane_mj"}
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
PRESSURE_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # libkern/OSThermalNotification.h


class Unavailable(Exception):
    """Raised if a sensor cannot be read; the message says why and how to get it, in one line."""


class NvidiaCard:
    """Reads one card with nvidia-ml-py, by its UUID, because CUDA and NVML number cards differently.

    https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
    """

    power_scope = "gpu board"

    def __init__(self, device_name, uuid):
        if uuid is None:  # ROCm calls AMD's cards cuda as well
            raise Unavailable(f"no energy counter is known for {device_name}, which NVIDIA's driver does not know")
        if uuid.startswith("MIG"):
            raise Unavailable("a MIG slice has no counter of its own, and the board's counter includes other slices")
        try:
            import pynvml
        except ImportError:
            raise Unavailable("the package nvidia-ml-py is not installed: `pip install nvidia-ml-py`") from None
        self._nvml = pynvml
        self._ask(pynvml.nvmlInit)
        self._card = self._ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)

    def _ask(self, function, *arguments):
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise Unavailable(f"NVIDIA's management library reports: {error}") from None

    def joules(self):
        return self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._card) / 1000  # NVML counts millijoules

    def read(self):
        """Return columns: temperature, SM clock, and why that clock is below its maximum; None if not reported."""
        nvml, card = self._nvml, self._card
        reasons = self._try(nvml.nvmlDeviceGetCurrentClocksEventReasons, card)
        if reasons is None:  # drivers before release 535
            reasons = self._try(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, card)
        return {
            "clock_mhz": self._try(nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_SM),
            "temperature_c": self._try(nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": " ".join(name for name, bit in REASONS.items() if (reasons or 0) & bit),
        }

    def _try(self, function, *arguments):
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


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


class AppleChip:
    """Reads the energy of the whole chip, as IOReport estimates it. https://github.com/ml-energy/zeus-apple-silicon"""

    def __init__(self, chip_name):
        try:
            from zeus_apple_silicon import AppleEnergyMonitor
        except ImportError:
            raise Unavailable(
                "the package zeus-apple-silicon is not installed: `pip install zeus-apple-silicon` (needs an Apple "
                "chip and Python below 3.14)"
            ) from None
        self._monitor = AppleEnergyMonitor()
        counted = self._monitor.get_cumulative_energy()
        parts = {part: name for part, name in APPLE_PARTS.items() if getattr(counted, name) is not None}
        if "Ultra" in (chip_name or ""):  # two dies, and the package reads the CPU counters of only one
            parts.pop("cpu", None)
        if not parts:
            raise Unavailable("this Mac's chip has no energy counters")
        self._names, self.power_scope = list(parts.values()), "+".join(parts)

    def joules(self):
        counted = self._monitor.get_cumulative_energy()
        return sum(getattr(counted, name) for name in self._names) / 1000


class Rapl:
    """Reads Linux's counters of the CPU packages (Intel and AMD). Each wraps around at the end of its range."""

    power_scope = "cpu package"

    def __init__(self):
        zones = sorted(zone for zone in POWERCAP.glob("intel-rapl:*") if zone.name.count(":") == 1)
        self._packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        if not self._packages:
            raise Unavailable(f"there are no energy counters in {POWERCAP} (virtual machines have none)")
        try:
            self._last = [self._count(package) for package in self._packages]
        except PermissionError:
            raise Unavailable(f"no permission: `sudo chmod a+r {POWERCAP}/intel-rapl:*/energy_uj`") from None
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


def read_cpu():
    """Return columns: temperature and clock of the CPU, if psutil reads them; on a Mac that needs root."""
    if psutil is None or sys.platform == "darwin":
        return {}
    sensors = psutil.sensors_temperatures()
    degrees = [sensor.current for name in CPU_SENSORS for sensor in sensors.get(name, ())]
    clock = psutil.cpu_freq()
    return {"temperature_c": max(degrees, default=None), "clock_mhz": round(clock.current) if clock else None}


def read_thermal_pressure(library=None):
    """Return a Mac's thermal pressure, one of PRESSURE_LEVELS; None elsewhere. All but "nominal" slow it. notify(3)."""
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

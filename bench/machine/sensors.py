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
    try:
        if device == "cuda":
            counter = open_nvidia(device_name)
        elif sys.platform == "darwin":
            counter = open_apple(device_name)
        elif device == "cpu":
            counter = Rapl()
        else:
            raise Unavailable(f"nothing here reads the energy of {device}")
        counter.joules()
        return counter
    except Unavailable:
        raise
    except Exception as error:  # libraries of drivers and kernels have many ways to fail
        raise Unavailable(f"its counter cannot be read: {type(error).__name__}: {error}") from None


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
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if chosen.startswith("MIG") or " MIG " in (device_name or ""):
            raise Unavailable("a MIG slice has no counter of its own, and the board's has its neighbours' work in it")
        if chosen.startswith("GPU-"):
            return self._ask(self._nvml.nvmlDeviceGetHandleByUUID, chosen)
        numbers = range(self._ask(self._nvml.nvmlDeviceGetCount))
        cards = [self._ask(self._nvml.nvmlDeviceGetHandleByIndex, number) for number in numbers]
        if len(cards) == 1:
            return cards[0]
        names = [self._ask(self._nvml.nvmlDeviceGetName, card) for card in cards]
        # CUDA counts unlike cards by their speed, NVML by their place: then the name tells.
        same_order = len(set(names)) == 1 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if chosen.isdigit() and int(chosen) < len(cards) and same_order:
            return cards[int(chosen)]
        if names.count(device_name) == 1:
            return cards[names.index(device_name)]
        raise Unavailable(
            f"which of {len(cards)} cards runs is not clear: set CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES "
            "to one number"
        )

    def joules(self):
        return self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._card) / 1000  # it counts millijoules

    def read(self):
        """Columns, None where a card does not say: degrees, MHz of its multiprocessors, why that is not its best."""
        nvml, card = self._nvml, self._card
        # The second is what drivers before release 535 have.
        for ask in (nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetCurrentClocksThrottleReasons):
            reasons = self._try(ask, card)
            if reasons is not None:
                break
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


def open_apple(chip_name):
    try:
        from zeus_apple_silicon import AppleEnergyMonitor
    except ImportError:
        raise Unavailable(
            "the package zeus-apple-silicon is not installed: `pip install zeus-apple-silicon` (an Apple chip, and "
            "Python below 3.14)"
        ) from None
    return AppleChip(AppleEnergyMonitor(), chip_name)


class AppleChip:
    """The whole chip, by IOReport's estimates. https://github.com/ml-energy/zeus-apple-silicon"""

    def __init__(self, monitor, chip_name=None):
        self._monitor = monitor
        counted = monitor.get_cumulative_energy()
        parts = {part: name for part, name in APPLE_PARTS.items() if getattr(counted, name) is not None}
        if "Ultra" in (chip_name or ""):  # two dies, of whose CPU counters the package keeps the last one alone
            parts.pop("cpu", None)
        self._names, self.power_scope = list(parts.values()), "+".join(parts)
        if not parts:
            raise Unavailable("this Mac's chip shows no energy counters")

    def joules(self):
        counted = self._monitor.get_cumulative_energy()
        return sum(getattr(counted, name) for name in self._names) / 1000


class Rapl:
    """The CPU packages' counters in Linux, of Intel and AMD alike; each starts again at its range's end."""

    power_scope = "cpu package"

    def __init__(self, root=None):
        root = root or POWERCAP
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

"""Meter energy, heat and other programs during a measurement. All meters are optional; none can stop a measurement.

A sensor that cannot be read raises an exception whose text says why.
"""

import ctypes
import logging
import math
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from bench import process
from bench.host.environment import find_card, output_of, read_mac_chip, read_text
from bench.host.resources import USABLE_CPUS, read_quota, usable_cores

log = logging.getLogger("bench")

CONTENDED_SHARE = 0.10  # the part of the usable cores' time that other programs may take
SHARED_PERCENT = 20  # a card that is busier before the run is shared; a desktop at idle clocks needs more than 5
# Numbers for mallopt(): glibc then maps no block separately. Before 2.35 it ignores an MMAP_THRESHOLD above 32 MiB.
GLIBC_KEEPS = {"mmap_max": (-4, 0), "trim_threshold": (-1, -1)}
LEAST_PERIODS = 20  # between the first and the last change of a counter: each may be seen a period too late
APPLE_PARTS = {"cpu": "cpu_total_mj", "gpu": "gpu_mj", "gpu sram": "gpu_sram_mj", "dram": "dram_mj", "ane": "ane_mj"}
PRESSURE_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # libkern/OSThermalNotification.h
# nvmlClocksEventReason...: bits of nvmlDeviceGetCurrentClocksThrottleReasons(), in nvml.h
SLOWED_BY = {"hw_slowdown": 0x8, "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80}
REASONS = {"sw_power_cap": 0x4} | SLOWED_BY  # the power limit is normal under full load


def process_peak_bytes():
    """Return the peak resident memory of this process, in bytes."""
    # Linux's getrusage() also reports the peak of the parent process before fork and exec.
    if peak := re.search(r"^VmHWM:\s*(\d+) kB", read_text("/proc/self/status"), re.MULTILINE):
        return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_process_peak():
    """Return kept memory and reset the peak on Linux; elsewhere it covers the life of the process."""
    with suppress(AttributeError, OSError, TypeError):  # another library
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5)


def keep_freed_memory(environ=os.environ):
    """Let glibc keep what is freed, here and in workers, unless the user has set this: steps need no new pages then."""
    for name, (parameter, value) in GLIBC_KEEPS.items():
        variable = f"MALLOC_{name.upper()}_"
        if variable not in environ and name not in environ.get("GLIBC_TUNABLES", ""):
            with suppress(AttributeError, OSError, TypeError):  # another library
                ctypes.CDLL(None).mallopt(parameter, value)
                environ[variable] = str(value)  # a forked worker inherits the former, a spawned one reads this


def count_swapped():
    """Return the bytes written to swap since the system started; on a Mac, the pages."""
    if sys.platform != "darwin":
        return psutil.swap_memory().sout
    # psutil's `sout` also counts pages written to files, and psutil 7.2.2 reads neither on macOS 27.
    return int(re.findall(r"^Swapouts: +(\d+)", output_of("vm_stat") or "", re.MULTILINE)[0])


def others_cpu_seconds():
    """Return the CPU seconds of all other processes since boot, including time stolen by other virtual machines.

    Only the CPUs that this process may use count. NaN if its quota is less: other containers may use the rest of each.
    """
    if read_quota() < len(USABLE_CPUS):
        return math.nan
    times = psutil.cpu_times(percpu=True)
    online = re.findall(r"^cpu(\d+)", read_text("/proc/stat"), re.MULTILINE) or range(len(times))  # may have gaps
    used = (t for cpu, t in zip(online, times, strict=False) if int(cpu) in USABLE_CPUS)
    # From the ninth on, Linux's times are those of guests, which are also in the user's.
    seconds = sum(sum(t[:8]) - t.idle - getattr(t, "iowait", 0.0) for t in used)
    # The parent of this process is also that of the other ranks of this machine, and of those that it is compared with.
    root = psutil.Process().parent()
    for ours in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended, so its parent's times include it
            seconds -= sum(ours.cpu_times()[:4])  # user and system time, its own and its ended children's
    return seconds


def read_or(otherwise, read):
    """Return what a sensor reads; if it fails, log why and return `otherwise`."""
    try:
        return read()
    except Exception as error:
        log.info("a sensor cannot be read: %s: %s", type(error).__name__, error)
        return otherwise


@dataclass(frozen=True)
class Instruments:
    """The sensors of one device."""

    joules: Callable[[], float] | None = None  # an energy counter, which grows from an unknown start
    power_scope: str = ""  # what it measures: "gpu board"
    period: float = 0.1  # seconds between two changes of it
    read: Callable[[], dict] = dict  # () -> columns about heat; if one fails, all are lost
    is_shared: bool = False  # whether other programs used the device before this process did


class Watch:
    """Meters energy, and notices heat, other programs and swapping, between start() and stop()."""

    def __init__(self, instruments, clock=time.perf_counter):
        self.instruments = instruments
        self.clock = clock
        self.joules = math.nan  # the counter's last reading
        self.changes = []  # (seconds, joules, items) at the first and at the last change of the counter

    def start(self):
        self.began = self.clock()
        self.look(0)
        self.others = read_or(math.nan, others_cpu_seconds)
        self.swapped = read_or(math.nan, count_swapped)

    def look(self, items):
        """Read the energy counter between two windows, after these items since start()."""
        if self.instruments.joules:
            joules = read_or(math.nan, self.instruments.joules)
            if joules > self.joules:  # not of NaN: there was no earlier reading
                self.changes = [*self.changes[:1], (self.clock(), joules, items)]
            self.joules = joules

    def stop(self, reads_sensors=True):
        """Return (flags of what it noticed, {column: reading} of the sensors and, if that is exact, of the counter).

        Heat is read first: a GPU's clock changes as soon as the work ends.
        """
        readings = read_or({}, self.instruments.read) if reads_sensors else {}
        pressure, reasons = (readings.get(name, "") for name in ("thermal_pressure", "throttle_reasons"))
        # An unknown counter is NaN, which is not greater.
        self.cores = (read_or(math.nan, others_cpu_seconds) - self.others) / (self.clock() - self.began)  # others'
        noticed = {
            "throttled": pressure not in ("", "nominal") or not SLOWED_BY.keys().isdisjoint(reasons.split()),
            "contended": self.cores > CONTENDED_SHARE * usable_cores() or self.instruments.is_shared,
            "swapping": read_or(math.nan, count_swapped) > self.swapped,
        }
        if len(self.changes) == 2:
            seconds, joules, items = (after - before for before, after in zip(*self.changes, strict=True))
            if seconds >= LEAST_PERIODS * self.instruments.period:
                energy = {"power_watts": joules / seconds, "joules_per_item": joules / items}
                readings = readings | energy | {"power_scope": self.instruments.power_scope}
        return [flag for flag, is_noticed in noticed.items() if is_noticed], readings


def open_nvidia_card(device_name):
    """Return the Instruments of the first card of CUDA_VISIBLE_DEVICES. https://docs.nvidia.com/deploy/nvml-api/"""
    import pynvml

    found = find_card()
    if found is None or found.name != device_name:  # AMD's card, or cards in another order
        raise OSError(f"nvidia-smi does not report {device_name} as the first card")
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(int(found.index))
    busy = read_or(0, lambda: pynvml.nvmlDeviceGetUtilizationRates(card).gpu)  # in up to a second

    def read():
        """Return columns: SM clock and the highest one, temperature, and the REASONS why that clock is low."""
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(card)  # drivers before 535 lack the newer name
        return {
            "clock_mhz": pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
            "highest_clock_mhz": pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_SM),
            "temperature_c": pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": " ".join(name for name, bit in REASONS.items() if reasons & bit),
        }

    joules = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1000  # noqa: E731
    return Instruments(joules, "gpu board", read=read, is_shared=busy > SHARED_PERCENT)


def open_apple_chip():
    """Return the Instruments of a Mac's whole chip, whose energy IOReport estimates.

    https://github.com/ml-energy/zeus-apple-silicon
    """
    from zeus_apple_silicon import AppleEnergyMonitor

    count = AppleEnergyMonitor().get_cumulative_energy
    counted = count()
    parts = [part for part, name in APPLE_PARTS.items() if getattr(counted, name) is not None]
    if "Ultra" in (read_mac_chip() or ""):  # two dies: up to version 1.1, the package reads one's CPU counters
        parts = [part for part in parts if part != "cpu"]

    def joules():
        counted = count()
        return sum(getattr(counted, APPLE_PARTS[part]) for part in parts) / 1000

    # macOS 27 publishes all but the GPU's every 0.5 to 2.2 s (lablup/all-smi, 410 and 424).
    version = output_of("sw_vers", "-productVersion") or "0"
    period = 2.2 if int(version.partition(".")[0]) >= 27 else 0.1
    return Instruments(joules, "+".join(parts), period, read_thermal_pressure)


def read_thermal_pressure():
    """Return the column of a Mac's thermal pressure, one of PRESSURE_LEVELS; all but "nominal" slow it."""
    printed = output_of("notifyutil", "-g", "com.apple.system.thermalpressurelevel") or ""  # notify(3)
    return {"thermal_pressure": PRESSURE_LEVELS[int(printed.rpartition(" ")[2])]}


def open_instruments(device, device_name):
    """Return the Instruments of a device ("cpu", "cuda", "mps" ...); log why energy cannot be measured."""
    instruments = Instruments(read=read_thermal_pressure if sys.platform == "darwin" else dict)
    try:
        if device == "cuda":
            instruments = open_nvidia_card(device_name)
        elif sys.platform == "darwin":
            instruments = open_apple_chip()
        if instruments.joules:
            instruments.joules()
    except Exception as error:  # drivers and kernels fail in many ways
        log.info("power and energy are not measured: %s", process.explain(error) or type(error).__name__)
        return replace(instruments, joules=None)  # a card without an energy counter tells its heat
    return instruments

"""What else the machine was doing: each meter is optional, and none of them stops a measurement.

A watch is what measure() takes: start() before the first window, flags() after the last.
"""

import logging
import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.machine import sensors

try:
    import psutil
except ImportError:  # the flags of its meters are then never raised
    psutil = None

log = logging.getLogger("bench")

CONTENDED_CORES = 0.10
IDLE_SECONDS = 5.0
# NVML's other reasons for a lower clock are the power limit of hard work, and what somebody asked for.
SLOWED_BY = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
SLOWED_AT = ("heavy", "trapping", "sleeping")


def process_peak_bytes():
    """The most memory that this process has had resident, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # KiB on Linux, bytes on macOS: getrusage(2)


def reset_process_peak():
    """Forget the peak so far, on Linux; elsewhere it covers the whole process. See proc_pid_clear_refs(5)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def available_bytes():
    """Memory that is free or can be freed without swapping; None where nothing says."""
    return psutil.virtual_memory().available if psutil else None


class ContentionWatch:
    """Flags `contended` when other processes take over a tenth of a core.

    Time stolen by a hypervisor's other guests counts as theirs too.
    """

    def __init__(self, clock=time.perf_counter, cpu_seconds=None):
        self._clock = clock
        self._cpu_seconds = cpu_seconds or others_cpu_seconds

    def start(self):
        self._start = self._clock(), self._cpu_seconds()

    def flags(self):
        clock, cpu_seconds = self._start
        share = (self._cpu_seconds() - cpu_seconds) / (self._clock() - clock)
        return ["contended"] if share > CONTENDED_CORES else []


def others_cpu_seconds():
    """CPU seconds since the start of the system that were not spent by this process and its children."""
    everything = psutil.cpu_times()
    idle = everything.idle + getattr(everything, "iowait", 0.0)
    # Linux counts the time of guests twice, as their own and as user time.
    twice = getattr(everything, "guest", 0.0) + getattr(everything, "guest_nice", 0.0)
    return sum(everything) - idle - twice - sum(own_cpu_seconds())


def own_cpu_seconds():
    me = psutil.Process()
    yield sum(me.cpu_times()[:4])  # user, system, and both of the children that have ended
    for child in me.children(recursive=True):
        try:
            yield sum(child.cpu_times()[:4])
        except psutil.Error:  # it ended meanwhile and is counted above
            continue


class SwapWatch:
    """Flags `swapping` when the system wrote memory out to disk."""

    def __init__(self, swapped_bytes=None):
        # psutil's `sout` on a Mac are pages written to files, not what went to swap.
        field = "used" if sys.platform == "darwin" else "sout"
        self._swapped_bytes = swapped_bytes or (lambda: getattr(psutil.swap_memory(), field))

    def start(self):
        self._start = self._swapped_bytes()

    def flags(self):
        return ["swapping"] if self._swapped_bytes() > self._start else []


class HeatWatch:
    """Reads degrees, clock and thermal pressure after the last window; flags `throttled` where one says so."""

    def __init__(self, read, read_pressure=sensors.read_thermal_pressure):
        self._read, self._read_pressure = read, read_pressure

    def start(self):
        self.columns = {}

    def flags(self):
        self.columns = self._read() | {"thermal_pressure": self._read_pressure()}
        slowed = set(SLOWED_BY) & set(self.columns.get("throttle_reasons", "").split())
        return ["throttled"] if slowed or self.columns["thermal_pressure"] in SLOWED_AT else []


class Guard:
    """A watch whose failures stop nothing: drivers and kernels have many ways to fail."""

    def __init__(self, watch):
        self._watch, self._works = watch, True

    def start(self):
        self._call(self._watch.start)

    def flags(self):
        return self._call(self._watch.flags) or []

    @property
    def columns(self):
        return getattr(self._watch, "columns", {})

    def _call(self, function):
        if not self._works:
            return None
        try:
            return function()
        except Exception as error:
            self._works = False
            log.info("%s sees nothing: %s: %s", type(self._watch).__name__, type(error).__name__, error)


@dataclass(frozen=True)
class Instruments:
    """The meters of one device."""

    counter: object = None  # of energy, as sensors.py has them
    read: Callable[[], dict] = dict  # columns of heat and clock
    idle_watts: float | None = None

    def watches(self):
        """New ones, for measure()."""
        # Heat first: a GPU's clock and its reasons are those of the moment.
        watches = (HeatWatch(self.read), *((ContentionWatch(), SwapWatch()) if psutil else ()))
        return tuple(map(Guard, watches))

    def joules(self):
        """The energy counter's reading, NaN where it fails: what is computed from that is unknown."""
        try:
            return self.counter.joules()
        except Exception as error:
            log.info("no energy: %s", error)
            return math.nan


def open_heat_reader(device, device_name):
    """A function that gives the columns of heat and clock, as far as they can be had."""
    try:
        return sensors.open_nvidia(device_name).read if device == "cuda" else sensors.Processor().read
    except sensors.Unavailable:
        return dict


def open_instruments(device, device_name, clock=time.perf_counter, sleep=time.sleep):
    """The Instruments of a device ("cpu", "cuda", "mps") that does nothing yet; says what is missing, and the cure."""
    read = open_heat_reader(device, device_name)
    try:
        counter = sensors.open_energy_counter(device, device_name)
    except sensors.Unavailable as why:
        log.info("power and energy stay blank: %s", why)
        return Instruments(read=read)
    instruments = Instruments(counter, read)
    start, before = clock(), instruments.joules()
    sleep(IDLE_SECONDS)
    watts = (instruments.joules() - before) / (clock() - start)
    return replace(instruments, idle_watts=None if math.isnan(watts) else watts)

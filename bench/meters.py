"""What else the machine was doing: each meter is optional, and none of them stops a measurement.

A watch is what measure() takes: start() before the first window, flags() after the last.
"""

import logging
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import sensors

try:
    import psutil
except ImportError:  # the flags of its meters are then never raised
    psutil = None

log = logging.getLogger("bench")

CONTENDED_CORES = 0.10
IDLE_SECONDS = 3.0
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
        self._swapped_bytes = swapped_bytes or (lambda: psutil.swap_memory().sout)

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
        try:
            self.columns = self._read() | {"thermal_pressure": self._read_pressure()}
        except Exception as error:  # drivers and kernels have many ways to fail
            log.info("no temperature: %s", error)
            return []
        slowed = set(SLOWED_BY) & set(self.columns.get("throttle_reasons", "").split())
        return ["throttled"] if slowed or self.columns["thermal_pressure"] in SLOWED_AT else []


@dataclass(frozen=True)
class Instruments:
    """The meters of one device."""

    counter: object = None  # of energy, as sensors.py has them
    read: Callable[[], dict] = dict  # columns of heat and clock
    idle_watts: float | None = None

    def watches(self):
        """New ones, for measure()."""
        return (*((ContentionWatch(), SwapWatch()) if psutil else ()), HeatWatch(self.read))

    @property
    def joules(self):
        """The energy counter's reading, as a function; None where there is none."""
        return self.counter.joules if self.counter else None


def open_instruments(device, device_name, clock=time.perf_counter, sleep=time.sleep):
    """The Instruments of a device ("cpu", "cuda", "mps") that does nothing yet; says what is missing, and the cure."""
    try:
        read = sensors.open_nvidia(device_name).read if device == "cuda" else sensors.Processor().read
    except sensors.Unavailable:
        read = dict
    try:
        counter = sensors.open_energy_counter(device, device_name)
    except sensors.Unavailable as why:
        log.info("power and energy stay blank: %s", why)
        return Instruments(read=read)
    start, before = clock(), counter.joules()
    sleep(IDLE_SECONDS)
    return Instruments(counter, read, (counter.joules() - before) / (clock() - start))
